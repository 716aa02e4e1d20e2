"""The end knobs of a model, set so that the objective is smallest."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np

from replan._common.check import Floats
from replan.dynamics._dynamics import with_ends
from replan.problem._problem import Problem

_GRID = 129  # points at which the objective is looked at together
_EXACT = 1e-8  # of a range: the objective is then exact to rounding


def best_ends(problem: Problem, states: Floats, averaging: Floats | None = None) -> Floats:
    """Return the end knobs (E,), within their ranges, of least objective at the end of `states`.

    averaging: the weights (m,) of the states (m, n) in averages over the training, where these
    count. At the best end knobs the objective does not change with them to first order, or they are
    at an end of their range: its gradients by anything else are those with the end knobs held
    fixed.
    """
    knobs = problem.model.end_knobs
    if not knobs:
        return np.zeros(0)
    counted = states[-1:] if averaging is None else states

    def values(points: Floats) -> Floats:
        losses = problem.model.losses(with_ends(counted, points[:, None, :]))
        final = losses[:, -1]
        return problem.objective(final, final if averaging is None else averaging @ losses)

    bounds = np.array([(knob.low, knob.high) for knob in knobs])
    return _on_a_line(bounds[0], values) if len(knobs) == 1 else _in_a_box(bounds, values)


def _on_a_line(bounds: Floats, values: Callable[[Floats], Floats]) -> Floats:
    """Return the best point (1,): a grid, then a grid between the neighbours of its best point."""
    low, high = bounds
    while True:
        points = np.linspace(low, high, _GRID)
        best = int(np.argmin(values(points[:, None])))
        if high - low <= _EXACT * (bounds[1] - bounds[0]):
            return points[[best]]
        low, high = points[max(best - 1, 0)], points[min(best + 1, _GRID - 1)]


def _in_a_box(bounds: Floats, values: Callable[[Floats], Floats]) -> Floats:
    """Return the best point (E,): a grid finds the valley, a search within bounds its bottom."""
    from scipy.optimize import minimize

    side = max(3, round(_GRID ** (1 / len(bounds))))
    axes = np.linspace(bounds[:, 0], bounds[:, 1], side, axis=1)
    points = np.array(list(product(*axes)))
    coarse = values(points)
    first, least, spread = points[np.argmin(coarse)], coarse.min(), np.ptp(coarse)
    if spread == 0:
        return first
    found = minimize(
        lambda x: (values(x[None])[0] - least) / spread,  # the tolerances are absolute
        first, bounds=bounds, options={"ftol": 1e-15, "gtol": 1e-10},
    )  # fmt: skip
    return np.asarray(found.x) if found.fun < 0 else first
