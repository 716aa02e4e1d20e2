"""The law of rates, fitted to pilots: see `replan.models.RateLaw` for its equations.

Residuals are those of log losses. Parameters t (7,) are the law's, scales as logarithms.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from replan.check import Bools, Floats
from replan.models.rate_law import NAMES, Pieces, curves, pieces
from replan.pilots.descent import descend, log_and_slopes, logs_of, nearby, scale_of
from replan.pilots.runs import Pilots, Run, several

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
_BEFORE = 0.5  # rows of that residual are known before any pilot
_UNITS = 24.0  # per typical training

# Intervals, in residuals' standard deviations: what the parameters leave open, and the law's own
# misfit. Both are 1 where residuals are white; where neighbours are correlated, as those of a law
# that is not quite right, they are these, as measured on published curves (docs/pilots.md).
_PARAMETERS, _MISFIT, _LEAST = 3.6, 1.2, 3e-4
# What the law takes for granted, and pilots hardly decide, by standard deviations of exponents:
_NOISE_SHAPE = 1.0  # noise changes by e^(x s) with the loss s that is left to learn
_BEND = 0.01  # the signal, S^−exponent, changes by S^(x log S)
_OTHER_PEAK = 0.2  # progress at another peak than all pilots' changes by (their ratio)^x


class Grid(NamedTuple):
    """Runs side by side, padded at the end: pieces, losses and rows that count, (R, n) each."""

    runs: Pieces
    steps: Floats
    losses: Floats
    fitted: Bools


class RateFit(NamedTuple):
    """A fitted law: parameters (7,), their covariance, the residuals' scale and all starts' ends.

    follow: (3, 7) how the parameters change with what the law takes for granted, by one standard
    deviation of each. scale: 90 % of the residuals are within 1.645 times it.
    misfit: from 0, residuals are white, to 1, they show that the law is not quite right.
    peak: of all fitted runs where they have one, else 0.
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
    size = max(len(run.steps) for run in runs)

    def padded(rows: Floats, fill: float | None = None) -> Floats:
        return np.pad(
            rows, (0, size - len(rows)), constant_values=rows[-1] if fill is None else fill
        )

    steps = np.stack([padded(run.steps) for run in runs])
    rates = np.stack([padded(run.rates) for run in runs])
    batches = np.stack([padded(pilots.batch_of(run)) for run in runs])
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
    """Return log losses (R, n) and their derivatives (7, R, n)."""
    return log_and_slopes(lambda t: curves(laws(t), runs), parameters)


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
    jacobian = slopes[:, data.fitted]
    scale = scale_of(values[data.fitted] - known)
    misfit = _misfit(values, data, scale)
    costs = np.array([cost for cost, _ in ends])
    peaks = data.runs.pace.max(axis=1)
    peak = 0.0 if several(peaks) else float(np.median(peaks))
    before = np.diag(_prior(known)[1] ** 2.0)
    prior = RateFit(best, before, np.zeros((3, len(NAMES))), scale, misfit, peak, costs, unit)
    scale = _of_rows(prior, jacobian)
    if whole is not None:
        scale, misfit = max(scale, whole.scale), max(misfit, whole.misfit)
    prior = prior._replace(scale=scale, misfit=misfit)
    covariance = with_more(prior, jacobian)
    granted = _by_granted(prior, values, data.runs)
    follow = -(granted[:, data.fitted] @ jacobian.T) @ covariance / _around(prior) ** 2
    return prior._replace(covariance=covariance, follow=follow)


def _of_rows(prior: RateFit, jacobian: Floats) -> float:
    """Return the scale of residuals, larger than in rows to which parameters were fitted.

    jacobian: (7, n). Of a parameter that the prior decides, only a part counts; where few rows are
    left, what is known before any pilot does.
    """
    count = jacobian.shape[1]
    used = np.sum((with_more(prior, jacobian) @ jacobian) * jacobian) / _around(prior) ** 2
    squares = count * prior.scale**2 + _BEFORE * _RESIDUAL**2
    return float(np.sqrt(squares / (max(count - used, 0.0) + _BEFORE)))


def _around(fit: RateFit) -> float:
    """Return the standard deviation of a row's log loss, as it counts for the parameters."""
    return _between(fit.misfit, _PARAMETERS) * fit.scale + 1e-12


def with_more(fit: RateFit, slopes: Floats) -> Floats:
    """Return the covariance (7, 7) with more rows, whose log losses have derivatives (7, n)."""
    jacobian = slopes / _around(fit)
    precision = np.linalg.inv(fit.covariance) + jacobian @ jacobian.T
    return np.linalg.inv(precision).astype(np.float64)


def _by_granted(fit: RateFit, values: Floats, runs: Pieces) -> Floats:
    """Return the changes of log losses (3, R, n) by what a law takes for granted, by one sd each.

    Pilots hardly decide whether noise grows as 1 + 2 s, whether the signal is a power law, and, if
    they have one peak, whether progress is in proportion to it; all matter for runs that are unlike
    them, or longer.
    """
    floor, signal, exponent = laws(fit.parameters)[:3]
    losses, rest = np.exp(values), signal * runs.progress**-exponent
    changes = (
        _NOISE_SHAPE * (losses - floor - rest),
        _BEND * np.log(runs.progress) ** 2,
        _OTHER_PEAK * exponent * np.log(_peaks(fit, runs)),
    )
    return np.stack([rest * change / losses for change in changes])


def _peaks(fit: RateFit, runs: Pieces) -> Floats:
    """Return the peaks of runs (R, 1) over the pilots', 1 where those have several."""
    peaks = runs.pace.max(axis=1, keepdims=True)
    return peaks / fit.peak if fit.peak else np.ones_like(peaks)


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

    def residuals(t: Floats) -> tuple[Floats, Floats]:
        values, slopes = value_and_slopes(t, data.runs)
        return values[data.fitted] - known, slopes[:, data.fitted]

    return descend(
        residuals, point, _prior(known), (_LOW, _HIGH),
        widths=_WIDTHS, trusted=_RESIDUAL, inflation=_PARAMETERS,
    )  # fmt: skip


def spread(fit: RateFit, runs: Pieces) -> tuple[Floats, Floats]:
    """Return log losses (R, n) and the standard deviations of their errors."""
    values, changes = uncertain(fit, runs)
    return values, np.sqrt((changes**2).sum(axis=0) + own_error(fit) ** 2)


def uncertain(fit: RateFit, runs: Pieces) -> tuple[Floats, Floats]:
    """Return log losses (R, n) and their changes (10, R, n) by one sd of each of what is not known.

    These are independent: the parameters, and what a law takes for granted.
    """
    values, slopes = value_and_slopes(fit.parameters, runs)
    variances, axes = np.linalg.eigh(fit.covariance)
    root = np.sqrt(np.maximum(variances, 0.0))[:, None] * axes.T
    granted = _by_granted(fit, values, runs) + np.tensordot(fit.follow, slopes, 1)
    return values, np.concatenate([np.tensordot(root, slopes, 1), granted])


def draws(fit: RateFit, data: Grid, count: int) -> Floats:
    """Return laws (count, 7) that fit nearly as well: the best, and draws about it."""
    best, _ = value_and_slopes(fit.parameters, data.runs)

    def change(points: Floats) -> Floats:
        values = logs_of(curves(laws(points), data.runs)[:, data.fitted])
        return ((values - best[data.fitted]) ** 2).sum(axis=1)

    expected = 2.0 * len(NAMES) * (_between(fit.misfit, _PARAMETERS) * fit.scale) ** 2
    points = nearby(fit.parameters, fit.covariance, change, expected, count - 1, (_LOW, _HIGH))
    return laws(np.vstack([fit.parameters, points]))


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
