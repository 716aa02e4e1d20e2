"""Limits: what a protocol must keep to so that a person can run it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from replan import check
from replan.check import Bools, Floats, Ints
from replan.errors import ArgumentError


class StepLimits(NamedTuple):
    """Limits on `steps` steps: counts of each task from low to high (T,), least stay, switches.

    available: (steps, T) whether each task can be trained on in each step. old: (steps, T) whether it
    counts as replay available. begins: (steps,) whether an interval between arrivals begins with the
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
        """Whether there is any limit at all, besides when tasks are available."""
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


@dataclass(frozen=True)
class Limits:
    """Limits on the tasks and knobs of a protocol; those not given do not bind.

    - `min_share`, `max_share`: (T,) least and largest share of each task in the whole training;
      equal ones make an exact budget.
    - `min_dwell`: every stay on a task lasts at least this long.
    - `max_switches`: how often the task may change.
    - `max_replay`: between one arrival of tasks and the next, the largest share of all tasks
      together that had arrived before; until the second arrival, none has.
    - `mean`: by name, what the mean of a controlled knob over the training must be: a number, or
      the range (min, max) that it must lie in.

    Examples:
        >>> model = replan.TeacherStudent.similar(0.3)
        >>> problem = replan.Problem(model, model.pretrain(seed=1), duration=20.0, steps=50)
        >>> few = replan.Limits(max_switches=2, max_share=[0.3, 1.0])  # at most 30 % of task 1
        >>> limited = replan.Problem(model, problem.start, duration=20.0, steps=50, limits=few)
        >>> plan = replan.solve(limited)
        >>> plan.certificate.switches <= 2, bool(plan.protocol.mean_shares[0] <= 0.3)
        (True, True)
    """

    min_share: ArrayLike | None = None
    max_share: ArrayLike | None = None
    min_dwell: float = 0.0
    max_switches: int | None = None
    mean: Mapping[str, Any] = field(default_factory=dict)
    max_replay: float | None = None

    def __post_init__(self) -> None:
        given = check.instance("mean", self.mean, Mapping, "means by the names of knobs")
        for name in given:
            check.word("mean", name)
        object.__setattr__(self, "mean", {name: _mean(name, x) for name, x in given.items()})
        dwell = check.number("min_dwell", self.min_dwell, at_least=0)
        object.__setattr__(self, "min_dwell", dwell)
        if self.max_switches is not None:
            switches = check.integer("max_switches", self.max_switches)
            object.__setattr__(self, "max_switches", switches)
        if self.max_replay is not None:
            replay = check.number("max_replay", self.max_replay, at_least=0, at_most=1)
            object.__setattr__(self, "max_replay", replay)
        for name in ("min_share", "max_share"):
            if getattr(self, name) is not None:
                shares = check.array(name, getattr(self, name), ("T",))
                if shares.size and (shares.min() < 0 or shares.max() > 1):
                    raise ArgumentError(name, "shares from 0 to 1", check.show(shares.tolist()))
                object.__setattr__(self, name, tuple(shares.tolist()))

    def on_grid(
        self, available: Bools, duration: float, arrivals: Ints | None = None
    ) -> StepLimits:
        """Return the limits in steps; refuse limits that no protocol can keep.

        available: (steps, T) whether each task can be trained on in each step. arrivals: (T,) the first
        such step of each, by default 0.
        """
        steps, tasks = available.shape
        low_given = np.zeros(tasks) if self.min_share is None else self.min_share
        high_given = np.ones(tasks) if self.max_share is None else self.max_share
        least = check.array("min_share", low_given, (tasks,))
        most = check.array("max_share", high_given, (tasks,))
        for t in range(tasks):
            if least[t] > most[t]:
                raise ArgumentError(
                    "min_share",
                    "at most `max_share`",
                    f"{least[t]:g} and {most[t]:g} for task {t + 1}",
                )
        if least.sum() > 1 + 1e-9:
            raise ArgumentError("min_share", "shares that sum to at most 1", f"{least.sum():g}")
        if most.sum() < 1 - 1e-9:
            raise ArgumentError("max_share", "shares that sum to at least 1", f"{most.sum():g}")
        if self.min_dwell > duration * (1 + 1e-9):
            raise ArgumentError(
                "min_dwell", f"at most the duration {duration:g}", f"{self.min_dwell:g}"
            )
        low = np.ceil(least * steps - 1e-6).astype(np.int64)
        high = np.floor(most * steps + 1e-6).astype(np.int64)
        for t in np.flatnonzero(low > high).tolist():
            raise ValueError(
                f"`min_share` {least[t]:g} to `max_share` {most[t]:g} of task {t + 1} leave no "
                f"whole number of the {steps} steps: use multiples of 1/{steps}, or more `steps`"
            )
        dwell = max(1, int(np.ceil(self.min_dwell * steps / duration - 1e-6)))
        switches = steps - 1 if self.max_switches is None else min(self.max_switches, steps - 1)
        for t in np.flatnonzero(low > available.sum(axis=0)).tolist():
            raise ArgumentError(
                f"min_share of task {t + 1}",
                f"at most {available[:, t].mean():.6g}, as long as it is there",
                f"{least[t]:g}",
            )
        first = np.zeros(tasks, np.int64) if arrivals is None else arrivals
        replay = self._replay(available, duration, first)
        limits = StepLimits(steps, low, high, dwell, switches, available, *replay)
        if not _can_be_kept(limits):
            raise ValueError(
                f"`limits` cannot all be kept on {steps} steps: shares of "
                f"{check.show(low.tolist())} to {check.show(high.tolist())} steps, "
                f"stays of at least {dwell}, at most {switches} switches"
                + (f", replay of at most {self.max_replay:g}" if limits.on_replay else "")
                + ("" if available.all() else ", each task only while it is there")
            )
        return limits

    def _replay(self, available: Bools, duration: float, first: Ints) -> tuple[Bools, Bools, Ints]:
        """Return what replay is and how much of it there may be, as in `StepLimits`.

        first: (T,) the step that each task arrives with.
        """
        steps = len(available)
        begins = np.isin(np.arange(steps), [0, *first])
        starts, interval = np.flatnonzero(begins), np.cumsum(begins) - 1
        if self.max_replay is None:
            return np.zeros_like(available), begins, np.zeros(steps, np.int64)
        if starts.size == 1:
            raise ArgumentError(
                "max_replay",
                "tasks that arrive during the training",
                "none: give `arrivals`, or limit old tasks by `max_share`",
            )
        old, lengths = first < starts[interval][:, None], np.bincount(interval)
        most = np.floor(self.max_replay * lengths + 1e-6).astype(np.int64)
        forced = np.bincount(interval, ~np.any(available & ~old, axis=1))
        for k in np.flatnonzero(forced > most).tolist():
            since, until = (x * duration / steps for x in (starts[k], starts[k] + lengths[k]))
            raise ArgumentError(
                "max_replay",
                f"at least {forced[k] / lengths[k]:.6g} here",
                f"{self.max_replay:g}: tasks that arrive at {since:g} are away for"
                f" that part of the time until {until:g}, which leaves only older"
                " ones",
            )
        capped = most < lengths
        capped[0] = False  # nothing is old
        return old & capped[interval, None], begins, np.where(capped, most, 0)[interval]

    def to_dict(self) -> dict[str, Any]:
        """Return the limits that are set, as the `[limits]` section of a problem file."""
        content = {
            name: np.asarray(value).tolist() if name.endswith("share") else value
            for name, value in asdict(self).items()
            if value is not None and (name, value) not in (("min_dwell", 0), ("mean", {}))
        }
        if "mean" in content:
            content["mean"] = {
                name: low if low == high else {"min": low, "max": high}
                for name, (low, high) in content["mean"].items()
            }
        return content


def replay_on(limits: StepLimits, steps: int) -> tuple[Bools, Ints, Floats]:
    """Return what limits on replay mean for mixtures of tasks on other steps.

    That is: (steps, T) which tasks are old, (G, 2) from which to which step each of G limits holds,
    and (G,) the largest mean share of old tasks available. A step belongs to the interval that its
    middle lies in; what of it lies outside may be replay, so that no protocol within the limits is
    lost where arrivals are between the steps.
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


def _mean(name: str, value: Any) -> tuple[float, float]:
    """Return the range of a knob's mean."""
    if isinstance(value, Real):
        value = (value, value)
    low, high = check.array(f"mean of {name}", value, (2,))
    if low > high:
        raise ArgumentError(f"mean of {name}", "min ≤ max", f"min {low:g} and max {high:g}")
    return float(low), float(high)


def _can_be_kept(limits: StepLimits) -> bool:
    """Whether some protocol keeps the limits.

    Where all tasks are always available: if one does, so does one with a single stay on each of its
    tasks. Tasks that need not be trained are added in order of the largest share they may have,
    until all steps are used.
    """
    if not limits.available.all():
        return _in_a_row(limits) if limits.on_stays else _dealt_out(limits)
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


def _in_a_row(limits: StepLimits) -> bool:
    """Whether some protocol keeps the limits, those on stays and switches too."""
    from replan.problem.discrete import cheapest  # compiled, slow to import

    return cheapest(np.zeros(limits.available.shape), limits).size > 0


def _dealt_out(limits: StepLimits) -> bool:
    """Whether the steps can be dealt out to tasks that are available, each as often as it may have.

    Only how many steps of a kind, with the same tasks available, a task gets matters. These numbers are
    a flow: where fractions of steps fit, so do whole ones; with a limit on replay they need not.
    """
    from scipy.optimize import linprog  # would double the time it takes to import replan

    interval = limits.interval if limits.on_replay else np.zeros(limits.steps, np.int64)
    rows = np.column_stack([interval, limits.available])
    kinds, at, counts = np.unique(rows, axis=0, return_index=True, return_counts=True)
    tasks = len(limits.low)
    totals = np.tile(np.eye(tasks), len(kinds))
    firsts = np.flatnonzero(limits.begins) if limits.on_replay else np.zeros(0, np.int64)
    replays = [(limits.old[at] & (kinds[:, :1] == k)).ravel() for k in range(firsts.size)]
    found = linprog(
        np.zeros(totals.shape[1]),
        A_ub=np.vstack([totals, -totals, *replays]),
        b_ub=np.concatenate([limits.high, -limits.low, limits.replays[firsts]]),
        A_eq=np.kron(np.eye(len(kinds)), np.ones(tasks)),
        b_eq=counts,
        bounds=[(0, None if there else 0) for there in kinds[:, 1:].ravel()],
        integrality=int(limits.on_replay),
    )
    return bool(found.status == 0)
