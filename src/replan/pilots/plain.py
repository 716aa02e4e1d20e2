"""Plain regressions of end losses on shares, beside which a law of shares is shown.

Notation: R runs, F features: the mean shares in both halves of a training, without one domain, and
the logarithm of its progress over the shortest one's, where they differ.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from replan.check import Floats
from replan.pilots.runs import SAME

Regression = Callable[[Floats, Floats, Floats], Floats]  # features, values, others → values
_JITTER = 1e-6


def features(shares: Floats, lengths: Floats, progress: Floats) -> Floats:
    """Return (R, F) of runs with shares (R, n, D) in pieces of lengths and progress (R, n)."""
    edges = np.cumsum(lengths, axis=1)
    first = np.clip(0.5 * edges[:, -1:] - (edges - lengths), 0.0, lengths)
    first, second = (
        np.einsum("rn,rnd->rd", x, shares[..., 1:]) / (0.5 * edges[:, -1:])
        for x in (first, lengths - first)
    )
    done = np.log(progress.sum(axis=1, keepdims=True))
    columns = [first, second, done - done.min()]
    varying = [True, np.ptp(first - second) > SAME, np.ptp(done) > SAME]
    return np.concatenate([x for x, used in zip(columns, varying, strict=True) if used], axis=1)


def quadratic(x: Floats, y: Floats, others: Floats) -> Floats:
    """Predict by a quadratic in the roots of shares, or a linear one where runs are few."""
    count, size = x.shape
    pairs = [(i, j) for i in range(size) for j in range(i, size)]
    full = 2 * (1 + size + len(pairs)) <= count

    def columns(x: Floats) -> Floats:
        roots = np.sqrt(np.maximum(x, 0.0))
        products = [roots[:, i] * roots[:, j] for i, j in pairs if full]
        return np.column_stack([np.ones(len(x)), roots, *products])

    return columns(others) @ np.linalg.lstsq(columns(x), y, rcond=None)[0]


def gaussian_process(x: Floats, y: Floats, others: Floats) -> Floats:
    """Predict by a Gaussian process whose scales, in shares or their roots, are the likeliest."""
    fits = [_process(power(x), y, power(others)) for power in (np.sqrt, np.asarray)]
    return min(fits, key=lambda fit: fit[0])[1]


def _process(x: Floats, y: Floats, others: Floats) -> tuple[float, Floats]:
    """Return the negative log likelihood and the predictions of a Gaussian process."""
    from scipy.optimize import minimize

    mean, scale = y.mean(), y.std() + 1e-12
    z = (y - mean) / scale

    def kernel(a: Floats, b: Floats, t: Floats) -> tuple[Floats, Floats]:
        apart = (a[:, None] - b) ** 2 * np.exp(-2.0 * t[2:])  # (…, …, F)
        return np.exp(2.0 * t[0] - 0.5 * apart.sum(axis=2)), apart

    def cost(t: Floats) -> tuple[float, Floats]:
        smooth, apart = kernel(x, x, t)
        noise = np.exp(2.0 * t[1]) * np.eye(len(x))
        whole = smooth + noise + _JITTER * np.eye(len(x))
        inverse = np.linalg.inv(whole)
        weights = inverse @ z
        slopes = [2.0 * smooth, 2.0 * noise, *np.moveaxis(smooth[..., None] * apart, 2, 0)]
        value = 0.5 * (z @ weights + np.linalg.slogdet(whole)[1])
        residual = inverse - np.outer(weights, weights)
        return float(value), np.array([0.5 * np.sum(residual * slope) for slope in slopes])

    bounds = [(-3.0, 4.0), (-7.0, 1.0), *[(-4.0, 4.0)] * x.shape[1]]
    starts = [np.array([0.0, noise, *[length] * x.shape[1]])
              for noise, length in ((-3.0, -1.0), (-4.0, 0.0), (-2.0, -1.5))]  # fmt: skip
    best = min(  # TNC: the threads of other methods' linear algebra cost more than they gain
        (minimize(cost, start, jac=True, method="TNC", bounds=bounds) for start in starts),
        key=lambda end: end.fun,
    )
    whole = kernel(x, x, best.x)[0] + (np.exp(2.0 * best.x[1]) + _JITTER) * np.eye(len(x))
    weights = np.linalg.solve(whole, z)
    return float(best.fun), mean + scale * kernel(others, x, best.x)[0] @ weights


PLAIN: dict[str, Regression] = {"Gaussian process": gaussian_process, "quadratic": quadratic}
