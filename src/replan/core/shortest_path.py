"""The cheapest sequence of tasks within limits, by dynamic programming.

A node is (step, task, switches so far, counts so far, replay so far). Stays are at least `dwell`
steps long: either a stay continues for a step, or a new one of `dwell` steps follows it.
"""

from __future__ import annotations

import numpy as np

from replan.check import Bools, Floats, Ints
from replan.core.compiled import compiled, inner
from replan.core.interrupt import ChunkedLoop

_FILL = ChunkedLoop()  # counts table entries


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
    counted = np.where(sizes > 0, sizes, 1)
    strides = np.where(sizes > 0, np.cumprod(counted) // counted, 0)
    layer = (T, max(switches + 1, 1), int(np.prod(counted)), int(replays.max()) + 1)
    best = np.full((dwell + 1, *layer), np.inf)  # the last layers, in turn
    came = np.full((steps + 1, *layer), -1, np.int16)  # the previous task
    sums = np.vstack([np.zeros(T), np.cumsum(costs, axis=0)])
    stays = np.zeros((steps + 1, T), np.int64)  # the longest that end at each edge
    for i in range(steps):
        stays[i + 1] = np.where(available[i], stays[i] + 1, 0)
    limits = (old, begins, replays, dwell, switches, sizes, strides)
    _FILL.run(_fill, steps + 1, costs, sums, stays, *limits, best, came)
    return np.asarray(_trace(best, came, low, high, *limits))


@compiled
def _fill(
    costs: Floats, sums: Floats, stays: Ints, old: Bools, begins: Bools, replays: Ints,
    dwell: int, switches: int, sizes: Ints, strides: Ints,
    best: Floats, came: Ints, first: int, _: int, most: int,
) -> tuple[int, int]:  # fmt: skip
    """Fill in the layers from step `first` on, for about `most` entries; see `ChunkedLoop`."""
    _, T, S, total, R = best.shape
    last = came.shape[0]
    for i in range(max(first, dwell), last):
        if most <= 0:
            return i, 0
        most -= T * T * S * total * R
        layer, before, jump = best[i % (dwell + 1)], best[(i - 1) % (dwell + 1)], best[
            (i - dwell) % (dwell + 1)
        ]  # fmt: skip
        layer[:] = np.inf
        for t in range(T):
            if stays[i, t] == 0:
                continue
            stay = sums[i, t] - sums[i - dwell, t]
            for r in range(replays[i - 1] + 1):
                one = _left(r, i - 1, i, t, old, begins, replays)
                many = -1  # unless there is enough time for a new stay that ends here
                if stays[i, t] >= dwell:
                    many = _left(r, i - dwell, i, t, old, begins, replays)
                if many >= 0 and i == dwell and (sizes[t] == 0 or dwell < sizes[t]):
                    layer[t, 0, dwell * strides[t], r] = stay
                    came[i, t, 0, dwell * strides[t], r] = t
                for s in range(S):
                    for c in range(total):
                        taken = (c // strides[t]) % sizes[t] if sizes[t] > 0 else 0
                        if one >= 0 and (sizes[t] == 0 or taken >= 1):
                            value = before[t, s, c - strides[t], one] + costs[i - 1, t]
                            if value < layer[t, s, c, r]:
                                layer[t, s, c, r] = value
                                came[i, t, s, c, r] = t
                        if many < 0 or (sizes[t] > 0 and taken < dwell):
                            continue
                        earlier = s - 1 if switches >= 0 else s
                        if earlier < 0:
                            continue
                        for other in range(T):
                            if other != t:
                                value = jump[other, earlier, c - dwell * strides[t], many] + stay
                                if value < layer[t, s, c, r]:
                                    layer[t, s, c, r] = value
                                    came[i, t, s, c, r] = other
    return last, 0


@inner
def _left(
    replay: int, first: int, last: int, task: int, old: Bools, begins: Bools, replays: Ints
) -> int:
    """Return how much replay there may be before steps `first` to `last` on a task; −1 if none may.

    replay: how much there may be with them, in the interval that the last of them lies in.
    """
    left = replay
    for i in range(last - 1, first - 1, -1):
        if left >= 0:
            left -= old[i, task]
        if left >= 0 and begins[i]:
            left = replays[i - 1] if i > 0 else 0
    return max(left, -1)


@compiled
def _trace(
    best: Floats, came: Ints, low: Ints, high: Ints, old: Bools, begins: Bools, replays: Ints,
    dwell: int, switches: int, sizes: Ints, strides: Ints,
) -> Ints:  # fmt: skip
    """Return the tasks (steps,) along the cheapest way through the filled layers, if any."""
    steps = came.shape[0] - 1
    _, T, S, total, _ = best.shape
    task, used, count, least = -1, 0, 0, np.inf
    replay = replays[steps - 1]
    last = best[steps % (dwell + 1), ..., replay]
    for t in range(T):
        for s in range(S):
            for c in range(total):
                if last[t, s, c] < least and _within(c, steps, low, high, sizes, strides):
                    task, used, count, least = t, s, c, last[t, s, c]
    sequence = np.empty(steps if task >= 0 else 0, np.int64)
    i = sequence.size
    while i > 0:
        other = came[i, task, used, count, replay]
        length = 1 if other == task and i > dwell else dwell
        sequence[i - length : i] = task
        replay = _left(replay, i - length, i, task, old, begins, replays)
        i -= length
        count -= length * strides[task]
        if other != task:
            task = other
            if switches >= 0:
                used -= 1
    return sequence


@inner
def _within(c: int, steps: int, low: Ints, high: Ints, sizes: Ints, strides: Ints) -> bool:
    """Whether final counts keep the budgets."""
    rest = steps
    for t in range(low.size):
        if sizes[t] > 0:
            taken = (c // strides[t]) % sizes[t]
            rest -= taken
            if taken < low[t] or taken > high[t]:
                return False
    free, least = 0, 0
    for t in range(low.size):
        if sizes[t] == 0:
            free += high[t]
            least += low[t]
    return least <= rest <= free
