"""The end knobs of a model, set so that the objective is smallest."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np

from replan.check import Floats
from replan.models.base import with_ends
from replan.models.stacked import as_stacked
from replan.problem.problem import Problem

_GRID = 129  # points at which the objective is looked at together
_EXACT = 1e-8  # of a range: the objective is then exact to rounding


def best_ends(
    problem: Problem,
    states: Floats,
    along: Floats | None = None,
    smooth: Callable[[Floats, Floats], Floats] | None = None,
) -> Floats:
    """Return the end knobs (E,), within their ranges, of least objective at the end of `states`.

    along: what each loss counts (m, L) at the states (m, n) along the way, where any do. smooth:
    what the objectives (M, …) and final losses (M, …, L) of the members come to (…), unless what
    the problem's risk makes of them. At the best end knobs a smooth objective does not change with
    them to first order, or they are at an end of their range: its gradients by anything else are
    those with the end knobs held fixed.
    """
    knobs = problem.model.end_knobs
    if not knobs:
        return np.zeros(0)
    counted = states[-1:] if along is None else states
    members = as_stacked(problem.model)

    def values(points: Floats) -> Floats:
        losses = members.losses_each(with_ends(counted, points[:, None, :]))
        final = losses[:, :, -1]
        found = problem.objectives(final)
        if along is not None:
            found = found + np.sum(along * losses, axis=(2, 3))
        return problem.risk.of(found) if smooth is None else smooth(found, final)

    bounds = np.array([(knob.low, knob.high) for knob in knobs])
    if len(knobs) == 1:
        return _on_a_line(bounds[0], values)
    kinked = smooth is None and not problem.smooth
    return (_in_smaller_boxes if kinked else _in_a_box)(bounds, values)


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

    points = _points(bounds)
    coarse = values(points)
    first, least, spread = points[np.argmin(coarse)], coarse.min(), np.ptp(coarse)
    if spread == 0:
        return first
    found = minimize(
        lambda x: (values(x[None])[0] - least) / spread,  # the tolerances are absolute
        first, bounds=bounds, options={"ftol": 1e-15, "gtol": 1e-10},
    )  # fmt: skip
    return np.asarray(found.x) if found.fun < 0 else first


def _in_smaller_boxes(bounds: Floats, values: Callable[[Floats], Floats]) -> Floats:
    """Return the best point (E,) where slopes may jump: grids around the best one, ever finer."""
    widths, box = bounds[:, 1] - bounds[:, 0], bounds
    best, part = bounds[:, 0], 1.0
    while part > _EXACT:
        points = np.vstack([best, _points(box)])
        best, part = points[np.argmin(values(points))], part / 2
        around = np.stack([best - part * widths / 2, best + part * widths / 2], axis=1)
        box = np.clip(around, bounds[:, :1], bounds[:, 1:])
    return best


def _points(bounds: Floats) -> Floats:
    """Return the points (n, E) of a grid over a box."""
    side = max(3, round(_GRID ** (1 / len(bounds))))
    axes = np.linspace(bounds[:, 0], bounds[:, 1], side, axis=1)
    return np.array(list(product(*axes)))
