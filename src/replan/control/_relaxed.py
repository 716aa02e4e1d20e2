"""The relaxed problem: shares in the simplex, within their budgets, and learning rates in a box."""

from __future__ import annotations

import numpy as np

from replan._common.check import Floats
from replan.control._objective import Controls, Objective
from replan.control._projection import Domain
from replan.control._quasi_newton import QuasiNewton
from replan.control._solver import Descent
from replan.problem import Problem

_PATIENCE = 20  # steps in a row that must gain something between them


class RelaxedDescent(Descent):
    """A descent of the relaxed problem; `free_tasks` and `free_lr` say what it may change.

    It ends where less than `enough` is left to gain to first order, or where many steps in a row
    gain less than that. Of the limits, only the shares of the tasks apply: a mixture of tasks has
    no switches and no stays.
    """

    def __init__(
        self,
        objective: Objective,
        start: Controls,
        *,
        free_tasks: bool,
        free_lr: bool,
        enough: float = 0.0,
    ) -> None:
        self.objective, self.start, self.enough = objective, start, enough
        self.free_tasks, self.free_lr = free_tasks, free_lr
        self._range = objective.problem.control.lr or (0.0, 1.0)
        domain = budgets(objective.problem, len(start.shares) * free_tasks)
        self._descent = QuasiNewton(self._function, domain, self._join(start))
        self._values: list[float] = []
        self._take()

    def _take(self) -> None:
        self.controls, self.value = self._split(self._descent.x), self._descent.value
        self._values = [*self._values[-_PATIENCE:], self.value]

    def step(self) -> None:
        """Take one step of the descent."""
        self._descent.step()
        self._take()

    def terminate(self) -> bool:
        """Whether no direction makes progress any longer, or too little is left to gain."""
        slow = len(self._values) > _PATIENCE and self._values[0] - self.value <= 0.1 * self.enough
        return self._descent.stalled or slow or self.residual <= self.enough

    @property
    def residual(self) -> float:
        """First-order gain still possible: that of the best controls in the linear model.

        For the shares this is Pontryagin's residual ∫ Σ_t s_t Φ_t − min_t Φ_t; where there are
        budgets, the minimum is taken over shares within them.
        """
        steps = len(self.start.shares) * self.free_tasks
        x, gradient = self._descent.x, self._descent.gradient
        end = steps * self.start.shares.shape[1]
        left = 0.0
        if self.free_tasks:
            rows = gradient[:end].reshape(steps, -1)
            left += float(gradient[:end] @ x[:end]) - least(rows, self._descent.domain)
        rates, slopes = x[end:], gradient[end:]
        return left + float(np.sum(slopes * rates - np.minimum(slopes, 0.0)))

    # Vectors hold the free shares, then the free learning rates in units of their range.

    def _split(self, x: Floats) -> Controls:
        parts = list(x.reshape(-1, *self.start.shares.shape))
        low, high = self._range
        return Controls(
            parts.pop(0) if self.free_tasks else self.start.shares,
            low + (high - low) * parts.pop(0) if self.free_lr else self.start.lr,
        )

    def _join(self, controls: Controls) -> Floats:
        low, high = self._range
        parts = [controls.shares] * self.free_tasks
        parts += [(controls.lr - low) / (high - low)] * self.free_lr
        return np.concatenate([part.ravel() for part in parts])

    def _function(self, x: Floats) -> tuple[float, Floats]:
        found = self.objective.gradient(self._split(x))
        low, high = self._range
        parts = [found.by_shares] * self.free_tasks + [(high - low) * found.by_lr] * self.free_lr
        return found.value, np.concatenate([part.ravel() for part in parts])


def budgets(problem: Problem, rows: int) -> Domain:
    """Return the domain of `rows` rows of shares within the problem's budgets."""
    limits = problem.step_limits
    return Domain(rows, limits.low / limits.steps, limits.high / limits.steps)


def least(rows: Floats, domain: Domain) -> float:
    """Return the least Σ_i rows[i] · shares[i] over all shares within the budgets."""
    if not domain.low.any() and np.all(domain.high >= 1.0):
        return float(rows.min(axis=1).sum())
    from scipy import sparse
    from scipy.optimize import linprog

    steps, tasks = rows.shape
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
