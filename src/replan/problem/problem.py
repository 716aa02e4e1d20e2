"""Problem: dynamics, start, duration, objective and what may be controlled."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from replan import check, files
from replan.check import Floats
from replan.core import memory
from replan.errors import ArgumentError
from replan.models import Model
from replan.models.base import first_state
from replan.models.registry import import_named
from replan.problem.availability import Availability, presence
from replan.problem.control import Control
from replan.problem.limits import Limits, StepLimits
from replan.problem.objective import Goal, GoalName, goal_of
from replan.problem.risk import ONE, Risk
from replan.protocol import Protocol

# A target adds _PENALTY × the largest weight × how far a final loss lies above it, smoothed over
# the last part below it. Where meeting it would cost more than that in other losses, a plan misses
# its target. With steeper penalties targets are met more often, but descents become slow.
_PENALTY = 30.0
_MARGIN = 0.03  # the penalty sets in below the target by this fraction of it


@dataclass(frozen=True, eq=False, repr=False)
class Problem:
    """A training problem: from `start`, train for `duration` so that the objective is small.

    The objective is its goal, by default Σ_l weights[l] × final loss l, + Σ_l running[l] × its
    average over the training, and a penalty for final losses above their targets. Most models have
    a loss for each task; what there is for each loss is a list in their order, or a dict by the
    model's `loss_names`.

    **Main arguments**

    - `model`: the dynamics, such as a `TeacherStudent`.
    - `start`: where training begins, such as `model.pretrain(…)`.
    - `duration`: training time α_F, in samples per input dimension.
    - `lr`: the learning rate unless stated otherwise; within the range of `control.lr`.

    **Other arguments**

    - `steps`: number of equal steps of a protocol.
    - `goal`: "final" for the weighted final losses; "seen" for the mean over the training of the
      mean loss of the tasks that have arrived by then; "worst" for the largest final loss. The last
      two are for models with a loss for each task.
    - `weights`: (L,) of the final losses; by default their mean counts. Where the goal is "seen",
      the mean is weighted by them, relative to one another among the tasks that have arrived; where
      it is "worst", each final loss counts times its weight relative to the largest, and tasks
      with the weight 0 do not count.
    - `running`: (L,) of the average losses over the training; by default they do not count.
    - `targets`: (L,) what each final loss should not exceed, None for no target.
    - `control`: what may be controlled.
    - `limits`: what `solve` must keep to.
    - `knobs`: values of the model's other knobs, by name, unless stated otherwise.
    - `arrivals`, `departures`: (T,) between which times each task is there to be trained on, by
      default throughout; edges of steps. A task that arrives at the end or later, such as at `inf`,
      never does; one that departs then stays. Losses count all the time, but for the goal "seen".

    `knob_values` are those of all knobs of the model, by name. `presence`: when tasks are there.
    `measure`: what the goal makes of losses.

    Examples:
        >>> model = replan.TeacherStudent.similar(0.3)
        >>> start = model.pretrain(task=0, duration=100.0, seed=1)  # learn task 1 first
        >>> problem = replan.Problem(model, start, duration=25.0, lr=1.0)  # then task 2
        >>> problem.save("problem.toml")
        >>> replan.Problem.load("problem.toml").duration
        25.0
    """

    model: Model
    start: Any
    duration: float
    lr: float | None = None
    steps: int = 250
    weights: ArrayLike | Mapping[str, float] | None = None
    running: ArrayLike | Mapping[str, float] | None = None
    targets: Sequence[float | None] | Mapping[str, float] | None = None
    control: Control = field(default_factory=Control)
    limits: Limits = field(default_factory=Limits)
    knobs: Mapping[str, float] = field(default_factory=dict)
    arrivals: ArrayLike | None = None
    departures: ArrayLike | None = None
    goal: GoalName = "final"
    of_members: ClassVar[Callable[..., Any]]  # makes an `Ensemble`; set where that is defined
    knob_values: dict[str, float] = field(init=False)
    state: Floats = field(init=False)
    availability: Availability = field(init=False)
    measure: Goal = field(init=False)
    step_limits: StepLimits = field(init=False)

    def __post_init__(self) -> None:
        check.instance("model", self.model, Model, "a dynamics such as TeacherStudent")
        check.instance("control", self.control, Control, "a Control(tasks=…, lr=…)")
        check.instance("limits", self.limits, Limits, "a Limits(max_share=…, …)")
        for name in ("kind", "tasks"):
            if not hasattr(self.model, name):
                raise ArgumentError(
                    "model", f"a dynamics with `{name}`", f"a {type(self.model).__name__} without"
                )
        tasks, count = self.model.tasks, len(self.model.loss_names)
        weights = self._weights("weights", np.full(count, 1 / count))
        running = self._weights("running", np.zeros(count))
        if weights.max() == 0 and running.max() == 0:
            raise ArgumentError("weights", "numbers not all 0", check.show(weights.tolist()))
        values = self._knob_values()
        for name, value in {
            "duration": check.number("duration", self.duration, above=0),
            "lr": values.get("lr"),
            "knobs": {name: values[name] for name in self.knobs if name != "lr"},
            "knob_values": values,
            "steps": check.integer("steps", self.steps, at_least=1, at_most=1_000_000),
            "weights": weights,
            "running": running,
            "targets": self._targets(),
            "state": first_state(self.model, self.start),
        }.items():
            object.__setattr__(self, name, value)
        size = self.state.size + 2 * tasks
        memory.require(
            f"`steps` = {self.steps} and a state of {self.state.size} numbers",
            2 * memory.COPIES * self.steps * size,
        )
        present = presence(self.arrivals, self.departures, tasks, self.edges)
        object.__setattr__(self, "availability", present)
        object.__setattr__(self, "measure", goal_of(self.goal, weights, present, self.model))
        if self.control.tasks == "constant" and not present.always:
            raise ValueError(
                "`control.tasks` expects true or false where tasks arrive or depart: constant "
                "shares would train on tasks that are away"
            )
        first = np.rint(present.arrivals / self.duration * self.steps).astype(np.int64)
        limits = self.limits.on_grid(present.on(self.edges), self.duration, first)
        if limits.binding and not self.control.tasks:
            raise ArgumentError(
                "limits", "limits only where `control.tasks` is true", check.show(self.limits)
            )
        if limits.on_stays and self.control.tasks == "constant":
            raise ArgumentError(
                "limits",
                "no limits on stays and switches where `control.tasks` is"
                ' "constant": a mixture of tasks has neither',
                check.show(self.limits),
            )
        object.__setattr__(self, "step_limits", limits)
        self._check_means()

    def _knob_values(self) -> dict[str, float]:
        """Return the values of all knobs, by name, each within its range if it is controlled."""
        knobs = self.model.layout.knobs
        given = dict(check.instance("knobs", self.knobs, Mapping, "values by name"))
        if self.lr is not None:
            check.number("lr", self.lr)
            if given.get("lr", self.lr) != self.lr:
                raise ValueError("`lr` or `knobs`: expects the learning rate in one of the two")
            given["lr"] = self.lr
        for name in given:
            check.one_of("lr" if name == "lr" else "knobs", name, knobs)
        for name, (low, high) in self.control.ranges.items():
            known = knobs[check.one_of("control", name, knobs)]
            known.check(f"control.{name}", low)
            known.check(f"control.{name}", high)
        for name in self.control.shared:
            if not knobs[name].per_task:
                raise ArgumentError(
                    "shared", "knobs with a value for each task", f"{name}, which has one for all"
                )
        values = {}
        for name, knob in knobs.items():
            low, high = self.control.ranges.get(name, (-np.inf, np.inf))
            default = min(max(knob.default, low), high)
            values[name] = value = knob.check(name, given.get(name, default))
            if not low <= value <= high:
                raise ArgumentError(
                    name,
                    f"a {('rate' if knob.rate else 'value')} within `control."
                    f"{name}`, {low:g} to {high:g}",
                    f"{value:g}",
                )
        return values

    def _check_means(self) -> None:
        """Refuse limits on the means of knobs that cannot be kept."""
        for name, (least, most) in self.limits.mean.items():
            check.one_of("mean", name, self.model.layout.knobs)
            if name not in self.control.ranges:
                raise ArgumentError("mean", "knobs that are controlled", f"{name}, which is fixed")
            low, high = self.control.ranges[name]
            if most < low or least > high:
                raise ArgumentError(
                    f"mean of {name}",
                    f"a mean within `control.{name}`, {low:g} to {high:g}",
                    f"{least:g}{f' to {most:g}' if most > least else ''}",
                )
            per_task = self.model.layout.knobs[name].per_task and self.model.tasks > 1
            if per_task and self.control.tasks and name not in self.control.shared:
                raise ValueError(
                    f"`mean` of {name}, which has a value for each task, expects "
                    "`control.tasks` to be false, or the knob to be shared"
                )

    @property
    def members(self) -> tuple[Problem, ...]:
        """The problems that a protocol is for: this one alone, unless it is an `Ensemble`."""
        return (self,)

    @property
    def names(self) -> tuple[str, ...]:
        """What people call the members."""
        return ("problem",)

    @property
    def unseen(self) -> Problem | None:
        """Further members, to test on: none, unless it is an `Ensemble` that has some."""
        return None

    @property
    def risk(self) -> Risk:
        """What the objectives of all members come to."""
        return ONE

    @property
    def arguments(self) -> dict[str, Any]:
        """What it was made from besides the model and the start, by name."""
        given = [one.name for one in fields(Problem) if one.init]
        return {name: getattr(self, name) for name in given if name not in ("model", "start")}

    def changed(self, **changes: Any) -> Problem:
        """Return the same problem with some arguments changed."""
        return Problem(**{"model": self.model, "start": self.start} | self.arguments | changes)

    @property
    def settings(self) -> dict[str, float]:
        """The values of the knobs that protocols carry: `lr`, and those that are not by default."""
        own = {"lr", *self.knobs, *self.control.ranges}
        return {name: value for name, value in self.knob_values.items() if name in own}

    def knob_rows(self, protocol: Protocol) -> Floats:
        """Return the values of all knobs (steps, C) under a protocol, in the model's columns."""
        return self.model.layout.rows(self.knob_values | protocol.knobs, protocol.steps)

    @cached_property
    def knob_ranges(self) -> tuple[Floats, Floats]:
        """The least and largest values (C,) of the knobs in the model's columns.

        They are equal where a knob is not controlled.
        """
        fixed = {name: (value, value) for name, value in self.knob_values.items()}
        return self.model.layout.ends(fixed | self.control.ranges)

    def _listed(self, name: str, given: Any, default: Any) -> Any:
        """Return what is given for each loss, as a list in their order if it is by name."""
        if not isinstance(given, Mapping):
            return given
        names = self.model.loss_names
        if not given:
            raise ArgumentError(name, "a number for at least one loss", "none")
        for key in given:
            check.one_of(name, key, names)
        return [given.get(key, default) for key in names]

    def _weights(self, name: str, default: Floats) -> Floats:
        given = self._listed(name, getattr(self, name), 0.0)
        weights = check.array(name, default if given is None else given, default.shape)
        if weights.min() < 0:
            raise ArgumentError(name, "numbers of at least 0", check.show(weights.tolist()))
        return weights

    def _targets(self) -> Floats:
        """Return the targets (L,), infinite where there is none."""
        count = len(self.model.loss_names)
        if self.targets is None:
            return np.full(count, np.inf)
        expects = f"{count} numbers or None"
        given = check.items("targets", self._listed("targets", self.targets, None), expects)
        if len(given) != count:
            raise ArgumentError("targets", expects, f"{len(given)}")

        def bound(x: Any) -> float:
            none = x is None or (isinstance(x, float) and x == np.inf)
            return np.inf if none else check.number("targets", x, above=0)

        return np.array([bound(x) for x in given])

    def objective(self, final: Floats, along: Floats | float = 0.0) -> Floats:
        """Return the objectives (…) of final losses (…, L) and of what counts along the way (…).

        The latter is the mean over the training of `counts_along` × the losses.
        """
        return self.measure.at_end(final) + along + self.penalties(final)[0]

    def objectives(self, final: Floats, along: Sequence[Floats | float] | None = None) -> Floats:
        """Return the objectives (M, …) of all members, from their final losses (M, …, L)."""
        rest = [0.0] * len(final) if along is None else along
        return np.stack([self.objective(*each) for each in zip(final, rest, strict=True)])

    @property
    def smooth(self) -> bool:
        """Whether the objective is: not the largest of several numbers."""
        return self.goal != "worst" and self.risk.linear

    @property
    def averages_count(self) -> bool:
        """Whether losses along the way are part of the objective."""
        return bool(self.measure.throughout or np.any(np.asarray(self.running)))

    def counts_along(self, edges: Floats) -> Floats:
        """Return what each loss counts (n, L) in n steps: for the goal, and as a running cost."""
        return self.measure.along(edges) + np.asarray(self.running)

    def slopes(self, final: Floats, mixture: Floats | None = None) -> Floats:
        """Return the derivatives (L,) of the objective by the final losses; see `Goal.slopes`."""
        return self.measure.slopes(final, mixture) + self.penalties(final)[1]

    def penalties(self, final: Floats) -> tuple[Floats, Floats]:
        """Return what the targets add to the objectives (…) and its derivatives (…, L)."""
        targets, margin = np.asarray(self.targets), _MARGIN
        if np.all(targets == np.inf):
            return np.zeros(final.shape[:-1]), np.zeros(final.shape)
        scale = _PENALTY * max(self.measure.largest_weight, np.max(np.asarray(self.running)))
        above = np.maximum(final / targets - 1.0 + margin, 0.0)
        near = above <= margin
        height = np.where(near, above**2 / (2 * margin), above - margin / 2)
        lengths = np.where(above > 0, targets, 0.0)
        slopes = np.where(near, above / margin, 1.0)
        return scale * np.sum(height * lengths, axis=-1), scale * slopes

    def __repr__(self) -> str:
        knobs = "".join(f", {name}={value:g}" for name, value in self.settings.items())
        goal = "" if self.goal == "final" else f', goal="{self.goal}"'
        times = (
            "" if self.availability.always else f", arrivals={self.availability.arrivals.tolist()}"
        )
        return f"Problem({self.model!r}, duration={self.duration:g}{knobs}{times}{goal})"

    @property
    def edges(self) -> Floats:
        """The times (steps + 1,) between the steps."""
        return np.linspace(0.0, self.duration, self.steps + 1)

    def accept(self, protocol: Protocol, name: str = "protocol") -> Protocol:
        """Return the protocol if it fits this problem; else refuse it, naming the argument."""
        if not isinstance(protocol, Protocol):
            hint = ", give its `.protocol`" if hasattr(protocol, "protocol") else ""
            raise ArgumentError(name, "a Protocol", f"{check.show(protocol)}{hint}")
        tasks = self.model.tasks
        if protocol.tasks != tasks:
            raise ArgumentError(name, f"a protocol of {tasks} tasks", f"{protocol.tasks}")
        if abs(protocol.duration - self.duration) > 1e-9 * self.duration:
            raise ArgumentError(
                name, f"a protocol of duration {self.duration:g}", f"{protocol.duration:g}"
            )
        panel = self.model.layout
        for knob, values in protocol.knobs.items():
            check.one_of(f"knobs of {name}", knob, panel.knobs)
            known = panel.knobs[knob]
            if values.ndim == 2 and not known.per_task:
                raise ArgumentError(
                    name, f"one value of {knob} per step for all tasks", "one for each task"
                )
            for value in (values.min(), values.max()):
                known.check(f"{knob} of {name}", value)
        names = self.model.task_names
        self.availability.check(name, protocol.shares, protocol.edges, names)
        return protocol

    @classmethod
    def load(cls, path: files.FilePath) -> Problem:
        """Read a problem file (TOML); see docs/problem-file.md.

        Any mistake in it is a ValueError of one line that names the key.
        """
        from replan.problem.file import sections

        import_named()  # before the file is read, which has no part in what goes wrong there
        content = sections(path)
        try:
            return Problem.from_dict(content)
        except ValueError as error:
            raise ValueError(f"{os.fspath(path)}: {error}") from None

    @classmethod
    def from_dict(cls, content: Mapping[str, Any], *, model: Model | None = None) -> Problem:
        """Return the problem that the sections of a problem file, as dicts, describe.

        `model`: the model itself, instead of the `[model]` section, such as one that no file can
        describe.
        """
        from replan.problem.file import problem_from

        return problem_from(Problem, content, model)

    def save(self, path: files.FilePath) -> None:
        """Write a problem file (.toml), its start as a state; refuse what `load` could not read."""
        from replan.problem.file import to_toml

        files.suffix(path, [".toml"])
        content = self.to_dict()
        Problem.from_dict(content)
        files.write(path, to_toml(content).encode())

    def to_dict(self) -> dict[str, Any]:
        """Return the problem as the sections of a problem file, its start as a state."""
        control: dict[str, Any] = {"tasks": self.control.tasks}
        if "lr" in self.knob_values:
            control["lr"] = False
        for name, (low, high) in self.control.ranges.items():
            control[name] = {"min": low, "max": high}
            ties = {"constant": self.control.constant, "shared": self.control.shared}
            control[name] |= {tie: True for tie, names in ties.items() if name in names}
        return {
            "model": {"kind": self.model.kind} | self.model.to_dict(),
            "start": self.model.start_to_dict(self.start),
            "training": self._training_to_dict() | self.settings,
            "control": control,
            "objective": self._objective_to_dict(),
            "limits": self.limits.to_dict(),
        }

    def _training_to_dict(self) -> dict[str, Any]:
        content: dict[str, Any] = {"duration": self.duration, "steps": self.steps}
        for name in ("arrivals", "departures"):
            if getattr(self, name) is not None:
                content[name] = getattr(self.availability, name).tolist()
        return content

    def _objective_to_dict(self) -> dict[str, Any]:
        content: dict[str, Any] = {"goal": self.goal} if self.goal != "final" else {}
        content["weights"] = np.asarray(self.weights).tolist()
        if np.any(np.asarray(self.running)):
            content["running"] = np.asarray(self.running).tolist()
        targets = np.asarray(self.targets)
        if np.any(np.isfinite(targets)):
            content["targets"] = {
                str(i + 1): x for i, x in enumerate(targets.tolist()) if x < np.inf
            }
        return content
