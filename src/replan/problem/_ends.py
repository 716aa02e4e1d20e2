"""The end knobs of a model, set so that the objective is smallest."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np

from replan._common.check import Floats
from replan.dynamics import Dynamics
from replan.dynamics._dynamics import with_ends
from replan.problem._problem import Problem

_GRID = 17  # points at which the objective is looked at first, in all
_EXACT = 1e-9  # of a range: the objective is then exact to rounding


def best_ends(problem: Problem, states: Floats, averaging: Floats | None = None) -> Floats:
    """Return the end knobs (E,), within their ranges, of least objective at the end of `states`.

    averaging: the weights (m,) of the states (m, n) in averages over the training, where these
    count. A grid finds the valley, a bounded search its bottom. There the objective does not change
    with the end knobs to first order, or they are at an end of their range: its gradients by
    anything else are those with the end knobs held fixed.
    """
    model = problem.model

    def value(ends: Floats) -> float:
        losses = model.losses(with_ends(states if averaging is not None else states[-1:], ends))
        average = losses[-1] if averaging is None else averaging @ losses
        return problem.objective(losses[-1], average)

    return _least(model, value) if model.end_knobs else np.zeros(0)


def _least(model: Dynamics, value: Callable[[Floats], float]) -> Floats:
    from scipy.optimize import minimize, minimize_scalar

    bounds = [(knob.low, knob.high) for knob in model.end_knobs]
    side = max(3, round(_GRID ** (1 / len(bounds))))
    points = [np.array(x) for x in product(*(np.linspace(*ends, side) for ends in bounds))]
    values = [value(point) for point in points]
    first = int(np.argmin(values))
    if len(bounds) == 1:
        low, high = points[max(first - 1, 0)][0], points[min(first + 1, side - 1)][0]
        found = minimize_scalar(
            lambda x: value(np.array([x])), bounds=(low, high), method="bounded",
            options={"xatol": _EXACT * (high - low)},
        )  # fmt: skip
    else:
        found = minimize(value, points[first], bounds=bounds, options={"ftol": 1e-15})
    return np.atleast_1d(found.x) if found.fun < values[first] else points[first]
