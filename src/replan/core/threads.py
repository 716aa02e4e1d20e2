"""How many cores there are to work on."""

from __future__ import annotations

import multiprocessing
import os


def cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def free_cores() -> int:
    """Return how many cores are for this process alone: in a worker, beside others, one."""
    return cores() if multiprocessing.parent_process() is None else 1
