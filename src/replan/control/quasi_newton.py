"""A projected quasi-Newton method for smooth functions of the relaxed controls.

Schmidt, van den Berg, Friedlander & Murphy, "Optimizing costly functions with simple constraints"
(2009): a limited-memory BFGS model of the function is minimised over the domain by spectral
projected gradients, which costs no evaluations of the function, and a line search goes towards
that minimum.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from replan.check import Floats
from replan.core.projection import Domain, project
from replan.core.spectral import model_minimum

Function = Callable[[Floats], tuple[float, Floats]]

_ARMIJO = 1e-4  # of the predicted gain, which a step must reach; the usual value
_LINE_SEARCH = 25  # trials, each at most half as far as the one before
_PAIRS = 20  # of the limited memory


class QuasiNewton:
    """A minimisation: `step` advances it; `x`, `value` and `gradient` are the best so far."""

    def __init__(self, function: Function, domain: Domain, x: Floats) -> None:
        self.function, self.domain = function, domain
        self.x: Floats = project(x, domain)
        self.value, self.gradient = function(self.x)
        self.pairs: list[tuple[Floats, Floats]] = []
        self.stalled = False

    def step(self) -> None:
        """Take one step; `stalled` says that no direction makes progress any longer."""
        if self.pairs:
            pairs = np.array(self.pairs)
            direction = model_minimum(self.x, self.gradient, pairs, self.domain) - self.x
        else:
            size = max(np.abs(self.gradient).max(), 1e-300)
            direction = project(self.x - self.gradient / size, self.domain) - self.x
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
