"""The law of rates, fitted to pilots: see `replan.models.RateLaw` for its equations.

Residuals are those of log losses. Parameters t (7,) are the law's, scales as logarithms.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from replan.check import Bools, Floats
from replan.models.rate_law import NAMES, Pieces, curves, pieces
from replan.pilots.runs import Pilots, Run

STARTS = 5
_WIDTHS = (0.03, 0.01, 0.003, 0.002)  # of Huber's loss, one after another
_LOGS = np.array([name in ("signal", "noise", "pace") for name in NAMES])
# What is known of a law before any pilot: mean and standard deviation of each parameter. They
# decide only what the pilots leave open. The floor is relative to the smallest loss.
_MEAN = np.array([0.85, 0.0, 0.5, 0.0, 4.0, 0.5, 0.6])
_SD = np.array([0.25, 2.0, 0.2, 2.0, 1.5, 0.5, 0.15])
_LOW = np.array([0.0, -8.0, 0.05, -9.0, -6.0, -2.0, 0.0])
_HIGH = np.array([20.0, 4.0, 3.0, 2.0, 9.0, 4.0, 2.5])
_RESIDUAL = 0.003  # of a row, at most, as it counts against the prior: rows are not independent
_UNITS = 24.0  # per typical training

# Intervals, in residuals' standard deviations: what the parameters leave open, and the law's own
# misfit. Both are 1 where residuals are white; where neighbours are correlated, as those of a law
# that is not quite right, they are these, as measured on published curves (docs/pilots.md).
_PARAMETERS, _MISFIT, _LEAST = 3.6, 1.2, 3e-4
# What the law takes for granted, and pilots hardly decide, by standard deviations of exponents:
_NOISE_SHAPE = 1.0  # noise changes by e^(x s) with the loss s that is left to learn
_BEND = 0.01  # the signal, S^−exponent, changes by S^(x log S)
_OTHER_PEAK = 0.2  # progress at another peak than all pilots' changes by (their ratio)^x
_SEVERAL = 1.3  # ratio of peaks from which pilots have several


class Grid(NamedTuple):
    """Runs side by side, padded at the end: pieces, losses and rows that count, (R, n) each."""

    runs: Pieces
    steps: Floats
    losses: Floats
    fitted: Bools


class RateFit(NamedTuple):
    """A fitted law: parameters (7,), their covariance, the residuals' scale and all starts' ends.

    follow: (2, 7) how the parameters change with what the law takes for granted, by one standard
    deviation of each. scale: 90 % of the residuals are within 1.645 times it.
    misfit: from 0, residuals are white, to 1, they show that the law is not quite right.
    peak: of all fitted runs where they have one, else NaN.
    ends: costs (starts,) in ascending order. unit: steps.
    """

    parameters: Floats
    covariance: Floats
    follow: Floats
    scale: float
    misfit: float
    peak: float
    ends: Floats
    unit: float


def unit_of(pilots: Pilots) -> float:
    """Return the steps that count as 1: a part of a typical training, at the peak."""
    areas = [np.trapezoid(run.rates, run.steps) / pilots.peak for run in pilots.runs]
    return float(np.median(areas)) / _UNITS


def grid(pilots: Pilots, runs: tuple[Run, ...], unit: float, loss: str | None) -> Grid:
    """Return runs in the terms of the pilots, with the losses of one name, or none."""
    batch = float(np.median([np.median(run.batch) for run in pilots.runs]))
    size = max(len(run.steps) for run in runs)

    def padded(rows: Floats, fill: float | None = None) -> Floats:
        return np.pad(
            rows, (0, size - len(rows)), constant_values=rows[-1] if fill is None else fill
        )

    steps = np.stack([padded(run.steps) for run in runs])
    rates = np.stack([padded(run.rates) for run in runs])
    batches = np.stack([padded(run.batch / batch) for run in runs])
    losses = np.full(steps.shape, np.nan)
    if loss is not None:
        index = pilots.losses.index(loss)
        losses = np.stack([padded(run.losses[:, index], np.nan) for run in runs])
    fitted = np.isfinite(losses) & (steps >= pilots.early)
    return Grid(pieces(steps, rates, pilots.peak, unit, batches), steps, losses, fitted)


def laws(parameters: NDArray[Any]) -> NDArray[Any]:
    """Return parameters (P, 7) as laws of `RateLaw`."""
    return np.where(_LOGS, np.exp(np.where(_LOGS, parameters, 0.0)), parameters)


def value_and_slopes(parameters: Floats, runs: Pieces) -> tuple[Floats, Floats]:
    """Return log losses (R, n) and their derivatives (7, R, n), exact by complex steps."""
    tiny = 1e-20
    shifted = parameters + 1j * tiny * np.eye(len(parameters))
    values = curves(laws(shifted), runs)
    real = np.maximum(values[0].real, 1e-3)
    return np.log(real), values.imag / tiny / real


def fit_rates(
    data: Grid, unit: float, starts: int = STARTS, seed: int = 0, whole: RateFit | None = None
) -> RateFit:
    """Fit the law: Huber's loss of log losses, ever narrower, from several starts.

    `whole`: the fit of all pilots, where some are left out: fewer may look more alike than all.
    """
    known = np.log(data.losses[data.fitted])
    ends = sorted(
        (_descend(data, known, start) for start in _starts(known, starts, seed)),
        key=lambda end: end[0],
    )
    best = ends[0][1]
    values, slopes = value_and_slopes(best, data.runs)
    residuals = values[data.fitted] - known
    scale = _scale(residuals)
    misfit = _misfit(values, data, scale)
    if whole is not None:
        scale, misfit = max(scale, whole.scale), max(misfit, whole.misfit)
    costs = np.array([cost for cost, _ in ends])
    peaks = data.runs.pace.max(axis=1)
    peak = float(np.median(peaks)) if peaks.max() < _SEVERAL * peaks.min() else np.nan
    before = np.diag(_prior(known)[1] ** 2.0)
    prior = RateFit(best, before, np.zeros((2, len(NAMES))), scale, misfit, peak, costs, unit)
    covariance = with_more(prior, slopes[:, data.fitted])
    granted = _by_granted(best, values, slopes, data.runs)[:, data.fitted]
    follow = -(granted @ slopes[:, data.fitted].T) @ covariance / _around(prior) ** 2
    return prior._replace(covariance=covariance, follow=follow)


def _around(fit: RateFit) -> float:
    """Return the standard deviation of a row's log loss, as it counts for the parameters."""
    return _between(fit.misfit, _PARAMETERS) * fit.scale + 1e-12


def with_more(fit: RateFit, slopes: Floats) -> Floats:
    """Return the covariance (7, 7) with more rows, whose log losses have derivatives (7, n)."""
    jacobian = slopes / _around(fit)
    precision = np.linalg.inv(fit.covariance) + jacobian @ jacobian.T
    return np.linalg.inv(precision).astype(np.float64)


def _by_granted(parameters: Floats, values: Floats, slopes: Floats, runs: Pieces) -> Floats:
    """Return the changes of log losses (2, R, n) by what the law takes for granted, by one sd each.

    Pilots hardly decide whether noise grows as 1 + 2 s and whether the signal is a power law; both
    matter for runs that are unlike them, or longer.
    """
    _, signal, exponent = laws(parameters[None])[0, :3]
    rest = signal * runs.progress**-exponent
    by_shape = rest * slopes[NAMES.index("noise")]
    by_bend = rest * np.log(runs.progress) ** 2 / np.exp(values)
    return np.stack([_NOISE_SHAPE * by_shape, _BEND * by_bend])


def _misfit(values: Floats, data: Grid, scale: float) -> float:
    """Return how far the law is from right, 0 to 1: how sure residuals are correlated."""
    products, squares, count = 0.0, 1e-300, 1
    for value, losses, fitted in zip(values, data.losses, data.fitted, strict=True):
        wrong = np.clip(value[fitted] - np.log(losses[fitted]), -4.0 * scale, 4.0 * scale)
        products += float(wrong[1:] @ wrong[:-1])
        squares += float(wrong @ wrong)
        count += len(wrong)
    errors = products / squares * np.sqrt(count)  # standard errors, of white residuals
    return float(np.clip(0.5 * (errors - 1.0), 0.0, 1.0))


def _between(misfit: float, most: float) -> float:
    return 1.0 + misfit * (most - 1.0)


def _prior(known: Floats) -> tuple[Floats, Floats]:
    """Return mean and standard deviation (7,) of the parameters before any pilot."""
    lowest = np.where(np.arange(len(NAMES)) == 0, np.exp(known.min()), 1.0)
    return _MEAN * lowest, _SD * lowest


def _starts(known: Floats, count: int, seed: int) -> Floats:
    """Return points (count, 7) about the prior's middle, with a floor below the smallest loss."""
    draws = np.random.default_rng(seed).uniform(-1.0, 1.0, (count, len(NAMES)))
    mean, deviation = _prior(known)
    points = mean + 0.7 * deviation * draws
    lowest, highest = np.exp(known.min()), np.exp(known.max())
    points[:, 0] = lowest * (0.9 + 0.08 * draws[:, 0])
    points[:, 1] = np.log(0.5 * (highest - points[:, 0])) + 0.7 * draws[:, 1]
    points[:, 3] = np.log(0.03 * lowest) + 0.9 * draws[:, 3]
    return points


def _descend(data: Grid, known: Floats, point: Floats) -> tuple[float, Floats]:
    """Return the cost and the parameters that a start leads to."""
    from scipy.optimize import least_squares

    mean, deviation = _prior(known)
    count, trusted = len(known), _RESIDUAL
    slopes: list[Floats] = []

    def residuals(t: Floats) -> Floats:
        values, by_t = value_and_slopes(t, data.runs)
        weight = trusted / deviation
        slopes[:] = [np.concatenate([by_t[:, data.fitted].T, np.diag(weight)])]
        return np.concatenate([values[data.fitted] - known, (t - mean) * weight])

    def huber_but_prior(z: Floats) -> Floats:
        large = (z > 1.0) & (np.arange(len(z)) < count)
        root = np.sqrt(np.maximum(z, 1e-300))
        return np.array(
            [
                np.where(large, 2.0 * root - 1.0, z),
                np.where(large, 1.0 / root, 1.0),
                np.where(large, -0.5 / root**3, 0.0),
            ]
        )

    point = np.clip(point, _LOW + 1e-6, _HIGH - 1e-6)
    cost = np.inf
    for width in _WIDTHS:
        end = least_squares(
            residuals,
            point,
            jac=lambda _: slopes[0],
            bounds=(_LOW, _HIGH),
            loss=huber_but_prior,
            f_scale=width,
            x_scale="jac",
            max_nfev=60,
        )
        point, cost = end.x, float(end.cost)
        trusted = min(trusted, _PARAMETERS * _scale(residuals(point)[:count]) + 1e-5)
    return cost, point


def _scale(residuals: Floats) -> float:
    """Return the standard deviation of which 90 % of normal residuals would be as small."""
    return float(np.quantile(np.abs(residuals), 0.9) / 1.645)


def spread(fit: RateFit, runs: Pieces) -> tuple[Floats, Floats]:
    """Return log losses (R, n) and the standard deviations of their errors."""
    values, slopes = value_and_slopes(fit.parameters, runs)
    of_parameters = np.einsum("pra,pq,qra->ra", slopes, fit.covariance, slopes)
    granted = _by_granted(fit.parameters, values, slopes, runs) + np.tensordot(
        fit.follow, slopes, 1
    )
    of_peak = 0.0 if np.isnan(fit.peak) else _by_peak(fit, values, runs)
    return values, np.sqrt(
        of_parameters + (granted**2).sum(axis=0) + of_peak**2 + own_error(fit) ** 2
    )


def _by_peak(fit: RateFit, values: Floats, runs: Pieces) -> Floats:
    """Return the change of log losses (R, n) by one sd of what no other peak has shown."""
    _, signal, exponent = laws(fit.parameters[None])[0, :3]
    ratios = runs.pace.max(axis=1, keepdims=True) / fit.peak
    by_progress = exponent * signal * runs.progress**-exponent / np.exp(values)
    return _OTHER_PEAK * np.log(ratios) * by_progress


def draws(fit: RateFit, data: Grid, count: int) -> Floats:
    """Return laws (count, 7) that fit nearly as well: the best, and draws about it."""
    best, _ = value_and_slopes(fit.parameters, data.runs)

    def change(points: Floats) -> Floats:
        values = np.log(np.maximum(curves(laws(points), data.runs)[:, data.fitted], 1e-3))
        return ((values - best[data.fitted]) ** 2).sum(axis=1)

    expected = 2.0 * len(NAMES) * (_between(fit.misfit, _PARAMETERS) * fit.scale) ** 2
    points = nearby(fit.parameters, fit.covariance, change, expected, count - 1, (_LOW, _HIGH))
    return laws(np.vstack([fit.parameters, points]))


def nearby(
    best: Floats,
    covariance: Floats,
    change: Callable[[Floats], Floats],
    expected: float,
    count: int,
    bounds: tuple[Any, Any] = (-np.inf, np.inf),
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


def own_error(fit: RateFit) -> float:
    """Return the standard deviation of the law's own error of a log loss."""
    return float(np.hypot(_between(fit.misfit, _MISFIT) * fit.scale, _LEAST))


def identified(fit: RateFit, data: Grid) -> dict[str, tuple[float, float, bool]]:
    """Return value and standard deviation of each parameter, and whether the data decide it."""
    deviations = np.sqrt(np.diag(fit.covariance))
    values = laws(fit.parameters[None])[0]
    _, priors = _prior(np.log(data.losses[data.fitted]))
    return {
        name: (float(x), float(sd * (x if log else 1.0)), bool(sd < 0.6 * prior))
        for name, x, sd, log, prior in zip(NAMES, values, deviations, _LOGS, priors, strict=True)
    }
