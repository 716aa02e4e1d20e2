"""Knobs: the numbers that training may turn over time, and their columns in arrays."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from replan import check
from replan.check import Floats
from replan.errors import ArgumentError

# Names that protocols, results or sections of files use for something else
_TAKEN = {
    "tasks", "shares", "duration", "edges", "steps", "start", "end", "weighted", "knobs", "time",
    "loss",
}  # fmt: skip


@dataclass(frozen=True)
class Knob:
    """A number that training may turn over time, such as the learning rate.

    - `name`: in files, tables and protocols.
    - `low`, `high`: its range; both ends may be infinite.
    - `default`: its value where a problem does not set it.
    - `per_task`: whether every task can have its own value at the same time.
    - `rate`: whether it is a learning rate, which can be annealed.

    Unless a model says otherwise, its one knob is `Knob("lr", per_task=True, rate=True)`.

    Examples:
        >>> replan.models.Knob("keep", 0.0, 1.0)
        Knob(name='keep', low=0.0, high=1.0, default=1.0, per_task=False, rate=False)
        >>> model = replan.TeacherStudent.similar(0.3)
        >>> [knob.name for knob in model.knobs]
        ['lr', 'feature_lr', 'head_lr']
    """

    name: str
    low: float = 0.0
    high: float = np.inf
    default: float = 1.0
    per_task: bool = False
    rate: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not re.fullmatch(r"[A-Za-z]\w*", self.name):
            raise ArgumentError("name", "a word of letters and digits", check.show(self.name))
        if self.name in _TAKEN or re.search(r"_\d+$", self.name):
            raise ArgumentError(
                "name",
                "a word that files use for nothing else, without a number at its end",
                check.show(self.name),
            )
        for end in ("low", "high"):
            value = getattr(self, end)
            if not (isinstance(value, float) and value == (np.inf if end == "high" else -np.inf)):
                object.__setattr__(self, end, check.number(f"{end} of {self.name}", value))
        if not self.low < self.high:
            raise ArgumentError(f"high of {self.name}", f"above {self.low:g}", f"{self.high:g}")
        object.__setattr__(self, "default", self.check("default", self.default))
        for flag in ("per_task", "rate"):
            check.boolean(f"{flag} of {self.name}", getattr(self, flag))

    def check(self, name: str, value: Any) -> float:
        """Return a value within the knob's range; `name` is that of the argument."""
        low = None if self.low == -np.inf else self.low
        high = None if self.high == np.inf else self.high
        return check.number(name, value, at_least=low, at_most=high)


LR = Knob("lr", per_task=True, rate=True)


class KnobLayout:
    """The knobs of a model of T tasks as columns of one array.

    A knob with a value for each task has T columns, any other has one.

    knobs: by name. columns: of each knob, by name. size: the number of columns C. rate: the name of
    the first learning rate, or None.
    """

    def __init__(self, knobs: Sequence[Knob], tasks: int) -> None:
        self.knobs = {knob.name: knob for knob in knobs}
        if len(self.knobs) < len(knobs):
            raise ArgumentError("knobs", "different names", check.show([k.name for k in knobs]))
        self.tasks = tasks
        self.rate = next((knob.name for knob in knobs if knob.rate), None)
        self.columns: dict[str, slice] = {}
        self.size = 0
        for knob in knobs:
            width = tasks if knob.per_task else 1
            self.columns[knob.name] = slice(self.size, self.size + width)
            self.size += width

    def rows(self, values: Mapping[str, Any], steps: int) -> Floats:
        """Return values of all knobs, numbers or (steps,) or (steps, T) each, as (steps, C)."""
        rows = np.empty((steps, self.size))
        for name, columns in self.columns.items():
            value = np.asarray(values[name], dtype=np.float64)
            rows[:, columns] = value if value.ndim != 1 else value[:, None]
        return rows

    def by_name(self, rows: Floats, shares: Floats | None = None) -> dict[str, Floats]:
        """Return rows (steps, C) by the names of the knobs: (steps,), or (steps, T) where needed.

        A knob with a value for each task needs only one per step where all are equal or where, by
        the `shares` (steps, T), only one task is trained in every step.
        """
        if shares is not None and np.any(shares.max(axis=1) < 1.0):
            shares = None
        by_name = {}
        for name, columns in self.columns.items():
            values = rows[:, columns]
            if values.shape[1] == 1 or np.all(np.ptp(values, axis=1) == 0):
                values = values[:, 0]
            elif shares is not None:
                values = np.sum(shares * values, axis=1)
            by_name[name] = np.array(values)
        return by_name

    def of_task(self, rows: Floats, tasks: Any) -> Floats:
        """Return the values (n, knobs) in force for the task (n,) of each of the rows (n, C)."""
        return np.stack(
            [
                rows[:, columns.start]
                if columns.stop - columns.start == 1
                else rows[np.arange(len(rows)), columns.start + tasks]
                for columns in self.columns.values()
            ],
            axis=1,
        )


def knob_label(name: str) -> str:
    """Return the name of a knob for print and pictures."""
    return "learning rate" if name == "lr" else name.replace("_", " ")
