"""`solve` against what people use: plain C, CasADi, a numpy forward-backward sweep.

    python benchmarks/solve.py           prints the tables, writes benchmarks/results/solve.*
    python benchmarks/solve.py gradient  makes one table again: gradient, steps, size, solve, sweep

One problem for all peers: K = T = 2, γ = 0.3, after 1,000 units on task 1, 25 more in 250 steps
(tests/data/two_tasks_k2.json). Needs CasADi (extra `bench`) and a C compiler; takes half an hour,
most of it the numpy sweep.
"""

import ctypes
import json
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import casadi_peer
import replan
import sweep_peer
from common import HERE, best_times, compile_peer, pointers, save
from replan.control.discretised import Controls, DiscretisedObjective

REPEATS = 3  # of what is slow


def shared_problem() -> replan.Problem:
    content = json.loads((HERE.parent / "tests" / "data" / "two_tasks_k2.json").read_text())
    model = replan.TeacherStudent(content["teacher_overlaps"], hidden=content["hidden"])
    return replan.Problem(model, replan.Overlaps(**content["start"]), duration=25.0)


def similar_tasks(K: int) -> replan.Problem:
    model = replan.TeacherStudent.similar(0.3, tasks=K, hidden=K)
    return replan.Problem(model, model.pretrain(seed=1, duration=300.0), duration=25.0)


def gradient_against_c(peer: ctypes.CDLL, problem: replan.Problem) -> dict:
    """Milliseconds for value and gradient, and for the forward roll-out alone in plain C."""
    model, n = problem.model, problem.steps
    T = model.tasks
    objective = DiscretisedObjective(problem, n)
    objective.substeps = 1  # as in C
    controls = Controls(np.full((n, T), 1 / T), np.ones((n, 3 * T)))
    states = np.zeros((n + 1, problem.state.size))
    states[0] = problem.state
    rates, ones = np.ones((n, T)), np.ones(T)
    S, A = model.teacher_overlaps, model.teacher_heads

    def run_c():
        rows, shares, lr, lengths, head_lr, overlaps, heads = pointers(
            states, controls.shares, rates, objective.lengths, ones, S, A
        )
        noise = ctypes.c_double(0.0)
        peer.roll_out(n, rows, shares, lr, lengths, noise, head_lr, T, T, T, overlaps, heads)

    run_c()
    assert np.allclose(states, objective.gradient(controls).states, rtol=1e-11, atol=1e-13)
    both, forward = best_times(lambda: objective.gradient(controls), run_c, repeats=40)
    return {
        "K = T": T,
        "value and gradient ms": 1e3 * both,
        "forward in C ms": 1e3 * forward,
        "ratio": both / forward,
    }


def timed(function) -> tuple[float, object]:
    begin = time.perf_counter()
    result = function()
    return time.perf_counter() - begin, result


def whole_problem(problem: replan.Problem, name: str, peer, repeats: int) -> list[dict]:
    """Seconds and losses of `solve` and of a peer on the whole problem; losses from `evaluate`."""
    replan.solve(problem)
    ours, theirs = [], []
    for _ in range(repeats):  # alternately
        ours += [timed(lambda: replan.solve(problem.changed())) for _ in range(3)]  # a new one
        theirs.append(timed(lambda: peer(problem)))
    fastest, plan = min(ours, key=lambda pair: pair[0])
    seconds, found = min(theirs, key=lambda pair: pair[0])
    return [
        {
            "peer": "replan.solve",
            "seconds": fastest,
            "times ours": 1.0,
            "loss": f"{plan.loss:.8f}",
            "relaxed loss": f"{plan.certificate.relaxed_value:.8f}",
            "iterations": f"{plan.statistics['gradients']} gradients",
            "ended": plan.status,
        },
        {
            "peer": name,
            "seconds": seconds,
            "times ours": seconds / fastest,
            "loss": f"{replan.evaluate(problem, found.protocol).loss:.8f}",
            "relaxed loss": "",
            "iterations": found.iterations,
            "ended": found.status,
        },
    ]


def by_steps(problem: replan.Problem, steps: int) -> dict:
    finer = replan.Problem(problem.model, problem.start, duration=25.0, steps=steps)
    return {"steps": steps, **_cost(finer)}


def by_size(K: int) -> dict:
    return {"K = T": K, **_cost(similar_tasks(K))}


def _cost(problem: replan.Problem) -> dict:
    seconds, plan = min(
        (timed(lambda: replan.solve(problem)) for _ in range(2)), key=lambda x: x[0]
    )
    statistics = plan.statistics
    return {
        "seconds": seconds,
        "gradients": statistics["gradients"],
        "roll-outs": statistics["roll_outs"],
        "loss": plan.loss,
        "relaxed loss": plan.certificate.relaxed_value,
        "status": plan.status,
    }


def main() -> None:
    problem = shared_problem()
    with tempfile.TemporaryDirectory() as folder:
        peer = compile_peer(Path(folder))
        makers = {
            "gradient": lambda: [
                gradient_against_c(peer, each)
                for each in (problem, similar_tasks(4), similar_tasks(8))
            ],
            "steps": lambda: [by_steps(problem, n) for n in (250, 500, 1000, 2000, 4000)],
            "size": lambda: [by_size(K) for K in (2, 3, 4, 5, 6)],
            "solve": lambda: whole_problem(problem, "CasADi", casadi_peer.solve, REPEATS),
            "sweep": lambda: whole_problem(problem, "numpy sweep", sweep_peer.solve, 1),
        }
        tables = {name: makers[name]() for name in sys.argv[1:] or makers}
    tables = save("solve", tables)
    [gradient, *_] = tables["gradient"]
    assert gradient["ratio"] <= 4, "the gradient takes more than four roll-outs"
    for name in ("solve", "sweep"):
        ours, theirs = tables[name]
        assert theirs["times ours"] >= 50, f"{theirs['peer']} is too close"
        assert ours["loss"] <= theirs["loss"], f"{theirs['peer']} ends lower"


if __name__ == "__main__":
    main()
