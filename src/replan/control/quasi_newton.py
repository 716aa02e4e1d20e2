"""A projected quasi-Newton method for smooth functions on a convex set that is cheap to project on.

Schmidt, van den Berg, Friedlander & Murphy, "Optimizing costly functions with simple constraints"
(2009): a limited-memory BFGS model of the function is minimised over the set by spectral projected
gradients, which costs no evaluations of the function, and a line search goes towards that minimum.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from replan.check import Floats

Function = Callable[[Floats], tuple[float, Floats]]
Projection = Callable[[Floats], Floats]

_ARMIJO = 1e-4


@dataclass
class QuasiNewton:
    """A minimisation: `step` moves on; `x`, `value` and `gradient` are the best so far.

    function: gives value and gradient. project: onto the set. memory: BFGS pairs kept. inner:
    steps of the spectral method on each model.
    """

    function: Function
    project: Projection
    x: Floats
    memory: int = 20
    inner: int = 30
    value: float = field(init=False)
    gradient: Floats = field(init=False)
    pairs: list[tuple[Floats, Floats]] = field(init=False, default_factory=list)
    stalled: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self.x = self.project(self.x)
        self.value, self.gradient = self.function(self.x)

    def step(self) -> None:
        """Take one step; `stalled` says that no direction makes progress any more."""
        direction = self._towards_model_minimum()
        slope = float(self.gradient @ direction)
        if slope > -1e-16 * abs(self.value):
            if self.pairs:  # a poor model: begin a new one from the gradient alone
                self.pairs.clear()
            else:
                self.stalled = True
            return
        length = 1.0
        for _ in range(25):
            x = self.x + length * direction
            value, gradient = self.function(x)
            if value <= self.value + _ARMIJO * length * slope:
                self._remember(x - self.x, gradient - self.gradient)
                self.x, self.value, self.gradient = x, value, gradient
                return
            # the minimum of the parabola through what is known, kept within bounds
            bend = 2.0 * (value - self.value - length * slope)
            best = -slope * length * length / bend if np.isfinite(bend) else 0.0
            length = min(max(best, 0.1 * length), 0.5 * length)
        self.stalled = not self.pairs
        self.pairs.clear()

    def _remember(self, move: Floats, change: Floats) -> None:
        if move @ change > 1e-10 * (move @ move) ** 0.5 * (change @ change) ** 0.5:
            self.pairs.append((move, change))
            del self.pairs[: -self.memory]

    def _towards_model_minimum(self) -> Floats:
        if not self.pairs:
            size = np.abs(self.gradient).max()
            return self.project(self.x - self.gradient / max(size, 1e-300)) - self.x
        model = _Model(self.pairs)
        y, slope = self.x, self.gradient
        spectral = 1.0 / model.scale
        for _ in range(self.inner):
            direction = self.project(y - spectral * slope) - y
            drop = float(slope @ direction)
            if drop > -1e-12 * abs(self.value):
                break
            bent = model.times(direction)
            curvature = float(direction @ bent)
            length = min(1.0, -drop / curvature) if curvature > 0 else 1.0
            y = y + length * direction
            slope = slope + length * bent
            spectral = float(direction @ direction) / curvature if curvature > 0 else spectral
        return y - self.x


class _Model:
    """The Hessian of limited-memory BFGS in compact form (Byrd, Nocedal & Schnabel 1994)."""

    def __init__(self, pairs: list[tuple[Floats, Floats]]) -> None:
        S, Y = (np.array(side).T for side in zip(*pairs, strict=True))
        self.scale = float(Y[:, -1] @ Y[:, -1] / (S[:, -1] @ Y[:, -1]))
        SY = S.T @ Y
        lower = np.tril(SY, -1)
        middle = np.block([[self.scale * S.T @ S, lower], [lower.T, -np.diag(np.diag(SY))]])
        self._sides = np.hstack([self.scale * S, Y])
        self._inverse = np.linalg.pinv(middle)

    def times(self, vector: Floats) -> Floats:
        """Return the Hessian times a vector."""
        return self.scale * vector - self._sides @ (self._inverse @ (self._sides.T @ vector))
