"""`solve` against what people use: plain C, CasADi, a numpy forward-backward sweep.

    python benchmarks/solve.py           prints the tables, writes benchmarks/results/solve.*
    python benchmarks/solve.py gradient  makes one table again (gradient, steps, size or solve)

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
from replan.control._objective import Controls, Objective

REPEATS = 3  # of what is slow


def shared_problem() -> replan.Problem:
    content = json.loads((HERE.parent / "tests" / "data" / "two_tasks_k2.json").read_text())
    model = replan.TeacherStudent(content["teacher_overlaps"], hidden=content["hidden"])
    return replan.Problem(model, replan.Overlaps(**content["start"]), duration=25.0)


def gradient_against_c(peer: ctypes.CDLL, problem: replan.Problem) -> dict:
    """Milliseconds for value and gradient, and for the forward roll-out alone in plain C."""
    model, n = problem.model, problem.steps
    objective = Objective(problem, n)
    controls = Controls(np.full((n, 2), 0.5), np.ones((n, 6)))
    assert objective.substeps == 1
    states = np.zeros((n + 1, problem.state.size))
    states[0] = problem.state
    rates, ones = np.ones((n, 2)), np.ones(2)
    S, A = model.teacher_overlaps, model.teacher_heads

    def run_c():
        rows, shares, lr, lengths, head_lr, overlaps, heads = pointers(
            states, controls.shares, rates, objective.lengths, ones, S, A
        )
        noise = ctypes.c_double(0.0)
        peer.roll_out(n, rows, shares, lr, lengths, noise, head_lr, 2, 2, 2, overlaps, heads)

    run_c()
    assert np.allclose(states, objective.gradient(controls).states, rtol=1e-11, atol=1e-13)
    both, forward = best_times(lambda: objective.gradient(controls), run_c, repeats=40)
    return {
        "value and gradient ms": 1e3 * both,
        "forward in C ms": 1e3 * forward,
        "ratio": both / forward,
    }


def timed(function) -> tuple[float, object]:
    begin = time.perf_counter()
    result = function()
    return time.perf_counter() - begin, result


def whole_problems(problem: replan.Problem) -> list[dict]:
    """Seconds and losses of the peers on the whole problem; all losses from `evaluate`."""
    replan.solve(problem)  # compiles
    ours, casadi = [], []
    for _ in range(REPEATS):  # alternately
        ours += [timed(lambda: replan.solve(problem)) for _ in range(3)]
        casadi.append(timed(lambda: casadi_peer.solve(problem)))
    sweep = timed(lambda: sweep_peer.solve(problem))
    rows = []
    for name, (seconds, found) in {
        "replan.solve": min(ours, key=lambda pair: pair[0]),
        "CasADi": min(casadi, key=lambda pair: pair[0]),
        "numpy sweep": sweep,
    }.items():
        mine = name == "replan.solve"
        value = found.loss if mine else replan.evaluate(problem, found.protocol).loss
        rows.append(
            {
                "peer": name,
                "seconds": seconds,
                "times ours": seconds / min(ours, key=lambda pair: pair[0])[0],
                "loss": f"{value:.8f}",
                "relaxed loss": f"{found.certificate.relaxed_value:.8f}" if mine else "",
                "iterations": "" if mine else found.iterations,
                "gradients": found.statistics["gradients"] if mine else "",
                "ended": found.status,
            }
        )
    return rows


def by_steps(problem: replan.Problem, steps: int) -> dict:
    finer = replan.Problem(problem.model, problem.start, duration=25.0, steps=steps)
    return {"steps": steps, **_cost(finer)}


def by_size(K: int) -> dict:
    model = replan.TeacherStudent.similar(0.3, tasks=K, hidden=K)
    start = model.pretrain(seed=1, duration=300.0)
    return {"K = T": K, **_cost(replan.Problem(model, start, duration=25.0))}


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
            "gradient": lambda: [gradient_against_c(peer, problem)],
            "steps": lambda: [by_steps(problem, n) for n in (250, 500, 1000, 2000, 4000)],
            "size": lambda: [by_size(K) for K in (2, 3, 4, 5, 6)],
            "solve": lambda: whole_problems(problem),
        }
        tables = {name: makers[name]() for name in sys.argv[1:] or makers}
    tables = save("solve", tables)
    [gradient] = tables["gradient"]
    ours, casadi, sweep = tables["solve"]
    assert gradient["ratio"] <= 5, "the gradient takes more than five roll-outs"
    assert casadi["times ours"] >= 50, "CasADi is too close"
    assert ours["loss"] <= casadi["loss"], "CasADi ends lower"
    assert sweep["times ours"] >= 50, "the sweep is too close"
    assert ours["loss"] < sweep["loss"], "the sweep ends lower"


if __name__ == "__main__":
    main()
