"""What fits of all laws share: exact slopes, a robust descent, and parameters near the best.

Residuals are those of log losses. Notation: k parameters, R runs, n rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from replan.check import Floats

NORMAL = 1.645  # of a 90 % interval
LAWS = 12  # that plans are made for
_SURE = 1e-5  # the least residual of a row, as it counts against the prior
_AGREE = 1.05  # times the lowest cost: starts that end there agree
_LOWEST = 1e-3  # of a loss, so that it has a logarithm

Losses = Callable[[NDArray[np.complex128]], NDArray[np.complex128]]  # (P, k) → (P, R, n)


def log_and_slopes(losses: Losses, parameters: Floats) -> tuple[Floats, Floats]:
    """Return log losses (R, n) and their derivatives (k, R, n), exact by complex steps."""
    tiny = 1e-20
    values = losses(parameters + 1j * tiny * np.eye(len(parameters)))
    real = np.maximum(values[0].real, _LOWEST)
    return np.log(real), values.imag / tiny / real


def logs_of(losses: NDArray[Any]) -> Floats:
    """Return the logarithms of losses that may be wrong, and below zero."""
    return np.log(np.maximum(losses.real, _LOWEST))


def descend(
    residuals: Callable[[Floats], tuple[Floats, Floats]],
    point: Floats,
    prior: tuple[Floats, Floats],
    bounds: tuple[Floats, Floats],
    *,
    widths: Sequence[float],
    trusted: float,
    inflation: float = 1.0,
) -> tuple[float, Floats]:
    """Return the cost and the parameters (k,) that a start leads to.

    Huber's loss cuts residuals, ever narrower, but not the prior.

    - `residuals`: returns those of parameters, (n,), and their derivatives (k, n).
    - `prior`: mean and standard deviation (k,).
    - `trusted`: the residual of a row, at most, as it counts against the prior. Where the rows
      scatter less it is their scale times `inflation`: rows are not independent.
    """
    from scipy.optimize import least_squares

    mean, deviation = prior
    slopes: list[Floats] = []

    def with_prior(t: Floats) -> Floats:
        wrong, by_t = residuals(t)
        weight = trusted / deviation
        slopes[:] = [np.concatenate([by_t.T, np.diag(weight)])]
        return np.concatenate([wrong, (t - mean) * weight])

    def huber_but_prior(z: Floats) -> Floats:
        large = (z > 1.0) & (np.arange(len(z)) < len(z) - len(mean))
        root = np.sqrt(np.where(large, z, 1.0))
        return np.array(
            [
                np.where(large, 2.0 * root - 1.0, z),
                np.where(large, 1.0 / root, 1.0),
                np.where(large, -0.5 / root**3, 0.0),
            ]
        )

    cost, point = np.inf, np.clip(point, bounds[0] + 1e-6, bounds[1] - 1e-6)
    for width in widths:
        end = least_squares(
            with_prior, point, lambda _: slopes[0], bounds, loss=huber_but_prior, f_scale=width,
            x_scale="jac", max_nfev=60,
        )  # fmt: skip
        point, cost = end.x, float(end.cost)
        trusted = min(trusted, inflation * scale_of(residuals(point)[0]) + _SURE)
    return cost, point


def scale_of(residuals: Floats) -> float:
    """Return the standard deviation of which 90 % of normal residuals would be as small."""
    return float(np.quantile(np.abs(residuals), 0.9) / NORMAL)


def nearby(
    best: Floats,
    covariance: Floats,
    change: Callable[[Floats], Floats],
    expected: float,
    count: int,
    bounds: tuple[Any, Any],
) -> Floats:
    """Return parameters (count, k) that fit nearly as well as the best.

    They are drawn as if residuals were linear in them; where they are not, and `change` (count,),
    the squares of what a draw changes, exceeds what is expected, it is moved towards the best.
    """
    rng = np.random.default_rng(0)
    steps = rng.multivariate_normal(np.zeros(len(best)), covariance, count)
    for _ in range(6):
        far = change(np.clip(best + steps, *bounds)) > expected
        steps = np.where(far[:, None], 0.6 * steps, steps)
    return np.clip(best + steps, *bounds)


def agreement(costs: Floats) -> tuple[int, int]:
    """Return how many starts, by ascending costs, ended in the best fit, and how many there were.

    Examples:
        >>> replan.pilots.descent.agreement(np.array([1.0, 1.01, 1.2]))
        (2, 3)
    """
    return int(np.sum(costs <= _AGREE * costs[0])), len(costs)
