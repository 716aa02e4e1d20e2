"""Limits: what a protocol must keep to so that people can run it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from replan import check
from replan.errors import ArgumentError


@dataclass(frozen=True)
class Limits:
    """Limits on the tasks and knobs of a protocol; those not given do not bind.

    - `min_share`, `max_share`: (T,) least and largest share of each task in the whole training;
      equal ones make an exact budget.
    - `min_dwell`: every stay on a task lasts at least this long.
    - `max_switches`: how often the task may change.
    - `max_replay`: between one arrival of tasks and the next, the largest share of all tasks
      together that had arrived before; before the second arrival, none had.
    - `mean`: by name, what the mean of a controlled knob over the training must be: a number, or
      the range (low, high) that it must lie in.

    Examples:
        >>> model = replan.TeacherStudent.similar(0.3)
        >>> few = replan.Limits(max_switches=2, max_share=[0.3, 1.0])  # at most 30 % of task 1
        >>> start = model.pretrain(seed=1)
        >>> problem = replan.Problem(model, start, duration=20.0, steps=50, limits=few)
        >>> plan = replan.solve(problem)
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
        means = check.instance("mean", self.mean, Mapping, "means by the names of knobs")
        checked: dict[str, Any] = {
            "mean": {check.word("mean", name): _mean(name, x) for name, x in means.items()},
            "min_dwell": check.number("min_dwell", self.min_dwell, at_least=0),
        }
        if self.max_switches is not None:
            checked["max_switches"] = check.integer("max_switches", self.max_switches)
        if self.max_replay is not None:
            checked["max_replay"] = check.number(
                "max_replay", self.max_replay, at_least=0, at_most=1
            )
        for name in ("min_share", "max_share"):
            if getattr(self, name) is not None:
                shares = check.array(name, getattr(self, name), ("T",))
                if shares.size and (shares.min() < 0 or shares.max() > 1):
                    raise ArgumentError(name, "shares from 0 to 1", check.show(shares.tolist()))
                checked[name] = tuple(shares.tolist())
        for name, value in checked.items():
            object.__setattr__(self, name, value)

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


def _mean(name: str, value: Any) -> tuple[float, float]:
    """Return the range of a knob's mean."""
    if isinstance(value, Real):
        value = (value, value)
    low, high = check.array(f"mean of {name}", value, (2,))
    if low > high:
        raise ArgumentError(f"mean of {name}", "min ≤ max", f"min {low:g} and max {high:g}")
    return float(low), float(high)
