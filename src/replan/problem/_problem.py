"""Problem: dynamics, start, duration, objective and what may be controlled."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from replan._common import check, files, memory
from replan._common.check import Floats
from replan.dynamics import Dynamics
from replan.dynamics._dynamics import first_state
from replan.dynamics._registry import import_named
from replan.problem._control import Control
from replan.problem._limits import Limits, StepLimits
from replan.protocol import Protocol

# A target adds _PENALTY × the largest weight × how far a final loss lies above it, smoothed over
# the last part below it. Where meeting it would cost more than that in other losses, a plan misses
# its target. With steeper penalties targets are met more often, but descents become slow.
_PENALTY = 30.0
_MARGIN = 0.03  # the penalty sets in below the target by this fraction of it


@dataclass(frozen=True, eq=False, repr=False)
class Problem:
    """A training problem: from `start`, train for `duration` so that the objective is small.

    The objective is Σ_t weights[t] × final loss of task t + Σ_t running[t] × its average over the
    training, and a penalty for final losses above their targets.

    **Main arguments**

    - `model`: the dynamics, such as a `TeacherStudent`.
    - `start`: where training begins, such as `model.pretrain(…)`.
    - `duration`: training time α_F, in samples per input dimension.
    - `lr`: the learning rate unless stated otherwise; within the range of `control.lr`.

    **Other arguments**

    - `steps`: number of equal steps of a protocol.
    - `weights`: (T,) of the final losses; by default their mean counts.
    - `running`: (T,) of the average losses over the training; by default they do not count.
    - `targets`: (T,) what the final loss of each task should not exceed, None for no target.
    - `control`: what may be controlled.
    - `limits`: what `solve` must keep to.
    """

    model: Dynamics
    start: Any
    duration: float
    lr: float = 1.0
    steps: int = 250
    weights: ArrayLike | None = None
    running: ArrayLike | None = None
    targets: Sequence[float | None] | None = None
    control: Control = field(default_factory=Control)
    limits: Limits = field(default_factory=Limits)
    state: Floats = field(init=False)
    step_limits: StepLimits = field(init=False)

    def __post_init__(self) -> None:
        check.instance("model", self.model, Dynamics, "a dynamics such as TeacherStudent")
        check.instance("control", self.control, Control, "a Control(tasks=…, lr=…)")
        check.instance("limits", self.limits, Limits, "a Limits(max_share=…, …)")
        for name in ("kind", "tasks"):
            if not hasattr(self.model, name):
                raise ValueError(
                    f"`model` expects a dynamics with `{name}`, "
                    f"got a {type(self.model).__name__} without"
                )
        tasks = self.model.tasks
        weights = self._weights("weights", np.full(tasks, 1 / tasks))
        running = self._weights("running", np.zeros(tasks))
        if weights.max() == 0 and running.max() == 0:
            raise ValueError(
                f"`weights` expects numbers not all 0, got {check.show(weights.tolist())}"
            )
        for name, value in {
            "duration": check.number("duration", self.duration, above=0),
            "lr": self._lr(),
            "steps": check.integer("steps", self.steps, at_least=1, at_most=1_000_000),
            "weights": weights,
            "running": running,
            "targets": self._targets(tasks),
            "state": first_state(self.model, self.start),
        }.items():
            object.__setattr__(self, name, value)
        size = self.state.size + 2 * tasks
        memory.require(
            f"`steps` = {self.steps} and a state of {self.state.size} numbers",
            2 * memory.COPIES * self.steps * size,
        )
        limits = self.limits.on_grid(tasks, self.steps, self.duration)
        if limits.binding and not self.control.tasks:
            raise ValueError(
                "`limits` expects limits only where `control.tasks` is true, "
                f"got {check.show(self.limits)}"
            )
        object.__setattr__(self, "step_limits", limits)

    def _lr(self) -> float:
        lr = check.number("lr", self.lr, at_least=0)
        if self.control.lr is not None and not self.control.lr[0] <= lr <= self.control.lr[1]:
            low, high = self.control.lr
            raise ValueError(
                f"`lr` expects a rate within `control.lr`, {low:g} to {high:g}, got {lr:g}"
            )
        return lr

    def _weights(self, name: str, default: Floats) -> Floats:
        given = getattr(self, name)
        weights = check.array(name, default if given is None else given, default.shape)
        if weights.min() < 0:
            raise ValueError(
                f"`{name}` expects numbers of at least 0, got {check.show(weights.tolist())}"
            )
        return weights

    def _targets(self, tasks: int) -> Floats:
        """Return the targets (T,), infinite where there is none."""
        if self.targets is None:
            return np.full(tasks, np.inf)
        expects = f"{tasks} numbers or None"
        given = check.items("targets", self.targets, expects)
        if len(given) != tasks:
            raise ValueError(f"`targets` expects {expects}, got {len(given)}")

        def bound(x: Any) -> float:
            none = x is None or (isinstance(x, float) and x == np.inf)
            return np.inf if none else check.number("targets", x, above=0)

        return np.array([bound(x) for x in given])

    def objective(self, final: Floats, average: Floats) -> float:
        """Return the objective of final and average losses (T,)."""
        return float(
            final @ np.asarray(self.weights)
            + average @ np.asarray(self.running)
            + self._penalties(final)[0]
        )

    def slopes(self, final: Floats) -> Floats:
        """Return the derivatives (T,) of the objective by the final losses.

        Those by the average losses are `running`.
        """
        return np.asarray(self.weights) + self._penalties(final)[1]

    def _penalties(self, final: Floats) -> tuple[float, Floats]:
        """Return what the targets add to the objective and its derivatives (T,)."""
        targets, margin = np.asarray(self.targets), _MARGIN
        if np.all(targets == np.inf):
            return 0.0, np.zeros(targets.size)
        scale = _PENALTY * max(np.max(np.asarray(self.weights)), np.max(np.asarray(self.running)))
        above = np.maximum(final / targets - 1.0 + margin, 0.0)
        near = above <= margin
        height = np.where(near, above**2 / (2 * margin), above - margin / 2)
        lengths = np.where(above > 0, targets, 0.0)
        return float(scale * height @ lengths), scale * np.where(near, above / margin, 1.0)

    def __repr__(self) -> str:
        return f"Problem({self.model!r}, duration={self.duration:g}, lr={self.lr:g})"

    @property
    def edges(self) -> Floats:
        """The times (steps + 1,) between the steps."""
        return np.linspace(0.0, self.duration, self.steps + 1)

    def accept(self, protocol: Protocol, name: str = "protocol") -> Protocol:
        """Return the protocol if it fits this problem; else refuse it, naming the argument."""
        if not isinstance(protocol, Protocol):
            hint = ", give its `.protocol`" if hasattr(protocol, "protocol") else ""
            raise ValueError(f"`{name}` expects a Protocol, got {check.show(protocol)}{hint}")
        tasks = self.model.tasks
        if protocol.tasks != tasks:
            raise ValueError(f"`{name}` expects a protocol of {tasks} tasks, got {protocol.tasks}")
        if abs(protocol.duration - self.duration) > 1e-9 * self.duration:
            raise ValueError(
                f"`{name}` expects a protocol of duration {self.duration:g}, "
                f"got {protocol.duration:g}"
            )
        return protocol

    @classmethod
    def load(cls, path: files.FilePath) -> Problem:
        """Read a problem file (TOML); see docs/problem-file.md.

        Any mistake in it is a ValueError of one line that names the key.
        """
        from replan.problem._file import sections

        import_named()  # before the file is read, which has no part in what goes wrong there
        content = sections(path)
        try:
            return cls.from_dict(content)
        except ValueError as error:
            raise ValueError(f"{os.fspath(path)}: {error}") from None

    @classmethod
    def from_dict(cls, content: Mapping[str, Any], *, model: Dynamics | None = None) -> Problem:
        """Return the problem that the sections of a problem file, as dicts, describe.

        `model`: the model itself, instead of the `[model]` section, such as one that no file can
        describe.
        """
        from replan.problem._file import problem_from

        return problem_from(cls, content, model)

    def save(self, path: files.FilePath) -> None:
        """Write a problem file (.toml), its start as a state; refuse what `load` could not read."""
        from replan.problem._file import to_toml

        files.suffix(path, [".toml"])
        content = self.to_dict()
        self.from_dict(content)
        files.write(path, to_toml(content).encode())

    def to_dict(self) -> dict[str, Any]:
        """Return the problem as the sections of a problem file, its start as a state."""
        lr = self.control.lr
        return {
            "model": {"kind": self.model.kind} | self.model.to_dict(),
            "start": self.model.start_to_dict(self.start),
            "training": {"duration": self.duration, "steps": self.steps, "lr": self.lr},
            "control": {
                "tasks": self.control.tasks,
                "lr": False if lr is None else {"min": lr[0], "max": lr[1]},
            },
            "objective": self._objective_to_dict(),
            "limits": self.limits.to_dict(),
        }

    def _objective_to_dict(self) -> dict[str, Any]:
        content: dict[str, Any] = {"weights": np.asarray(self.weights).tolist()}
        if np.any(self.running):
            content["running"] = np.asarray(self.running).tolist()
        targets = np.asarray(self.targets)
        if np.any(np.isfinite(targets)):
            content["targets"] = {
                str(t + 1): x for t, x in enumerate(targets.tolist()) if x < np.inf
            }
        return content
