"""Ablation: the problems that levers stand for, from nothing controlled to everything."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np

from replan import check
from replan.check import Floats
from replan.control.discretised import check_differentiable
from replan.core.projection import Domain, project
from replan.errors import ArgumentError, IntegrationError
from replan.problem import Control, Limits, Problem, Range
from replan.protocol import Protocol
from replan.strategies import constant_lr, grid_search, interleaved

Freedoms = frozenset[str]

_FASTEST = 5.0  # times the problem's rate: the end of its range where the problem has none
_SCAN = 33  # constant rates, evenly over their range, of which the best is refined
_SLOW_SCAN = 13  # and on a logarithmic scale, from a 64th of the largest
_LEVERS = ("nothing", "share", "timing", "rate", "curve", "rates", "all")  # that are no knobs


class Ablation:
    """What can be controlled in a problem, as sets of freedoms that contain one another.

    Freedoms are words: "share" (the shares of the tasks, constant over time) and with it "timing"
    (shares that change), "rate" (one constant learning rate) and with it "curve" (that changes) and
    "rates" (with a value for each task), and any other knob by its name, free over time.

    levers: by name, the freedoms of each lever. without: by name, all freedoms but that one and
    those that need it. ranges: of the knobs. notes: where these come from, and what was left out.
    base: the problem with nothing controlled; protocol: its protocol.
    """

    def __init__(self, problem: Problem) -> None:
        _check(problem)
        self._problem, self._knobs = problem, problem.model.layout.knobs
        self._rate = next((knob.name for knob in problem.model.knobs if knob.rate), None)
        self.notes: list[str] = []
        self.ranges = self._ranges()
        values = self._values()
        self.base = problem.changed(**values, control=Control(tasks=False), limits=Limits())
        self.protocol = interleaved(self.base, shares=self._shares())
        # The mean of a knob with a value for each task depends on the shares.
        self._shared = {
            name
            for name in self.ranges
            if name in problem.limits.mean and self._knobs[name].per_task
        }
        self._other_knobs = {
            f"{name} (knob)" if name in _LEVERS else name: name
            for name in self.ranges
            if name != self._rate
        }
        self.levers, self.without = self._sets()

    def _sets(self) -> tuple[dict[str, Freedoms], dict[str, Freedoms]]:
        """Return the freedoms of every lever, and all freedoms without each."""
        rate, several = self._rate, self._problem.model.tasks > 1
        shares = ["share", "timing"] if several else []
        rates = ["rate", "curve"] if rate in self.ranges else []
        if rate and rates and several and rate not in self._shared and self._knobs[rate].per_task:
            rates.append("rates")
        words = [*shares, *rates, *self._other_knobs]
        levers = {
            "nothing": [],
            "share": ["share"],
            "rate": ["rate"],
            "timing": ["share", "timing"],
            "curve": ["rate", "curve"],
            "rates": ["share", "rate", "curve", *rates[2:]],
        } | {name: [name] for name in self._other_knobs}
        levers = {name: free for name, free in levers.items() if set(free) <= set(words)}
        levers["all"] = words
        needed_by = {"share": shares, "rate": rates}
        without = {name: set(words).difference(needed_by.get(name, [name])) for name in words}
        return (
            {name: frozenset(free) for name, free in levers.items()},
            {name: frozenset(free) for name, free in without.items()},
        )

    def _ranges(self) -> dict[str, tuple[float, float]]:
        """Return the ranges of all knobs that have one: the problem's, or one by default."""
        ranges = {}
        for name, knob in self._knobs.items():
            controlled = self._problem.control.knobs.get(name)
            low, high = (controlled or knob).low, (controlled or knob).high
            note = ": the model's full range"
            if name == self._rate:
                value = self._problem.knobs[name]
                note = f": up to {_FASTEST:g} times the problem's" if value else ""
                if not controlled:
                    low, high = max(low, 0.0), min(high, _FASTEST * (value or 1.0))
            if not np.isfinite(high - low):
                self.notes.append(f"{name} is left out: it has no finite range")
            elif low == high:
                self.notes.append(f"{name} is left out: its range is {low:g} alone")
            else:
                ranges[name] = (float(low), float(high))
                if not controlled:
                    self.notes.append(f"{name} from {low:g} to {high:g}{note}")
        return ranges

    def _values(self) -> dict[str, float]:
        """Return the problem's knobs by name, moved to where their means may be."""
        values = self._problem.settings
        for name, bounds in self._problem.limits.mean.items():
            value = values[name]
            values[name] = float(np.clip(value, *bounds))
            if values[name] != value:
                self.notes.append(f"{name} is {values[name]:g} where fixed: its mean is limited")
        return values

    def _shares(self) -> Floats:
        """Return equal shares (T,), or the nearest that the limits allow."""
        limits, tasks = self._problem.step_limits, self._problem.model.tasks
        low, high = limits.low / limits.steps, limits.high / limits.steps
        none = np.zeros(0)
        domain = Domain(1, np.ones((0, tasks), bool), low, high, np.zeros((0, 0)), none, none)
        equal = np.full(tasks, 1 / tasks)
        shares = np.asarray(project(equal, domain))
        if np.allclose(shares, equal, rtol=0, atol=1e-12):
            return equal
        words = ", ".join(f"{share:.3g}" for share in shares)
        self.notes.append(f"equal shares stand for {words}: nearest to equal within the limits")
        return shares

    def problem(self, freedoms: Freedoms) -> Problem:
        """Return the problem in which these freedoms, and nothing else, are controlled."""
        names = [knob for word, knob in self._other_knobs.items() if word in freedoms]
        constant, shared = set(), set(self._shared)
        if self._rate is not None and "rate" in freedoms:
            names.append(self._rate)
            if "curve" not in freedoms:
                constant.add(self._rate)
            if "rates" not in freedoms and self._knobs[self._rate].per_task:
                shared.add(self._rate)
        knobs = {n: Range(*self.ranges[n], n in constant, n in shared) for n in names}
        tasks: Any = "timing" in freedoms or ("constant" if "share" in freedoms else False)
        limits = self._problem.limits
        return self.base.changed(
            control=Control(tasks, **knobs),
            limits=Limits(
                min_share=limits.min_share if tasks else None,
                max_share=limits.max_share if tasks else None,
                mean={name: mean for name, mean in limits.mean.items() if name in names},
            ),
        )

    def scan(self) -> list[Protocol]:
        """Return the best constant rate of a grid over its whole range, to start from."""
        assert self._rate is not None
        low, high = self.ranges[self._rate]
        even, slow = np.linspace(low, high, _SCAN), max(low, high / 64)
        grid = [*even, *np.geomspace(slow, high, _SLOW_SCAN), self.base.knobs[self._rate]]
        with suppress(IntegrationError):  # the problem's own rate is a start, too
            problem = self.problem(frozenset(["rate"]))
            return [grid_search(problem, constant_lr, lr=grid, protocol=self.protocol)]
        return []


def _check(problem: Problem) -> None:
    """Refuse a problem whose levers would not contain one another."""
    check_differentiable(problem)
    if problem.step_limits.on_stays:
        raise ArgumentError(
            "problem",
            "one with limits that mixtures of tasks can keep, on shares and means",
            f"limits on stays or switches: {check.show(problem.limits)}",
        )
    if not problem.availability.always:
        raise ArgumentError(
            "problem",
            "one whose tasks are available throughout, as constant shares need",
            "one with `arrivals` or `departures`",
        )
