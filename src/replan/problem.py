"""Problem: dynamics, start, duration, objective and what may be controlled."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from replan import check, files
from replan.check import Floats
from replan.dynamics.base import Dynamics
from replan.protocol import Protocol


@dataclass(frozen=True)
class Control:
    """What may be controlled.

    tasks: whether the shares of the tasks are free. lr: the range (min, max) of the learning rate,
    or None where it is fixed.
    """

    tasks: bool = True
    lr: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.tasks, bool):
            raise ValueError(f"`tasks` takes true or false, got {self.tasks!r}")
        if self.lr is not None:
            low, high = check.array("lr", self.lr, (2,))
            check.number("lr min", low, at_least=0)
            if low > high:
                raise ValueError(f"`lr` takes min ≤ max, got min {low:g} and max {high:g}")
            object.__setattr__(self, "lr", (float(low), float(high)))


@dataclass(frozen=True, eq=False, repr=False)
class Problem:
    """A training problem: from `start`, train for `duration`, end with a small weighted loss.

    **Main arguments**

    - `model`: the dynamics, such as a `TeacherStudent`.
    - `start`: where training begins, such as `model.pretrain(…)`.
    - `duration`: training time α_F, in samples per input dimension.
    - `lr`: the learning rate where nothing else is said; within the range of `control.lr`.

    **Other arguments**

    - `steps`: number of equal steps of a protocol.
    - `weights`: (T,) the objective is Σ_t weights[t] × final loss of task t; by default the mean.
    - `control`: what may be controlled.
    """

    model: Dynamics
    start: Any
    duration: float
    lr: float = 1.0
    steps: int = 250
    weights: ArrayLike | None = None
    control: Control = field(default_factory=Control)
    state: Floats = field(init=False)

    def __post_init__(self) -> None:
        if not isinstance(self.model, Dynamics):
            raise ValueError(f"`model` takes a dynamics such as TeacherStudent, got {self.model!r}")
        if not isinstance(self.control, Control):
            raise ValueError(f"`control` takes a Control(tasks=…, lr=…), got {self.control!r}")
        low, high = self.control.lr or (0.0, None)
        tasks = self.model.tasks
        weights = np.full(tasks, 1 / tasks) if self.weights is None else self.weights
        weights = check.array("weights", weights, (tasks,))
        if weights.min() < 0 or weights.max() == 0:
            raise ValueError(
                f"`weights` takes numbers of at least 0, not all 0, got {weights.tolist()}"
            )
        for name, value in {
            "duration": check.number("duration", self.duration, above=0),
            "lr": check.number("lr", self.lr, at_least=low, at_most=high),
            "steps": check.integer("steps", self.steps, at_least=1, at_most=1_000_000),
            "weights": weights,
            "state": self.model.pack(self.start),
        }.items():
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        return f"Problem({self.model!r}, duration={self.duration:g}, lr={self.lr:g})"

    @property
    def edges(self) -> Floats:
        """The times (steps + 1,) between the steps."""
        return np.linspace(0.0, self.duration, self.steps + 1)

    def accept(self, protocol: Protocol) -> Protocol:
        """Return the protocol if it is one for this problem; refuse any other."""
        if not isinstance(protocol, Protocol):
            raise ValueError(f"`protocol` takes a Protocol, got {protocol!r}")
        tasks = self.model.tasks
        if protocol.tasks != tasks:
            raise ValueError(f"`protocol` takes a protocol of {tasks} tasks, got {protocol.tasks}")
        if abs(protocol.duration - self.duration) > 1e-9 * self.duration:
            raise ValueError(
                f"`protocol` takes a protocol of duration {self.duration:g}, "
                f"got {protocol.duration:g}"
            )
        return protocol

    @classmethod
    def load(cls, path: files.FilePath) -> Problem:
        """Read a problem file (TOML); see docs/problem-file.md."""
        from replan.problem_file import read

        return read(path)

    def describe(self) -> dict[str, Any]:
        """Return the problem as the sections of a problem file, its start as overlaps."""
        lr = self.control.lr
        return {
            "model": self.model.describe(),
            "start": self.model.describe_start(self.start),
            "training": {"duration": self.duration, "steps": self.steps, "lr": self.lr},
            "control": {
                "tasks": self.control.tasks,
                "lr": False if lr is None else {"min": lr[0], "max": lr[1]},
            },
            "objective": {"weights": np.asarray(self.weights).tolist()},
        }
