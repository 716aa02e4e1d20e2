"""Availability: when each task is there to be trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from replan import check
from replan.check import Bools, Floats, Ints
from replan.errors import ArgumentError

_SAME = 1e-9  # times closer than this fraction of the duration count as one


@dataclass(frozen=True, eq=False)
class Availability:
    """When each task is there: from its arrival until its departure.

    arrivals, departures: (T,) edges of the problem's steps. A task that arrives at the end of the
    training never does; one that departs then stays.
    """

    arrivals: Floats
    departures: Floats
    duration: float

    @cached_property
    def always(self) -> bool:
        """Whether all tasks are there throughout."""
        return bool(np.all(self.arrivals == 0) and np.all(self.departures == self.duration))

    @cached_property
    def changes(self) -> Floats:
        """The times within the training at which tasks arrive or depart."""
        times = np.unique([self.arrivals, self.departures])
        return times[(times > 0) & (times < self.duration)]

    @cached_property
    def begins(self) -> Floats:
        """The times (K,) from which on another set of tasks has arrived; the first is 0."""
        return np.unique(self.arrivals[self.arrivals < self.duration])

    def on(self, edges: Floats) -> Bools:
        """Return whether each task is there (n, T) at some time in each of n steps."""
        room = _SAME * self.duration
        arrived = edges[1:, None] > self.arrivals + room
        return np.asarray(arrived & (edges[:-1, None] < self.departures - room))

    def newest(self, edges: Floats) -> Ints:
        """Return, of the tasks there in each of n steps, the one that arrived last (n,).

        Of several that arrived together, it is the last of them.
        """
        order = np.argsort(-self.arrivals[::-1], kind="stable")
        newest_first = len(order) - 1 - order
        return newest_first[np.argmax(self.on(edges)[:, newest_first], axis=1)]

    def renormalise(self, shares: Floats, edges: Floats) -> Floats:
        """Return shares (n, T) in n steps with those of tasks that are away given to the others.

        These get as much each, relative to one another, as they had; equal shares if they had none.
        """
        if self.always:
            return shares
        there = self.on(edges)
        left = np.where(there, shares, 0.0)
        left = np.where(left.any(axis=1, keepdims=True), left, there)
        return np.asarray(left / left.sum(axis=1, keepdims=True))

    def check(self, name: str, shares: Floats, edges: Floats, tasks: Sequence[str]) -> None:
        """Refuse shares (n, T) in n steps of a task that is away, naming the argument."""
        room = _SAME * self.duration
        early = edges[:-1, None] < self.arrivals - room
        late = edges[1:, None] > self.departures + room
        for step, task in np.argwhere((shares > 0) & (early | late))[:1].tolist():
            first, last = self.arrivals[task], self.departures[task]
            when = f"from {first:g} to {last:g}" if first < self.duration else "at no time"
            raise ArgumentError(
                name,
                f"{tasks[task]} only while it is there, {when}",
                f"a share of it from {edges[step]:g} to {edges[step + 1]:g}",
            )


def availability_of(
    arrivals: ArrayLike | None, departures: ArrayLike | None, tasks: int, edges: Floats
) -> Availability:
    """Return when tasks are there; refuse times between the edges, and a time without any task."""
    end = float(edges[-1])
    first = np.zeros(tasks) if arrivals is None else _times("arrivals", arrivals, tasks, edges)
    last = np.full(tasks, end)
    if departures is not None:
        last = _times("departures", departures, tasks, edges)
    for t in np.flatnonzero((first >= last) & (first < end)).tolist():
        raise ArgumentError(
            "departures",
            "times after the `arrivals`",
            f"{last[t]:g} and {first[t]:g} for task {t + 1}",
        )
    found = Availability(first, last, end)
    for step in np.flatnonzero(~found.on(edges).any(axis=1)).tolist():
        raise ValueError(
            "`arrivals` and `departures` expect a task that is there at any time, got none from "
            f"{edges[step]:g}"
        )
    return found


def _times(name: str, given: ArrayLike, tasks: int, edges: Floats) -> Floats:
    """Return times (T,), at most the last edge, as edges; refuse those between them."""
    times = check.array(name, given, (tasks,), finite=False)
    if not np.all(times >= 0):
        raise ArgumentError(name, "times of at least 0, or inf", check.show(times.tolist()))
    times = np.minimum(times, edges[-1])
    found = edges[np.rint(times / edges[-1] * (edges.size - 1)).astype(np.int64)]
    for t in np.flatnonzero(np.abs(found - times) > _SAME * edges[-1]).tolist():
        below = int(np.searchsorted(edges, times[t])) - 1
        raise ArgumentError(
            name,
            f"times between steps, multiples of {edges[1]:g}",
            f"{times[t]:g} for task {t + 1}: use {edges[below]:g} or "
            f"{edges[below + 1]:g}, or other `steps`",
        )
    return np.asarray(found)
