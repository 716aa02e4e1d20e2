"""The objective on the steps of a problem: values and exact gradients, each counted."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from replan.check import Floats, Ints
from replan.problem import Problem

_ACCURACY = 1e-6  # relative, of the objective: far below what separates protocols


class Controls(NamedTuple):
    """Shares and learning rates of every step, (steps, T) each."""

    shares: Floats
    lr: Floats

    def with_tasks(self, sequence: Ints) -> Controls:
        """Return controls that train on one task a step, with the same learning rates."""
        return Controls(np.eye(self.shares.shape[1])[sequence], self.lr)


class Gradient(NamedTuple):
    """Value and gradients of the objective; states and adjoints (steps + 1, n) along the way."""

    value: float
    by_shares: Floats
    by_lr: Floats
    states: Floats
    adjoints: Floats


class LimitError(Exception):
    """The allowed number of gradients is used up."""


class Objective:
    """The problem on `steps` equal steps with a fixed number of RK4 steps in each.

    The fixed integrator makes the objective a smooth function of finitely many numbers, whose
    gradient is exact (discretise, then optimise).
    """

    def __init__(self, problem: Problem, steps: int, max_gradients: int) -> None:
        self.problem, self.steps, self.max_gradients = problem, steps, max_gradients
        self.lengths = np.full(steps, problem.duration / steps)
        self.weights = np.asarray(problem.weights)
        self.gradients = self.roll_outs = 0
        self.substeps = self._enough_substeps()

    def _enough_substeps(self) -> Ints:
        """Double the RK4 steps until mixed training at the highest rate is accurate enough."""
        tasks = self.problem.model.tasks
        rate = self.problem.lr if self.problem.control.lr is None else self.problem.control.lr[1]
        mixed = Controls(
            np.full((self.steps, tasks), 1 / tasks), np.full((self.steps, tasks), rate)
        )
        count, finer = 1, np.inf
        while True:
            self.substeps = np.full(self.steps, count, dtype=np.int64)
            coarser, finer = finer, self.value(mixed)
            good = abs(coarser - finer) <= 15 * _ACCURACY * abs(finer)
            if (np.isfinite(finer) and good) or count >= 256:
                return np.maximum(self.substeps // 2, 1)
            count *= 2

    def _roll_out(self, controls: Controls, first: int = 0, state: Floats | None = None) -> Floats:
        self.roll_outs += 1
        return self.problem.model.roll_out(
            self.problem.state if state is None else state,
            controls.shares[first:],
            controls.lr[first:],
            self.lengths[first:],
            self.substeps[first:],
        )

    def value(self, controls: Controls) -> float:
        """Return the objective, infinity where the training diverges."""
        return self.value_of(self._roll_out(controls))

    def value_after(self, states: Floats, first: int, controls: Controls) -> tuple[float, Floats]:
        """Return the objective and the states of controls that differ from `first` on only."""
        rest = self._roll_out(controls, first, states[first])
        whole = np.vstack([states[:first], rest])
        return self.value_of(whole), whole

    def value_of(self, states: Floats) -> float:
        """Return the objective of the states of a roll-out, infinity where it diverged."""
        if len(states) <= self.steps:
            return np.inf
        with np.errstate(invalid="ignore"):
            value = float(self.problem.model.losses(states[-1]) @ self.weights)
        return value if np.isfinite(value) else np.inf

    def gradient(self, controls: Controls) -> Gradient:
        """Return value and gradients; the value is infinite where the training diverges."""
        if self.gradients >= self.max_gradients:
            raise LimitError
        self.gradients += 1
        model = self.problem.model
        states = self._roll_out(controls)
        value = self.value_of(states)
        if value == np.inf:
            nothing = np.zeros_like(controls.shares)
            return Gradient(value, nothing, nothing, states, np.zeros_like(states))
        cotangents = np.zeros_like(states)
        cotangents[-1] = model.pull_losses(states[-1], self.weights)
        adjoints, by_shares, by_lr = model.pull_back(
            states, cotangents, *controls, self.lengths, self.substeps
        )
        return Gradient(value, by_shares, by_lr, states, adjoints)
