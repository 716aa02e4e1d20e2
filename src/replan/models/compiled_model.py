"""CompiledModel: a model whose rate, losses and their vjps are compiled functions."""

from __future__ import annotations

from abc import abstractmethod
from collections import defaultdict
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np

from replan import check
from replan.check import Floats
from replan.core import library
from replan.core.kernels import Kernels, table
from replan.core.schedule import Gradients, Schedule
from replan.core.threads import Pace
from replan.errors import ArgumentError
from replan.models.base import DifferentiableModel

_KEPT = 2**23  # numbers on a roll-out's tape
_LONGEST = 2**62  # steps of a roll-out: their number must not overflow


class CompiledModel(DifferentiableModel):
    """A model that provides compiled kernels; the integrator and its reverse are replan's.

    A subclass gives the addresses of its `kernels`, the `parameters` they are called with and the
    `state_size`, and says how users write starts.

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
        """Return the addresses of the compiled functions, in this process."""

    @property
    @abstractmethod
    def parameters(self) -> Floats:
        """What the kernels know about this model: a vector of floats, handed to them as it is."""

    @property
    @abstractmethod
    def state_size(self) -> int:
        """The length n of a state."""

    @cached_property
    def _paces(self) -> defaultdict[str, Pace]:
        return defaultdict(Pace)

    @cached_property
    def _loss_count(self) -> int:
        return len(self.loss_names)

    def _call(self, name: str, function: library.Function, steps: int, *arguments: Any) -> int:
        """Call a loop of the core on this model; `arguments` end where its scratch space follows.

        Arrays are checked against each other by the core's door, here against the model.
        """
        kernels = self.kernels()
        work = np.empty(library.ROWS * self.state_size + kernels.room)
        return self._paces[name].run(
            function, steps, table(kernels), self.parameters, *arguments, work
        )

    def _rows(self, states: Floats) -> Floats:
        if (
            not isinstance(states, np.ndarray)
            or states.dtype != np.float64
            or states.shape[-1:] != (self.state_size,)
        ):
            raise ArgumentError(
                "states", f"float64 arrays (…, {self.state_size})", check.show(states)
            )
        return np.ascontiguousarray(states.reshape(-1, self.state_size))

    def losses(self, states: Any) -> Floats:
        """Return all losses (…, L) at states (…, n), or at a user's start; see `Model`."""
        if not isinstance(states, np.ndarray):
            states = self.pack(states)
        rows = self._rows(states)
        out = np.empty((len(rows), self._loss_count))
        self._call("losses", library.LOSSES, len(rows), rows, out)
        return out.reshape(*states.shape[:-1], out.shape[1])

    def losses_vjp(self, states: Floats, cotangents: Floats) -> Floats:
        """Return the gradients by the states of Σ_l cotangents[…, l] × loss l."""
        rows = self._rows(states)
        weights = np.ascontiguousarray(cotangents.reshape(len(rows), self._loss_count))
        out = np.empty_like(rows)
        self._call("losses_vjp", library.LOSSES_VJP, len(rows), rows, weights, out)
        return out.reshape(states.shape)

    def _controls(self, schedule: Schedule) -> Schedule:
        """Return a schedule as the core reads it; refuse one that is not for this model."""
        pieces = len(schedule.lengths)
        for name, columns in (("shares", self.tasks), ("knobs", self.layout.size)):
            shape = getattr(schedule, name).shape
            if shape != (pieces, columns):
                raise ArgumentError(
                    "schedule", f"{name} of shape ({pieces}, {columns})", f"{shape}"
                )
        substeps = schedule.substeps
        if pieces and not 1 <= substeps.min() <= substeps.max() <= _LONGEST // pieces:
            raise ArgumentError("schedule", "substeps from 1 on", check.show(substeps))
        arrays: Any = map(np.ascontiguousarray, schedule)
        return Schedule(*arrays)

    def roll_out(self, start: Floats, schedule: Schedule) -> Floats:
        """Return the states (pieces + 1, n) of RK4; see `Model.roll_out`."""
        return self._roll_out(start, schedule, np.empty((1, 4, self.state_size)))

    def roll_out_with_tape(self, start: Floats, schedule: Schedule) -> tuple[Floats, Floats | None]:
        """Return the states of `roll_out`, and the stages (steps, 4, n) unless too many."""
        steps = int(self._controls(schedule).substeps.sum())
        if 4 * steps * self.state_size > _KEPT:
            return self.roll_out(start, schedule), None
        tape = np.empty((steps, 4, self.state_size))
        return self._roll_out(start, schedule, tape), tape

    def _roll_out(self, start: Floats, schedule: Schedule, tape: Floats) -> Floats:
        states = np.empty((len(schedule.lengths) + 1, self.state_size))
        states[0] = self._rows(start)[0]
        completed = self._run(schedule, states[:-1], states[1:], tape)
        return states[: completed + 1]

    def roll_out_each(self, starts: Floats, schedule: Schedule) -> Floats:
        """Return the ends (pieces, n) of separate pieces; see `Model.roll_out_each`."""
        starts, scratch = self._rows(starts), np.empty((1, 4, self.state_size))
        ends, done, count = np.empty_like(starts), 0, len(starts)
        while done < count:
            done += self._run(schedule.rows(done, count), starts[done:], ends[done:], scratch)
            ends[done : done + 1] = np.nan  # this piece diverged
            done += 1
        return ends

    def _run(self, schedule: Schedule, starts: Floats, ends: Floats, tape: Floats) -> int:
        """Roll out; return how many pieces were completed."""
        controls = self._controls(schedule)
        steps = int(controls.substeps.sum())
        return self._call("roll_out", library.ROLL_OUT, steps, *controls, starts, ends, tape)

    def roll_out_vjp(
        self, states: Floats, cotangents: Floats, schedule: Schedule, tape: Floats | None = None
    ) -> Gradients:
        """Return the exact gradients of a roll-out; see `DifferentiableModel.roll_out_vjp`.

        Without a tape, groups of pieces are rolled out again.
        """
        schedule = self._controls(schedule)
        gradients = Gradients(
            np.empty(states.shape), np.zeros(schedule.shares.shape), np.zeros(schedule.knobs.shape)
        )
        if tape is not None:
            self._reverse(cotangents, schedule, tape, gradients)
            return gradients
        adjoints, by_shares, by_knobs = gradients
        adjoints[-1] = cotangents[-1]
        for first, last in _groups(schedule, _KEPT // (4 * self.state_size)):
            group = schedule.rows(first, last)
            tape = np.empty((int(group.substeps.sum()), 4, self.state_size))
            self._roll_out(states[first], group, tape)
            group_cotangents = cotangents[first : last + 1].copy()
            group_cotangents[-1] = adjoints[last]  # through all that follows
            rows = adjoints[first : last + 1], by_shares[first:last], by_knobs[first:last]
            self._reverse(group_cotangents, group, tape, Gradients(*rows))
        return gradients

    def _reverse(
        self, cotangents: Floats, schedule: Schedule, tape: Floats, gradients: Gradients
    ) -> None:
        steps, rows = int(schedule.substeps.sum()), self._rows(cotangents)
        if len(tape) != steps or len(rows) != len(schedule.lengths) + 1:
            raise ArgumentError("tape", f"the stages of {steps} steps", f"{len(tape)}")
        self._call("vjp", library.ROLL_OUT_VJP, steps, *schedule, rows, tape, *gradients)


def _groups(schedule: Schedule, steps: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of pieces of at most `steps` steps, or of one piece, the last range first."""
    last = len(schedule.lengths)
    while last > 0:
        backwards = np.cumsum(schedule.substeps[:last][::-1])
        first = last - max(1, int(np.searchsorted(backwards, steps, side="right")))
        yield first, last
        last = first
