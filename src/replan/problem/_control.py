"""Control: what of a training may be controlled."""

from __future__ import annotations

from dataclasses import dataclass

from replan._common import check


@dataclass(frozen=True)
class Control:
    """What may be controlled.

    tasks: whether the shares of the tasks are free. lr: the range (min, max) of the learning rate,
    or None where it is fixed.
    """

    tasks: bool = True
    lr: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "tasks", check.boolean("tasks", self.tasks))
        if self.lr is not None:
            low, high = check.array("lr", self.lr, (2,))
            check.number("lr min", low, at_least=0)
            if low > high:
                raise ValueError(f"`lr` expects min ≤ max, got min {low:g} and max {high:g}")
            object.__setattr__(self, "lr", (float(low), float(high)))
