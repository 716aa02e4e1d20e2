"""Ensembles: how the cost of a plan grows with its members, what a second core is worth, memory.

    python benchmarks/ensembles.py        prints the tables, writes benchmarks/results/ensembles.*
    python benchmarks/ensembles.py plan   makes one table again (members, cores, plan)

The paper's problem (K = T = 2, γ = 0.3, 25 units in 250 steps after 1,000 on task 1), a member for
each initialisation.
"""

import resource
import sys
import time
import tracemalloc
from functools import cache

import numpy as np

import replan
from common import best_times, save
from replan.control.discretised import Controls, DiscretisedObjective
from replan.core import threads
from streams import together, with_exponents


@cache
def member(seed: int) -> replan.Problem:
    model = replan.TeacherStudent.similar(0.3, hidden=2)
    return replan.Problem(model, model.pretrain(duration=1000.0, seed=seed), duration=25.0)


def ensemble(count: int, risk: str | float = "mean") -> replan.Problem:
    return replan.Problem.ensemble([member(seed) for seed in range(count)], risk=risk)


def gradient(count: int):
    """Return a function that computes a value and gradient on the plan's own grid."""
    objective = DiscretisedObjective(ensemble(count), 250)
    knobs = objective.model.layout.rows(objective.problem.knob_values, 250)
    controls = Controls(np.full((250, 2), 0.5), knobs)
    objective.gradient(controls)
    return lambda: objective.gradient(controls)


def members() -> list[dict]:
    rows = []
    for count in (1, 4, 16, 64, 256):
        one = gradient(count)
        [seconds] = best_times(one, repeats=5)
        tracemalloc.start()
        one()
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        rows.append({"members": count, "ms": 1e3 * seconds, "MB": peak / 1e6})
    return with_exponents(rows, "members", ["ms", "MB"])


def cores(count: int = 64) -> dict:
    """How much faster two cores are than one: the least of several times of each, in turn.

    Beside it, in the same run, how much more two processes get done than one: other work on the
    machine takes from both.
    """
    one = gradient(count)

    def on(used: int) -> None:
        threads.free_cores = lambda: used
        one()

    alone, both = best_times(lambda: on(1), lambda: on(2), repeats=15)
    single, double = best_times(lambda: together(1), lambda: together(2), repeats=3)
    return {
        "members": count,
        "1 core ms": 1e3 * alone,
        "2 cores ms": 1e3 * both,
        "ratio": alone / both,
        "processes": 2 * single / double,
    }


def plan(count: int, risk: str | float) -> dict:
    posed = ensemble(count, risk)
    begin, used = time.perf_counter(), time.process_time()
    found = replan.solve(posed)
    return {
        "members": count,
        "risk": str(risk),
        "seconds": time.perf_counter() - begin,
        "cpu seconds": time.process_time() - used,
        "gradients": found.statistics["gradients"],
        "roll-outs": found.statistics["roll_outs"],
        "loss": found.loss,
        "status": found.status,
        "peak MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
    }


def plans() -> list[dict]:
    replan.solve(ensemble(2), starts=0, max_gradients=2)
    sizes = [(64, "mean"), (64, 0.25), (64, "worst"), (256, "mean")]
    return [plan(count, risk) for count, risk in sizes]


def main() -> None:
    makers = {"members": members, "cores": lambda: [cores()], "plan": plans}
    save("ensembles", {name: makers[name]() for name in sys.argv[1:] or makers})


if __name__ == "__main__":
    main()
