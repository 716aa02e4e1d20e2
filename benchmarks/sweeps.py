"""What a sweep costs beyond its cases.

`python benchmarks/sweeps.py`. Everything has two worker processes, which
are there before the clock starts; peers alternate, and the smallest of three times counts.
"""

import os
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from typing import Any

from distributed import Client, LocalCluster

from common import best_times, save
from replan.sweeps import Sweep

COUNT = 10_000


def trivial(x: int) -> dict:
    return {"y": x}


def alone(x: int) -> int:
    return x


@contextmanager
def dask() -> Iterator[Any]:
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        yield client


def overhead() -> list[dict]:
    """Return microseconds per case, for cases that do nothing."""
    cases = [{"x": x} for x in range(COUNT)]
    numbers = range(COUNT)
    with (
        tempfile.TemporaryDirectory() as folder,
        ProcessPoolExecutor(2, get_context("spawn")) as pool,
        dask() as client,
        Sweep(workers=2) as ours,
        Sweep(executor=pool) as on_pool,
        Sweep(executor=client) as on_dask,
        Sweep(workers=1) as here,
    ):
        fresh = iter(range(1000))

        def kept() -> None:
            with Sweep(f"{folder}/{next(fresh)}", workers=1) as run:
                run(trivial, cases)

        ways = {
            "ProcessPoolExecutor.map": lambda: list(pool.map(alone, numbers)),
            "sweep, workers=2": lambda: ours(trivial, cases),
            "sweep, executor=ProcessPoolExecutor": lambda: on_pool(trivial, cases),
            "Dask: client.gather(client.map)": lambda: client.gather(
                client.map(alone, numbers, pure=False)
            ),
            "sweep, executor=client": lambda: on_dask(trivial, cases),
            "sweep, workers=1": lambda: here(trivial, cases),
            "sweep, workers=1, with a cache": kept,
        }
        for run in (ours, on_pool, on_dask):
            run(trivial, cases[:100])
        before = os.getloadavg()[0]
        seconds = best_times(*ways.values(), repeats=3)
    peers = {"sweep, executor=client": 3}
    return [
        {
            "way": way,
            "us per case": 1e6 * one / COUNT,
            "times its peer": one / seconds[peers.get(way, 0 if i < 3 else i)],
            "load before": before,
        }
        for i, (way, one) in enumerate(zip(ways, seconds, strict=True))
    ]


if __name__ == "__main__":
    save("sweeps", {f"overhead of {COUNT} cases that do nothing": overhead()})
