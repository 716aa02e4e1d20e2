"""Speed of the compiled `rate` against the same kernel in plain C, and of the roll-out by steps.

    python benchmarks/rate.py            prints the tables, writes benchmarks/results/rate.json

Peers alternate within one run, and the smallest of several times counts: neighbours on the machine
only ever add to a time.
"""

import ctypes
import json
import platform
import subprocess
import tempfile
import time
from pathlib import Path

import numba
import numpy as np
from numba import njit

import replan
from replan.dynamics import kernels

HERE = Path(__file__).parent
REPEATS = 9


def compile_peer(folder: Path) -> ctypes.CDLL:
    library = folder / "rate.so"
    command = ["cc", "-O3", "-shared", "-fPIC", "-o", str(library), str(HERE / "rate.c"), "-lm"]
    subprocess.run(command, check=True)
    return ctypes.CDLL(str(library))


@njit
def repeat_rate(calls, state, shares, lr, noise, head_lr, K, S, A, out):
    """Loop as rate.c does: every call is fed a state that depends on the last."""
    work = kernels.make_work(S, A, K)
    for _ in range(calls):
        kernels.rate(state, shares, lr, noise, head_lr, K, work, out)
        for i in range(state.size):
            state[i] += 1e-12 * out[i]


def best_times(*functions) -> list[float]:
    """Return the smallest time of each function, called in turns."""
    times = np.empty((REPEATS, len(functions)))
    for repeat in range(REPEATS):
        for i, function in enumerate(functions):
            begin = time.perf_counter()
            function()
            times[repeat, i] = time.perf_counter() - begin
    return times.min(axis=0).tolist()


def instance(K: int) -> tuple[replan.TeacherStudent, replan.Overlaps]:
    model = replan.TeacherStudent.similar(0.3, tasks=K, noise=0.1)
    return model, model.fresh(seed=0, weight_variance=0.3, head_variance=0.1)


def rate_against_c(peer: ctypes.CDLL, K: int, mixed: bool) -> dict:
    """Microseconds a call of `rate` for K = P = T, one task or all of them in equal shares."""
    model, start = instance(K)
    x = model.pack(start)
    S, A, ones = model.teacher_overlaps, model.teacher_heads, np.ones(K)
    shares = np.full(K, 1 / K) if mixed else np.eye(K)[0]
    calls = max(20, int(4e5 / K**4))
    ours, theirs = np.empty_like(x), np.empty_like(x)
    at = ctypes.POINTER(ctypes.c_double)

    def run_numba():
        repeat_rate(calls, x.copy(), shares, ones, 0.1, ones, K, S, A, ours)

    def run_c():
        arrays = [a.ctypes.data_as(at) for a in (x.copy(), shares, ones, ones, S, A, theirs)]
        state, share, lr, head_lr, overlaps, heads, out = arrays
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
    """Microseconds a step of the roll-out (one RK4 step each), K = T = 2, equal shares."""
    model, start = instance(2)
    x, lengths = model.pack(start), np.full(steps, 0.1)
    shares, lr, once = np.full((steps, 2), 0.5), np.ones((steps, 2)), np.ones(steps, np.int64)
    [best] = best_times(lambda: model.roll_out(x, shares, lr, lengths, once))
    return {"steps": steps, "ms": 1e3 * best, "µs a step": 1e6 * best / steps}


def show(rows: list[dict]) -> str:
    lines = ["  ".join(f"{name:>13}" for name in rows[0])]
    for row in rows:
        cells = (f"{x:.3f}" if isinstance(x, float) else str(x) for x in row.values())
        lines.append("  ".join(f"{cell:>13}" for cell in cells))
    return "\n".join(lines)


def cpu() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def main() -> None:
    compiler = subprocess.run(["cc", "--version"], capture_output=True, text=True, check=True)
    with tempfile.TemporaryDirectory() as folder:
        peer = compile_peer(Path(folder))
        rates = [
            rate_against_c(peer, K, mixed)
            for mixed in (False, True)
            for K in (2, 3, 4, 6, 8, 12, 16)
        ]
    rolls = [roll_out_by_steps(steps) for steps in (250, 500, 1000, 2000, 4000, 8000)]
    print(show(rates), show(rolls), sep="\n\n")
    worst = max(row["ratio"] for row in rates)
    assert worst <= 1.5, f"numba takes {worst:.2f} times as long as C"
    assert rolls[-1]["µs a step"] <= 1.5 * rolls[0]["µs a step"], "the cost grows with the steps"
    results = {
        "command": "python benchmarks/rate.py",
        "machine": {
            "cpu": cpu(),
            "python": platform.python_version(),
            "numba": numba.__version__,
            "cc": compiler.stdout.splitlines()[0],
            "replan": replan.__version__,
        },
        "rate": rates,
        "roll_out": rolls,
    }
    (HERE / "results").mkdir(exist_ok=True)
    text = json.dumps(results, indent=1, ensure_ascii=False)
    (HERE / "results" / "rate.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
