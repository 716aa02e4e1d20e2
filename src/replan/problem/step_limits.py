"""StepLimits: the limits on a problem's steps, and whether any protocol can keep them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from replan import check
from replan.check import Bools, Floats, Ints
from replan.errors import ArgumentError
from replan.problem.discrete import cheapest
from replan.problem.limits import Limits

_EXACT = 1e-6  # of a step: what rounding may add to a count of steps


class StepLimits(NamedTuple):
    """Limits in steps: counts of each task from low to high (T,), least stay, most switches.

    available: (steps, T) whether each task can be trained on in each step. old: (steps, T) whether
    it counts as replay then. begins: (steps,) whether an interval between arrivals begins with the
    step. replays: (steps,) the most steps of replay in its interval.
    """

    steps: int
    low: Ints
    high: Ints
    dwell: int
    switches: int
    available: Bools
    old: Bools
    begins: Bools
    replays: Ints

    @property
    def binding(self) -> bool:
        """Whether there is any limit besides when tasks are available."""
        on_shares = self.low.any() or np.any(self.high < self.steps) or self.on_replay
        return bool(self.on_stays or on_shares)

    @property
    def on_replay(self) -> bool:
        """Whether there is a limit on replay between arrivals."""
        return bool(self.old.any())

    @property
    def interval(self) -> Ints:
        """The interval between arrivals (steps,) that each step lies in, from 0."""
        return np.cumsum(self.begins) - 1

    @property
    def on_stays(self) -> bool:
        """Whether there is a limit that mixtures of tasks cannot express: stays or switches."""
        return self.dwell > 1 or self.switches < self.steps - 1


def limits_in_steps(
    limits: Limits, available: Bools, duration: float, arrivals: Ints
) -> StepLimits:
    """Return limits in steps; refuse limits that no protocol can keep.

    available: (steps, T) whether each task can be trained on in each step. arrivals: (T,) the first
    such step of each.
    """
    steps, tasks = available.shape
    low, high = _share_limits(limits, steps, tasks)
    if limits.min_dwell > duration * (1 + 1e-9):
        raise ArgumentError(
            "min_dwell", f"at most the duration {duration:g}", f"{limits.min_dwell:g}"
        )
    dwell = max(1, int(np.ceil(limits.min_dwell * steps / duration - _EXACT)))
    most = limits.max_switches
    switches = steps - 1 if most is None else min(most, steps - 1)
    for t in np.flatnonzero(low > available.sum(axis=0)).tolist():
        raise ArgumentError(
            "min_share",
            f"at most the share of time in which task {t + 1} is available, "
            f"{available[:, t].mean():.6g}",
            f"{low[t] / steps:.6g}",
        )
    replay = _replay(limits.max_replay, available, duration, arrivals)
    in_steps = StepLimits(steps, low, high, dwell, switches, available, *replay)
    if not _can_be_kept(in_steps):
        raise ArgumentError(
            "limits",
            f"limits that some protocol of {steps} steps keeps",
            f"{check.show(low.tolist())} to {check.show(high.tolist())} steps of the tasks, stays "
            f"of at least {dwell}, at most {switches} switches"
            + (f", replay of at most {limits.max_replay:g}" if in_steps.on_replay else "")
            + ("" if available.all() else ", each task only while it is available"),
        )
    return in_steps


def _share_limits(limits: Limits, steps: int, tasks: int) -> tuple[Ints, Ints]:
    """Return the least and largest count of steps of each task (T,)."""
    low_given = np.zeros(tasks) if limits.min_share is None else limits.min_share
    high_given = np.ones(tasks) if limits.max_share is None else limits.max_share
    least = check.array("min_share", low_given, (tasks,))
    most = check.array("max_share", high_given, (tasks,))
    for t in np.flatnonzero(least > most).tolist():
        raise ArgumentError(
            "min_share", "at most `max_share`", f"{least[t]:g} and {most[t]:g} for task {t + 1}"
        )
    if least.sum() > 1 + 1e-9:
        raise ArgumentError("min_share", "shares that sum to at most 1", f"{least.sum():g}")
    if most.sum() < 1 - 1e-9:
        raise ArgumentError("max_share", "shares that sum to at least 1", f"{most.sum():g}")
    low = np.ceil(least * steps - _EXACT).astype(np.int64)
    high = np.floor(most * steps + _EXACT).astype(np.int64)
    for t in np.flatnonzero(low > high).tolist():
        raise ArgumentError(
            "min_share",
            f"such that a multiple of 1/{steps} lies between it and `max_share`",
            f"{least[t]:g} and {most[t]:g} for task {t + 1}: use more `steps`",
        )
    return low, high


def _replay(
    max_replay: float | None, available: Bools, duration: float, arrivals: Ints
) -> tuple[Bools, Bools, Ints]:
    """Return what counts as replay and how much of it is allowed, as in `StepLimits`."""
    steps = len(available)
    begins = np.isin(np.arange(steps), [0, *arrivals])
    starts, interval = np.flatnonzero(begins), np.cumsum(begins) - 1
    if max_replay is None:
        return np.zeros_like(available), begins, np.zeros(steps, np.int64)
    if starts.size == 1:
        raise ArgumentError(
            "max_replay",
            "used with tasks that arrive during the training",
            "no `arrivals`: limit old tasks by `max_share`",
        )
    old, lengths = arrivals < starts[interval][:, None], np.bincount(interval)
    most = np.floor(max_replay * lengths + _EXACT).astype(np.int64)
    forced = np.bincount(interval, ~np.any(available & ~old, axis=1))
    for k in np.flatnonzero(forced > most).tolist():
        since, until = (x * duration / steps for x in (starts[k], starts[k] + lengths[k]))
        raise ArgumentError(
            "max_replay",
            f"at least {forced[k] / lengths[k]:.6g}, because only old tasks are available for that "
            f"part of the time from {since:g} to {until:g}",
            f"{max_replay:g}",
        )
    capped = most < lengths
    capped[0] = False  # nothing is old
    return old & capped[interval, None], begins, np.where(capped, most, 0)[interval]


def replay_on(limits: StepLimits, steps: int) -> tuple[Bools, Ints, Floats]:
    """Return the limits on replay for mixtures of tasks on another number of steps.

    old: (steps, T) which tasks count as replay. spans: (G, 2) the first and last step of each of G
    limits. caps: (G,) the largest mean share of old tasks in each span. A step belongs to the
    interval that its middle lies in; the part outside may be replay, so that no protocol within
    the limits is lost where arrivals fall between the steps.
    """
    bounds = np.append(np.flatnonzero(limits.begins), limits.steps) / limits.steps
    edges = np.arange(steps + 1) / steps
    interval = np.searchsorted(bounds, (edges[1:] + edges[:-1]) / 2, side="right") - 1
    inside = np.minimum(edges[1:], bounds[interval + 1]) - np.maximum(edges[:-1], bounds[interval])
    spans, caps = [], []
    for k, row in enumerate(np.flatnonzero(limits.begins)):
        first, last = np.searchsorted(interval, [k, k + 1]).tolist()
        if last > first and limits.old[row].any():
            outside = (last - first) / steps - inside[first:last].sum()
            most = limits.replays[row] / limits.steps + max(outside, 0.0)
            spans.append([first, last])
            caps.append(min(most * steps / (last - first), 1.0))
    old = limits.old[np.flatnonzero(limits.begins)[interval]]
    return old, np.array(spans, np.int64).reshape(-1, 2), np.array(caps, np.float64)


def _can_be_kept(limits: StepLimits) -> bool:
    """Whether some protocol keeps the limits.

    Where all tasks are always available, a protocol with one stay on each task suffices. Tasks that
    need not be trained are added in order of their largest share, until all steps are used.
    """
    if not limits.available.all():
        if limits.on_stays:
            return cheapest(np.zeros(limits.available.shape), limits).size > 0
        return _by_counts(limits)
    needed = limits.low > 0
    least = np.maximum(limits.low, limits.dwell)
    if np.any(least[needed] > limits.high[needed]):
        return False
    low, high, count = int(least[needed].sum()), int(limits.high[needed].sum()), int(needed.sum())
    for most in sorted(limits.high[~needed], reverse=True):
        if high >= limits.steps or most < limits.dwell:
            break
        low, high, count = low + limits.dwell, high + int(most), count + 1
    return low <= limits.steps <= high and count <= limits.switches + 1


def _by_counts(limits: StepLimits) -> bool:
    """Whether the counts of steps fit, where stays and switches are free.

    Only how many steps of each kind (with the same tasks available) a task gets matters. These
    counts are a flow, so fractional ones suffice; with a limit on replay they must be integers.
    """
    from scipy.optimize import linprog  # would double the time it takes to import replan

    interval = limits.interval if limits.on_replay else np.zeros(limits.steps, np.int64)
    rows = np.column_stack([interval, limits.available])
    kinds, at, counts = np.unique(rows, axis=0, return_index=True, return_counts=True)
    tasks = len(limits.low)
    totals = np.tile(np.eye(tasks), len(kinds))
    firsts = np.flatnonzero(limits.begins) if limits.on_replay else np.zeros(0, np.int64)
    replays = [(limits.old[at] & (kinds[:, :1] == k)).ravel() for k in range(firsts.size)]
    solution = linprog(
        np.zeros(totals.shape[1]),
        A_ub=np.vstack([totals, -totals, *replays]),
        b_ub=np.concatenate([limits.high, -limits.low, limits.replays[firsts]]),
        A_eq=np.kron(np.eye(len(kinds)), np.ones(tasks)),
        b_eq=counts,
        bounds=[(0, None if free else 0) for free in kinds[:, 1:].ravel()],
        integrality=int(limits.on_replay),
    )
    return bool(solution.status == 0)
