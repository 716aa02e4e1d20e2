"""Speed of the compiled `rate` against the same kernel in C, and of the roll-out by steps.

Plain C, rate.c, takes one pair of hidden units after the other. Vector C, rate_lanes.c, has the
loops of `rate` itself, which gcc vectorises with `-Ofast -march=native` and glibc's vector arcsine.

    python benchmarks/rate.py            prints the tables, writes benchmarks/results/rate.json

Peers alternate within one run, and the smallest of several times of the processor counts:
neighbours on the machine can only add to a time.
"""

import ctypes
import tempfile
import time
from pathlib import Path

import numpy as np
from numba import njit
from replan.core.teacher_student.activations import KERNELS

import replan
from common import best_times, compile_peer, pointers, save
from replan.models import Schedule


def repeater(activation: str):
    """Return a loop as rate.c has it: every call is fed a state that depends on the last."""
    make_work, rate = KERNELS[activation].make_work, KERNELS[activation].rate

    @njit
    def repeat_rate(calls, parameters, state, shares, knobs, out):
        work = make_work(parameters)
        for _ in range(calls):
            rate(work, state, shares, knobs, out)
            for i in range(state.size):
                state[i] += 1e-12 * out[i]

    return repeat_rate


REPEAT = {activation: repeater(activation) for activation in ("erf", "relu")}


def instance(K: int, activation: str = "erf") -> tuple[replan.TeacherStudent, replan.Overlaps]:
    model = replan.TeacherStudent.similar(0.3, tasks=K, noise=0.1, activation=activation)
    return model, model.fresh(seed=0, weight_variance=0.3, head_variance=0.1)


def run_peer(peer: ctypes.CDLL, calls: int, model, x, shares, result) -> None:
    """Call a peer in C as often as `repeat_rate` calls ours."""
    K, ones = model.hidden, np.ones(model.tasks)
    start = x.copy()
    state, share, lr, head_lr, overlaps, heads, out = pointers(
        start, shares, ones, ones, model.teacher_overlaps, model.teacher_heads, result
    )
    noise = ctypes.c_double(0.1)
    peer.repeat_rate(
        ctypes.c_long(calls), state, share, lr, noise, head_lr, K, K, K, overlaps, heads, out
    )


def rate_against_c(plain: ctypes.CDLL, vector: ctypes.CDLL, K: int, mixed: bool) -> dict:
    """Microseconds per call of `rate` for K = P = T, one task or all of them in equal shares."""
    model, start = instance(K)
    x = model.pack(start)
    shares = np.full(K, 1 / K) if mixed else np.eye(K)[0]
    calls = max(20, int(4e5 / K**4))
    ours, by_plain, by_vector = np.empty((3, x.size))

    def run_numba():
        REPEAT["erf"](calls, model.parameters, x.copy(), shares, np.ones(3 * K), ours)

    run_numba()
    numba_time, plain_time, vector_time = best_times(
        run_numba,
        lambda: run_peer(plain, calls, model, x, shares, by_plain),
        lambda: run_peer(vector, calls, model, x, shares, by_vector),
        clock=time.process_time,
    )
    for theirs in (by_plain, by_vector):
        assert np.allclose(ours, theirs, rtol=1e-9, atol=1e-12), "the peers do not agree"
    return {
        "K": K,
        "tasks trained": K if mixed else 1,
        "numba µs": 1e6 * numba_time / calls,
        "C µs": 1e6 * plain_time / calls,
        "ratio": numba_time / plain_time,
        "vector C µs": 1e6 * vector_time / calls,
        "ratio to it": numba_time / vector_time,
    }


def roll_out_by_steps(steps: int) -> dict:
    """Microseconds per step of the roll-out (one RK4 step each), K = T = 2, equal shares."""
    model, start = instance(2)
    x, lengths = model.pack(start), np.full(steps, 0.1)
    pieces = Schedule.single_steps(
        np.full((steps, 2), 0.5), np.ones((steps, model.layout.size)), lengths
    )
    [best] = best_times(lambda: model.roll_out(x, pieces), clock=time.process_time)
    return {"steps": steps, "ms": 1e3 * best, "µs per step": 1e6 * best / steps}


def check(row: dict) -> None:
    """Raise unless `rate` is fast enough; a busy machine blurs the ratios by a quarter."""
    K, plain, vector = row["K"], row["ratio"], row["ratio to it"]
    most = 0.5 if K >= 4 else 1.5
    assert plain <= most, f"K = {K}: numba takes {plain:.2f} times as long as plain C"
    assert vector <= 1.5, f"K = {K}: numba takes {vector:.2f} times as long as vector C"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        plain = compile_peer(Path(folder))
        vector = compile_peer(Path(folder), "rate_lanes.c", "-Ofast", "-march=native", "-lmvec")
        rates = [
            rate_against_c(plain, vector, K, mixed)
            for mixed in (False, True)
            for K in (2, 3, 4, 6, 8, 12, 16)
        ]
    rolls = [roll_out_by_steps(steps) for steps in (250, 500, 1000, 2000, 4000, 8000)]
    save("rate", {"rate": rates, "roll_out": rolls})
    for row in rates:
        check(row)
    few, many = rolls[0]["µs per step"], rolls[-1]["µs per step"]
    assert many <= 1.5 * few, "the cost grows with the steps"


if __name__ == "__main__":
    main()
