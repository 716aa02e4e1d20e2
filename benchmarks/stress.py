"""Hundreds of sweeps that are disturbed at random moments, on a machine with too much to do.

`python benchmarks/stress.py [RUNS [BYTES [SIGNAL]]]`. Each run is a process with two workers. The
parent gets SIGINT (with its workers, as from a terminal), SIGTERM or SIGKILL, a worker gets
SIGKILL, or a case raises an error; results have from 100 bytes to 10 MB. A run that does not end, a
traceback besides that of Ctrl-C, a process that is left, a broken file in the cache, or a next run
that computes a finished case again or gives another result ends all this with an error.
"""

import os
import random
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from common import HERE, save

sys.path.append(str(HERE.parent / "tests"))
import stressed

AT_ONCE = 4
BUSY = "while True: pass"


def disturb_all(runs: int, sizes: list[int], triggers: list[str]) -> list[dict]:
    """Disturb sweeps of each kind in turn; return a row for each kind."""
    kinds = [(trigger, size) for trigger in triggers for size in sizes]
    found: dict[tuple, list[dict]] = {kind: [] for kind in kinds}

    def run(i: int) -> None:
        trigger, size = kind = kinds[i % len(kinds)]
        with tempfile.TemporaryDirectory() as folder:
            cache = Path(folder) / "cache"
            found[kind].append(stressed.disturbed(cache, size, trigger, random.Random()))
        print(i + 1, trigger, size, found[kind][-1], flush=True)

    with ThreadPoolExecutor(AT_ONCE) as threads:
        list(threads.map(run, range(runs)))
    return [
        {
            "signal": trigger,
            "bytes of a result": size,
            "runs": len(rows),
            "cases": stressed.SIZES[size],
            "kept by then": span([row["kept"] for row in rows]),
            "s until it ended": longest(trigger, [row["ended"] for row in rows]),
            "s until no process was left": longest(trigger, [row["left"] for row in rows]),
        }
        for (trigger, size), rows in found.items()
        if rows
    ]


def span(counts: list[int]) -> str:
    return f"{min(counts)} to {max(counts)}"


def longest(trigger: str, seconds: list[float]) -> float | str:
    return "" if trigger == "an error in a case" else max(seconds)  # nobody knows when it came


if __name__ == "__main__":
    # A shell starts background jobs with Ctrl-C ignored, and so would be what they start.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    runs, size, trigger = (*sys.argv[1:], *["300", "", ""][len(sys.argv) - 1 :])
    sizes = [int(size)] if size else list(stressed.SIZES)
    triggers = [trigger] if trigger else list(stressed.TRIGGERS)
    count = 2 * (os.cpu_count() or 1)
    busy = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(count)]
    try:
        rows = disturb_all(int(runs), sizes, triggers)
    finally:
        for process in busy:
            process.kill()
            process.wait()
    title = f"{runs} sweeps, {AT_ONCE} at a time, beside {count} processes that never rest"
    save("stress", {title: rows})
