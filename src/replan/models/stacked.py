"""StackedModel: several models, or one from several starts, trained by one protocol.

Notation: M members, on the first axis of arrays with a value for each. A state holds those of all
members, one after another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np

from replan.check import Floats
from replan.core.schedule import Gradients, Schedule
from replan.core.threads import in_threads as in_threads
from replan.models.base import Model

_SHORT = 500  # integrator steps of all members and tasks that are not worth a thread
_KEPT = 2**24  # numbers that the members' tapes may hold together

_R = TypeVar("_R")


class StackedModel(Model):
    """Several models under one protocol, in threads; losses are weighted means over the members.

    Results do not depend on the number of threads. Gradients, those of the members separately, need
    differentiable members.

    models: of the members. sizes: of their states. weights: (M,) of sum 1.
    """

    kind = "ensemble"
    task_names: tuple[str, ...] = ()
    loss_names: tuple[str, ...] = ()

    def __init__(self, models: Sequence[Model], sizes: Sequence[int], weights: Floats) -> None:
        self.models: tuple[Any, ...] = tuple(models)  # `solve` checks which are differentiable
        self.sizes, self.weights = tuple(sizes), weights
        first = models[0]
        self.tasks, self.knobs, self.layout = first.tasks, first.knobs, first.layout
        self.task_names, self.loss_names = first.task_names, first.loss_names
        edges = np.cumsum([0, *self.sizes]).tolist()
        self._parts = [slice(a, b) for a, b in pairwise(edges)]  # of the state, by member

    # Starts and states

    def pack(self, start: Any) -> Floats:
        """Return the starts of all members, a list, as a state (n,)."""
        pairs = zip(self.models, start, strict=True)
        return np.concatenate([model.pack(start) for model, start in pairs])

    def unpack(self, states: Floats) -> list[Any]:
        """Return states (…, n) as a list of the members' states, each in its model's form."""
        parts = zip(self.models, self._parts, strict=True)
        return [model.unpack(states[..., part]) for model, part in parts]

    def start_to_dict(self, start: Any) -> dict[str, Any]:
        """Return the starts of all members, as the `[start]` sections of problem files."""
        pairs = zip(self.models, start, strict=True)
        return {"members": [model.start_to_dict(start) for model, start in pairs]}

    def spread(self, values: Floats) -> Floats:
        """Repeat values (M,) of the members along their entries (n,) of the state."""
        return np.repeat(values, self.sizes)

    # Losses

    def losses(self, states: Floats) -> Floats:
        """Return the weighted means of the members' losses (…, L) at states (…, n)."""
        return np.tensordot(self.weights, self.losses_each(states), axes=1)

    def losses_each(self, states: Floats) -> Floats:
        """Return the losses (M, …, L) of all members at states (…, n)."""

        def losses(m: int) -> Floats:
            return self.models[m].losses(states[..., self._parts[m]])

        return np.stack(self._each(losses, states.size // states.shape[-1]))

    def losses_vjp_each(self, states: Floats, cotangents: Floats) -> Floats:
        """Return the gradients by the states of Σ_ml cotangents[m, …, l] × loss l of member m."""

        def losses_vjp(m: int) -> Floats:
            return self.models[m].losses_vjp(states[..., self._parts[m]], cotangents[m])

        return np.concatenate(self._each(losses_vjp, states.size // states.shape[-1]), axis=-1)

    # Roll-outs

    def roll_out(self, start: Floats, schedule: Schedule) -> Floats:
        """Return the states (pieces + 1, n) of all members, up to where one of them diverges."""

        def roll_out(m: int) -> Floats:
            return self.models[m].roll_out(start[self._parts[m]], schedule)

        return _joined(self._each(roll_out, _steps(schedule)))

    def roll_out_with_tape(self, start: Floats, schedule: Schedule) -> tuple[Floats, Any]:
        """Return the states of `roll_out`, and the members' tapes unless they would be too long."""
        keep = 4 * _steps(schedule) * start.size <= _KEPT  # RK4 has four stages

        def roll_out(m: int) -> tuple[Floats, Any]:
            model, first = self.models[m], start[self._parts[m]]
            if keep:
                return model.roll_out_with_tape(first, schedule)
            return model.roll_out(first, schedule), None

        states, tapes = zip(*self._each(roll_out, _steps(schedule)), strict=True)
        return _joined(states), tapes

    def roll_out_each(self, starts: Floats, schedule: Schedule) -> Floats:
        """Return the ends (pieces, n) of separate pieces; see `Model.roll_out_each`."""

        def roll_out(m: int) -> Floats:
            own = np.ascontiguousarray(starts[:, self._parts[m]])
            return self.models[m].roll_out_each(own, schedule)

        return np.concatenate(self._each(roll_out, _steps(schedule)), axis=1)

    def roll_out_vjp_each(
        self, states: Floats, cotangents: Floats, schedule: Schedule, tapes: Sequence[Any]
    ) -> Gradients:
        """Return the gradients of the members' roll-outs; see `DifferentiableModel.roll_out_vjp`.

        by_shares: (M, pieces, T). by_knobs: (M, pieces, C). adjoints: (pieces + 1, n), that of each
        member through its own roll-out.
        """

        def vjp(m: int) -> Gradients:
            part = self._parts[m]
            own = np.ascontiguousarray(states[:, part]), np.ascontiguousarray(cotangents[:, part])
            return self.models[m].roll_out_vjp(*own, schedule, tapes[m])

        adjoints, by_shares, by_knobs = zip(*self._each(vjp, _steps(schedule)), strict=True)
        return Gradients(np.concatenate(adjoints, axis=1), np.stack(by_shares), np.stack(by_knobs))

    def _each(self, function: Callable[[int], _R], steps: int) -> list[_R]:
        """Return function(m) for all members; `steps`: the integrator steps that each makes."""
        count = len(self.models)
        if steps * count * self.tasks < _SHORT:
            return [function(m) for m in range(count)]
        return in_threads(function, count)


def as_stacked(model: Model, size: int) -> StackedModel:
    """Wrap a single model with states of a size as an ensemble of one; return an ensemble as is."""
    return model if isinstance(model, StackedModel) else StackedModel([model], [size], np.ones(1))


def _joined(parts: Sequence[Floats]) -> Floats:
    """Return the members' states side by side, cut to the shortest."""
    rows = min(map(len, parts))
    return np.concatenate([part[:rows] for part in parts], axis=1)


def _steps(schedule: Schedule) -> int:
    return int(schedule.substeps.sum())
