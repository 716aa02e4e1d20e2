"""The objective on the steps of a problem: values and exact gradients, each counted."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from replan import check
from replan.check import Floats, Ints
from replan.control.smoothing import Mixture, Reached, Smoothing, smoothing
from replan.errors import ArgumentError
from replan.models import DifferentiableModel, Schedule
from replan.models.stacked import as_stacked
from replan.problem import Problem
from replan.problem.averages import simpson_weights

_MOST_SUBSTEPS = 128
_REMEMBERED = 32  # values of controls that may be asked for again


class Controls(NamedTuple):
    """Shares (steps, T) and knobs (steps, C) of every step.

    Examples:
        >>> controls = replan.control.Controls(np.array([[0.5, 0.5], [0.0, 1.0]]), np.ones((2, 2)))
        >>> controls.with_tasks(np.array([0, 1])).shares
        array([[1., 0.],
               [0., 1.]])
    """

    shares: Floats
    knobs: Floats

    def with_tasks(self, sequence: Ints) -> Controls:
        """Return controls that train on one task per step, with the same knobs."""
        return Controls(np.eye(self.shares.shape[1])[sequence], self.knobs)

    @property
    def sequence(self) -> Ints:
        """The task with the largest share in every step."""
        return np.argmax(self.shares, axis=1)


class Gradient(NamedTuple):
    """Value and gradients of the objective; states and adjoints (pieces + 1, n) along the way.

    The goal "worst", and risks of ensembles but the mean, are not smooth: gradients are those of
    `smooth`, in which a mixture of the numbers stands for the largest. By as much as this lies
    above the mixture, `slack`, the objective can fall besides what the gradients say, to first
    order. Else `smooth` is `value`.

    levels: (M,) the objective, as smooth, of each member. each_by_shares: (M, steps, T) its
    gradients.
    """

    value: float
    by_shares: Floats
    by_knobs: Floats
    states: Floats
    adjoints: Floats
    smooth: float
    levels: Floats
    each_by_shares: Floats
    mixture: Mixture
    slack: float = 0.0


@dataclass
class Counts:
    """The work done so far, and how many gradients are allowed."""

    gradients: int = 0
    roll_outs: int = 0
    max_gradients: float = np.inf

    def add(self, others: Counts) -> None:
        """Count the work of others too."""
        self.gradients += others.gradients
        self.roll_outs += others.roll_outs


class LimitError(Exception):
    """The allowed number of gradients is used up."""


def check_differentiable(problem: Problem) -> None:
    """Refuse a problem whose model, or that of a member, has no gradients."""
    for member in problem.members:
        if not isinstance(member.model, DifferentiableModel):
            raise ArgumentError(
                "problem",
                "a model that can be differentiated",
                f"one of kind {check.show(member.model.kind)}, which only rolls out",
            )


class DiscretisedObjective:
    """The problem on `steps` equal steps with a fixed number of RK4 steps in each.

    The fixed integrator makes the objective a smooth function of finitely many numbers, whose
    gradient is exact (discretise, then optimise). Mixed training and each task alone, with the
    highest values of all knobs, are accurate to `accuracy` × the most that one of them changes.
    Where average losses count, every step is two pieces.

    members: the model, which may be one of many, or of one. counts: the work done, which objectives
    of one search share. first: what is reached at the start. untrained: the objective if losses
    stayed as they are there. along: (2 × steps + 1, L) what each loss counts along the way.

    Examples:
        >>> model = replan.TeacherStudent.similar(0.3)
        >>> problem = replan.Problem(model, model.pretrain(seed=1), duration=20.0, steps=50)
        >>> objective = replan.control.DiscretisedObjective(problem, steps=50)
        >>> controls = replan.control.Controls(np.full((50, 2), 0.5), np.ones((50, 6)))
        >>> found = objective.gradient(controls)
        >>> f"{found.value:.4f}", found.by_shares.shape
        ('0.0076', (50, 2))
    """

    def __init__(
        self,
        problem: Problem,
        steps: int,
        accuracy: float = 1e-7,
        counts: Counts | None = None,
    ) -> None:
        check_differentiable(problem)
        self.model, self.members = problem.model, as_stacked(problem.model)
        self.problem, self.steps = problem, steps
        self.lengths = np.full(steps, problem.duration / steps)
        self.pieces = 2 if problem.objective.averages_count else 1
        self.counts = Counts() if counts is None else counts
        self.substeps = 1
        self._values: dict[tuple[bytes, bytes, int], float] = {}
        self.along = self._along()
        self.first = self._reached_at(problem.state)
        self.untrained = float(problem.risk.of(self.first.levels))
        tasks = problem.model.tasks
        _, highest = problem.knob_ranges
        plain = [
            Controls(np.tile(row, (steps, 1)), np.tile(highest, (steps, 1)))
            for row in (np.full(tasks, 1 / tasks), *np.eye(tasks))
        ]
        # Not each relative to its own change: a task that has been learned changes nothing.
        changes = np.abs([self.value(controls) - self.untrained for controls in plain])
        error = accuracy * np.max(changes, initial=0.0, where=np.isfinite(changes))
        for controls in plain:
            self.resolve(controls, error)

    def apart(self, max_gradients: float) -> DiscretisedObjective:
        """Return the same objective with counts of its own."""
        found = copy(self)
        found.counts, found._values = Counts(max_gradients=max_gradients), {}
        return found

    def refined(self, steps: int) -> DiscretisedObjective:
        """Return the same objective on more steps, at least as accurate, counted together."""
        found = copy(self)
        found.steps, found.lengths = steps, np.full(steps, self.problem.duration / steps)
        found.substeps = -(-self.steps * self.substeps // steps)
        found._values, found.along = {}, found._along()
        return found

    def _along(self) -> Floats:
        """Return what each loss counts (2 × steps + 1, L) at the edges and middles of steps."""
        edges = np.linspace(0.0, self.problem.duration, self.steps + 1)
        return simpson_weights(self.lengths, self.problem.objective.weights_along(edges))

    def resolve(self, controls: Controls, error: float) -> bool:
        """Double the RK4 steps until the value is known to an error; return whether it was needed.

        Twice the steps that are kept have that error: these have about 16 times as much.
        """
        before, finer = self.substeps, self.value(controls)
        while self.substeps < _MOST_SUBSTEPS:
            self.substeps *= 2
            coarser, finer = finer, self.value(controls)
            if np.isfinite(finer) and abs(coarser - finer) <= 15 * error:
                self.substeps //= 2
                break
        return self.substeps > before

    def _pieces(self, controls: Controls, first: int, last: int) -> Schedule:
        """Return the pieces of some steps."""
        lengths = self.lengths[first:last]
        substeps = np.full(len(lengths), self.substeps)
        whole = Schedule(controls.shares[first:last], controls.knobs[first:last], lengths, substeps)
        return whole if self.pieces == 1 else whole.subdivide(self.pieces)

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
        return self.problem.model.roll_out(state, self._pieces(controls, first, last))

    def step_each(self, controls: Controls, steps: Ints, tasks: Ints, starts: Floats) -> Floats:
        """Return the states (m, n) after steps (m,) on tasks (m,), each from its own start."""
        shares = np.eye(controls.shares.shape[1])[tasks]
        substeps = np.full(len(steps), self.substeps)
        pieces = Schedule(shares, controls.knobs[steps], self.lengths[steps], substeps)
        return self.model.roll_out_each(starts, pieces)

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
        rest = self.roll_out(controls, first, state=states[edge])
        whole = np.concatenate([states[:edge], rest])
        return self.value_of(whole), whole

    def value_of(self, states: Floats) -> float:
        """Return the objective of the states of a roll-out, infinity where it diverged."""
        if len(states) <= self.steps * self.pieces:
            return np.inf
        return self._reached(states)[0]

    def _reached(self, states: Floats) -> tuple[float, Reached]:
        """Return the objective of a whole roll-out, and what its members reach."""
        with np.errstate(invalid="ignore"):
            counted = states[-1:] if self.pieces == 1 else states
            losses = self.members.losses_each(counted)
            along = None
            if self.pieces > 1:
                along = [float(np.sum(self.along * rows)) for rows in losses]
            levels = self._levels(losses[:, -1], along)
            value = float(self.problem.risk.of(levels))
        return value if np.isfinite(value) else np.inf, Reached(levels, losses[:, -1])

    def _reached_at(self, state: Floats) -> Reached:
        """Return what is reached at a state, as if training began and ended there."""
        along = self.along.sum(axis=0)
        losses = self.members.losses_each(state)
        return Reached(self._levels(losses, [float(along @ one) for one in losses]), losses)

    def _levels(self, final: Floats, along: Sequence[float] | None) -> Floats:
        """Return the objectives (M,) of all members, from their final losses (M, L)."""
        rest = [0.0] * len(final) if along is None else along
        pairs = zip(final, rest, strict=True)
        return np.stack([self.problem.objective.value(*pair) for pair in pairs])

    def smoothing(self, controls: Controls) -> Smoothing | None:
        """Return what may stand for the objective to begin with, None where it is smooth."""
        if self.problem.smooth:
            return None
        states = self.roll_out(controls)
        return smoothing(self.problem, self.first, self._reached_at(states[-1]))

    def gradients(self, controls: Controls) -> list[Gradient]:
        """Return the gradient, or where the goal is "worst" those with each loss as the largest."""
        goal, risk = self.problem.objective, self.problem.risk
        if goal.goal != "worst":
            return [self.gradient(controls)]
        rows = np.eye(goal.weights.size)[goal.weights > 0]
        alone = [np.tile(row, (risk.weights.size, 1)) for row in rows]
        softs = [Smoothing(1.0, row, risk.weights, risk) for row in alone]
        return [self.gradient(controls, soft) for soft in softs]

    def gradient(self, controls: Controls, soft: Smoothing | None = None) -> Gradient:
        """Return value and gradients; the value is infinite where the training diverges.

        soft: what stands for the objective where that is not smooth: where the goal is "worst", or
        the risk of the members not their mean.
        """
        if self.counts.gradients >= self.counts.max_gradients:
            raise LimitError
        self.counts.gradients += 1
        self.counts.roll_outs += 1
        pieces = self._pieces(controls, 0, self.steps)
        states, tape = self.members.roll_out_with_tape(self.problem.state, pieces)
        value = np.inf
        if len(states) > self.steps * self.pieces:
            value, reached = self._reached(states)
        if value == np.inf:
            return self._diverged(controls, states)
        smooth, slack, levels = value, 0.0, reached.levels
        soft = smoothing(self.problem, self.first, reached) if soft is None else soft
        mixture = Mixture(self.problem.risk.weights, None)
        if soft is not None:
            scaled = self.problem.objective.scaled(reached.losses)
            mixture, levels = (
                soft.mixture(reached.levels, scaled),
                soft.levels(reached.levels, scaled),
            )
            smooth = float(soft.value(reached.levels, scaled))
            slack = value - float(mixture.members @ reached.levels)
            slack += mixture.below(scaled)
        cotangents, members = np.zeros_like(states), self.members
        slopes = self._slopes(reached.losses, mixture)
        cotangents[-1] = members.losses_vjp_each(states[-1], slopes)
        if self.pieces > 1:
            along = np.broadcast_to(self.along, (len(slopes), *self.along.shape))
            cotangents += members.losses_vjp_each(states, along)
        found = members.roll_out_vjp_each(states, cotangents, pieces, tape)
        by_shares, by_knobs = (
            rows.reshape(len(rows), self.steps, self.pieces, -1).sum(axis=2) for rows in found[1:]
        )
        return Gradient(
            value,
            mixture.of(by_shares),
            mixture.of(by_knobs),
            states,
            found.adjoints
            if len(slopes) == 1
            else found.adjoints * members.spread(mixture.members),
            smooth,
            levels,
            by_shares,
            mixture,
            slack,
        )

    def _slopes(self, final: Floats, mixture: Mixture) -> Floats:
        """Return the derivatives (M, L) of each member's objective by its final losses."""
        mixed = [None] * len(final) if mixture.losses is None else mixture.losses
        pairs = zip(final, mixed, strict=True)
        return np.stack([self.problem.objective.slopes(one, part) for one, part in pairs])

    def _diverged(self, controls: Controls, states: Floats) -> Gradient:
        """Return an infinite value, without slopes."""
        shares, knobs = np.zeros_like(controls.shares), np.zeros_like(controls.knobs)
        weights = self.problem.risk.weights
        return Gradient(
            np.inf, shares, knobs, states, np.zeros_like(states), np.inf,
            np.full_like(weights, np.inf), np.tile(shares, (weights.size, 1, 1)),
            Mixture(weights, None),
        )  # fmt: skip
