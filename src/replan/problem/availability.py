"""Availability: when each task can be trained on."""

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
    """Each task is available from its arrival until its departure.

    arrivals, departures: (T,) edges of the problem's steps. A task whose arrival is the end of the
    training never arrives; one whose departure is the end stays.
    """

    arrivals: Floats
    departures: Floats
    duration: float

    @cached_property
    def always(self) -> bool:
        """Whether all tasks are available throughout."""
        return bool(np.all(self.arrivals == 0) and np.all(self.departures == self.duration))

    @cached_property
    def changes(self) -> Floats:
        """The times within the training at which tasks arrive or depart."""
        times = np.unique([self.arrivals, self.departures])
        return times[(times > 0) & (times < self.duration)]

    @cached_property
    def begins(self) -> Floats:
        """The times (K,) at which tasks arrive; the first is 0."""
        return np.unique(self.arrivals[self.arrivals < self.duration])

    def on(self, edges: Floats) -> Bools:
        """Return whether each task is available (n, T) at some time in each of n steps."""
        room = _SAME * self.duration
        arrived = edges[1:, None] > self.arrivals + room
        return np.asarray(arrived & (edges[:-1, None] < self.departures - room))

    def newest(self, edges: Floats) -> Ints:
        """Return the available task that arrived last (n,) in each of n steps.

        Of several that arrived together, it is the last in order.
        """
        order = np.argsort(-self.arrivals[::-1], kind="stable")
        newest_first = len(order) - 1 - order
        return newest_first[np.argmax(self.on(edges)[:, newest_first], axis=1)]

    def renormalise(self, shares: Floats, edges: Floats) -> Floats:
        """Return shares (n, T) with those of unavailable tasks redistributed proportionally.

        Where no available task has a share, all of them get equal ones.
        """
        if self.always:
            return shares
        available = self.on(edges)
        kept = np.where(available, shares, 0.0)
        kept = np.where(kept.any(axis=1, keepdims=True), kept, available)
        return np.asarray(kept / kept.sum(axis=1, keepdims=True))

    def check(self, name: str, shares: Floats, edges: Floats, tasks: Sequence[str]) -> None:
        """Refuse shares (n, T) of unavailable tasks, naming the argument."""
        if self.always:
            return
        room = _SAME * self.duration
        early = edges[:-1, None] < self.arrivals - room
        late = edges[1:, None] > self.departures + room
        for step, task in np.argwhere((shares > 0) & (early | late))[:1].tolist():
            first, last = self.arrivals[task], self.departures[task]
            when = f"from {first:g} to {last:g}" if first < self.duration else "never"
            raise ArgumentError(
                name,
                f"a protocol that trains on {tasks[task]} only while it is available, {when}",
                f"a share of it from {edges[step]:g} to {edges[step + 1]:g}",
            )


def availability_of(
    arrivals: ArrayLike | None, departures: ArrayLike | None, tasks: int, edges: Floats
) -> Availability:
    """Return when tasks are available.

    Refuse times between the edges, and a step without any task.
    """
    end = float(edges[-1])
    first = np.zeros(tasks) if arrivals is None else _times("arrivals", arrivals, tasks, edges)
    last = np.full(tasks, end)
    if departures is not None:
        last = _times("departures", departures, tasks, edges)
    for t in np.flatnonzero((first >= last) & (first < end)).tolist():
        raise ArgumentError(
            "departures", "after the `arrivals`", f"{last[t]:g} and {first[t]:g} for task {t + 1}"
        )
    availability = Availability(first, last, end)
    for step in np.flatnonzero(~availability.on(edges).any(axis=1)).tolist():
        raise ArgumentError(
            "arrivals", "such that a task is available at any time", f"none from {edges[step]:g}"
        )
    return availability


def _times(name: str, given: ArrayLike, tasks: int, edges: Floats) -> Floats:
    """Return times (T,), at most the last edge, as edges; refuse those between them."""
    times = check.array(name, given, (tasks,), finite=False)
    if not np.all(times >= 0):
        raise ArgumentError(name, "times of at least 0, or inf", check.show(times.tolist()))
    times = np.minimum(times, edges[-1])
    nearest = edges[np.rint(times / edges[-1] * (edges.size - 1)).astype(np.int64)]
    for t in np.flatnonzero(np.abs(nearest - times) > _SAME * edges[-1]).tolist():
        below = int(np.searchsorted(edges, times[t])) - 1
        raise ArgumentError(
            name,
            f"edges of steps, multiples of {edges[1]:g}",
            f"{times[t]:g} for task {t + 1}: use {edges[below]:g} or {edges[below + 1]:g}, or "
            "other `steps`",
        )
    return np.asarray(nearest)
