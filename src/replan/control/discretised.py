"""The objective on the steps of a problem: values and exact gradients, each counted."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from replan import check
from replan.check import Floats, Ints
from replan.control.smoothing import (
    Mixture,
    Outcome,
    Smoothing,
    Surrogate,
    first_smoothing,
    surrogate_of,
)
from replan.errors import ArgumentError
from replan.models import DifferentiableModel, Schedule
from replan.models.stacked import as_stacked
from replan.problem import Problem

_MOST_SUBSTEPS = 128  # RK4 steps in a step; training that needs more is about to diverge
_PARTS = 0.5 ** np.arange(9)  # of the knobs' ranges, whose ends are tried
_REMEMBERED = 32  # values kept, as solvers ask again for those of recent controls


class Controls(NamedTuple):
    """Shares (steps, T) and knobs (steps, C) of every step."""

    shares: Floats
    knobs: Floats

    def with_tasks(self, sequence: Ints) -> Controls:
        """Return controls that train on one task per step, with the same knobs."""
        return Controls(np.eye(self.shares.shape[1])[sequence], self.knobs)

    @property
    def sequence(self) -> Ints:
        """The task with the largest share in every step."""
        return np.asarray(np.argmax(self.shares, axis=1))


class Gradient(NamedTuple):
    """Value of the objective and gradients, those of `surrogate` where it is not smooth.

    by_shares: (steps, T). by_knobs: (steps, C). states, adjoints: (pieces + 1, n) along the
    roll-out. member_by_shares: (M, steps, T) the gradients of the members' own objectives.
    """

    value: float
    by_shares: Floats
    by_knobs: Floats
    states: Floats
    adjoints: Floats
    member_by_shares: Floats
    surrogate: Surrogate


@dataclass
class Counts:
    """The work done so far, and how many gradients are allowed."""

    gradients: int = 0
    roll_outs: int = 0
    max_gradients: float = np.inf


class LimitError(Exception):
    """The allowed number of gradients is used up."""


def check_differentiable(problem: Problem) -> None:
    """Refuse a problem with a model, or a member's model, that has no gradients."""
    for member in problem.members:
        if not isinstance(member.model, DifferentiableModel):
            raise ArgumentError(
                "problem",
                "one with a model that can be differentiated",
                f"one of kind {check.show(member.model.kind)}, which only rolls out",
            )


class DiscretisedObjective:
    """The problem on `steps` equal steps with a fixed number of RK4 steps in each.

    The fixed integrator makes the objective a smooth function of finitely many numbers, whose
    gradient is exact (discretise, then optimise). The number of RK4 steps is chosen so that, at the
    largest knobs, errors stay below `accuracy` × the largest change of the objective under equal
    shares or one task. Where losses along the way count (`averages`), every two RK4 steps are a
    pair for Simpson's rule, and smaller steps make averages more accurate, too.

    members: the model as a stack of members. counts: the work done; objectives of one search share
    it. untrained: the objective if the losses stayed as they are at the start. substeps: RK4 steps
    in a step, or in half of one where averages count.
    """

    def __init__(
        self, problem: Problem, steps: int, accuracy: float = 1e-7, counts: Counts | None = None
    ) -> None:
        check_differentiable(problem)
        self.model, self.members = problem.model, as_stacked(problem.model, problem.state.size)
        self.problem, self.steps = problem, steps
        self.lengths = np.full(steps, problem.duration / steps)
        self.averages = problem.objective.averages_count
        self.counts = Counts() if counts is None else counts
        self.substeps = 1
        self._values: dict[tuple[bytes, bytes, int], float] = {}
        self._first = self._outcome_at(problem.state)
        self.untrained = float(problem.risk.of(self._first.values))
        self._choose_substeps(accuracy)

    @property
    def pieces(self) -> int:
        """The number of pieces of a step: single RK4 steps where averages count."""
        return 2 * self.substeps if self.averages else 1

    @property
    def loss_weights(self) -> Floats:
        """The weights (pieces + 1, L) of the losses along a roll-out, by Simpson's rule."""
        edges = np.linspace(0.0, self.problem.duration, self.steps + 1)
        along = self.problem.objective.weights_along(edges) / (6 * self.steps * self.substeps)
        each = np.repeat(along, self.substeps, axis=0)
        weights = np.zeros((2 * len(each) + 1, each.shape[1]))
        weights[:-1:2] += each
        weights[1::2] = 4 * each
        weights[2::2] += each
        return weights

    def _choose_substeps(self, accuracy: float) -> None:
        tasks, (_, highest) = self.problem.model.tasks, self.problem.knob_ranges
        given = self.model.layout.rows(self.problem.knobs, 1)[0]

        def probes(knobs: Floats) -> list[Controls]:
            rows = (np.full(tasks, 1 / tasks), *np.eye(tasks))
            every = np.tile(knobs, (self.steps, 1))
            return [Controls(np.tile(row, (self.steps, 1)), every) for row in rows]

        slowest, fastest = probes(given), probes(highest)
        # Not each relative to its own change: a task that has been learned changes nothing.
        changes = np.abs([self.value(x) - self.untrained for x in slowest + fastest])
        error = accuracy * np.max(changes, initial=0.0, where=np.isfinite(changes))
        for controls in slowest:
            self.resolve(controls, error)
        enough = self.substeps
        # What is too fast to be resolved is too fast for a plan, or will be resolved with it.
        for part in _PARTS:
            self.substeps = enough
            for controls in probes(given + part * (highest - given)):
                self.resolve(controls, error)
            if self.substeps <= max(enough, _MOST_SUBSTEPS // 4):
                return
        self.substeps = enough

    def resolve(self, controls: Controls, error: float) -> bool:
        """Double the RK4 steps until the value is known to an error; return whether it was needed.

        The bound is checked with twice the RK4 steps that are kept, whose error is 16 times larger.
        """
        before, finer = self.substeps, self.value(controls)
        while self.substeps < _MOST_SUBSTEPS:
            self.substeps *= 2
            coarser, finer = finer, self.value(controls)
            if np.isfinite(finer) and abs(coarser - finer) <= 15 * error:
                self.substeps //= 2
                break
        return self.substeps > before

    def with_own_counts(self, max_gradients: float) -> DiscretisedObjective:
        """Return the same objective, counting its own work."""
        twin = copy(self)
        twin.counts, twin._values = Counts(max_gradients=max_gradients), {}
        return twin

    def refined(self, steps: int) -> DiscretisedObjective:
        """Return the same objective on more steps, at least as accurate, counted together."""
        finer = copy(self)
        finer.steps, finer.lengths = steps, np.full(steps, self.problem.duration / steps)
        finer.substeps = -(-self.steps * self.substeps // steps)
        finer._values = {}
        return finer

    # Roll-outs

    def _schedule(self, controls: Controls, first: int, last: int) -> Schedule:
        """Return the pieces of the steps `first`, …, `last` − 1."""
        lengths = self.lengths[first:last]
        substeps = np.full(len(lengths), 1 if self.averages else self.substeps)
        whole = Schedule(controls.shares[first:last], controls.knobs[first:last], lengths, substeps)
        return whole.subdivide(self.pieces) if self.averages else whole

    def roll_out(
        self,
        controls: Controls,
        first: int = 0,
        last: int | None = None,
        state: Floats | None = None,
    ) -> Floats:
        """Return the states (pieces + 1, n) from the edge before `first` to that before `last`."""
        self.counts.roll_outs += 1
        state = self.problem.state if state is None else state
        last = self.steps if last is None else last
        return self.problem.model.roll_out(state, self._schedule(controls, first, last))

    def step_each(self, controls: Controls, steps: Ints, tasks: Ints, starts: Floats) -> Floats:
        """Return the states (m, n) after steps (m,) on tasks (m,), each from its own start."""
        shares = np.eye(controls.shares.shape[1])[tasks]
        substeps = np.full(len(steps), self.substeps)
        schedule = Schedule(shares, controls.knobs[steps], self.lengths[steps], substeps)
        return self.model.roll_out_each(starts, schedule)

    def begin_along(self, states: Floats) -> Floats:
        """Return the members' average losses (M, m) before the first step from states (m, n)."""
        return self.members.losses_each(states) @ self.loss_weights[0]

    def advance(
        self, controls: Controls, step: int, tasks: Ints, states: Floats, along: Floats
    ) -> tuple[Floats, Floats]:
        """Return states (m, n) and average losses so far (M, m), one step on tasks (m,) later."""
        if not self.averages:
            return self.step_each(controls, np.full(len(tasks), step), tasks, states), along
        shares = np.eye(controls.shares.shape[1])[tasks]
        knobs = np.tile(controls.knobs[step], (len(tasks), 1))
        lengths = np.full(len(tasks), self.lengths[step] / self.pieces)
        schedule = Schedule.single_steps(shares, knobs, lengths)
        edge = step * self.pieces + 1
        for weights in self.loss_weights[edge : edge + self.pieces]:
            states = self.model.roll_out_each(states, schedule)
            along = along + self.members.losses_each(states) @ weights
        return states, along

    # Values

    def values_at(self, states: Floats, along: Floats) -> Floats:
        """Return the objective (m,) after trainings that end at states (m, n); see `advance`."""
        self.counts.roll_outs += 1
        final = np.moveaxis(self.members.losses_each(states), 1, 0)
        values = [
            self.problem.risk.of(self._combined(losses, averages).values)
            for losses, averages in zip(final, along.T, strict=True)
        ]
        return np.nan_to_num(np.array(values, np.float64), nan=np.inf, posinf=np.inf)

    def value(self, controls: Controls) -> float:
        """Return the objective, infinity where the training diverges."""
        key = controls.shares.tobytes(), controls.knobs.tobytes(), self.substeps
        if key not in self._values:
            if len(self._values) == _REMEMBERED:
                del self._values[next(iter(self._values))]
            self._values[key] = self.value_of(self.roll_out(controls))
        return self._values[key]

    def value_after(self, states: Floats, first: int, controls: Controls) -> tuple[float, Floats]:
        """Return the objective and the states of controls that differ only from step `first` on."""
        edge = first * self.pieces
        after = self.roll_out(controls, first, state=states[edge])
        states = np.concatenate([states[:edge], after])
        return self.value_of(states), states

    def value_of(self, states: Floats) -> float:
        """Return the objective of the states of a roll-out, infinity where it diverged."""
        return self._outcome(states)[0]

    def _outcome(self, states: Floats) -> tuple[float, Outcome]:
        """Return the objective and the members' outcomes; infinity where the roll-out diverged."""
        if len(states) <= self.steps * self.pieces:
            return np.inf, self._first
        with np.errstate(invalid="ignore"):
            losses = self.members.losses_each(states if self.averages else states[-1:])
            along = np.zeros(len(losses))
            if self.averages:
                along[:] = np.tensordot(losses, self.loss_weights)
            outcome = self._combined(losses[:, -1], along)
            value = float(self.problem.risk.of(outcome.values))
        return value if np.isfinite(value) else np.inf, outcome

    def _outcome_at(self, state: Floats) -> Outcome:
        """Return the outcome of a training that begins and ends at a state."""
        losses = self.members.losses_each(state)
        return self._combined(losses, losses @ self.loss_weights.sum(axis=0))

    def _combined(self, final: Floats, along: Floats) -> Outcome:
        """Return the outcome from final losses (M, L) and averages along the way (M,)."""
        pairs = zip(final, along.tolist(), strict=True)
        return Outcome(np.array([self.problem.objective.value(*pair) for pair in pairs]), final)

    def smoothing(self, controls: Controls) -> Smoothing | None:
        """Return a smoothing to begin with from some controls, None where none is needed."""
        if self.problem.smooth:
            return None
        final = self._outcome_at(self.roll_out(controls)[-1])
        return first_smoothing(self.problem, self._first, final)

    # Gradients

    def gradient(self, controls: Controls, smoothing: Smoothing | None = None) -> Gradient:
        """Return value and gradients; the value is infinite where the training diverges.

        smoothing: of the objective where that is not smooth; by default one that suits the outcome.
        """
        if self.counts.gradients >= self.counts.max_gradients:
            raise LimitError
        self.counts.gradients += 1
        self.counts.roll_outs += 1
        schedule = self._schedule(controls, 0, self.steps)
        states, tape = self.members.roll_out_with_tape(self.problem.state, schedule)
        value, outcome = self._outcome(states)
        if value == np.inf:
            return self._diverged(controls, states)
        smoothing = smoothing or first_smoothing(self.problem, self._first, outcome)
        surrogate = surrogate_of(self.problem, outcome, smoothing)
        mixture = surrogate.mixture
        cotangents = self._cotangents(states, outcome, mixture)
        vjp = self.members.roll_out_vjp_each(states, cotangents, schedule, tape)
        by_shares, by_knobs = vjp[1:]
        if self.averages:
            by_shares, by_knobs = (
                rows.reshape(len(rows), self.steps, self.pieces, -1).sum(axis=2) for rows in vjp[1:]
            )
        return Gradient(
            value,
            mixture.average(by_shares),
            mixture.average(by_knobs),
            states,
            vjp.adjoints * self.members.spread(mixture.members),
            by_shares,
            surrogate,
        )

    def _cotangents(self, states: Floats, outcome: Outcome, mixture: Mixture) -> Floats:
        """Return the derivatives (pieces + 1, n) of the members' objectives by their states."""
        objective, count = self.problem.objective, len(outcome.losses)
        mixed = np.ones(count) if mixture.losses is None else mixture.losses
        pairs = zip(outcome.losses, mixed, strict=True)
        slopes = np.stack([objective.slopes(final, weights) for final, weights in pairs])
        cotangents = np.zeros_like(states)
        cotangents[-1] = self.members.losses_vjp_each(states[-1], slopes)
        if self.averages:
            along = np.broadcast_to(self.loss_weights, (count, len(states), slopes.shape[1]))
            cotangents += self.members.losses_vjp_each(states, along)
        return cotangents

    def _diverged(self, controls: Controls, states: Floats) -> Gradient:
        """Return an infinite value with gradients of 0."""
        shares, weights = np.zeros_like(controls.shares), self.problem.risk.weights
        infinite = Surrogate(np.inf, 0.0, Mixture(weights, None), np.full_like(weights, np.inf))
        return Gradient(
            np.inf,
            shares,
            np.zeros_like(controls.knobs),
            states,
            np.zeros_like(states),
            np.tile(shares, (weights.size, 1, 1)),
            infinite,
        )
