"""StackedModel: several models, or one from several starts, that are trained by one protocol.

Notation: M members; what there is for each of them has them on its first axis. A state is that of
all members, one after another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, cached_property
from itertools import count, pairwise
from threading import Event
from typing import Any, NamedTuple, TypeVar

import numpy as np

from replan import check
from replan.check import Floats
from replan.core.schedule import Gradients, Schedule
from replan.core.threads import cores, free_cores
from replan.errors import ArgumentError
from replan.models.base import DifferentiableModel, Model
from replan.models.knobs import KnobLayout

_SHORT = 500  # integrator steps of all members and tasks that are not worth a thread
_KEPT = 2**24  # numbers that the members' records may hold between them
_NAMED = 5  # members that a message names

_R = TypeVar("_R")


class MemberGradients(NamedTuple):
    """Gradients of the roll-outs of all members.

    adjoints: (pieces + 1, n) of each member by its own state. by_shares: (M, pieces, T). by_knobs:
    (M, pieces, C).
    """

    adjoints: Floats
    by_shares: Floats
    by_knobs: Floats


class StackedModel(DifferentiableModel):
    """The dynamics of several members, in threads; losses are weighted means over them.

    Results do not depend on the number of threads. Gradients need members that have them.

    models: of the members. sizes: of their states. weights: (M,) of sum 1. names: what people call
    the members.
    """

    kind = "ensemble"

    def __init__(
        self,
        models: Sequence[Model],
        sizes: Sequence[int],
        weights: Floats | None = None,
        names: Sequence[str] = (),
    ) -> None:
        self.models, self.sizes = tuple(models), tuple(sizes)
        self.weights = np.full(len(models), 1 / len(models)) if weights is None else weights
        self.names = tuple(names) or tuple(f"member {m + 1}" for m in range(len(models)))
        first = self.models[0]
        self.tasks, self.knobs = first.tasks, first.knobs
        self._done: set[str] = set()
        edges = np.cumsum([0, *self.sizes]).tolist()
        self._parts = [slice(a, b) for a, b in pairwise(edges)]

    @property
    def task_names(self) -> tuple[str, ...]:
        """What people call the tasks (T,): those of the first member."""
        return self.models[0].task_names

    @property
    def loss_names(self) -> tuple[str, ...]:
        """What people call the losses (L,): those of the first member."""
        return self.models[0].loss_names

    @cached_property
    def layout(self) -> KnobLayout:
        """Where each knob stands among the columns of `Schedule.knobs`: as in the first member."""
        return self.models[0].layout

    # Starts and states

    def pack(self, start: Any) -> Floats:
        """Return the starts of all members, a list, as a state (n,)."""
        starts = check.items("start", start, "a start for each member")
        if len(starts) != len(self.models):
            raise ArgumentError(
                "start", f"{len(self.models)} starts, one for each member", f"{len(starts)}"
            )
        return np.concatenate([m.pack(one) for m, one in zip(self.models, starts, strict=True)])

    def unpack(self, states: Floats) -> list[Any]:
        """Return states (…, n) as a list of those of the members, in their own form."""
        parts = zip(self.models, self._parts, strict=True)
        return [model.unpack(states[..., part]) for model, part in parts]

    def start_to_dict(self, start: Any) -> dict[str, Any]:
        """Return the starts of all members, as the `[start]` sections of problem files."""
        pairs = zip(self.models, start, strict=True)
        return {"members": [model.start_to_dict(one) for model, one in pairs]}

    def spread(self, each: Floats) -> Floats:
        """Return what there is for each member (M,) for each number (n,) of its state."""
        return np.repeat(each, self.sizes)

    # Losses

    def losses(self, states: Floats) -> Floats:
        """Return the weighted means of the members' losses (…, L) at states (…, n)."""
        each = self.losses_each(states)
        return each[0] if len(each) == 1 else np.tensordot(self.weights, each, axes=1)

    def losses_each(self, states: Floats) -> Floats:
        """Return the losses (M, …, L) of all members at states (…, n)."""
        if len(self.models) == 1:
            return self.models[0].losses(states)[None]
        rows = states.size // states.shape[-1]
        return np.stack(
            self._each("losses", lambda m: self.models[m].losses(states[..., self._parts[m]]), rows)
        )

    def losses_vjp(self, states: Floats, cotangents: Floats) -> Floats:
        """Return the gradients by the states of Σ_l cotangents[…, l] × loss l."""
        lead = (-1, *[1] * cotangents.ndim)
        return self.losses_vjp_each(states, self.weights.reshape(lead) * cotangents)

    def losses_vjp_each(self, states: Floats, cotangents: Floats) -> Floats:
        """Return the gradients by the states of Σ_ml cotangents[m, …, l] × loss l of member m."""
        if len(self.models) == 1:
            return self._differentiable(0).losses_vjp(states, cotangents[0])
        found = np.zeros_like(states)

        def pull(m: int) -> None:
            part = self._parts[m]
            found[..., part] = self._differentiable(m).losses_vjp(states[..., part], cotangents[m])

        self._each("losses_vjp", pull, states.size // states.shape[-1])
        return found

    # Roll-outs

    def roll_out(self, start: Floats, pieces: Schedule) -> Floats:
        """Return the states (pieces + 1, n) of all members, up to where one of them diverges."""
        if len(self.models) == 1:
            return self.models[0].roll_out(start, pieces)
        return self._joined(
            self._each(
                "roll_out",
                lambda m: self.models[m].roll_out(start[self._parts[m]], pieces),
                _steps(pieces),
            )
        )

    def _joined(self, parts: Sequence[Floats]) -> Floats:
        """Return the states of all members as those of one, as long as the shortest."""
        rows = min(map(len, parts))
        return np.concatenate([part[:rows] for part in parts], axis=1)

    def roll_out_with_tape(self, start: Floats, pieces: Schedule) -> tuple[Floats, Any]:
        """Roll out, and keep what the members' `roll_out_vjp` can use, unless it would be too much."""
        if len(self.models) == 1:
            return self._differentiable(0).roll_out_with_tape(start, pieces)
        # a stage of each of four has as many numbers as a state
        whole = 4 * int(pieces.substeps.sum()) * start.size <= _KEPT

        def record(m: int) -> tuple[Floats, Any]:
            model, first = self._differentiable(m), start[self._parts[m]]
            return (
                model.roll_out_with_tape(first, pieces)
                if whole
                else (model.roll_out(first, pieces), None)
            )

        states, tapes = zip(*self._each("record", record, _steps(pieces)), strict=True)
        return self._joined(states), tapes

    def roll_out_each(self, starts: Floats, pieces: Schedule) -> Floats:
        """Return the ends (pieces, n) of pieces on their own; see `Model.roll_out_each`."""
        if len(self.models) == 1:
            return self.models[0].roll_out_each(starts, pieces)

        def roll_out(m: int) -> Floats:
            return self.models[m].roll_out_each(
                np.ascontiguousarray(starts[:, self._parts[m]]), pieces
            )

        return np.concatenate(self._each("roll_out_each", roll_out, _steps(pieces)), axis=1)

    def roll_out_vjp(
        self, states: Floats, cotangents: Floats, pieces: Schedule, tape: Any = None
    ) -> Gradients:
        """Return the exact gradients of Σ_i cotangents[i] · states[i] of a roll-out."""
        found = self.roll_out_vjp_each(states, cotangents, pieces, tape)
        return Gradients(found.adjoints, found.by_shares.sum(axis=0), found.by_knobs.sum(axis=0))

    def roll_out_vjp_each(
        self, states: Floats, cotangents: Floats, pieces: Schedule, tape: Any = None
    ) -> MemberGradients:
        """Return the gradients of the members' roll-outs, each on its own; see `roll_out_vjp`."""
        if len(self.models) == 1:
            one = self._differentiable(0).roll_out_vjp(states, cotangents, pieces, tape)
            return MemberGradients(one.adjoints, one.by_shares[None], one.by_knobs[None])

        def pull(m: int) -> Gradients:
            part = self._parts[m]
            mine = np.ascontiguousarray(states[:, part]), np.ascontiguousarray(cotangents[:, part])
            return self._differentiable(m).roll_out_vjp(*mine, pieces, tape[m] if tape else None)

        adjoints, by_shares, by_knobs = zip(
            *self._each("roll_out_vjp", pull, _steps(pieces)), strict=True
        )
        return MemberGradients(
            np.concatenate(adjoints, axis=1), np.stack(by_shares), np.stack(by_knobs)
        )

    def _differentiable(self, m: int) -> DifferentiableModel:
        model: Any = self.models[m]  # the objective has looked that it is one
        return model

    def _each(self, what: str, function: Callable[[int], _R], steps: float) -> list[_R]:
        """Return function(m) for all members.

        what: it does; the first time it is done in this thread alone, so that what has to be
        compiled is compiled once. steps: of the integrator, that each member makes.
        """
        most = len(self.models)
        if what not in self._done or steps * most * self.tasks < _SHORT:
            self._done.add(what)
            return [function(m) for m in range(most)]
        return in_threads(function, most)


def as_stacked(model: Model) -> StackedModel:
    """Return a model with members as it is, and any other as the one member of such a model."""
    if isinstance(model, StackedModel):
        return model
    return StackedModel([model], [0])  # the one state is never cut


@cache
def _pool() -> ThreadPoolExecutor:
    """Return threads that wait for work."""
    return ThreadPoolExecutor(cores(), "members")


def in_threads(function: Callable[[int], _R], most: int) -> list[_R]:
    """Return function(i) for i below `most`, computed on all free cores, this thread among them."""
    helpers = min(free_cores(), most) - 1
    if helpers < 1:
        return [function(i) for i in range(most)]
    found: list[Any] = [None] * most
    numbers, stop = count(), Event()

    def work() -> None:
        for i in numbers:
            if i >= most or stop.is_set():
                return
            found[i] = function(i)

    others = [_pool().submit(work) for _ in range(helpers)]
    try:
        work()
    except BaseException:
        stop.set()  # nobody begins another one; what others have begun, nobody waits for
        raise
    for other in others:
        if not other.cancel():  # else it never began
            other.result()
    return found


def listed(names: Sequence[str]) -> str:
    """Return names in words, the first few of many."""
    if len(names) > _NAMED:
        return f"{', '.join(names[:_NAMED])} and {len(names) - _NAMED} others"
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _steps(pieces: Schedule) -> int:
    return int(pieces.substeps.sum())
