"""The interfaces of a model: one that rolls out, and one that also has a vjp of its roll-out.

Notation: T tasks, L losses, C columns of knobs, a state is a vector of length n.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from replan import check
from replan.check import Floats
from replan.core.schedule import Gradients, Schedule
from replan.errors import ArgumentError, renamed
from replan.models.knobs import LR, Knob, KnobLayout
from replan.registry import Registry
from replan.schema import from_keys


class Model(ABC):
    """What evolves in training: x′ = Σ_t share_t f_t(x, knobs of task t).

    kind: the word that stands for the model in files. example: a commented problem file to start
    from, or its `[model]` and `[start]` sections alone. tasks: T. knobs: what training may turn
    over time, by default the learning rate alone.

    A model used from Python needs `kind`, `tasks`, `losses` and `roll_out`; its starts are then
    plain state vectors. Override `pack` and `unpack` for another form of start, and the methods
    about dicts for problem files.

    Examples:
        >>> class Fading(replan.Model):  # practice of one skill, in closed form
        ...     kind, tasks = "fading", 1
        ...     def losses(self, states):
        ...         return (1 - states) ** 2
        ...     def roll_out(self, start, schedule):
        ...         practice = np.cumsum(schedule.lengths * schedule.knobs[:, 0])
        ...         return np.vstack([start, 1 - (1 - start) * np.exp(-practice)[:, None]])
        >>> problem = replan.Problem(Fading(), [0.0], duration=2.0, steps=4)
        >>> run = replan.evaluate(problem, replan.strategies.one_task(problem))
        >>> f"{run.loss:.4f} {np.exp(-4):.4f}"
        '0.0183 0.0183'
    """

    registry: ClassVar[Registry[type[Model]]] = Registry("kind")
    kind: ClassVar[str]
    example: ClassVar[str] = ""
    tasks: int
    knobs: Sequence[Knob] = (LR,)

    @property
    def task_names(self) -> tuple[str, ...]:
        """Names of the tasks (T,)."""
        return tuple(f"task {t + 1}" for t in range(self.tasks))

    @property
    def loss_names(self) -> tuple[str, ...]:
        """Names of the losses (L,); by default each task has one."""
        return self.task_names

    @cached_property
    def layout(self) -> KnobLayout:
        """The columns of each knob in `Schedule.knobs`."""
        return KnobLayout(self.knobs, self.tasks)

    def pack(self, start: Any) -> Floats:
        """Check a user's start, and return it as a state (n,)."""
        return check.array("start", start, ("n",))

    def unpack(self, states: Floats) -> Any:
        """Return states (…, n) in the form of a user's start, with the same leading axes."""
        return states

    @abstractmethod
    def losses(self, states: Floats) -> Floats:
        """Return all losses (…, L) at states (…, n)."""

    @abstractmethod
    def roll_out(self, start: Floats, schedule: Schedule) -> Floats:
        """Return the states (pieces + 1, n) at the edges of the pieces, by an order-4 method.

        A roll-out stops where a number is no longer finite, and returns only the rows before.
        """

    def roll_out_each(self, starts: Floats, schedule: Schedule) -> Floats:
        """Return the ends (pieces, n) of pieces, each rolled out from its own start (pieces, n).

        They are NaN where numbers are no longer finite.
        """
        ends = np.full_like(starts, np.nan)
        for i, start in enumerate(starts):
            states = self.roll_out(start, schedule.rows(i, i + 1))
            if len(states) > 1:
                ends[i] = states[1]
        return ends

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Model:
        """Return the model that a problem file's `[model]` section, without `kind`, describes.

        By default its keys are the arguments of the constructor.
        """
        return from_keys(cls, content, "model")

    def to_dict(self) -> dict[str, Any]:
        """Return the settings of this model as the `[model]` section, without `kind`."""
        return {}

    def start_from_dict(self, content: Mapping[str, Any]) -> Any:
        """Return the start that the `[start]` section describes: a state under the key `state`."""

        def start(state: list[float]) -> Any:
            with renamed({"states": "start.state"}):
                return self.unpack(check.array("start.state", state, ("n",)))

        return from_keys(start, content, "start")

    def start_to_dict(self, start: Any) -> dict[str, Any]:
        """Return a start as the `[start]` section of a problem file."""
        return {"state": self.pack(start).tolist()}


class DifferentiableModel(Model):
    """A model with the vector-Jacobian product (vjp) of its roll-out, which `solve` needs.

    Examples:
        >>> model = replan.TeacherStudent.similar(0.3)
        >>> shares, knobs, length = np.full((1, 2), 0.5), np.ones((1, 6)), np.array([2.0])
        >>> schedule = replan.models.Schedule.single_steps(shares, knobs, length)
        >>> states = model.roll_out(model.pack(model.fresh(seed=1)), schedule)
        >>> weights = np.array([[0.0, 0.0], [0.5, 0.5]])  # of the losses: they count at the end
        >>> cotangents = model.losses_vjp(states, weights)
        >>> model.roll_out_vjp(states, cotangents, schedule).by_shares.shape
        (1, 2)
    """

    @abstractmethod
    def losses_vjp(self, states: Floats, cotangents: Floats) -> Floats:
        """Return the gradients by the states, of their shape, of Σ_l cotangents[…, l] × loss l."""

    def roll_out_with_tape(self, start: Floats, schedule: Schedule) -> tuple[Floats, Any]:
        """Return the states of `roll_out`, and a tape for `roll_out_vjp` or None."""
        return self.roll_out(start, schedule), None

    @abstractmethod
    def roll_out_vjp(
        self, states: Floats, cotangents: Floats, schedule: Schedule, tape: Any = None
    ) -> Gradients:
        """Return the exact gradients of Σ_i cotangents[i] · states[i] of a roll-out.

        states, cotangents: (pieces + 1, n). tape: of that roll-out; without one, what is missing
        is computed again.
        """


def first_state(model: Model, start: Any) -> Floats:
    """Return a user's start as a state (n,); refuse it unless it and its losses are finite."""
    state = check.array("start", model.pack(start), ("n",))
    with np.errstate(all="ignore"), renamed({"states": "start"}):
        losses = model.losses(state)
    if np.shape(losses) != (len(model.loss_names),):
        raise ArgumentError(
            "losses of the model",
            f"an array of {len(model.loss_names)} numbers at a single state",
            f"shape {np.shape(losses)}",
        )
    if not np.all(np.isfinite(losses)):
        raise ArgumentError(
            "start", "a state with finite losses", f"losses {check.show(losses.tolist())}"
        )
    return state
