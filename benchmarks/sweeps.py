"""What a sweep costs beyond its cases, beside the bare pool: `python benchmarks/sweeps.py`.

Each way starts two worker processes; ways alternate, and the smallest of three times counts.
"""

import tempfile
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from common import best_times, save
from replan import sweep

COUNT = 10_000


def trivial(x: int) -> dict:
    return {"y": x}


def alone(x: int) -> int:
    return x


def bare() -> None:
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        list(pool.map(alone, range(COUNT)))


def kept() -> None:
    with tempfile.TemporaryDirectory() as folder:
        sweep(trivial, CASES, cache=folder, workers=2)


CASES = [{"x": x} for x in range(COUNT)]
WAYS = {
    "ProcessPoolExecutor.map": bare,
    "sweep, workers=2": lambda: sweep(trivial, CASES, workers=2),
    "sweep, workers=2, with a cache": kept,
    "sweep, workers=1": lambda: sweep(trivial, CASES, workers=1),
}

if __name__ == "__main__":
    seconds = best_times(*WAYS.values(), repeats=3)
    rows = [
        {"way": way, "us per case": 1e6 * time / COUNT, "times the pool": time / seconds[0]}
        for way, time in zip(WAYS, seconds, strict=True)
    ]
    save("sweeps", {f"overhead of {COUNT} cases that do nothing": rows})
