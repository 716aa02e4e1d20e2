"""Problem: model, start, duration, objective and what may be controlled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from replan import check, files
from replan.check import Floats
from replan.errors import ArgumentError
from replan.models import Model
from replan.models.base import first_state
from replan.models.stacked import StackedModel
from replan.problem.availability import availability_of
from replan.problem.control import Control, Range
from replan.problem.limits import Limits
from replan.problem.objective import Objective
from replan.problem.risk import ONE, Risk, RiskLevel, risk_of
from replan.problem.step_limits import limits_in_steps
from replan.protocol import Protocol

_FASTEST = 5.0  # times the problem's learning rate: the end of its range where none is given
_SAME = 1e-9  # durations that differ by less, relatively, are equal


class Problem:
    """A training problem: from `start`, train for `duration` so that the objective is small.

    **Main arguments**

    - `model`: what evolves, such as a `TeacherStudent`.
    - `start`: where training begins, such as `model.pretrain(…)`.
    - `duration`: training time α, in samples per input dimension.
    - Any knob of the model by its name, such as `lr=1.0`: its value unless a protocol says
      otherwise. A knob that is not named has its default, moved into its range where controlled.

    **Other arguments**

    - `steps`: number of equal steps of a protocol.
    - `objective`: what to minimise, an `Objective`; by default the mean of the final losses.
    - `control`: what may be controlled, a `Control`; by default the shares of the tasks.
    - `limits`: what `solve` must keep to, a `Limits`.
    - `arrivals`, `departures`: (T,) the times, edges of steps, between which each task can be
      trained on; by default throughout. Use `inf` for a task that never arrives or never leaves.
      Except for the goal "seen", losses of unavailable tasks count too.

    **Attributes**

    `objective` (bound to the model, see `Objective`), `control`, `limits`; `knobs`: the values of
    all knobs by name; `state`: the start as a vector (n,); `availability`: of the tasks over time;
    `step_limits`: the limits in steps; `members`, `names`, `risk`: of an ensemble.

    Examples:
        >>> model = replan.TeacherStudent.similar(0.3)
        >>> start = model.pretrain(task=0, duration=100.0, seed=1)  # learn task 1 first
        >>> problem = replan.Problem(model, start, duration=25.0, lr=1.0)  # then task 2
        >>> problem.save("problem.toml")
        >>> replan.Problem.load("problem.toml").duration
        25.0
    """

    def __init__(
        self,
        model: Model,
        start: Any,
        duration: float | None = None,
        *,
        steps: int = 250,
        objective: Objective | None = None,
        control: Control | None = None,
        limits: Limits | None = None,
        arrivals: ArrayLike | None = None,
        departures: ArrayLike | None = None,
        **knobs: Any,
    ) -> None:
        self.model = check.instance("model", model, Model, "a model such as TeacherStudent")
        for name in ("kind", "tasks"):
            if not hasattr(model, name):
                raise ArgumentError(
                    "model", f"a model with `{name}`", f"a {type(model).__name__} without"
                )
        spec = Objective() if objective is None else objective
        check.instance("objective", spec, Objective, "an Objective(weights=…, …)")
        self.control = check.instance(
            "control", control or Control(), Control, "a Control(tasks=…, lr=…)"
        )
        self.limits = check.instance(
            "limits", limits or Limits(), Limits, "a Limits(max_share=…, …)"
        )
        self.arguments: dict[str, Any] = {
            "duration": duration, "steps": steps, "objective": spec, "control": self.control,
            "limits": self.limits, "arrivals": arrivals, "departures": departures, **knobs,
        }  # fmt: skip
        self.knobs = self._knob_values(knobs)
        self.duration = check.number("duration", duration, above=0)
        self.steps = check.integer("steps", steps, at_least=1, at_most=1_000_000)
        self._own_knobs = {"lr", *knobs, *self.control.knobs}
        self.availability = availability_of(arrivals, departures, model.tasks, self.edges)
        self.objective = spec.bind(model, self.availability)
        self.start, self.state = start, first_state(model, start)
        first = np.rint(self.availability.arrivals / self.duration * self.steps).astype(np.int64)
        available = self.availability.on(self.edges)
        self.step_limits = limits_in_steps(self.limits, available, self.duration, first)
        self._check_limits()
        self._members: tuple[Problem, ...] = ()
        self.names: tuple[str, ...] = ("problem",)
        self.risk: Risk = ONE

    # Knobs

    def _knob_values(self, given: Mapping[str, Any]) -> dict[str, float]:
        """Return the values of all knobs, by name, each within its range if it is controlled."""
        known = self.model.layout.knobs
        for name in given:
            if name not in known:
                near = check.hint(name, [*known, *(x for x in self.arguments if x not in given)])
                raise ArgumentError(
                    name,
                    f"an argument of Problem or a knob of the model ({', '.join(known)})",
                    f"neither{near}",
                )
        for name, free in self.control.knobs.items():
            knob = known[check.one_of("control", name, known)]
            for value in (free.low, free.high):
                knob.check(f"control.{name}", value)
            if free.shared and not knob.per_task:
                raise ArgumentError(
                    f"control.{name}", "not shared, as it has one value for all tasks", "shared"
                )
        values = {}
        for name, knob in known.items():
            allowed = self.control.knobs.get(name, Range(-1e300, 1e300))
            default = min(max(knob.default, allowed.low), allowed.high)
            values[name] = value = knob.check(name, given.get(name, default))
            if not allowed.low <= value <= allowed.high:
                raise ArgumentError(
                    name,
                    f"within `control.{name}`, {allowed.low:g} to {allowed.high:g}",
                    f"{value:g}",
                )
        return values

    @property
    def settings(self) -> dict[str, float]:
        """The knobs that protocols carry: `lr`, and those that were set or are controlled."""
        return {name: value for name, value in self.knobs.items() if name in self._own_knobs}

    def knob_rows(self, protocol: Protocol) -> Floats:
        """Return the values of all knobs (steps, C) under a protocol, in the model's columns."""
        return self.model.layout.rows(self.knobs | protocol.knobs, protocol.steps)

    @cached_property
    def knob_ranges(self) -> tuple[Floats, Floats]:
        """The least and largest values (C,) of the knobs in the model's columns.

        They are equal where a knob is not controlled.
        """
        low = self.knobs | {name: free.low for name, free in self.control.knobs.items()}
        high = self.knobs | {name: free.high for name, free in self.control.knobs.items()}
        return self.model.layout.rows(low, 1)[0], self.model.layout.rows(high, 1)[0]

    def free_range(self, name: str) -> tuple[float, float]:
        """Return the range in which a knob may be searched: that of `control`, or a default.

        By default, the first learning rate goes up to five times the problem's, and any other knob
        through the model's range, which may be infinite.
        """
        free, layout = self.control.knobs.get(name), self.model.layout
        if free is not None:
            return free.low, free.high
        low, high = layout.knobs[name].low, layout.knobs[name].high
        if name == layout.rate:
            return max(low, 0.0), min(high, _FASTEST * (self.knobs[name] or 1.0))
        return low, high

    def _check_limits(self) -> None:
        """Refuse limits that do not fit what is controlled."""
        if self.control.tasks == "constant" and not self.availability.always:
            raise ArgumentError(
                "control.tasks",
                "true or false where tasks arrive or depart, as constant shares would train on "
                "tasks that are away",
                '"constant"',
            )
        if self.step_limits.binding and not self.control.tasks:
            raise ArgumentError(
                "limits", "without limits where `control.tasks` is false", check.show(self.limits)
            )
        if self.step_limits.on_stays and self.control.tasks == "constant":
            raise ArgumentError(
                "limits",
                'without limits on stays and switches where `control.tasks` is "constant"',
                check.show(self.limits),
            )
        for name, (least, most) in self.limits.mean.items():
            knob = self.model.layout.knobs[check.one_of("mean", name, self.model.layout.knobs)]
            if name not in self.control.knobs:
                raise ArgumentError("mean", "of knobs that are controlled", f"{name}, a fixed one")
            free = self.control.knobs[name]
            if most < free.low or least > free.high:
                raise ArgumentError(
                    f"mean of {name}",
                    f"within `control.{name}`, {free.low:g} to {free.high:g}",
                    f"{least:g} to {most:g}" if most > least else f"{least:g}",
                )
            if knob.per_task and self.model.tasks > 1 and self.control.tasks and not free.shared:
                raise ArgumentError(
                    f"mean of {name}",
                    "of a shared knob, or with fixed tasks, as the knob has a value for each task",
                    "neither",
                )

    # Ensembles

    @classmethod
    def ensemble(
        cls,
        problems: Sequence[Problem] | Mapping[str, Problem],
        *,
        weights: ArrayLike | None = None,
        risk: RiskLevel = "mean",
    ) -> Problem:
        """Combine problems into one: one protocol for all, where it is unknown which applies.

        Losses are weighted means over the members. The objective is that of each member, combined
        by `risk`.

        - `problems`: the members, a list or a dict by name, which differ in model and start alone.
        - `weights`: (M,) how likely each member is, of sum 1; by default equal.
        - `risk`: "mean", "worst", or the fraction of the members, the worst ones, whose mean counts
          (conditional value at risk).

        Examples:
            >>> model = replan.TeacherStudent.similar(0.3)
            >>> starts = [model.pretrain(seed=seed) for seed in (1, 2)]
            >>> problems = [replan.Problem(model, x, duration=20.0, steps=20) for x in starts]
            >>> both = replan.Problem.ensemble(problems, risk="worst")
            >>> run = replan.evaluate(both, replan.strategies.interleaved(both))
            >>> f"{run.loss:.4f}", [f"{member.loss:.4f}" for member in run.members]
            ('0.0174', ['0.0076', '0.0174'])
        """
        names, members = _named(problems)
        for name, member in zip(names, members, strict=True):
            _check_same(members[0], member, name)
        combined = risk_of(risk, weights, len(members))
        model = StackedModel(
            [member.model for member in members],
            [member.state.size for member in members],
            combined.weights,
        )
        problem = cls(model, [member.start for member in members], **members[0].arguments)
        problem._members, problem.names, problem.risk = members, names, combined
        return problem

    @property
    def members(self) -> tuple[Problem, ...]:
        """The problems of an ensemble; else this problem alone."""
        return self._members or (self,)

    @property
    def is_ensemble(self) -> bool:
        """Whether this problem was made by `ensemble`."""
        return bool(self._members)

    @property
    def smooth(self) -> bool:
        """Whether the objective is smooth: not the largest of several numbers."""
        return self.objective.goal != "worst" and self.risk.linear

    def changed(self, **changes: Any) -> Problem:
        """Return the same problem with some arguments changed.

        Of an ensemble, those of all members; `start` is then the list of their starts.
        """
        if not self.is_ensemble:
            return Problem(**{"model": self.model, "start": self.start} | self.arguments | changes)
        starts = check.items("start", changes.pop("start", self.start), "a start for each member")
        if len(starts) != len(self.members):
            raise ArgumentError("start", f"{len(self.members)} starts", f"{len(starts)}")
        members = [
            member.changed(start=start, **changes)
            for member, start in zip(self.members, starts, strict=True)
        ]
        return Problem.ensemble(
            dict(zip(self.names, members, strict=True)),
            weights=self.risk.weights,
            risk=self.risk.word,
        )

    # Protocols

    @property
    def edges(self) -> Floats:
        """The times (steps + 1,) between the steps."""
        return np.linspace(0.0, self.duration, self.steps + 1)

    def accept(self, protocol: Protocol, name: str = "protocol") -> Protocol:
        """Return the protocol, with the problem's value of any knob that it does not set.

        A protocol that does not fit the problem is refused, naming the argument.
        """
        if not isinstance(protocol, Protocol):
            hint = ": give its `.protocol`" if hasattr(protocol, "protocol") else ""
            raise ArgumentError(name, "a Protocol", f"{check.show(protocol)}{hint}")
        tasks, known = self.model.tasks, self.model.layout.knobs
        if protocol.tasks != tasks:
            raise ArgumentError(name, f"a protocol of {tasks} tasks", f"{protocol.tasks}")
        if abs(protocol.duration - self.duration) > _SAME * self.duration:
            raise ArgumentError(
                name, f"a protocol of duration {self.duration:g}", f"{protocol.duration:g}"
            )
        for knob, values in protocol.knobs.items():
            check.one_of(f"knobs of {name}", knob, known)
            if values.ndim == 2 and not known[knob].per_task:
                raise ArgumentError(
                    name, f"a protocol with one {knob} for all tasks", "one for each task"
                )
            for value in (values.min(), values.max()):
                known[knob].check(f"{knob} of {name}", value)
        self.availability.check(name, protocol.shares, protocol.edges, self.model.task_names)
        missing = {knob: x for knob, x in self.settings.items() if knob not in protocol.knobs}
        return protocol.with_knobs(**missing) if missing else protocol

    # Files

    @classmethod
    def load(cls, path: files.FilePath) -> Problem:
        """Read a problem file (.toml); see docs/files.md.

        Any mistake in it is a ValueError of one line that names the key.
        """
        from replan.problem.file import read_problem

        return read_problem(path)

    @classmethod
    def from_dict(cls, content: Mapping[str, Any], *, model: Model | None = None) -> Problem:
        """Return the problem that the sections of a problem file, as dicts, describe.

        `model`: the model itself, instead of the `[model]` section, such as one that no file can
        describe.
        """
        from replan.problem.file import problem_from

        return problem_from(content, model)

    def save(self, path: files.FilePath) -> None:
        """Write a problem file (.toml), its start as a state; refuse what `load` could not read."""
        from replan.problem.file import to_toml

        files.suffix(path, [".toml"])
        content = self.to_dict()
        Problem.from_dict(content)
        files.write(path, to_toml(content).encode())

    def to_dict(self) -> dict[str, Any]:
        """Return the problem as the sections of a problem file, its start as a state."""
        from replan.problem.file import problem_to_dict

        return problem_to_dict(self)

    def __repr__(self) -> str:
        if self.is_ensemble:
            return f"Problem.ensemble({self.risk.words}, the first {self.members[0]!r})"
        knobs = "".join(f", {name}={value:g}" for name, value in self.settings.items())
        goal = "" if self.objective.goal == "final" else f', goal="{self.objective.goal}"'
        arrivals = self.availability.arrivals
        times = "" if self.availability.always else f", arrivals={arrivals.tolist()}"
        return f"Problem({self.model!r}, duration={self.duration:g}{knobs}{times}{goal})"


def _named(problems: Any) -> tuple[tuple[str, ...], tuple[Problem, ...]]:
    """Return the names and the problems of an ensemble's members."""
    if isinstance(problems, Mapping):
        names = tuple(check.word("problems", name) for name in problems)
        members = tuple(problems.values())
    else:
        members = tuple(check.items("problems", problems, "problems"))
        names = tuple(f"member {m + 1}" for m in range(len(members)))
    if not members:
        raise ArgumentError("problems", "at least one problem", "none")
    for member in members:
        check.instance("problems", member, Problem, "problems")
        if member.is_ensemble:
            raise ArgumentError(
                "problems", "single problems", "an ensemble: give the `members` of all of them"
            )
    return names, members


def _check_same(first: Problem, other: Problem, name: str) -> None:
    """Refuse a member that differs from the first in more than its start and its model."""
    pairs: dict[str, tuple[Any, Any]] = {
        "tasks": (first.model.task_names, other.model.task_names),
        "losses": (first.model.loss_names, other.model.loss_names),
        "knobs": (tuple(first.model.knobs), tuple(other.model.knobs)),
    }
    for key in ("training", "control", "objective", "limits"):
        pairs[key] = first.to_dict()[key], other.to_dict()[key]
    for key, (one, another) in pairs.items():
        if one != another:
            raise ArgumentError(
                "problems",
                f"members with the same {key}",
                f"{check.show(one)} and, in {name}, {check.show(another)}",
            )
