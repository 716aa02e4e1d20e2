"""Space: the relaxed controls as vectors, and what is left to gain there to first order."""

from __future__ import annotations

import numpy as np

from replan._common.check import Floats
from replan.control._objective import Controls, Gradient
from replan.control._projection import Domain
from replan.problem import Problem


class Space:
    """What of the controls around `fixed` is free, as vectors that a minimisation can change.

    A vector holds the free shares (steps, T), then the free columns of the knobs (steps, F) in
    units of their ranges. Of the limits, the shares of the tasks and the means of the knobs apply:
    a mixture of tasks has no switches and no stays.
    """

    def __init__(
        self, problem: Problem, fixed: Controls, *, free_tasks: bool, free_knobs: bool
    ) -> None:
        self.fixed, self.free_tasks = fixed, free_tasks
        low, high = problem.knob_ranges
        free = (low < high) & free_knobs
        self._free, self._low, self._width = free, low[free], (high - low)[free]
        limits, steps = problem.step_limits, len(fixed.shares)
        self.domain = Domain(
            steps * free_tasks,
            limits.low / limits.steps,
            limits.high / limits.steps,
            *self._means(problem, low, high),
        )

    def _means(self, problem: Problem, low: Floats, high: Floats) -> tuple[Floats, Floats, Floats]:
        """Return the weights (G, m) of the limited knobs in their means, and the bounds (G,)."""
        steps = len(self.fixed.shares)
        rows, least, most = [], [], []
        for name, bounds in problem.limits.mean.items():
            columns = problem.model.panel.columns[name]
            if not self._free[columns].any():
                continue
            weights = np.zeros((steps, low.size))
            one = columns.stop - columns.start == 1
            weights[:, columns] = 1.0 if one else self.fixed.shares
            rows.append(weights[:, self._free].ravel() / steps)
            first, width = low[columns.start], high[columns.start] - low[columns.start]
            least.append((bounds[0] - first) / width)
            most.append((bounds[1] - first) / width)
        size = steps * int(self._free.sum())
        return np.array(rows).reshape(len(rows), size), np.array(least), np.array(most)

    def join(self, controls: Controls) -> Floats:
        """Return the free part of controls as a vector."""
        knobs = (controls.knobs[:, self._free] - self._low) / self._width
        return np.concatenate([*([controls.shares.ravel()] * self.free_tasks), knobs.ravel()])

    def split(self, x: Floats) -> Controls:
        """Return the controls of a vector."""
        shares, end = self.fixed.shares, self._end
        if self.free_tasks:
            shares = x[:end].reshape(shares.shape)
        knobs = self.fixed.knobs.copy()
        knobs[:, self._free] = self._low + self._width * x[end:].reshape(len(knobs), -1)
        return Controls(shares, knobs)

    def slopes(self, gradient: Gradient) -> Floats:
        """Return the gradient by the vector."""
        knobs = self._width * gradient.by_knobs[:, self._free]
        return np.concatenate([*([gradient.by_shares.ravel()] * self.free_tasks), knobs.ravel()])

    def residual(self, x: Floats, slopes: Floats) -> float:
        """First-order gain still possible: that of the best controls in the linear model.

        For the shares this is Pontryagin's residual ∫ Σ_t s_t Φ_t − min_t Φ_t; where there are
        budgets, the minimum is taken within them.
        """
        end, left = self._end, float(slopes @ x)
        if self.free_tasks:
            left -= _least_shares(slopes[:end].reshape(self.fixed.shares.shape), self.domain)
        return left - _least_box(slopes[end:], self.domain)

    @property
    def _end(self) -> int:
        return self.fixed.shares.size * self.free_tasks


def _least_shares(rows: Floats, domain: Domain) -> float:
    """Return the least Σ_i rows[i] · shares[i] over all shares within the budgets."""
    if not domain.low.any() and np.all(domain.high >= 1.0):
        return float(rows.min(axis=1).sum())
    steps, tasks = rows.shape
    if tasks == 2:  # one number per step
        low = max(domain.low[1], 1.0 - domain.high[0])
        high = min(domain.high[1], 1.0 - domain.low[0])
        weights = np.full(steps, 1.0 / steps)
        return float(rows[:, 0].sum()) + _least_group(rows[:, 1] - rows[:, 0], weights, low, high)
    from scipy import sparse
    from scipy.optimize import linprog

    each = sparse.kron(sparse.eye(steps), np.ones((1, tasks)))
    totals = sparse.kron(np.ones((1, steps)), sparse.eye(tasks))
    size = max(np.abs(rows).max(), 1e-300)  # the library's tolerances are absolute
    found = linprog(
        rows.ravel() / size,
        A_ub=sparse.vstack([totals, -totals]),
        b_ub=np.concatenate([domain.high, -domain.low]) * steps,
        A_eq=each,
        b_eq=np.ones(steps),
    )
    # should the library fail, the minimum without budgets: a lower bound
    return float(found.fun) * size if found.status == 0 else float(rows.min(axis=1).sum())


def _least_box(slopes: Floats, domain: Domain) -> float:
    """Return the least slopes · x over numbers from 0 to 1 whose means are within their bounds."""
    free = np.ones(slopes.size, dtype=bool)
    least = 0.0
    for weights, low, high in zip(domain.weights, domain.least, domain.most, strict=True):
        group = np.flatnonzero(weights > 0)
        free[group] = False
        least += _least_group(slopes[group], weights[group], low, high)
    return least + float(np.minimum(slopes[free], 0.0).sum())


def _least_group(slopes: Floats, weights: Floats, low: float, high: float) -> float:
    """Return the least slopes · x over numbers from 0 to 1 with low ≤ weights · x ≤ high.

    The numbers that are worth most for their weight are 1; one is between 0 and 1.
    """
    order = np.argsort(slopes / weights)
    used = np.concatenate([[0.0], np.cumsum(weights[order])])
    cost = np.concatenate([[0.0], np.cumsum(slopes[order])])
    bottom = used[np.argmin(cost)]  # the mean without bounds
    return float(np.interp(np.clip(bottom, low, high), used, cost))
