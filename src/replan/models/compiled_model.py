"""CompiledModel: a model whose rate, losses and their reverses are compiled functions."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from replan import check
from replan.check import Floats
from replan.core.interrupt import ChunkedLoop
from replan.core.kernels import Kernels
from replan.core.schedule import Gradients, Schedule
from replan.errors import ArgumentError
from replan.models.base import DifferentiableModel

if TYPE_CHECKING:
    from replan.core.rk4 import Loop, Loops

_KEPT = 2**23  # numbers of a roll-out's stages that are kept for the reverse
_FEW = 5  # tasks: a step on all of them costs at most so many times a step on one of them


class CompiledModel(DifferentiableModel):
    """A model that provides compiled kernels; the integrator and its reverse are replan's.

    A subclass names its `kernels`, gives their `parameters`, and says how users write starts.

    Examples:
        >>> model = replan.models.Curriculum([0.0, 3.0])
        >>> shares, rates, length = np.full((1, 2), 0.5), np.ones((1, 2)), np.array([2.0])
        >>> pieces = replan.models.Schedule.single_steps(shares, rates, length)
        >>> isinstance(model, replan.models.CompiledModel)
        True
        >>> model.roll_out(np.array([1.0, 1.0, 0.1]), pieces).shape  # the states at both edges
        (2, 3)
    """

    @abstractmethod
    def kernels(self) -> Kernels:
        """Return the compiled functions of this model; mostly those of its class."""

    @property
    @abstractmethod
    def parameters(self) -> Any:
        """What the kernels know about this model, a NamedTuple of the type that they name."""

    @cached_property
    def _loops(self) -> Loops[Loop]:
        from replan.core.rk4 import loops  # loads numba

        kernels = self.kernels()
        found = loops(kernels)
        if not isinstance(self.parameters, kernels.parameters):
            raise ArgumentError(
                "parameters",
                f"a {kernels.parameters.__name__}, as the kernels name it",
                check.show(self.parameters),
            )
        return found

    @cached_property
    def _paces(self) -> Loops[ChunkedLoop]:
        """How much of each loop makes a short call: Ctrl-C is run_interruptibly between two of them."""
        from replan.core.rk4 import Loops

        uneven = self.tasks > _FEW
        return Loops(*(ChunkedLoop(uneven) for _ in Loops._fields))

    @cached_property
    def _loss_count(self) -> int:
        return len(self.loss_names)

    def losses(self, states: Any) -> Floats:
        """Return all losses (…, L) at states (…, n), or at a user's start; see `Model`."""
        if not isinstance(states, np.ndarray):
            states = self.pack(states)
        x = states
        if x.dtype != np.float64 or x.ndim == 0:
            raise ArgumentError("states", "float64 arrays (…, n)", check.show(states))
        rows = np.ascontiguousarray(x.reshape(-1, x.shape[-1]))  # else compiled once more
        out = np.empty((len(rows), self._loss_count))
        self._paces.all_losses.run(self._loops.all_losses, len(rows), self.parameters, rows, out)
        return out.reshape(*x.shape[:-1], out.shape[1])

    def losses_vjp(self, states: Floats, cotangents: Floats) -> Floats:
        """Return the gradients by the states of Σ_l cotangents[…, l] × loss l."""
        rows = np.ascontiguousarray(states.reshape(-1, states.shape[-1]))
        weights = np.ascontiguousarray(cotangents.reshape(len(rows), -1))
        out = np.empty_like(rows)
        self._paces.all_losses_vjp.run(
            self._loops.all_losses_vjp, len(rows), self.parameters, rows, weights, out
        )
        return out.reshape(states.shape)

    def roll_out(self, start: Floats, pieces: Schedule) -> Floats:
        """Return the states (pieces + 1, n) of RK4; see `Model.roll_out`."""
        if pieces.knobs.shape[1:] != (self.layout.size,):  # compiled code does not look
            raise ArgumentError(
                "pieces",
                f"knobs of shape (pieces, {self.layout.size}), in the columns of "
                f"{', '.join(self.layout.knobs)}",
                f"shape {pieces.knobs.shape}",
            )
        return self._roll_out(start, pieces, np.empty((1, 4, start.size)))

    def roll_out_with_tape(self, start: Floats, pieces: Schedule) -> tuple[Floats, Floats | None]:
        """Roll out and keep the stages (steps, 4, n) of RK4, unless they are too many."""
        steps = int(pieces.substeps.sum())
        if 4 * steps * start.size > _KEPT:
            return self.roll_out(start, pieces), None
        stages = np.empty((steps, 4, start.size))
        return self._roll_out(start, pieces, stages), stages

    def _roll_out(self, start: Floats, pieces: Schedule, stages: Floats) -> Floats:
        states = np.empty((len(pieces.lengths) + 1, start.size))
        states[0] = start
        completed = self._run(pieces, states[:-1], states[1:], stages)
        return states[: completed + 1]

    def roll_out_each(self, starts: Floats, pieces: Schedule) -> Floats:
        """Return the ends (pieces, n) of pieces on their own; see `Model.roll_out_each`."""
        ends, stages = np.empty_like(starts), np.empty((1, 4, starts.shape[1]))
        done, count = 0, len(starts)
        while done < count:
            done += self._run(pieces.rows(done, count), starts[done:], ends[done:], stages)
            ends[done : done + 1] = np.nan  # it could not go on here
            done += 1
        return ends

    def _run(self, pieces: Schedule, starts: Floats, ends: Floats, stages: Floats) -> int:
        """Call the loop of the roll-out; return how many pieces it has completed."""
        return self._paces.roll_out.run(
            self._loops.roll_out, len(starts), self.parameters, pieces, starts, ends, stages
        )

    def roll_out_vjp(
        self, states: Floats, cotangents: Floats, pieces: Schedule, tape: Floats | None = None
    ) -> Gradients:
        """Return the exact gradients of a roll-out; see `DifferentiableModel.roll_out_vjp`.

        Where no stages were kept, some pieces at a time are rolled out again.
        """
        by_shares, by_knobs = np.zeros_like(pieces.shares), np.zeros_like(pieces.knobs)
        found = Gradients(np.empty_like(states), by_shares, by_knobs)
        if tape is not None:
            self._pull(cotangents, pieces, tape, found)
            return found
        found.adjoints[-1] = cotangents[-1]
        for first, last in _groups(pieces, _KEPT // (4 * states.shape[1])):
            some = pieces.rows(first, last)
            steps = np.empty((int(some.substeps.sum()), 4, states.shape[1]))
            self._roll_out(states[first], some, steps)
            ends = cotangents[first : last + 1].copy()
            ends[-1] = found.adjoints[last]  # with all that follows
            parts = found.adjoints[first : last + 1], by_shares[first:last], by_knobs[first:last]
            self._pull(ends, some, steps, Gradients(*parts))
        return found

    def _pull(self, cotangents: Floats, pieces: Schedule, stages: Floats, found: Gradients) -> None:
        self._paces.roll_out_vjp.run(
            self._loops.roll_out_vjp, len(pieces.lengths),
            self.parameters, cotangents, pieces, stages, *found,
        )  # fmt: skip


def _groups(pieces: Schedule, most: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of pieces of at most so many steps, or of one piece, the last range first."""
    last = len(pieces.lengths)
    while last > 0:
        steps = np.cumsum(pieces.substeps[:last][::-1])
        first = last - max(1, int(np.searchsorted(steps, most, side="right")))
        yield first, last
        last = first
