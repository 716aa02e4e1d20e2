"""Drawing: a protocol that somebody paints, stroke by stroke."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from replan._common import check
from replan._common.check import Floats
from replan.control._search import on_grid
from replan.problem import Problem
from replan.protocol import Protocol

_DIGITS = 4  # that strokes are rounded to, so that a link says exactly what is on the screen


@dataclass(frozen=True, eq=False)
class Drawing:
    """Shares (steps, T) and the knobs that were drawn, (steps,) by name, on equal steps."""

    shares: Floats
    knobs: dict[str, Floats]

    @classmethod
    def of(cls, problem: Problem, protocol: Protocol) -> Drawing:
        """Return a protocol averaged over the steps of a problem, one value of a knob for all."""
        controls = on_grid(problem, protocol, problem.steps)
        values = problem.model.panel.by_name(controls.knobs)
        knobs = {}
        for name in protocol.varied:
            found = values[name]
            mean = found if found.ndim == 1 else np.sum(found * controls.shares, axis=1)
            knobs[name] = _rounded(mean)
        return cls(_mixed(controls.shares), knobs)

    def on(self, problem: Problem) -> Drawing | None:
        """Return the same on the steps of a problem; None if it has other tasks or knobs."""
        if self.shares.shape[1] != problem.model.tasks:
            return None
        rows = np.arange(problem.steps) * len(self.shares) // problem.steps
        known = problem.model.panel.knobs
        found = {name: values[rows] for name, values in self.knobs.items() if name in known}
        return Drawing(self.shares[rows], found)

    def protocol(self, problem: Problem) -> Protocol:
        """Return it as a protocol for a problem; knobs that were not painted are the problem's."""
        knobs: dict[str, Any] = problem.settings | self.knobs
        return Protocol(self.shares, problem.duration, knobs=knobs)

    def values(self, problem: Problem, knob: str) -> Floats:
        """Return the values (steps,) of a knob, drawn or the problem's."""
        check.one_of("knob", knob, problem.knob_values)
        return self.knobs.get(knob, np.full(len(self.shares), problem.knob_values[knob]))

    # Strokes, between two places from 0, the start, to 1, the end

    def paint(self, first: float, last: float, task: int, share: float) -> Drawing:
        """Return it with a share of a task (from 0) between two places; the others mix equally."""
        tasks = self.shares.shape[1]
        task = check.task("task", task, tasks)
        share = check.number("share", share, at_least=0, at_most=1) if tasks > 1 else 1.0
        row = np.full(tasks, (1 - share) / max(1, tasks - 1))
        row[task] = share
        shares = self.shares.copy()
        shares[self._between(first, last)] = row
        return Drawing(_mixed(shares), self.knobs)

    def bend(
        self, problem: Problem, knob: str, first: tuple[float, float], last: tuple[float, float]
    ) -> Drawing:
        """Return it with a straight line of a problem's knob between two points (place, value)."""
        values = self.values(problem, knob).copy()
        (begin, low), (end, high) = sorted([first, last])
        some = self._between(begin, end)
        places = (some + 0.5) / len(values)
        values[some] = np.interp(places, [begin, end], [low, high]) if end > begin else last[1]
        return Drawing(self.shares, self.knobs | {knob: _rounded(values)})

    def _between(self, first: float, last: float) -> Any:
        """Return the steps that two places lie in, and all between them."""
        steps = len(self.shares)
        ends = [check.number("place", x) for x in (first, last)]
        low, high = (int(np.clip(np.floor(x * steps), 0, steps - 1)) for x in sorted(ends))
        return np.arange(low, high + 1)

    # As JSON types

    def to_dict(self) -> dict[str, Any]:
        """Return runs of equal values: (steps, shares), and (steps, value) of every knob."""
        return {
            "shares": _runs(_rounded(self.shares).tolist()),
            "knobs": {name: _runs(values.tolist()) for name, values in self.knobs.items()},
        }

    @classmethod
    def from_dict(cls, content: Any, problem: Problem) -> Drawing:
        """Return what `to_dict` gave, checked against a problem: a mistake is a ValueError."""
        given = check.instance("drawing", content, Mapping, "a table of shares and knobs")
        steps, tasks = problem.steps, problem.model.tasks
        rows = _unrolled("drawing.shares", given.get("shares"), steps)
        shares = check.array("drawing.shares", rows, (steps, tasks))
        if shares.min() < 0 or np.abs(shares.sum(axis=1) - 1).max() > tasks * 10.0**-_DIGITS:
            raise ValueError("`drawing.shares` expects shares of at least 0 that sum to 1")
        knobs = check.instance("drawing.knobs", given.get("knobs", {}), Mapping, "runs by name")
        found = {}
        for name, runs in knobs.items():
            check.one_of("drawing.knobs", name, problem.model.panel.knobs)
            key = f"drawing.knobs.{name}"
            found[str(name)] = check.array(key, _unrolled(key, runs, steps), (steps,))
        drawing = cls(_mixed(shares), found)
        problem.accept(drawing.protocol(problem), "drawing")
        return drawing


def _rounded(values: Floats) -> Floats:
    return np.round(values, _DIGITS)


def _mixed(shares: Floats) -> Floats:
    """Return shares of few digits in rows that sum to 1."""
    few = _rounded(shares)
    return few / few.sum(axis=1, keepdims=True)


def _runs(values: list[Any]) -> list[list[Any]]:
    return [[len(list(some)), value] for value, some in groupby(values)]


def _unrolled(name: str, runs: Any, steps: int) -> list[Any]:
    """Return what runs stand for, `steps` values."""
    values: list[Any] = []
    for run in check.items(name, runs, "runs"):
        if not isinstance(run, list) or len(run) != 2:
            raise ValueError(f"`{name}` expects pairs of a number of steps and a value")
        values += [run[1]] * check.integer(name, run[0], at_least=1, at_most=steps - len(values))
    return values
