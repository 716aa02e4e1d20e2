"""Protocols with one task per step that keep limits: the cheapest, and the nearest to shares."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from replan.check import Floats, Ints
from replan.core.rounding import sum_up
from replan.core.shortest_path import cheapest_path
from replan.errors import ArgumentError

if TYPE_CHECKING:
    from replan.problem.step_limits import StepLimits

_MOST = 2**27  # entries of the tables, in units of two bytes


def cheapest(costs: Floats, limits: StepLimits) -> Ints:
    """Return the tasks (steps,) of least total cost that keep the limits, empty if there are none.

    costs: (steps, T).
    """
    if not limits.binding:
        return np.asarray(np.argmin(np.where(limits.available, costs, np.inf), axis=1))
    steps, tasks = costs.shape
    # How many different counts a task can have, 0 where its share has no limit. The counts of all
    # tasks sum to the steps: one of them can be left out where all are limited.
    counted = (limits.low > 0) | (limits.high < steps)
    sizes = np.where(counted, limits.high + 1, 0)
    if counted.all():
        sizes[np.argmax(sizes)] = 0
    most = limits.switches if limits.switches < steps // limits.dwell - 1 else -1
    layer = tasks * max(most + 1, 1) * math.prod(max(int(size), 1) for size in sizes)
    layer *= int(limits.replays.max()) + 1
    entries = (steps + 1 + 4 * (limits.dwell + 1)) * layer
    if entries > _MOST:
        raise ArgumentError(
            "limits",
            f"simple enough for a table of {_MOST:.1g} entries",
            f"{entries:.1g} on {steps} steps: use fewer `steps`, or limit fewer tasks",
        )
    reachable = np.where(limits.available, costs, 0.0)
    return cheapest_path(
        reachable, limits.available, limits.low, limits.high, limits.old, limits.begins,
        limits.replays, limits.dwell, most, sizes,
    )  # fmt: skip


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
    steps = np.arange(limits.steps)
    there = bool(np.all(limits.available[steps, sequence]))
    if not (there and limits.binding):
        return there
    replay = np.bincount(limits.interval, limits.old[steps, sequence])
    counts = np.bincount(sequence, minlength=len(limits.low))
    changes = np.flatnonzero(np.diff(sequence)) + 1
    stays = np.diff(np.concatenate([[0], changes, [len(sequence)]]))
    return bool(
        np.all((counts >= limits.low) & (counts <= limits.high))
        and np.all(replay <= limits.replays[limits.begins])
        and len(changes) <= limits.switches
        and stays.min() >= limits.dwell
    )
