"""Control: what of a training may be controlled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from replan import check
from replan.errors import ArgumentError

Range = tuple[float, float]


@dataclass(frozen=True)
class Control:
    """What may be controlled.

    tasks: whether the shares of the tasks are free; "constant" for shares that are the same
    throughout the training. lr: the range (min, max) of the learning rate, or None where it is
    fixed. knobs: the ranges of other knobs of the model, by name. constant: the names of knobs
    that keep one value throughout. shared: the names of knobs with a value for each task that have
    the same one for all of them.

    Examples:
        >>> replan.Control()  # the tasks alone
        Control(tasks=True, lr=None, knobs={}, constant=(), shared=())
        >>> replan.Control(tasks=False, lr=(0.0, 5.0))  # the learning rate alone
        Control(tasks=False, lr=(0.0, 5.0), knobs={}, constant=(), shared=())
        >>> replan.Control("constant", lr=(0.0, 5.0), constant=["lr"]).ranges
        {'lr': (0.0, 5.0)}
    """

    tasks: bool | Literal["constant"] = True
    lr: Range | None = None
    knobs: Mapping[str, Range] = field(default_factory=dict)
    constant: Sequence[str] = ()
    shared: Sequence[str] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "tasks", _free("tasks", self.tasks))
        given = check.instance("knobs", self.knobs, Mapping, "ranges by name")
        ranges = {check.word("knobs", name): _range(name, value) for name, value in given.items()}
        if self.lr is not None:
            if "lr" in ranges:
                raise ValueError("`lr` or `knobs`: expects the range of `lr` in one of the two")
            ranges["lr"] = _range("lr", self.lr)
        if "lr" in ranges:
            check.number("lr min", ranges["lr"][0], at_least=0)
        for tie in ("constant", "shared"):
            names = check.items(tie, getattr(self, tie), "names of knobs")
            for name in names:
                check.word(tie, name)
                if name not in ranges:
                    raise ArgumentError(tie, "knobs that are controlled", check.show(name))
            object.__setattr__(self, tie, tuple(names))
        object.__setattr__(self, "lr", ranges.pop("lr", None))
        object.__setattr__(self, "knobs", ranges)

    @property
    def ranges(self) -> dict[str, Range]:
        """The ranges of all knobs that may be controlled, by name."""
        return ({} if self.lr is None else {"lr": self.lr}) | dict(self.knobs)

    @property
    def tied(self) -> bool:
        """Whether some control has the same value at all times, or for all tasks."""
        return bool(self.tasks == "constant" or self.constant or self.shared)


def _free(name: str, value: Any) -> bool | Literal["constant"]:
    """Return whether shares are free; anything but True, False and "constant" is refused."""
    if isinstance(value, str) and value == "constant":
        return "constant"
    if not isinstance(value, bool | np.bool_):
        raise ArgumentError(name, 'true, false or "constant"', check.show(value))
    return bool(value)


def _range(name: str, value: Any) -> Range:
    low, high = check.array(name, value, (2,))
    if low > high:
        raise ArgumentError(name, "min ≤ max", f"min {low:g} and max {high:g}")
    return float(low), float(high)
