"""Speed of `rate` against the same in plain C, and of the roll-out by steps.

Plain C, rate.c, takes one pair of hidden units after the other; replan's core takes them side by
side, as vectors.

    python benchmarks/rate.py            prints the tables, writes benchmarks/results/rate.json

Peers alternate within one run, and the smallest of several times of the processor counts:
neighbours on the machine can only add to a time.
"""

import ctypes
import tempfile
import time
from pathlib import Path

import numpy as np

import replan
from common import best_times, compile_peer, pointers, save
from replan.models import Schedule

LENGTH = 1e-6  # of a step: the state hardly moves


def instance(K: int, activation: str = "erf") -> tuple[replan.TeacherStudent, np.ndarray]:
    model = replan.TeacherStudent.similar(0.3, tasks=K, noise=0.1, activation=activation)
    return model, model.pack(model.fresh(seed=0, weight_variance=0.3, head_variance=0.1))


def roller(model: replan.TeacherStudent, x: np.ndarray, shares: np.ndarray, steps: int):
    """Return a function that evaluates `rate` four times in each of the steps of RK4."""
    rows = np.tile(shares, (steps, 1)), np.ones((steps, model.layout.size))
    schedule = Schedule.single_steps(*rows, np.full(steps, LENGTH))
    return lambda: model.roll_out(x, schedule)


def run_peer(peer: ctypes.CDLL, calls: int, model, x, shares, result) -> None:
    """Evaluate the rate of a peer in C, each time at a state that depends on the last."""
    K, ones = model.hidden, np.ones(model.tasks)
    start = x.copy()
    state, share, lr, head_lr, overlaps, heads, out = pointers(
        start, shares, ones, ones, model.teacher_overlaps, model.teacher_heads, result
    )
    noise = ctypes.c_double(0.1)
    peer.repeat_rate(
        ctypes.c_long(calls), state, share, lr, noise, head_lr, K, K, K, overlaps, heads, out
    )


def rate_against_c(peer: ctypes.CDLL, K: int, mixed: bool, activation: str = "erf") -> dict:
    """Microseconds per call of `rate` for K = P = T, one task or all of them in equal shares."""
    model, x = instance(K, activation)
    shares = np.full(K, 1 / K) if mixed else np.eye(K)[0]
    steps, result = max(20, int(1e5 / K**4)), np.empty_like(x)
    roll_out = roller(model, x, shares, steps)
    ours, theirs = best_times(
        roll_out,
        lambda: run_peer(peer, 4 * steps, model, x, shares, result),
        clock=time.process_time,
    )
    run_peer(peer, 1, model, x, shares, result)
    [_, end] = roller(model, x, shares, 1)()
    assert np.allclose((end - x) / LENGTH, result, rtol=1e-4, atol=1e-6), "peers do not agree"
    return {
        "K": K,
        "tasks trained": K if mixed else 1,
        "replan µs": 1e6 * ours / (4 * steps),
        "plain C µs": 1e6 * theirs / (4 * steps),
        "ratio": ours / theirs,
    }


def roll_out_by_steps(steps: int) -> dict:
    """Microseconds per step of the roll-out (one RK4 step each), K = T = 2, equal shares."""
    [best] = best_times(roller(*instance(2), np.full(2, 0.5), steps), clock=time.process_time)
    return {"steps": steps, "ms": 1e3 * best, "µs per step": 1e6 * best / steps}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        peer = compile_peer(Path(folder))
        rates = [
            rate_against_c(peer, K, mixed)
            for mixed in (False, True)
            for K in (2, 3, 4, 6, 8, 12, 16)
        ]
    rolls = [roll_out_by_steps(steps) for steps in (250, 500, 1000, 2000, 4000, 8000)]
    save("rate", {"rate": rates, "roll_out": rolls})
    for row in rates:  # a busy machine blurs the ratios by a quarter
        most = 0.5 if row["K"] >= 4 else 1.0
        assert row["ratio"] <= most, f"K = {row['K']}: {row['ratio']:.2f} times plain C"
    few, many = rolls[0]["µs per step"], rolls[-1]["µs per step"]
    assert many <= 1.5 * few, "the cost grows with the steps"


if __name__ == "__main__":
    main()
