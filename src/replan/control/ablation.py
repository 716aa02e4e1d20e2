"""Ladder: the problems that levers stand for, from nothing controlled to everything."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np

from replan import check
from replan.check import Floats
from replan.control.objective import check_differentiable
from replan.core.projection import Domain, project
from replan.errors import ArgumentError, IntegrationError
from replan.problem import Control, Limits, Problem, Range
from replan.protocol import Protocol
from replan.strategies import constant_lr, grid_search, interleaved, main_rate

Freedoms = frozenset[str]

FASTEST = 5.0  # times the problem's rate: the end of its range where the problem gives none
_SCAN = 33  # constant rates, evenly over their range, of which the best is refined
_OWN = ("nothing", "share", "timing", "rate", "curve", "rates", "all")


class Ladder:
    """What can be controlled in a problem, as sets of freedoms that contain one another.

    Freedoms are words: "share" (the shares of the tasks, constant over time) and with it "timing"
    (shares that change), "rate" (one constant learning rate) and with it "curve" (that changes) and
    "rates" (with a value for each task), and any other knob by its name, free over time.

    ranges: of the knobs, by name. notes: what a reader must know about them. levers: by name, the
    freedoms that each lever uses. without: by name, all freedoms but that one and those that need
    it. base: the problem with nothing controlled; protocol: its protocol.
    """

    def __init__(self, problem: Problem) -> None:
        check_differentiable(problem)
        if problem.step_limits.on_stays:
            raise ArgumentError(
                "problem",
                "limits that mixtures of tasks can keep, on shares and means",
                f"some on stays or switches: {check.show(problem.limits)}",
            )
        if not problem.availability.always:
            raise ArgumentError(
                "problem",
                "tasks that are there throughout, which constant shares need",
                "`arrivals` or `departures`",
            )
        self._problem = problem
        self.notes: list[str] = []
        self._rate = main_rate(problem)
        self.ranges = self._ranges()
        values = self._values()
        self.base = problem.changed(
            **values, control=Control(tasks=False),
            limits=Limits(),
        )  # fmt: skip
        self.protocol = interleaved(self.base, shares=self._shares())
        self._tied = [  # the mean of a value for each task depends on the shares
            name for name in self.ranges if name in problem.limits.mean and self._per_task(name)
        ]
        self._knobs = {
            f"{name} (knob)" if name in _OWN else name: name
            for name in self.ranges
            if name != self._rate
        }
        self.levers, self.without = self._sets()

    def _sets(self) -> tuple[dict[str, Freedoms], dict[str, Freedoms]]:
        """Return the freedoms of every lever, and all without each; see the class."""
        rate, mixed = self._rate, self._problem.model.tasks > 1
        shares = ["share", "timing"] if mixed else []
        rates = ["rate", "curve"] if rate in self.ranges else []
        own = rates and mixed and rate not in self._tied and self._per_task(rate)
        rates += ["rates"] * bool(own)
        words = [*shares, *rates, *self._knobs]
        known = {
            "nothing": [],
            "share": ["share"],
            "rate": ["rate"],
            "timing": ["share", "timing"],
            "curve": ["rate", "curve"],
            "rates": ["share", "rate", "curve", *rates[2:]],
        } | {name: [name] for name in self._knobs}
        known = {name: free for name, free in known.items() if set(free) <= set(words)}
        needs = {"share": shares, "rate": rates}
        without = {name: set(words).difference(needs.get(name, [name])) for name in words}
        levers = {name: frozenset(free) for name, free in (known | {"all": words}).items()}
        return levers, {name: frozenset(free) for name, free in without.items()}

    def _ranges(self) -> dict[str, tuple[float, float]]:
        """Return the ranges of all knobs that have one: the problem's, or one by default."""
        found = {}
        for name, knob in self._problem.model.layout.knobs.items():
            free = self._problem.control.knobs.get(name)
            given = free is not None
            low, high = (free.low, free.high) if free else (knob.low, knob.high)
            if name == self._rate and not given:
                value = self._problem.knobs[name]
                low, high = max(low, 0.0), min(high, FASTEST * (value or 1.0))
                why = f": up to {FASTEST:g} times the problem's" if value else ""
                self.notes.append(f"{name} from {low:g} to {high:g}{why}")
            if not np.isfinite(high - low):
                self.notes.append(f"{name} is left out: it has no finite range, and none is given")
            elif low == high:
                self.notes.append(f"{name} is left out: its range is {low:g} alone")
            else:
                found[name] = (float(low), float(high))
                if not given and name != self._rate:
                    self.notes.append(f"{name} from {low:g} to {high:g}: all that makes sense")
        return found

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
        none = np.zeros(0)
        domain = Domain(
            1,
            np.ones((0, tasks), bool),
            limits.low / limits.steps,
            limits.high / limits.steps,
            np.zeros((0, 0)),
            none,
            none,
        )
        equal = np.full(tasks, 1 / tasks)
        shares = np.asarray(project(equal, domain))
        if np.allclose(shares, equal, rtol=0, atol=1e-12):
            return equal
        words = ", ".join(f"{share:.3g}" for share in shares)
        self.notes.append(f"equal shares stand for {words}: nearest to equal within the limits")
        return shares

    def problem(self, freedoms: Freedoms) -> Problem:
        """Return the problem in which these freedoms, and nothing else, are controlled."""
        names = [knob for word, knob in self._knobs.items() if word in freedoms]
        constant, shared = [], list(self._tied)
        if self._rate is not None and "rate" in freedoms:
            names.append(self._rate)
            constant += [self._rate] * ("curve" not in freedoms)
            shared += [self._rate] * ("rates" not in freedoms and self._per_task(self._rate))
        tasks: Any = "timing" in freedoms or ("constant" if "share" in freedoms else False)
        limits = self._problem.limits
        return self.base.changed(
            control=Control(
                tasks,
                **{
                    name: Range(*self.ranges[name], name in constant, name in shared)
                    for name in names
                },
            ),
            limits=Limits(
                min_share=limits.min_share if tasks else None,
                max_share=limits.max_share if tasks else None,
                mean={name: mean for name, mean in limits.mean.items() if name in names},
            ),
        )

    def _per_task(self, name: str | None) -> bool:
        return name is not None and self._problem.model.layout.knobs[name].per_task

    def scan(self) -> list[Protocol]:
        """Return the best constant rate of a grid over its whole range, to begin from."""
        assert self._rate is not None
        low, high = self.ranges[self._rate]
        grid = np.concatenate(
            [
                np.linspace(low, high, _SCAN),
                np.geomspace(max(low, high / 64), high, 13),
                [self.base.knobs[self._rate]],
            ]
        )
        with suppress(IntegrationError):  # the problem's own rate is a start, too
            problem = self.problem(frozenset(["rate"]))
            return [grid_search(problem, constant_lr, lr=grid, protocol=self.protocol)]
        return []
