"""CompiledModel: a model whose rate, losses and their vjps are compiled functions."""

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

_KEPT = 2**23  # numbers on a roll-out's tape


class CompiledModel(DifferentiableModel):
    """A model that provides compiled kernels; the integrator and its reverse are replan's.

    A subclass names its `kernels`, gives their `parameters`, and says how users write starts.

    Examples:
        >>> model = replan.TeacherStudent.similar(0.3)
        >>> isinstance(model, replan.models.CompiledModel)
        True
        >>> shares, knobs, length = np.full((1, 2), 0.5), np.ones((1, 6)), np.array([2.0])
        >>> schedule = replan.models.Schedule.single_steps(shares, knobs, length)
        >>> model.roll_out(model.pack(model.fresh()), schedule).shape  # the states at both edges
        (2, 12)
    """

    @abstractmethod
    def kernels(self) -> Kernels:
        """Return the compiled functions of this model, usually those of its class."""

    @property
    @abstractmethod
    def parameters(self) -> Any:
        """What the kernels know about this model: an instance of `kernels().parameters`."""

    @cached_property
    def _loops(self) -> Loops[Loop]:
        from replan.core.rk4 import loops  # loads numba

        kernels = self.kernels()
        compiled = loops(kernels)
        if not isinstance(self.parameters, kernels.parameters):
            raise ArgumentError(
                "parameters",
                f"a {kernels.parameters.__name__}, as the kernels name it",
                check.show(self.parameters),
            )
        return compiled

    @cached_property
    def _chunks(self) -> Loops[ChunkedLoop]:
        from replan.core.rk4 import Loops

        return Loops(*(ChunkedLoop() for _ in Loops._fields))

    @cached_property
    def _loss_count(self) -> int:
        return len(self.loss_names)

    def losses(self, states: Any) -> Floats:
        """Return all losses (…, L) at states (…, n), or at a user's start; see `Model`."""
        if not isinstance(states, np.ndarray):
            states = self.pack(states)
        if states.dtype != np.float64 or states.ndim == 0:
            raise ArgumentError("states", "float64 arrays (…, n)", check.show(states))
        rows = np.ascontiguousarray(states.reshape(-1, states.shape[-1]))  # else compiled again
        out = np.empty((len(rows), self._loss_count))
        self._chunks.all_losses.run(self._loops.all_losses, len(rows), self.parameters, rows, out)
        return out.reshape(*states.shape[:-1], out.shape[1])

    def losses_vjp(self, states: Floats, cotangents: Floats) -> Floats:
        """Return the gradients by the states of Σ_l cotangents[…, l] × loss l."""
        rows = np.ascontiguousarray(states.reshape(-1, states.shape[-1]))
        weights = np.ascontiguousarray(cotangents.reshape(len(rows), -1))
        out = np.empty_like(rows)
        self._chunks.all_losses_vjp.run(
            self._loops.all_losses_vjp, len(rows), self.parameters, rows, weights, out
        )
        return out.reshape(states.shape)

    def roll_out(self, start: Floats, schedule: Schedule) -> Floats:
        """Return the states (pieces + 1, n) of RK4; see `Model.roll_out`."""
        if schedule.knobs.shape[1:] != (self.layout.size,):  # compiled code does not check
            raise ArgumentError(
                "schedule",
                f"one with knobs of shape (pieces, {self.layout.size}), in the columns of "
                f"{', '.join(self.layout.knobs)}",
                f"shape {schedule.knobs.shape}",
            )
        return self._roll_out(start, schedule, np.empty((1, 4, start.size)))

    def roll_out_with_tape(self, start: Floats, schedule: Schedule) -> tuple[Floats, Floats | None]:
        """Return the states of `roll_out`, and the stages (steps, 4, n) unless too many."""
        steps = int(schedule.substeps.sum())
        if 4 * steps * start.size > _KEPT:
            return self.roll_out(start, schedule), None
        tape = np.empty((steps, 4, start.size))
        return self._roll_out(start, schedule, tape), tape

    def _roll_out(self, start: Floats, schedule: Schedule, tape: Floats) -> Floats:
        states = np.empty((len(schedule.lengths) + 1, start.size))
        states[0] = start
        completed = self._run(schedule, states[:-1], states[1:], tape)
        return states[: completed + 1]

    def roll_out_each(self, starts: Floats, schedule: Schedule) -> Floats:
        """Return the ends (pieces, n) of separate pieces; see `Model.roll_out_each`."""
        ends, scratch = np.empty_like(starts), np.empty((1, 4, starts.shape[1]))
        done, count = 0, len(starts)
        while done < count:
            done += self._run(schedule.rows(done, count), starts[done:], ends[done:], scratch)
            ends[done : done + 1] = np.nan  # this piece diverged
            done += 1
        return ends

    def _run(self, schedule: Schedule, starts: Floats, ends: Floats, tape: Floats) -> int:
        """Call the loop of the roll-out; return how many pieces it has completed."""
        return self._chunks.roll_out.run(
            self._loops.roll_out, len(starts), self.parameters, schedule, starts, ends, tape
        )

    def roll_out_vjp(
        self, states: Floats, cotangents: Floats, schedule: Schedule, tape: Floats | None = None
    ) -> Gradients:
        """Return the exact gradients of a roll-out; see `DifferentiableModel.roll_out_vjp`.

        Without a tape, groups of pieces are rolled out again.
        """
        gradients = Gradients(
            np.empty_like(states), np.zeros_like(schedule.shares), np.zeros_like(schedule.knobs)
        )
        if tape is not None:
            self._reverse(cotangents, schedule, tape, gradients)
            return gradients
        adjoints, by_shares, by_knobs = gradients
        adjoints[-1] = cotangents[-1]
        for first, last in _groups(schedule, _KEPT // (4 * states.shape[1])):
            group = schedule.rows(first, last)
            tape = np.empty((int(group.substeps.sum()), 4, states.shape[1]))
            self._roll_out(states[first], group, tape)
            group_cotangents = cotangents[first : last + 1].copy()
            group_cotangents[-1] = adjoints[last]  # through all that follows
            rows = adjoints[first : last + 1], by_shares[first:last], by_knobs[first:last]
            self._reverse(group_cotangents, group, tape, Gradients(*rows))
        return gradients

    def _reverse(
        self, cotangents: Floats, schedule: Schedule, tape: Floats, gradients: Gradients
    ) -> None:
        self._chunks.roll_out_vjp.run(
            self._loops.roll_out_vjp, len(schedule.lengths),
            self.parameters, cotangents, schedule, tape, *gradients,
        )  # fmt: skip


def _groups(schedule: Schedule, steps: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of pieces of at most `steps` steps, or of one piece, the last range first."""
    last = len(schedule.lengths)
    while last > 0:
        backwards = np.cumsum(schedule.substeps[:last][::-1])
        first = last - max(1, int(np.searchsorted(backwards, steps, side="right")))
        yield first, last
        last = first
