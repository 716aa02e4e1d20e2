"""A projected quasi-Newton method for smooth functions of the relaxed controls.

Schmidt, van den Berg, Friedlander & Murphy, "Optimizing costly functions with simple constraints"
(2009): a limited-memory BFGS model of the function is minimised over the domain by spectral
projected gradients, which costs no evaluations of the function, and a line search goes towards
that minimum.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

import numpy as np

from replan.check import Floats
from replan.core.compiled import compiled
from replan.core.interrupt import ChunkedLoop, run_interruptibly
from replan.core.projection import Domain, project

Function = Callable[[Floats], tuple[float, Floats]]

_ARMIJO = 1e-4  # of the predicted gain, which a step must reach; the usual value
_LINE_SEARCH = 25  # trials, each at most half as far as the one before
_PAIRS = 20  # of the limited memory
_INNER = 300  # spectral steps at most on each model
_INNER_GAIN = 1e-3  # of the first spectral step's gain, below which they end
_LARGE = 100_000  # numbers whose projection may take long, with budgets even seconds
_BELOW = np.tri(_PAIRS, k=-1)  # mask of the entries below the diagonal


@dataclass
class QuasiNewton:
    """A minimisation: `step` advances it; `x`, `value` and `gradient` are the best so far."""

    function: Function
    domain: Domain
    x: Floats
    value: float = field(init=False)
    gradient: Floats = field(init=False)
    pairs: list[tuple[Floats, Floats]] = field(init=False, default_factory=list)
    stalled: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self.x = self._project(self.x)
        self.value, self.gradient = self.function(self.x)

    def step(self) -> None:
        """Take one step; `stalled` says that no direction makes progress any longer."""
        direction = self._towards_model_minimum()
        slope = float(self.gradient @ direction)
        if slope > -1e-16 * abs(self.value):
            if self.pairs:  # a poor model: begin again from the gradient alone
                self.pairs.clear()
            else:
                self.stalled = True
            return
        length = 1.0
        for _ in range(_LINE_SEARCH):
            x = self.x + length * direction
            value, gradient = self.function(x)
            if value <= self.value + _ARMIJO * length * slope:
                self.remember(x - self.x, gradient - self.gradient)
                self.x, self.value, self.gradient = x, value, gradient
                return
            # the minimum of the parabola through both values and the slope, within bounds
            bend = 2.0 * (value - self.value - length * slope)
            best = -slope * length * length / bend if np.isfinite(bend) else 0.0
            length = min(max(best, 0.1 * length), 0.5 * length)
        self.stalled = not self.pairs
        self.pairs.clear()

    def remember(self, move: Floats, change: Floats) -> None:
        """Add a move of x, and the change of the gradient with it, to the model."""
        size = float(move @ move) ** 0.5  # the model does not depend on the scale of a pair
        if move @ change > 1e-10 * size * (change @ change) ** 0.5:
            self.pairs.append((move / size, change / size))
            del self.pairs[:-_PAIRS]

    def _towards_model_minimum(self) -> Floats:
        if not self.pairs:
            size = np.abs(self.gradient).max()
            return self._project(self.x - self.gradient / max(size, 1e-300)) - self.x
        model = _model(np.array(self.pairs))
        x, slope = self.x.copy(), self.gradient.copy()
        numbers = np.array([1.0 / model.scale, 0.0])
        _loop(x.size).run(_descend, _INNER, x, slope, numbers, model, self.domain)
        return x - self.x

    def _project(self, x: Floats) -> Floats:
        if x.size > _LARGE:
            return np.asarray(run_interruptibly(project, x, self.domain))
        return np.asarray(project(x, self.domain))


class _Model(NamedTuple):
    """The Hessian scale × 1 − sidesᵀ inverse sides of a quadratic model; sides: (2 × pairs, n)."""

    scale: float
    sides: Floats
    inverse: Floats


def _model(pairs: Floats) -> _Model:
    """Return the model of limited-memory BFGS from pairs (p, 2, n): moves, changes of the gradient.

    (Byrd, Nocedal & Schnabel 1994)
    """
    count = len(pairs)
    sides = np.concatenate([pairs[:, 0], pairs[:, 1]])
    products = sides[:count] @ sides.T
    scale = float(products[-1, -1])
    sides[:count] *= scale
    middle = np.zeros((2 * count, 2 * count))
    middle[:count, :count] = scale * products[:, :count]
    lower = products[:, count:] * _BELOW[:count, :count]
    middle[:count, count:], middle[count:, :count] = lower, lower.T
    np.fill_diagonal(middle[count:, count:], -products[:, count:].diagonal())
    return _Model(scale, sides, np.asarray(np.linalg.inv(middle), np.float64))


@cache
def _loop(size: int) -> ChunkedLoop:
    """Return the loop of vectors of a size, which learns how long their steps take."""
    return ChunkedLoop()


@compiled(keep=True)
def _descend(
    x: Floats, slope: Floats, numbers: Floats, model: _Model, domain: Domain,
    first: int, _: int, most: int,
) -> tuple[int, int]:  # fmt: skip
    """Descend towards the model's minimum over the domain by spectral steps; see `ChunkedLoop`.

    x, slope: the present point and the model's gradient there. numbers: the length of the next
    step, and the gain of a step at which to end.
    """
    for step in range(first, min(_INNER, first + most)):
        direction = project(x - numbers[0] * slope, domain) - x
        drop = np.dot(slope, direction)
        if step == 0:
            numbers[1] = -_INNER_GAIN * drop
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
    return min(_INNER, first + most), 0
