"""The cheapest sequence of tasks within limits, by dynamic programming; see shortest_path.c."""

from __future__ import annotations

import math

import numpy as np

from replan.check import Bools, Floats, Ints
from replan.core import library
from replan.core.threads import Pace
from replan.errors import ArgumentError

_PACE = Pace()  # counts table entries


def cheapest_path(
    costs: Floats,
    available: Bools,
    low: Ints,
    high: Ints,
    old: Bools,
    begins: Bools,
    replays: Ints,
    dwell: int,
    switches: int,
    sizes: Ints,
) -> Ints:
    """Return the tasks (steps,) of least total cost within the limits, none if no sequence fits.

    costs, available, old: (steps, T) the cost of a task at a step, whether it may be trained there,
    and whether it is replay there. low, high: (T,) bounds on how often a task occurs. begins,
    replays: (steps,) whether an interval between arrivals begins at a step, and how much replay its
    interval may hold. switches: how many there may be, −1 for any number. sizes: (T,) how many
    different counts of a task are tracked, 0 for none; counts form one mixed-radix number.
    """
    steps, T = costs.shape
    for name, found, least in (
        ("dwell", dwell, 1),
        ("replays", replays.min(), 0),
        ("sizes", sizes.min(), 0),
    ):
        if found < least:
            raise ArgumentError(name, f"at least {least}", f"{found}")
    if T >= 2**15:
        raise ArgumentError("costs", f"fewer than {2**15} tasks", f"{T}")
    counted = np.where(sizes > 0, sizes, 1)
    strides = np.where(sizes > 0, np.cumprod(counted) // counted, 0)
    layer = (T, max(switches + 1, 1), math.prod(counted.tolist()), int(replays.max()) + 1)
    best = np.full((dwell + 1, *layer), np.inf)
    came = np.empty((steps + 1, *layer), np.int16)
    sums = np.vstack([np.zeros(T), np.cumsum(costs, axis=0)])
    tasks, stays = np.empty(steps, np.int64), np.zeros(T, np.int64)
    found = _PACE.run(
        library.CHEAPEST_PATH, T * came.size, dwell, switches, costs, sums, available, old, begins,
        replays, low, high, sizes, strides, best, came, tasks, stays,
    )  # fmt: skip
    return tasks[:found]
