"""RelaxedControls: controls as vectors, and how much is left to gain there to first order."""

from __future__ import annotations

import numpy as np

from replan.check import Bools, Floats, Ints
from replan.control.discretised import Controls, Gradient
from replan.control.grids import interpolated
from replan.core.projection import Domain
from replan.problem import Problem
from replan.problem.step_limits import replay_on


class RelaxedControls:
    """The free part of the controls as vectors, for minimisers; `fixed` has the rest.

    A vector holds the rows of free shares, (steps, T) or (1, T) where they are constant, then the
    values of the free knobs in units of their ranges: one for each step and column, or one for all
    the steps or columns that the control ties. Controls are linear in it. `domain` holds the limits
    that mixtures of tasks can keep: on shares, replay and means of knobs. With `apart`, knobs that
    the tasks share have a value for each: the same thing where every step trains on one task.
    """

    def __init__(
        self, problem: Problem, fixed: Controls, *, free_tasks: bool, apart: bool = False
    ) -> None:
        self.fixed, self.free_tasks, self._apart = fixed, free_tasks, apart
        low, high = problem.knob_ranges
        free = low < high
        self._free, self._low, self._width = free, low[free], (high - low)[free]
        limits, steps = problem.step_limits, len(fixed.shares)
        self._rows = (1 if problem.control.tasks == "constant" else steps) * free_tasks
        self._end = self._rows * fixed.shares.shape[1]  # where the knobs begin
        self._place = self._places(problem)
        self._uses = np.bincount(self._place.ravel()).astype(np.float64)
        available = np.ones((0, fixed.shares.shape[1]), bool)  # all tasks, always
        if not problem.availability.always:
            available = problem.availability.on(np.linspace(0.0, problem.duration, steps + 1))
        self.domain = Domain(
            self._rows,
            available,
            limits.low / limits.steps,
            limits.high / limits.steps,
            *self._means(problem, low, high),
            *(replay_on(limits, steps) if self._rows and limits.on_replay else ()),
        )

    def _places(self, problem: Problem) -> Ints:
        """Return the index (steps, F) of each step's free knobs in the knobs' part of a vector."""
        steps, size = self.fixed.knobs.shape
        step, column = np.indices((steps, size))
        for name, columns in problem.model.layout.columns.items():
            free = problem.control.knobs.get(name)
            if free is not None and free.constant:
                step[:, columns] = 0
            if free is not None and free.shared and not self._apart:
                column[:, columns] = columns.start
        places = (step * size + column)[:, self._free]
        numbers: Ints = np.unique(places, return_inverse=True)[1]
        return numbers.reshape(places.shape)

    def _collected(self, values: Floats) -> Floats:
        """Return the sums of values (steps, F) over the steps and columns that are tied."""
        return np.asarray(np.bincount(self._place.ravel(), values.ravel(), self._uses.size))

    def _means(self, problem: Problem, low: Floats, high: Floats) -> tuple[Floats, Floats, Floats]:
        """Return the weights (G, m) of the limited knobs in their means, and the bounds (G,)."""
        steps = len(self.fixed.shares)
        rows, lowest, highest = [], [], []
        for name, bounds in problem.limits.mean.items():
            columns = problem.model.layout.columns[name]
            if not self._free[columns].any():
                continue
            weights = np.zeros((steps, low.size))
            per_task = columns.stop - columns.start > 1
            weights[:, columns] = self.fixed.shares if per_task else 1.0
            rows.append(self._collected(weights[:, self._free]) / steps)
            first, width = low[columns.start], high[columns.start] - low[columns.start]
            lowest.append((bounds[0] - first) / width)
            highest.append((bounds[1] - first) / width)
        matrix = np.array(rows).reshape(len(rows), self._uses.size)
        return matrix, np.array(lowest), np.array(highest)

    def join(self, controls: Controls) -> Floats:
        """Return the free part of controls as a vector, with means of what is tied."""
        knobs = self._collected((controls.knobs[:, self._free] - self._low) / self._width)
        shares = controls.shares
        if self._rows == 1:
            shares = shares.mean(axis=0)
        return np.concatenate([*([shares.ravel()] * self.free_tasks), knobs / self._uses])

    def split(self, x: Floats) -> Controls:
        """Return the controls of a vector."""
        shares, end = self.fixed.shares, self._end
        if self.free_tasks:
            shares = np.tile(x[:end].reshape(self._rows, -1), (len(shares) // self._rows, 1))
        knobs = self.fixed.knobs.copy()
        knobs[:, self._free] = self._low + self._width * x[end:][self._place]
        return Controls(shares, knobs)

    def slopes(self, x: Floats, gradient: Gradient) -> Floats:
        """Return the gradient by the vector x, at which it is `gradient` by the controls."""
        knobs = self._collected(self._width * gradient.by_knobs[:, self._free])
        shares = gradient.by_shares
        if self._rows == 1:
            shares = shares.sum(axis=0)
        return np.concatenate([*([shares.ravel()] * self.free_tasks), knobs])

    def carried(self, x: Floats, finer: RelaxedControls, *, sums: bool = False) -> Floats:
        """Return a vector as one of the same controls on more steps.

        With `sums` it is a gradient, whose sum over all steps stays the same.
        """
        steps, end = len(finer.fixed.shares), self._end
        scale = len(self.fixed.shares) / steps if sums else 1.0
        shares = x[:end].reshape(self._rows, self.fixed.shares.shape[1])
        if self._rows > 1:
            shares = scale * interpolated(shares, steps)
        each = x[end:] / self._uses if sums else x[end:]
        knobs = finer._collected(scale * interpolated(each[self._place], steps))
        return np.concatenate([shares.ravel(), knobs if sums else knobs / finer._uses])

    def residual(self, x: Floats, slopes: Floats) -> float:
        """Return the first-order gain still possible: that of the linear model's best controls.

        For the shares this is Pontryagin's residual ∫ Σ_t s_t Φ_t − min_t Φ_t; where there are
        budgets, the minimum is taken within them.
        """
        end, gain = self._end, float(slopes @ x)
        if self.free_tasks:
            gain -= _least_shares(slopes[:end].reshape(self._rows, -1), self.domain)
        return gain - _least_box(slopes[end:], self.domain) if self._uses.size else gain


def _least_shares(rows: Floats, domain: Domain) -> float:
    """Return the least Σ_i rows[i] · shares[i] over all shares within the budgets."""
    always = not domain.available.size
    if not always:
        rows = np.where(domain.available, rows, np.inf)
    if not domain.low.any() and np.all(domain.high >= 1.0):
        if not len(domain.caps):
            return float(rows.min(axis=1).sum())
        least, free = 0.0, np.ones(len(rows), dtype=bool)
        for (first, last), cap in zip(domain.spans, domain.caps, strict=True):
            least += _least_replay(rows[first:last], domain.old[first:last], cap)
            free[first:last] = False
        return least + float(rows[free].min(axis=1).sum())
    steps, tasks = rows.shape
    if tasks == 2 and always:  # one number per step
        low = max(domain.low[1], 1.0 - domain.high[0])
        high = min(domain.high[1], 1.0 - domain.low[0])
        weights = np.full(steps, 1.0 / steps)
        return float(rows[:, 0].sum()) + _least_group(rows[:, 1] - rows[:, 0], weights, low, high)
    return _least_by_programme(rows, domain)


def _least_by_programme(rows: Floats, domain: Domain) -> float:
    """Return the least Σ_i rows[i] · shares[i] within all budgets, by linear programming."""
    from scipy import sparse
    from scipy.optimize import linprog

    steps, tasks = rows.shape
    each = sparse.kron(sparse.eye(steps), np.ones((1, tasks)))
    totals = sparse.kron(np.ones((1, steps)), sparse.eye(tasks))
    replays, lengths = np.zeros((len(domain.caps), steps, tasks)), np.diff(domain.spans)[:, 0]
    for row, (first, last) in zip(replays, domain.spans, strict=True):
        row[first:last] = domain.old[first:last]
    replays = sparse.csr_array(replays.reshape(len(replays), rows.size))
    finite = np.isfinite(rows).ravel()
    costs = np.where(finite, rows.ravel(), 0.0)
    size = max(np.abs(costs).max(), 1e-300)  # the tolerances of `linprog` are absolute
    solution = linprog(
        costs / size,
        A_ub=sparse.vstack([totals, -totals, replays]),
        b_ub=np.concatenate([domain.high * steps, -domain.low * steps, domain.caps * lengths]),
        A_eq=each,
        b_eq=np.ones(steps),
        bounds=np.column_stack([np.zeros(finite.size), finite]),
    )
    # Should it fail, the minimum without budgets is a lower bound.
    return float(solution.fun) * size if solution.status == 0 else float(rows.min(axis=1).sum())


def _least_replay(rows: Floats, old: Bools, cap: float) -> float:
    """Return the least Σ_i rows[i] · shares[i] with a mean share of old tasks of at most a cap."""
    replayed, new = (np.where(which, rows, np.inf).min(axis=1) for which in (old, ~old))
    free = np.isfinite(replayed) & np.isfinite(new)  # else there is no choice
    alone = float(np.where(np.isfinite(new), new, replayed).sum())
    forced = int(np.sum(~np.isfinite(new)))
    weights = np.ones(int(free.sum()))
    return alone + _least_group((replayed - new)[free], weights, 0.0, cap * len(rows) - forced)


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

    The numbers with the smallest slope for their weight are 1; one is between 0 and 1.
    """
    order = np.argsort(slopes / weights)
    used = np.concatenate([[0.0], np.cumsum(weights[order])])
    cost = np.concatenate([[0.0], np.cumsum(slopes[order])])
    bottom = used[np.argmin(cost)]  # the mean without bounds
    return float(np.interp(np.clip(bottom, low, high), used, cost))
