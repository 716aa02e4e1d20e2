"""Control: what may be controlled in a training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from replan import check
from replan.errors import ArgumentError, renamed


@dataclass(frozen=True)
class Range:
    """The range of a controlled knob.

    - `low`, `high`: the least and the largest value.
    - `constant`: whether it keeps one value throughout the training.
    - `shared`: whether a knob with one value for each task has the same for all of them.

    Examples:
        >>> replan.Control("constant", lr=replan.Range(0.0, 5.0, constant=True, shared=True))
        Control(tasks='constant', lr=Range(low=0.0, high=5.0, constant=True, shared=True))
    """

    low: float
    high: float
    constant: bool = False
    shared: bool = False

    def __post_init__(self) -> None:
        for name in ("low", "high"):
            object.__setattr__(self, name, check.number(name, getattr(self, name)))
        if self.low > self.high:
            raise ArgumentError("low", f"at most the largest value, {self.high:g}", f"{self.low:g}")
        for name in ("constant", "shared"):
            check.boolean(name, getattr(self, name))

    @property
    def free(self) -> bool:
        """Whether there is more than one value to choose."""
        return self.low < self.high


class Control:
    """What may be controlled.

    - `tasks`: whether the shares of the tasks are free; "constant" for free shares that stay the
      same throughout.
    - Any knob of the model by its name, such as `lr`: the `Range` in which it is free, or a pair
      (low, high). Knobs that are not named are fixed.

    Examples:
        >>> replan.Control()  # the tasks alone
        Control(tasks=True)
        >>> replan.Control(tasks=False, lr=(0.0, 5.0)).knobs["lr"].high  # the learning rate alone
        5.0
    """

    def __init__(self, tasks: bool | Literal["constant"] = True, **knobs: Any) -> None:
        if isinstance(tasks, bool | np.bool_):
            tasks = bool(tasks)
        elif not isinstance(tasks, str) or tasks != "constant":
            raise ArgumentError("tasks", 'true, false or "constant"', check.show(tasks))
        self.tasks: bool | Literal["constant"] = tasks
        self.knobs = {name: _range(name, value) for name, value in knobs.items()}
        if "lr" in self.knobs:
            check.number("lr", self.knobs["lr"].low, at_least=0)

    @property
    def ties(self) -> bool:
        """Whether some control has the same value at all times, or for all tasks."""
        return self.tasks == "constant" or any(
            knob.constant or knob.shared for knob in self.knobs.values()
        )

    def __repr__(self) -> str:
        knobs = "".join(f", {name}={value!r}" for name, value in self.knobs.items())
        return f"Control(tasks={self.tasks!r}{knobs})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Control) and (self.tasks, self.knobs) == (other.tasks, other.knobs)


def _range(name: str, value: Any) -> Range:
    if isinstance(value, Range):
        return value
    with renamed({"low": name, "high": name}):
        return Range(*check.array(name, value, (2,)).tolist())
