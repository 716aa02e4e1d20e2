"""Protocols with one task per step that keep limits: the cheapest, and the nearest to shares."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from replan.check import Bools, Floats, Ints
from replan.core.compiled import compiled, inner
from replan.core.interrupt import ChunkedLoop
from replan.core.rounding import sum_up
from replan.errors import ArgumentError

if TYPE_CHECKING:
    from replan.problem.step_limits import StepLimits

_MOST = 2**27  # entries of the tables, in units of two bytes
_PACE = ChunkedLoop()  # of filling them in, by entries


def cheapest(costs: Floats, limits: StepLimits) -> Ints:
    """Return the tasks (steps,) of least total cost that keep the limits, none if no tasks do.

    costs: (steps, T).
    """
    if not limits.binding:
        return np.asarray(np.argmin(np.where(limits.available, costs, np.inf), axis=1))
    steps, tasks = costs.shape
    sizes = _counted(limits, steps)
    limited = limits.switches < steps // limits.dwell - 1
    most = limits.switches if limited else -1
    layer = tasks * max(most + 1, 1) * math.prod(max(int(size), 1) for size in sizes)
    layer *= int(limits.replays.max()) + 1
    entries = (steps + 1 + 4 * (limits.dwell + 1)) * layer
    if entries > _MOST:
        raise ArgumentError(
            "limits",
            f"simple enough for a table of {_MOST:.1g} entries",
            f"{entries:.1g} on {steps} steps: use fewer `steps`, or limit fewer tasks",
        )
    return _shortest_path(np.where(limits.available, costs, 0.0), limits, most, sizes)


def nearest(shares: Floats, limits: StepLimits, patience: float = 0.0) -> Ints:
    """Return tasks (steps,) that keep the limits and follow shares (steps, T) on equal steps.

    Sum-up rounding that changes the task only where another lags `patience` steps more, or as many
    as the limit on switches requires; then the protocol within the limits that differs from it at
    the fewest steps.
    """
    steps, tasks = shares.shape
    lengths = np.ones(steps)
    sequence = sum_up(shares, lengths, patience, limits.available)
    # beyond twice the steps, only tasks that depart are left
    while patience < 2 * steps and np.count_nonzero(np.diff(sequence)) > limits.switches:
        patience = 1.5 * patience + 1.0
        sequence = sum_up(shares, lengths, patience, limits.available)
    return sequence if allows(limits, sequence) else cheapest(1.0 - np.eye(tasks)[sequence], limits)


def allows(limits: StepLimits, sequence: Ints) -> bool:
    """Whether the tasks of a protocol, one per step, keep the limits."""
    counts = np.bincount(sequence, minlength=len(limits.low))
    changes = np.flatnonzero(np.diff(sequence)) + 1
    stays = np.diff(np.concatenate([[0], changes, [len(sequence)]]))
    return bool(
        np.all(limits.available[np.arange(limits.steps), sequence])
        and np.all((counts >= limits.low) & (counts <= limits.high))
        and _replays(limits, sequence)
        and len(changes) <= limits.switches
        and stays.min() >= limits.dwell
    )


def _replays(limits: StepLimits, sequence: Ints) -> bool:
    """Whether no interval between arrivals has too much replay."""
    old = limits.old[np.arange(limits.steps), sequence]
    return bool(np.all(np.bincount(limits.interval, old) <= limits.replays[limits.begins]))


def _counted(limits: StepLimits, steps: int) -> Ints:
    """Return how many different counts each task can have, 0 where its share has no limit.

    The counts of all tasks sum to the steps: one of them can be left out where all are limited.
    """
    limited = (limits.low > 0) | (limits.high < steps)
    sizes = np.where(limited, limits.high + 1, 0)
    if limited.all():
        sizes[np.argmax(sizes)] = 0
    return np.asarray(sizes)


def _shortest_path(costs: Floats, limits: StepLimits, switches: int, sizes: Ints) -> Ints:
    """Go through (step, task, switches so far, counts so far, replay), stays at least `dwell` long.

    Either the stay continues for a step, or a new one of `dwell` steps follows it. `switches` −1
    means no limit. Counts form one mixed-radix number; `sizes` are its digits' ranges, 0 for tasks
    not counted. Replay is how many steps of it there may be in an interval up to the step: at its
    end, as many as are allowed.
    """
    steps, T = costs.shape
    counted = np.where(sizes > 0, sizes, 1)
    strides = np.where(sizes > 0, np.cumprod(counted) // counted, 0)
    layer = (T, max(switches + 1, 1), int(np.prod(counted)), int(limits.replays.max()) + 1)
    best = np.full((limits.dwell + 1, *layer), np.inf)  # the last layers, in turn
    came = np.full((steps + 1, *layer), -1, np.int16)  # the previous task
    sums = np.vstack([np.zeros(T), np.cumsum(costs, axis=0)])
    stays = np.zeros((steps + 1, T), np.int64)  # the longest that end at each edge
    for i in range(steps):
        stays[i + 1] = np.where(limits.available[i], stays[i] + 1, 0)
    replay = (limits.old, limits.begins, limits.replays)
    walk = (*replay, limits.dwell, switches, sizes, strides)
    _PACE.run(_fill, steps + 1, costs, sums, stays, *walk, best, came)
    return np.asarray(_trace(best, came, limits.low, limits.high, *walk))


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
