"""Speed of ReLU networks beside erf ones: `rate` against the same in plain C, and whole plans.

    python benchmarks/relu.py            prints the tables, writes benchmarks/results/relu.json

The peer, rate_relu.c, takes one set of four units after the other. Peers alternate within one run,
and the smallest of several times of the processor counts.
"""

import tempfile
import time
from pathlib import Path

import numpy as np

import replan
from common import best_times, compile_peer, save
from rate import instance, rate_against_c, roller


def relu_beside_erf(K: int, mixed: bool) -> float:
    """Return how many times as long `rate` of ReLU networks takes as that of erf ones."""
    shares = np.full(K, 1 / K) if mixed else np.eye(K)[0]
    steps = max(20, int(1e5 / K**4))
    relu, erf = best_times(
        *(roller(*instance(K, name), shares, steps) for name in ("relu", "erf")),
        clock=time.process_time,
    )
    return relu / erf


def plan_of_figure_2(activation: str, seed: int) -> dict:
    """Seconds of `solve` on the paper's Fig. 2 problem: γ = 0.3, 25 units, 250 steps."""
    model = replan.TeacherStudent.similar(0.3, activation=activation)
    problem = replan.Problem(model, model.pretrain(seed=seed), duration=25.0)
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


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        peer = compile_peer(Path(folder), "rate_relu.c")
        rates = [
            rate_against_c(peer, K, mixed, "relu") | {"times erf": relu_beside_erf(K, mixed)}
            for mixed in (False, True)
            for K in (2, 3, 4, 6, 8, 12)
        ]
    plans = [plan_of_figure_2(name, seed) for name in ("relu", "erf") for seed in (0, 1)]
    save("relu", {"rate": rates, "solve": plans})
    for row in rates:
        K, most = row["K"], {2: 3.0, 8: 20.0}
        assert row["times erf"] <= most.get(K, np.inf), f"K = {K}: {row['times erf']:.1f} times erf"


if __name__ == "__main__":
    main()
