"""Control: what of a training may be controlled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from replan._common import check

Range = tuple[float, float]


@dataclass(frozen=True)
class Control:
    """What may be controlled.

    tasks: whether the shares of the tasks are free. lr: the range (min, max) of the learning rate,
    or None where it is fixed. knobs: the ranges of other knobs of the model, by name.
    """

    tasks: bool = True
    lr: Range | None = None
    knobs: Mapping[str, Range] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tasks", check.boolean("tasks", self.tasks))
        given = check.instance("knobs", self.knobs, Mapping, "ranges by name")
        ranges = {check.word("knobs", name): _range(name, value) for name, value in given.items()}
        if self.lr is not None:
            if "lr" in ranges:
                raise ValueError("`lr` or `knobs`: expects the range of `lr` in one of the two")
            ranges["lr"] = _range("lr", self.lr)
        if "lr" in ranges:
            check.number("lr min", ranges["lr"][0], at_least=0)
        object.__setattr__(self, "lr", ranges.pop("lr", None))
        object.__setattr__(self, "knobs", ranges)

    @property
    def ranges(self) -> dict[str, Range]:
        """The ranges of all knobs that may be controlled, by name."""
        return ({} if self.lr is None else {"lr": self.lr}) | dict(self.knobs)


def _range(name: str, value: Any) -> Range:
    low, high = check.array(name, value, (2,))
    if low > high:
        raise ValueError(f"`{name}` expects min ≤ max, got min {low:g} and max {high:g}")
    return float(low), float(high)
