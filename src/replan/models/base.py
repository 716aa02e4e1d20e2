"""What evolves in training: the interfaces of a model, and the pieces it is rolled out over.

Notation: T tasks, L losses, C columns of knobs, a state is a vector of length n, a protocol is cut
into pieces.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np

from replan import check
from replan.check import Floats, Ints
from replan.problem.sections import from_keys
from replan.models._dials import Dial
from replan.models.knobs import LR, Knob, KnobLayout


class Schedule(NamedTuple):
    """The steps of a protocol as an integrator sees them.

    shares: (pieces, T) of the tasks. knobs: (pieces, C) the values of all knobs, in the columns of
    the model's panel; of a model with the learning rate as its only knob, (pieces, T) its value for
    each task. lengths: (pieces,) in time. substeps: (pieces,) how many integrator steps each piece
    is cut into, equal ones. Twice the substeps must give a more accurate result: errors are
    estimated from that.

    Examples:
        >>> shares = np.array([[0.0, 1.0], [0.5, 0.5]])
        >>> pieces = replan.models.Schedule.single_steps(shares, np.ones((2, 2)), np.array([1.0, 4.0]))
        >>> pieces.substeps
        array([1, 1])
    """

    shares: Floats
    knobs: Floats
    lengths: Floats
    substeps: Ints

    @classmethod
    def single_steps(cls, shares: Floats, knobs: Floats, lengths: Floats) -> Schedule:
        """Return pieces of one integrator step each."""
        return cls(shares, knobs, lengths, np.ones(len(lengths), np.int64))

    def only(self, first: int, last: int) -> Schedule:
        """Return the pieces from `first` up to the one before `last`."""
        some = slice(first, last)
        return Schedule(self.shares[some], self.knobs[some], self.lengths[some], self.substeps[some])

    def cut(self, parts: int) -> Schedule:
        """Return every piece cut into equal parts, each with the substeps of the whole."""
        rows = np.repeat(np.arange(len(self.lengths)), parts)
        return Schedule(
            self.shares[rows], self.knobs[rows], self.lengths[rows] / parts, self.substeps[rows]
        )


class Gradients(NamedTuple):
    """Gradients of a roll-out.

    adjoints: (pieces + 1, n) by the state at every edge, through all that follows from it.
    by_shares: (pieces, T). by_knobs: (pieces, C).

    Examples:
        >>> model = replan.models.Curriculum([0.0, 3.0])
        >>> shares, rates, length = np.full((1, 2), 0.5), np.ones((1, 2)), np.array([2.0])
        >>> pieces = replan.models.Schedule.single_steps(shares, rates, length)
        >>> states = model.roll_out(np.array([1.0, 1.0, 0.1]), pieces)
        >>> at_the_end = np.array([[0.0, 0.0], [0.5, 0.5]])  # the weights of the losses
        >>> pulled = model.roll_out_vjp(states, model.losses_vjp(states, at_the_end), pieces)
        >>> pulled.by_shares.shape, pulled.adjoints.shape
        ((1, 2), (2, 3))
    """

    adjoints: Floats
    by_shares: Floats
    by_knobs: Floats


class Model(ABC):
    """A model of training that rolls out: x′ = Σ_t share_t f_t(x, knobs of task t).

    kind: the word that stands for the model in files. example: a commented problem file to start
    from, or its `[model]` and `[start]` sections alone. dials: the numbers in its files that the
    explorer may turn; a model without any is not explored. tasks: T. knobs: what training may turn
    over time, by default the learning rate alone. end_knobs: what is set once, at the end, so that
    the objective is smallest, such as a factor at test time. `pack` makes a state from what a user
    writes; `unpack` does the reverse.

    A model for use in Python needs `kind`, `tasks`, `losses` and `roll_out`: its users write states
    as they are. One for files says how with the other methods.

    Examples:
        >>> class Fading(replan.Model):  # in closed form: practice of one skill for ever
        ...     kind, tasks = "fading", 1
        ...     def losses(self, states):
        ...         return (1 - states) ** 2
        ...     def roll_out(self, start, pieces):
        ...         passed = np.cumsum(pieces.lengths * pieces.knobs[:, 0])
        ...         return np.vstack([start, 1 - (1 - start) * np.exp(-passed)[:, None]])
        >>> problem = replan.Problem(Fading(), [0.0], duration=2.0, steps=4)
        >>> run = replan.evaluate(problem, replan.strategies.one_task(problem))
        >>> f"{run.loss:.4f} {np.exp(-4):.4f}"
        '0.0183 0.0183'
    """

    kind: ClassVar[str]
    example: ClassVar[str] = ""
    dials: ClassVar[tuple[Dial, ...]] = ()
    tasks: int
    knobs: Sequence[Knob] = (LR,)
    end_knobs: Sequence[Knob] = ()

    @property
    def task_names(self) -> tuple[str, ...]:
        """What people call the tasks (T,)."""
        return tuple(f"task {t + 1}" for t in range(self.tasks))

    @property
    def loss_names(self) -> tuple[str, ...]:
        """What people call the losses (L,): by default there is one for each task."""
        return self.task_names

    @cached_property
    def layout(self) -> KnobLayout:
        """Where each knob stands among the columns of `Schedule.knobs`."""
        return KnobLayout(self.knobs, self.tasks)

    def pack(self, start: Any) -> Floats:
        """Return a user's start, checked, as a state (n,)."""
        return check.array("start", start, ("n",))

    def unpack(self, states: Floats) -> Any:
        """Return states (…, n) in the user's form."""
        return states

    @abstractmethod
    def losses(self, states: Floats) -> Floats:
        """Return all losses (…, L) at states (…, n).

        Where the model has end knobs, their values follow each state.
        """

    @abstractmethod
    def roll_out(self, start: Floats, pieces: Schedule) -> Floats:
        """Return the states (pieces + 1, n) at the edges of the pieces, by an order-4 method.

        A roll-out stops where a number is no longer finite, and returns only the rows before.
        """

    def roll_out_each(self, starts: Floats, pieces: Schedule) -> Floats:
        """Return the ends (pieces, n) of pieces, each rolled out from its own start (pieces, n).

        They are NaN where numbers are no longer finite.
        """
        ends = np.full_like(starts, np.nan)
        for i, start in enumerate(starts):
            states = self.roll_out(start, pieces.only(i, i + 1))
            if len(states) > 1:
                ends[i] = states[1]
        return ends

    def diverging(self, state: Floats, piece: Schedule) -> str:
        """Return, in words, what of a state does not stay finite over a piece; "" for all of it."""
        return ""

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Model:
        """Return the model that a problem file's `[model]` section, without `kind`, describes.

        A mistake is a ValueError that names the key. Unless a subclass says otherwise, no file can
        describe the model.
        """
        raise ValueError(
            "`model.kind` expects a model that a file can describe, got "
            f"{check.show(cls.kind)}, which has no `from_dict`: pass the model itself"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the settings of this model as the `[model]` section, without `kind`."""
        return {}

    def start_from_dict(self, content: Mapping[str, Any]) -> Any:
        """Return the start that the `[start]` section describes: a state under the key `state`."""

        def start(state: list[float]) -> Any:
            return self.unpack(check.array("start.state", state, ("n",)))

        return from_keys(start, content, "start")

    def sketch_start(self, content: Mapping[str, Any]) -> Any:
        """Return a start of the form that the `[start]` section describes, without long work.

        It finds the mistakes in the section, and costs are measured on it, before the work of many
        problems begins. By default it is the start itself.
        """
        return self.start_from_dict(content)

    def start_to_dict(self, start: Any) -> dict[str, Any]:
        """Return a start as the `[start]` section of a problem file."""
        return {"state": self.pack(start).tolist()}


def first_state(model: Model, start: Any) -> Floats:
    """Return a user's start as a state (n,); refuse it unless it and its losses are finite."""
    state = check.array("start", model.pack(start), ("n",))
    if state.size == 0:  # of a model that is absent, and has no losses either
        return state
    with np.errstate(all="ignore"):
        losses = model.losses(with_ends(state, [knob.default for knob in model.end_knobs]))
    if np.shape(losses) != (len(model.loss_names),):
        raise ValueError(
            f"`losses` expects to return {len(model.loss_names)} numbers for a state, "
            f"got shape {np.shape(losses)}"
        )
    if not np.all(np.isfinite(losses)):
        raise ValueError(
            f"`start` expects one at which all losses are finite, got {check.show(losses.tolist())}"
        )
    return state


def with_ends(states: Floats, ends: Sequence[float] | Floats) -> Floats:
    """Return states (…, n) with the values (…, E) of the end knobs behind each: what losses are of.

    The leading axes of both are broadcast together.
    """
    tail = np.asarray(ends, dtype=np.float64)
    if tail.shape[-1] == 0:
        return states
    lead = np.broadcast_shapes(states.shape[:-1], tail.shape[:-1])
    parts = (np.broadcast_to(part, (*lead, part.shape[-1])) for part in (states, tail))
    return np.concatenate(list(parts), axis=-1)


class DifferentiableModel(Model):
    """A dynamics that also pulls gradients back through a roll-out: what `solve` needs.

    Examples:
        >>> model = replan.models.Curriculum([0.0, 3.0])
        >>> shares, rates, length = np.full((1, 2), 0.5), np.ones((1, 2)), np.array([2.0])
        >>> pieces = replan.models.Schedule.single_steps(shares, rates, length)
        >>> isinstance(model, replan.models.DifferentiableModel)  # so `solve` can plan it
        True
        >>> states = model.roll_out(np.array([1.0, 1.0, 0.1]), pieces)
        >>> at_the_end = np.array([[0.0, 0.0], [0.5, 0.5]])  # the weights of the losses
        >>> model.roll_out_vjp(states, model.losses_vjp(states, at_the_end), pieces).by_shares.shape
        (1, 2)
    """

    @abstractmethod
    def losses_vjp(self, states: Floats, cotangents: Floats) -> Floats:
        """Return the gradients by the states, of their shape, of Σ_l cotangents[…, l] × loss l."""

    def record(self, start: Floats, pieces: Schedule) -> tuple[Floats, tuple[Any, ...]]:
        """Return what `roll_out` does, and what `roll_out_vjp` can use besides: by default nothing."""
        return self.roll_out(start, pieces), ()

    @abstractmethod
    def roll_out_vjp(self, states: Floats, cotangents: Floats, pieces: Schedule, *record: Any) -> Gradients:
        """Return the exact gradients of Σ_i cotangents[i] · states[i] of a roll-out.

        states: (pieces + 1, n), what `roll_out` gave. cotangents: of the same shape.
        """
