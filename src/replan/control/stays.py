"""StayLengths: protocols with few switches as vectors, whose switching times are continuous."""

from __future__ import annotations

import numpy as np

from replan.check import Floats
from replan.control.discretised import Controls, Gradient
from replan.control.relaxed_controls import RelaxedControls
from replan.core.projection import Domain
from replan.problem import Problem


class StayLengths:
    """The lengths of the stays on one task after another, and the free knobs, as a vector.

    A vector holds the fractions of the time that the S stays of a protocol have, beyond the least
    length of each, then the free knobs as in `RelaxedControls`. A switch within a step mixes both
    tasks there. The order of the stays is that of `fixed`, with one task per step; they may vanish.
    """

    def __init__(self, problem: Problem, fixed: Controls) -> None:
        sequence, self._steps = fixed.sequence, len(fixed.shares)
        self._begins = np.append(0, np.flatnonzero(np.diff(sequence)) + 1)
        self._tasks = np.eye(fixed.shares.shape[1])[sequence[self._begins]]  # (S, T)
        count = len(self._begins)
        self._least = problem.step_limits.dwell
        self._spare = max(self._steps - count * self._least, 0)
        self._knobs = RelaxedControls(problem, fixed, free_tasks=False)
        knobs = self._knobs.domain
        always = np.ones((0, count), bool)
        self.domain = Domain(
            1, always, np.zeros(count), np.ones(count), knobs.weights, knobs.least, knobs.most
        )

    def join(self, controls: Controls) -> Floats:
        """Return the vector of the protocol it was made with, with the knobs of these controls."""
        lengths = np.diff(np.append(self._begins, self._steps)) - self._least
        return np.concatenate([lengths / max(self._spare, 1), self._knobs.join(controls)])

    def split(self, x: Floats) -> Controls:
        """Return the controls of a vector."""
        ends = self._ends(x)
        edges = np.arange(self._steps + 1.0)[:, None]
        covered = np.clip(edges - np.append(0.0, ends[:-1]), 0.0, np.diff(ends, prepend=0.0))
        shares = np.diff(covered, axis=0) @ self._tasks
        shares /= shares.sum(axis=1, keepdims=True)
        return Controls(shares, self._knobs.split(x[len(ends) :]).knobs)

    def slopes(self, x: Floats, gradient: Gradient) -> Floats:
        """Return the gradient by the vector."""
        ends = self._ends(x)
        steps = np.minimum(ends[:-1].astype(np.int64), self._steps - 1)
        by_ends = np.sum(gradient.by_shares[steps] * -np.diff(self._tasks, axis=0), axis=1)
        by_lengths = np.append(np.cumsum(by_ends[::-1])[::-1], 0.0)  # a stay moves all later ones
        return np.concatenate([self._spare * by_lengths, self._knobs.slopes(x, gradient)])

    def residual(self, x: Floats, slopes: Floats) -> float:
        """Return the first-order gain still possible, with the stays in this order."""
        count = len(self._begins)
        gain = float(slopes[:count] @ x[:count] - slopes[:count].min())
        return gain + self._knobs.residual(x[count:], slopes[count:])

    def _ends(self, x: Floats) -> Floats:
        """Return the ends (S,) of the stays, in steps."""
        count = len(self._begins)
        return np.asarray(np.cumsum(self._least + self._spare * x[:count]))
