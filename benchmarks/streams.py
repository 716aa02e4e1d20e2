"""Long streams of tasks: how long a plan takes, how that grows, and what more starts buy.

    python benchmarks/streams.py        prints the tables, writes benchmarks/results/streams.*
    python benchmarks/streams.py size   makes one table again: size, hidden, tasks, steps, workers,
                                        plan, starts

Ten tasks that arrive one after another, with teachers that drift (γ = 0.5), K = T, from fresh
weights. "starts" takes a quarter of an hour, the others a few minutes.
"""

import multiprocessing
import sys
import time
import tracemalloc

import numpy as np

import replan
from common import best_times, save
from replan.control.discretised import Controls, DiscretisedObjective
from replan.control.multistart import descend_from
from replan.control.relax import TOLERANCE, Relax
from replan.control.search import Search
from replan.progress import Meter

RANDOM = 8  # starts


def stream(tasks: int, steps: int = 240, seed: int = 0) -> replan.Problem:
    model = replan.TeacherStudent.stream(tasks, 0.5, hidden=tasks, teachers="drift")
    arrivals = 10.0 * np.arange(tasks)
    start = model.fresh(seed=seed)
    return replan.Problem(model, start, duration=10.0 * tasks, steps=steps, arrivals=arrivals)


def plan() -> dict:
    """Seconds and work of one plan of ten tasks."""
    problem = stream(10, 250)
    begin = time.perf_counter()
    found = replan.solve(problem)
    return {
        "tasks": 10,
        "seconds": time.perf_counter() - begin,
        "gradients": found.statistics["gradients"],
        "roll-outs": found.statistics["roll_outs"],
        "loss": found.loss,
        "relaxed loss": found.certificate.relaxed_value,
        "status": found.status,
    }


def coarse_values(problem: replan.Problem, workers: int, starts: int = RANDOM) -> tuple:
    """Return the relaxed values on few steps from random starts, and seconds without beginning."""
    search = Search(problem, None, 100_000, Meter(False, ""), workers)
    search.begin(starts, 0)
    enough = 20 * search.enough(TOLERANCE)
    solver = Relax(starts)
    chosen = solver._promising(search)[:starts]
    begin = time.perf_counter()
    ends = descend_from(
        chosen, search, lambda grid, start: solver._descent(search, grid, start, enough), 60
    )
    return [end.value for end in ends], time.perf_counter() - begin


def starts(tasks: int) -> dict:
    """Return what random starts reach: the best of all, of the first few, and their spread."""
    values, _ = coarse_values(stream(tasks, 250 if tasks == 10 else 240), 2)
    best = min(values)
    firsts = {f"best of {n}": min(values[:n]) / best - 1 for n in (1, 2, 4)}
    return {"tasks": tasks, "best": best, **firsts, "worst": max(values) / best - 1}


def gradient_cost(tasks: int, hidden: int, steps: int, repeats: int) -> tuple[float, float]:
    """Return the seconds and the peak of new memory, in MB, of a value and gradient."""
    model = replan.TeacherStudent.stream(tasks, 0.5, hidden=hidden)
    problem = replan.Problem(model, model.fresh(seed=0), duration=0.1 * steps, steps=steps)
    objective = DiscretisedObjective(problem, steps, accuracy=1.0)
    assert objective.substeps == 1
    knobs = model.layout.rows(problem.knob_values, steps)
    controls = Controls(np.full((steps, tasks), 1 / tasks), knobs)
    objective.gradient(controls)
    [seconds] = best_times(
        lambda: objective.gradient(controls), repeats=repeats, clock=time.process_time
    )
    tracemalloc.start()
    objective.gradient(controls)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return seconds, peak / 1e6


def with_exponents(rows: list[dict], by: str, names: list[str]) -> list[dict]:
    """Return rows, and one with the slopes of the last four of them on double logarithmic axes."""
    last = rows[-4:]
    slopes = {
        name: float(
            np.polyfit(np.log([r[by] for r in last]), np.log([r[name] for r in last]), 1)[0]
        )
        for name in names
    }
    return [*rows, {by: "exponent", **slopes}]


def by_size(name: str, sizes: list[int], tasks: int | None, hidden: int | None) -> list[dict]:
    """Return the cost of a gradient for several sizes, which stand for what is None."""
    rows = []
    for n in sizes:
        seconds, _ = gradient_cost(tasks or n, hidden or n, 10, 3 if n > 10 else 9)
        rows.append({name: n, "ms per step": 1e3 * seconds / 10})
    return with_exponents(rows, name, ["ms per step"])


def steps() -> list[dict]:
    rows = []
    for count in (125, 250, 500, 1000, 2000):
        seconds, peak = gradient_cost(4, 4, count, 5)
        rows.append({"steps": count, "ms": 1e3 * seconds, "MB": peak})
    return with_exponents(rows, "steps", ["ms", "MB"])


def count_up() -> None:
    total = 0
    for i in range(8_000_000):
        total += i


def together(processes: int) -> float:
    """Return the seconds in which so many processes count up side by side."""
    running = [multiprocessing.Process(target=count_up) for _ in range(processes)]
    begin = time.perf_counter()
    for process in running:
        process.start()
    for process in running:
        process.join()
    return time.perf_counter() - begin


def workers(tasks: int) -> dict:
    """How much faster two workers descend from eight random starts than one, in the best of runs.

    Beside it, in the same run, how much more two processes get done than one: other work on the
    machine takes from both.
    """
    problem = stream(tasks)
    replan.solve(problem, starts=0, max_gradients=2)
    rows = []
    for _ in range(5):
        values, alone = coarse_values(problem, 1)
        one = together(1)
        same, both = coarse_values(problem, 2)
        assert same == values, "the result depends on the workers"
        peer = 2 * one / together(2)
        rows.append(
            {
                "tasks": tasks,
                "1 worker s": alone,
                "2 workers s": both,
                "ratio": alone / both,
                "processes": peer,
            }
        )
    return max(rows, key=lambda row: row["ratio"])


def main() -> None:
    makers = {
        "size": lambda: by_size("K = T", [2, 3, 4, 6, 8, 10, 14, 20], None, None),
        "hidden": lambda: by_size("K", [2, 4, 8, 10, 14, 20], 4, None),
        "tasks": lambda: by_size("T", [2, 4, 8, 10, 14, 20], None, 4),
        "steps": steps,
        "workers": lambda: [workers(tasks) for tasks in (4, 6)],
        "plan": lambda: [plan()],
        "starts": lambda: [starts(tasks) for tasks in (4, 6, 10)],
    }
    save("streams", {name: makers[name]() for name in sys.argv[1:] or makers})


if __name__ == "__main__":
    main()
