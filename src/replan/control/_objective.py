"""The objective on the steps of a problem: values and exact gradients, each counted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from replan._common import check
from replan._common.check import Floats, Ints
from replan.dynamics import DifferentiableDynamics, Pieces
from replan.dynamics._dynamics import with_ends
from replan.problem import Problem
from replan.problem._ends import best_ends
from replan.trajectory import simpson_weights

_MOST_SUBSTEPS = 128


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
        return np.argmax(self.shares, axis=1)


class Gradient(NamedTuple):
    """Value and gradients of the objective; states and adjoints (pieces + 1, n) along the way."""

    value: float
    by_shares: Floats
    by_knobs: Floats
    states: Floats
    adjoints: Floats


@dataclass
class Counts:
    """The work done so far, and how many gradients are allowed."""

    gradients: int = 0
    roll_outs: int = 0
    max_gradients: float = np.inf


class LimitError(Exception):
    """The allowed number of gradients is used up."""


def check_differentiable(problem: Problem) -> DifferentiableDynamics:
    """Return a problem's model; refuse one without gradients."""
    if not isinstance(problem.model, DifferentiableDynamics):
        raise ValueError(
            "`problem` expects a model that can be differentiated, got one of kind "
            f"{check.show(problem.model.kind)}, which only rolls out"
        )
    return problem.model


class Objective:
    """The problem on `steps` equal steps with a fixed number of RK4 steps in each.

    The fixed integrator makes the objective a smooth function of finitely many numbers, whose
    gradient is exact (discretise, then optimise). Mixed training and each task alone, with the
    highest values of all knobs, are accurate to `accuracy` × the most that one of them changes.
    Where average losses count, every step is two pieces.

    counts: the work done, which objectives of one search share. untrained: the objective if the
    losses stayed as they are at the start.
    """

    def __init__(
        self,
        problem: Problem,
        steps: int,
        accuracy: float = 1e-7,
        counts: Counts | None = None,
    ) -> None:
        self.model = check_differentiable(problem)
        self.problem, self.steps = problem, steps
        self.lengths = np.full(steps, problem.duration / steps)
        self.pieces = 2 if problem.averages_count else 1
        self.counts = Counts() if counts is None else counts
        self.substeps = 1
        first = self.losses(problem.state)
        self.untrained = float(problem.objective(first, first))
        if self.model.discrete:
            return
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

    def resolve(self, controls: Controls, error: float) -> bool:
        """Double the RK4 steps until the value is known to an error; return whether it was needed.

        Twice the steps that are kept have that error: these have about 16 times as much. A discrete
        model has none.
        """
        if self.model.discrete:
            return False
        before, finer = self.substeps, self.value(controls)
        while self.substeps < _MOST_SUBSTEPS:
            self.substeps *= 2
            coarser, finer = finer, self.value(controls)
            if np.isfinite(finer) and abs(coarser - finer) <= 15 * error:
                self.substeps //= 2
                break
        return self.substeps > before

    def _pieces(self, controls: Controls, first: int, last: int) -> Pieces:
        """Return the pieces of some steps."""
        lengths = self.lengths[first:last]
        substeps = np.full(len(lengths), self.substeps)
        whole = Pieces(controls.shares[first:last], controls.knobs[first:last], lengths, substeps)
        return whole if self.pieces == 1 else whole.cut(self.pieces)

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

    def value(self, controls: Controls) -> float:
        """Return the objective, infinity where the training diverges."""
        return self.value_of(self.roll_out(controls))

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
        return self._value_with(states, self.ends(states))[0]

    def _value_with(self, states: Floats, ends: Floats) -> tuple[float, Floats]:
        """Return the objective of a whole roll-out with end knobs (E,), and its final losses."""
        with np.errstate(invalid="ignore"):
            losses = self.model.losses(with_ends(states[-1:] if self.pieces == 1 else states, ends))
            average = losses[-1] if self.pieces == 1 else simpson_weights(self.lengths) @ losses
            value = float(self.problem.objective(losses[-1], average))
        return value if np.isfinite(value) else np.inf, losses[-1]

    def losses(self, state: Floats) -> Floats:
        """Return the losses (L,) of a state, as if training ended there."""
        return self.model.losses(with_ends(state, best_ends(self.problem, state[None])))

    def ends(self, states: Floats) -> Floats:
        """Return the best values (E,) of the end knobs for the states of a roll-out."""
        averaging = None if self.pieces == 1 else simpson_weights(self.lengths)
        return best_ends(self.problem, states, averaging)

    def gradient(self, controls: Controls) -> Gradient:
        """Return value and gradients; the value is infinite where the training diverges."""
        if self.counts.gradients >= self.counts.max_gradients:
            raise LimitError
        self.counts.gradients += 1
        self.counts.roll_outs += 1
        model = self.model
        pieces = self._pieces(controls, 0, self.steps)
        states, record = model.record(self.problem.state, pieces)
        value, ends, final = np.inf, np.zeros(0), np.zeros(0)
        if len(states) > self.steps * self.pieces:
            ends = self.ends(states)
            value, final = self._value_with(states, ends)
        if value == np.inf:
            shares, knobs = np.zeros_like(controls.shares), np.zeros_like(controls.knobs)
            return Gradient(value, shares, knobs, states, np.zeros_like(states))
        cotangents, size = np.zeros_like(states), states.shape[1]
        whole = with_ends(states, ends)
        cotangents[-1] = model.pull_losses(whole[-1], self.problem.slopes(final))[:size]
        if self.pieces > 1:
            running = np.outer(simpson_weights(self.lengths), np.asarray(self.problem.running))
            cotangents += model.pull_losses(whole, running)[:, :size]
        adjoints, *by = model.pull_back(states, cotangents, pieces, *record)
        by_shares, by_knobs = (rows.reshape(self.steps, self.pieces, -1).sum(axis=1) for rows in by)
        return Gradient(value, by_shares, by_knobs, states, adjoints)
