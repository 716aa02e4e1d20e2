"""The law of shares, fitted to pilots: see `replan.models.ShareLaw` for its equations.

The noise of the learning rate is that of `replan.models.RateLaw`. Residuals are those of log
losses. Parameters t (9 + 3D,) are floor, signal, …, with scales as logarithms, then the noise's.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from replan.check import Bools, Floats
from replan.models.rate_law import Pieces, noise_of, pieces
from replan.models.relaxation import relax
from replan.models.share_law import Mixtures, moves, numbers, parts, untrained
from replan.pilots.rates import nearby
from replan.pilots.runs import Pilots, Run, prepended

STARTS = 5
_WIDTHS = (0.1, 0.03, 0.01, 0.003)  # of Huber's loss, one after another
_NOISE = 4  # parameters: noise, pace, spread, power
KAPPA = 2.0  # noise grows with the loss that is left to learn, as in the law of rates
_ROWS = 40  # at which a run is integrated for a fit, besides those where its shares change
_TRUSTED = 0.01  # residual of a row, at most, as it counts against the prior
_LEAST = 1e-3  # log loss: what no law of shares is more certain of
# What is known before any pilot: means and standard deviations, which decide what pilots leave
# open. Floor and signal are relative to the smallest loss.
_FIRST = np.array([[0.88, 0.3], [0.0, 1.5], [0.5, 0.25], [-1.5, 1.5], [0.5, 1.5]])
_OF_DOMAINS = np.array([[-2.5, 2.5], [-1.5, 2.0], [0.0, 1.5]])  # transfer, forgetting, overfit
_OF_NOISE = np.array([[-3.0, 1.5], [7.0, 1.5], [0.5, 0.5], [0.6, 0.15]])


class Data(NamedTuple):
    """Runs side by side, padded at the end.

    runs, rates: pieces (R, n). rows: (R, n + 1) of the log, at the edges of the pieces. losses:
    (R, n + 1) NaN where not measured or not fitted.
    """

    runs: Mixtures
    rates: Pieces
    rows: NDArray[np.int64]
    losses: Floats


class ShareFitted(NamedTuple):
    """A fitted law of one loss: parameters (9 + 3D,), which were free, covariance, the residuals.

    scale: standard deviation of the residuals. ends: costs (starts,) in ascending order.
    """

    parameters: Floats
    free: Bools
    covariance: Floats
    scale: float
    ends: Floats


def unit_of(pilots: Pilots) -> float:
    """Return the steps at the peak that count as 1: those of a typical training."""
    areas = [np.trapezoid(run.rates, run.steps) / pilots.peak for run in pilots.runs]
    return float(np.median(areas))


def whole(run: Run) -> Run:
    """Return a run with its first step, where its log begins later."""
    if run.steps[0] == 0:
        return run
    return prepended(run, np.zeros(1), run.rates[:1], run.shares[:1], run.batch[:1])


def has_noise(pilots: Pilots, loss: int) -> bool:
    """Return whether the rate's noise shows: in curves, or in runs with different rates."""
    runs = pilots.runs
    if max(np.isfinite(run.losses[:, loss]).sum() for run in runs) > 2:
        return True
    first = runs[0]
    return any(
        len(run.steps) != len(first.steps) or not np.allclose(run.rates, first.rates)
        for run in runs
    )


def data_of(
    pilots: Pilots, runs: tuple[Run, ...], loss: int | None, unit: float, noisy: bool
) -> Data:
    """Return runs as the law reads them; with `loss`, thinned to the rows that a fit needs.

    Without noise pieces of equal shares are one, in closed form.
    """
    kept = [_kept(run, loss, pilots.early, noisy) for run in runs]
    size = max(map(len, kept))
    rows = np.stack([np.pad(x, (0, size - len(x)), mode="edge") for x in kept])
    batch = float(np.median([np.median(run.batch) for run in pilots.runs]))
    progress, length, drive, shares, losses = [], [], [], [], []
    for run, at in zip(runs, rows, strict=True):
        fine = pieces(run.steps[None], run.rates[None], pilots.peak, unit)
        progress.append(np.diff(fine.progress[0, at]))
        length.append(np.diff(run.steps[at]) / unit)
        drive.append(batch / run.batch[at[:-1]])
        shares.append(run.shares[at[:-1]])
        values = np.full(size, np.nan)
        if loss is not None:
            new = np.diff(at, prepend=-1) > 0
            values = np.where(new & (run.steps[at] >= pilots.early), run.losses[at, loss], np.nan)
        losses.append(values)
    done, lengths = np.stack(progress), np.stack(length)
    pace = done / np.maximum(lengths, 1e-12)
    rates = Pieces(pace, pace * np.stack(drive), lengths, done)
    repeats = unit / pilots.unique
    return Data(Mixtures(done, np.stack(shares), repeats), rates, rows, np.stack(losses))


def _kept(run: Run, loss: int | None, early: float, noisy: bool) -> NDArray[np.int64]:
    """Return the rows of a run that are integrated: all, or those that a fit needs."""
    count = len(run.steps)
    if loss is None or (noisy and count <= _ROWS):
        return np.arange(count)
    measured = np.flatnonzero(np.isfinite(run.losses[:, loss]) & (run.steps >= early))
    changes = np.flatnonzero(np.any(np.diff(run.shares, axis=0) != 0, axis=1)) + 1
    even = np.linspace(0, count - 1, _ROWS // 2 if noisy else 2)
    thin = measured[np.linspace(0, len(measured) - 1, min(len(measured), _ROWS)).astype(int)]
    return np.unique(np.concatenate([even.astype(int), changes, thin]))


def values(t: NDArray[np.complex128], data: Data) -> NDArray[np.complex128]:
    """Return the losses (P, R, n + 1) under parameters (P, 9 + 3D)."""
    laws = laws_of(t)
    first = untrained(len(t), len(data.rows), data.runs.shares.shape[2])
    signal, overfit = parts(laws, relax(first, *moves(laws, data.runs)))
    total = numbers(laws).floor + signal + overfit
    if np.isfinite(t[0, -_NOISE]):
        total = total + noise(t, data.rates) * (1.0 + KAPPA * signal)
    return np.moveaxis(total, 0, -1)


def noise(t: NDArray[np.complex128], rates: Pieces) -> NDArray[np.complex128]:
    """Return the noise (n + 1, P, R) of the learning rate under parameters (P, 9 + 3D)."""
    amplitude, pace, spread, power = t[:, -_NOISE:].T
    amplitude, none = np.exp(amplitude), np.zeros_like(pace)
    rows = np.stack([none, none, none, none, np.exp(pace), spread, power], axis=1)
    modes = relax(np.zeros(1), *noise_of(rows, rates)).sum(axis=-1)
    return amplitude[:, None] * modes


def laws_of(t: NDArray[np.complex128]) -> NDArray[np.complex128]:
    """Return parameters (P, 9 + 3D) as laws (P, 5 + 3D) of `ShareLaw`."""
    laws = np.exp(t[:, :-_NOISE])
    laws[:, [0, 2]] = t[:, [0, 2]]
    return laws


def prior(domains: int, lowest: float) -> tuple[Floats, Floats]:
    """Return mean and standard deviation (9 + 3D,) of the parameters before any pilot."""
    rows = np.concatenate([_FIRST, np.repeat(_OF_DOMAINS, domains, axis=0), _OF_NOISE])
    mean, deviation = rows.T.copy()
    mean[0], deviation[0] = lowest * mean[0], lowest * deviation[0]
    mean[1] += np.log(lowest)
    mean[-_NOISE] += np.log(lowest)
    return mean, deviation


def fit_shares(
    data: Data, noisy: bool, seed: int = 0, near: Floats | None = None, starts: int = STARTS
) -> ShareFitted:
    """Fit the law of one loss: Huber's loss of log losses, ever narrower, from several starts.

    `near`: parameters to start from, instead.
    """
    known = data.losses[np.isfinite(data.losses)]
    mean, deviation = prior(data.runs.shares.shape[2], known.min())
    free = _free(data, noisy)
    fixed = np.where(free, mean, -np.inf)  # no noise, nothing memorised
    draws = np.random.default_rng(seed).uniform(-1.0, 1.0, (starts, len(mean)))
    points = (mean + 0.7 * deviation * draws)[:, free] if near is None else near[None, free]
    ends = sorted(
        (_descend(data, fixed, free, point, (mean, deviation)) for point in points),
        key=lambda end: end[0],
    )
    best = fixed.copy()
    best[free] = ends[0][1]
    logs, slopes = value_and_slopes(best, free, data)
    fitted = np.isfinite(data.losses)
    wrong = logs[fitted] - np.log(data.losses[fitted])
    spare = max(len(wrong) - int(free.sum()), 1)
    scale = max(_LEAST, float(np.median(np.abs(wrong))) / 0.6745 * np.sqrt(len(wrong) / spare))
    jacobian = slopes[:, fitted] / scale
    precision = jacobian @ jacobian.T + np.diag(deviation[free] ** -2.0)
    return ShareFitted(best, free, np.linalg.inv(precision), scale, np.array([x for x, _ in ends]))


def _free(data: Data, noisy: bool) -> Bools:
    """Return which parameters (9 + 3D,) the pilots can say anything about."""
    repeated = data.runs.repeats > 0
    always = np.ones(2 * len(repeated), bool)
    remembered = np.full(2, repeated.any())
    noise = np.full(_NOISE, noisy)
    return np.concatenate([np.ones(3, bool), remembered, always, repeated, noise])


def _descend(
    data: Data, fixed: Floats, free: Bools, point: Floats, before: tuple[Floats, Floats]
) -> tuple[float, Floats]:
    """Return the cost and the free parameters that a start leads to."""
    from scipy.optimize import least_squares

    mean, deviation = before[0][free], before[1][free]
    fitted = np.isfinite(data.losses)
    known, trusted = np.log(data.losses[fitted]), _TRUSTED
    slopes: list[Floats] = []

    def residuals(t: Floats) -> Floats:
        whole = fixed.copy()
        whole[free] = t
        logs, by_t = value_and_slopes(whole, free, data)
        slopes[:] = [np.concatenate([by_t[:, fitted].T, np.diag(trusted / deviation)])]
        return np.concatenate([logs[fitted] - known, (t - mean) * trusted / deviation])

    cost = np.inf
    low, high = mean - 5.0 * deviation, mean + 5.0 * deviation
    for width in _WIDTHS:
        end = least_squares(
            residuals, point, lambda _: slopes[0], (low, high), loss="huber", f_scale=width,
            x_scale="jac", max_nfev=60,
        )  # fmt: skip
        point, cost = end.x, float(end.cost)
    return cost, point


def value_and_slopes(t: Floats, free: Bools, data: Data) -> tuple[Floats, Floats]:
    """Return log losses (R, n + 1) and their derivatives (k, R, n + 1) by free parameters."""
    tiny = 1e-20
    shifted = np.repeat(t[None].astype(complex), int(free.sum()), axis=0)
    shifted[:, free] += 1j * tiny * np.eye(len(shifted))
    losses = values(shifted, data)
    real = np.maximum(losses[0].real, 1e-3)
    return np.log(real), losses.imag / tiny / real


def spread(fit: ShareFitted, data: Data) -> tuple[Floats, Floats]:
    """Return log losses (R, n + 1) and the standard deviations of their errors."""
    logs, slopes = value_and_slopes(fit.parameters, fit.free, data)
    of_parameters = np.einsum("pra,pq,qra->ra", slopes, fit.covariance, slopes)
    return logs, np.sqrt(of_parameters + fit.scale**2)


def draws(fit: ShareFitted, data: Data, inflation: float, count: int) -> Floats:
    """Return parameters (count, 9 + 3D) that fit nearly as well: the best, and draws about it."""
    rows = np.repeat(fit.parameters[None], count, axis=0)
    free = np.ix_(np.arange(1, count), np.flatnonzero(fit.free))
    fitted = np.isfinite(data.losses)
    logs = np.log(values(rows[:1].astype(complex), data)[0].real[fitted])

    def change(points: Floats) -> Floats:
        rows[free] = points
        moved = np.maximum(values(rows[1:].astype(complex), data).real[:, fitted], 1e-3)
        return ((np.log(moved) - logs) ** 2).sum(axis=1)

    expected = 2.0 * fit.free.sum() * (inflation * fit.scale) ** 2
    best, covariance = fit.parameters[fit.free], inflation**2 * fit.covariance
    rows[free] = nearby(best, covariance, change, expected, count - 1)
    return rows
