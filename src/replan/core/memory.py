"""Memory: what arrays of a size need, and a refusal of what cannot fit, before the work begins."""

from __future__ import annotations

import math
import os
from contextlib import suppress
from pathlib import Path

COPIES = 8  # of the states along the way, when learning curves are computed

_LITTLE = 100_000_000  # bytes that are not worth a look at what is free
_LIMIT = "/sys/fs/cgroup/memory.max"  # of a container
_USED = "/sys/fs/cgroup/memory.current"


def require(what: str, numbers: float) -> None:
    """Refuse sizes that need more memory than is free.

    what: the sizes, for the message. numbers: how many float64 they make, roughly.
    """
    size = 8 * numbers
    if size > _LITTLE and size > free():
        raise ValueError(
            f"{what} need about {amount(size)} of memory, {amount(free())} are free: "
            "use smaller sizes"
        )


def free() -> float:
    """Return how many bytes are free, infinity where the system does not tell."""
    found = [math.inf]
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        line = next(line for line in lines if line.startswith("MemAvailable"))
        found.append(1024 * float(line.split()[1]))
    with suppress(OSError, ValueError):  # ValueError: "max", no limit
        found.append(float(Path(_LIMIT).read_text()) - float(Path(_USED).read_text()))
    with suppress(OSError, ValueError, AttributeError):  # as on macOS: all that there is
        found.append(float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")))
    return max(min(found), 0.0)


def amount(size: float) -> str:
    """Return a number of bytes as people say it."""
    for unit in ("MB", "GB", "TB"):
        size /= 1000 if unit != "MB" else 1e6
        if size < 999.5:
            break
    return f"{size:.2g} {unit}" if size < 99.5 else f"{size:.3g} {unit}"
