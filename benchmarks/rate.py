"""Speed of the compiled `rate` against the same kernel in plain C, and of the roll-out by steps.

    python benchmarks/rate.py            prints the tables, writes benchmarks/results/rate.json

Peers alternate within one run, and the smallest of several times counts: neighbours on the machine
can only add to a time.
"""

import ctypes
import tempfile
from pathlib import Path

import numpy as np
from numba import njit

import replan
from common import best_times, compile_peer, pointers, save
from replan.dynamics import Pieces
from replan.dynamics.teacher_student._kernels import rate
from replan.dynamics.teacher_student._work import make_work


@njit
def repeat_rate(calls, parameters, state, shares, knobs, out):
    """Loop as rate.c does: every call is fed a state that depends on the last."""
    work = make_work(parameters)
    for _ in range(calls):
        rate(work, state, shares, knobs, out)
        for i in range(state.size):
            state[i] += 1e-12 * out[i]


def instance(K: int) -> tuple[replan.TeacherStudent, replan.Overlaps]:
    model = replan.TeacherStudent.similar(0.3, tasks=K, noise=0.1)
    return model, model.fresh(seed=0, weight_variance=0.3, head_variance=0.1)


def rate_against_c(peer: ctypes.CDLL, K: int, mixed: bool) -> dict:
    """Microseconds per call of `rate` for K = P = T, one task or all of them in equal shares."""
    model, start = instance(K)
    x = model.pack(start)
    S, A, ones = model.teacher_overlaps, model.teacher_heads, np.ones(K)
    shares = np.full(K, 1 / K) if mixed else np.eye(K)[0]
    calls = max(20, int(4e5 / K**4))
    ours, theirs = np.empty_like(x), np.empty_like(x)

    def run_numba():
        repeat_rate(calls, model.parameters, x.copy(), shares, np.ones(3 * K), ours)

    def run_c():
        start = x.copy()
        state, share, lr, head_lr, overlaps, heads, out = pointers(
            start, shares, ones, ones, S, A, theirs
        )
        noise = ctypes.c_double(0.1)
        peer.repeat_rate(
            ctypes.c_long(calls), state, share, lr, noise, head_lr, K, K, K, overlaps, heads, out
        )

    run_numba()
    mine, other = best_times(run_numba, run_c)
    assert np.allclose(ours, theirs, rtol=1e-9, atol=1e-12), "the peers do not agree"
    return {
        "K": K,
        "tasks trained": K if mixed else 1,
        "numba µs": 1e6 * mine / calls,
        "C µs": 1e6 * other / calls,
        "ratio": mine / other,
    }


def roll_out_by_steps(steps: int) -> dict:
    """Microseconds per step of the roll-out (one RK4 step each), K = T = 2, equal shares."""
    model, start = instance(2)
    x, lengths = model.pack(start), np.full(steps, 0.1)
    pieces = Pieces.whole(np.full((steps, 2), 0.5), np.ones((steps, model.panel.size)), lengths)
    [best] = best_times(lambda: model.roll_out(x, pieces))
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
    worst = max(row["ratio"] for row in rates)
    assert worst <= 1.5, f"numba takes {worst:.2f} times as long as C"
    few, many = rolls[0]["µs per step"], rolls[-1]["µs per step"]
    assert many <= 1.5 * few, "the cost grows with the steps"


if __name__ == "__main__":
    main()
