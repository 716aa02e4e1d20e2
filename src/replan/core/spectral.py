"""The minimum of a limited-memory BFGS model over the relaxed controls, by spectral steps.

Birgin, Martínez & Raydan, "Nonmonotone spectral projected gradient methods on convex sets" (2000);
as the inner method of projected quasi-Newton: Schmidt, van den Berg, Friedlander & Murphy (2009).
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np

from replan.check import Floats
from replan.core.compiled import compiled
from replan.core.interrupt import ChunkedLoop
from replan.core.projection import Domain, nearest_point

_STEPS = 300  # at most
_ENOUGH = 1e-3  # the last step gains less than this fraction of the first


def model_minimum(x: Floats, gradient: Floats, pairs: Floats, domain: Domain) -> Floats:
    """Return about the minimum (n,) over the domain of a quadratic model around x (n,).

    gradient: (n,) at x. pairs: (p, 2, n) moves of x, and how the gradient changed with them.
    """
    model = _model(pairs)
    x, slope = x.copy(), gradient.copy()
    numbers = np.array([1.0 / model.scale, 0.0])
    _loop(x.size).run(_descend, _STEPS, x, slope, numbers, model, domain)
    return x


@cache
def _loop(size: int) -> ChunkedLoop:
    """Return the loop for vectors of a size: all of them take about as long."""
    return ChunkedLoop()


class _Model(NamedTuple):
    """The Hessian scale × 1 − sidesᵀ inverse sides of a quadratic model; sides: (2 × pairs, n)."""

    scale: float
    sides: Floats
    inverse: Floats


def _model(pairs: Floats) -> _Model:
    """Return limited-memory BFGS in its compact form, of Byrd, Nocedal & Schnabel (1994)."""
    count = len(pairs)
    sides = np.concatenate([pairs[:, 0], pairs[:, 1]])
    products = sides[:count] @ sides.T
    scale = float(products[-1, -1])
    sides[:count] *= scale
    middle = np.zeros((2 * count, 2 * count))
    middle[:count, :count] = scale * products[:, :count]
    lower = products[:, count:] * np.tri(count, k=-1)
    middle[:count, count:], middle[count:, :count] = lower, lower.T
    np.fill_diagonal(middle[count:, count:], -products[:, count:].diagonal())
    return _Model(scale, sides, np.asarray(np.linalg.inv(middle), np.float64))


@compiled
def _descend(
    x: Floats, slope: Floats, numbers: Floats, model: _Model, domain: Domain,
    first: int, _: int, most: int,
) -> tuple[int, int]:  # fmt: skip
    """Continue from step `first` for at most `most` steps; see `ChunkedLoop`.

    x, slope: the point, and the model's gradient there; both are updated. numbers: the length of
    the next step, and the gain of a step below which the descent ends.
    """
    for step in range(first, min(_STEPS, first + most)):
        direction = nearest_point(x - numbers[0] * slope, domain) - x
        drop = np.dot(slope, direction)
        if step == 0:
            numbers[1] = -_ENOUGH * drop
        if drop >= -numbers[1]:
            return step, -1
        bent = model.scale * direction - np.dot(
            np.dot(model.inverse, np.dot(model.sides, direction)), model.sides
        )
        curvature = np.dot(direction, bent)
        length = 1.0
        if curvature > 0.0:
            length = min(1.0, -drop / curvature)
            numbers[0] = np.dot(direction, direction) / curvature
        x += length * direction
        slope += length * bent
    return min(_STEPS, first + most), 0
