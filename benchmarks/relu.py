"""Speed of ReLU networks beside erf ones: `rate` against the same in plain C, and whole plans.

    python benchmarks/relu.py            prints the tables, writes benchmarks/results/relu.json

The peer, rate_relu.c, takes one set of four units after the other. Peers alternate within one run,
and the smallest of several times of the processor counts.
"""

import ctypes
import tempfile
import time
from pathlib import Path

import numpy as np

import replan
from common import best_times, compile_peer, save
from rate import REPEAT, instance, run_peer


def relu_against_c(peer: ctypes.CDLL, K: int, mixed: bool) -> dict:
    """Microseconds per call of `rate` of ReLU and of erf networks, and of plain C for ReLU."""
    model, start = instance(K, "relu")
    erf, x = instance(K)[0], model.pack(start)
    shares, knobs = np.full(K, 1 / K) if mixed else np.eye(K)[0], np.ones(3 * K)
    calls = max(20, int(1e5 / K**4))
    ours, theirs, other = np.empty((3, x.size))

    def run(activation, parameters, out):
        REPEAT[activation](calls, parameters, x.copy(), shares, knobs, out)

    run("relu", model.parameters, ours)
    relu_time, erf_time, c_time = best_times(
        lambda: run("relu", model.parameters, ours),
        lambda: run("erf", erf.parameters, other),
        lambda: run_peer(peer, calls, model, x, shares, theirs),
        clock=time.process_time,
    )
    assert np.allclose(ours, theirs, rtol=1e-9, atol=1e-12), "the peers do not agree"
    return {
        "K": K,
        "tasks trained": K if mixed else 1,
        "ReLU µs": 1e6 * relu_time / calls,
        "erf µs": 1e6 * erf_time / calls,
        "ratio": relu_time / erf_time,
        "C µs": 1e6 * c_time / calls,
        "ratio to C": relu_time / c_time,
    }


def plan_of_figure_2(activation: str, seed: int) -> dict:
    """Seconds of `solve` on the paper's Fig. 2 problem: γ = 0.3, 25 units, 250 steps."""
    model = replan.TeacherStudent.similar(0.3, activation=activation)
    problem = replan.Problem(model, model.pretrain(seed=seed), duration=25.0)
    replan.solve(problem)  # compiles
    begin = time.perf_counter()
    plan = replan.solve(problem)
    return {
        "activation": activation,
        "seed": seed,
        "seconds": time.perf_counter() - begin,
        "gradients": plan.statistics["gradients"],
        "loss": plan.loss,
        "status": plan.status,
    }


def check(row: dict) -> None:
    """Raise unless ReLU is fast enough beside erf."""
    K, most = row["K"], {2: 3.0, 8: 20.0}
    assert row["ratio"] <= most.get(K, np.inf), f"K = {K}: {row['ratio']:.1f} times as long as erf"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        peer = compile_peer(Path(folder), "rate_relu.c")
        rates = [
            relu_against_c(peer, K, mixed) for mixed in (False, True) for K in (2, 3, 4, 6, 8, 12)
        ]
    plans = [plan_of_figure_2(name, seed) for name in ("relu", "erf") for seed in (0, 1)]
    save("relu", {"rate": rates, "solve": plans})
    for row in rates:
        check(row)


if __name__ == "__main__":
    main()
