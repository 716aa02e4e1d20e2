"""The law of shares, fitted to pilots: see `replan.models.ShareLaw` for its equations.

The noise of the learning rate is that of `replan.models.RateLaw`. Residuals are those of log
losses. Parameters t (9 + 3D,) are floor, signal, …, with scales as logarithms, then the noise's.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from replan.check import Bools, Floats
from replan.models.rate_law import KAPPA, Pieces, noise_of, pieces
from replan.models.relaxation import relax
from replan.models.share_law import Mixtures, moves, numbers, parts, untrained
from replan.pilots.descent import descend, log_and_slopes, logs_of, nearby
from replan.pilots.runs import SAME, Pilots, Run, prepended

STARTS = 5
_WIDTHS = (0.1, 0.03, 0.01, 0.003)  # of Huber's loss, one after another
_NOISE = 4  # parameters: noise, pace, spread, power
_ROWS = 40  # at which a run is integrated for a fit, besides those where its shares change
_TRUSTED = 0.01  # residual of a row, at most, as it counts against the prior
_EXPONENT = 2  # the place of this parameter: it is positive
_FARTHEST = 5.0  # standard deviations that parameters may be from what is known of them
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
    if max(np.isfinite(run.losses[:, loss]).sum() for run in pilots.runs) > 2:
        return True
    rows = [np.stack([x.steps, x.rates, pilots.batch_of(x)]) for x in pilots.runs]
    return any(x.shape != rows[0].shape or not np.allclose(x, rows[0]) for x in rows)


def data_of(
    pilots: Pilots,
    runs: tuple[Run, ...],
    unit: float,
    noisy: bool,
    *,
    loss: int | None = None,
    thin: bool = True,
) -> Data:
    """Return runs as the law reads them; with `thin`, at the rows that a fit of `loss` needs.

    Without noise pieces of equal shares are one, in closed form.
    """
    kept = [_kept(run, loss, pilots.early, noisy) if thin else np.arange(len(run.steps))
            for run in runs]  # fmt: skip
    size = max(map(len, kept))
    rows = np.stack([np.pad(x, (0, size - len(x)), mode="edge") for x in kept])
    progress, length, drive, shares, losses = [], [], [], [], []
    for run, at in zip(runs, rows, strict=True):
        fine = pieces(
            run.steps[None], run.rates[None], pilots.peak, unit, pilots.batch_of(run)[None]
        )
        progress.append(np.diff(fine.progress[0, at]))
        length.append(np.diff(run.steps[at]) / unit)
        drive.append(1.0 / pilots.batch_of(run)[at[:-1]])
        shares.append(_means(run.shares, np.diff(run.steps), at))
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
    """Return the rows of a run that are integrated for a fit of a loss, or for the end's."""
    count = len(run.steps)
    if noisy and count <= _ROWS:
        return np.arange(count)
    known = np.zeros(count, bool) if loss is None else np.isfinite(run.losses[:, loss])
    measured = np.flatnonzero(known & (run.steps >= early))
    even = np.linspace(0, count - 1, _ROWS // 2 if noisy else 2)
    thin = measured[np.linspace(0, len(measured) - 1, min(len(measured), _ROWS)).astype(int)]
    return np.unique(np.concatenate([even.astype(int), changes(run.shares), thin]))


def changes(shares: Floats) -> NDArray[np.int64]:
    """Return the rows (k,) at which shares (n, D) differ from those of the last such row."""
    rows, last = [], shares[0]
    for i, row in enumerate(shares):
        if np.abs(row - last).max() > SAME:
            rows.append(i)
            last = row
    return np.array(rows, np.int64)


def _means(shares: Floats, lengths: Floats, at: NDArray[np.int64]) -> Floats:
    """Return the mean shares (k - 1, D) between rows (k,), of shares (n, D) from each row on."""
    sums = np.cumsum(np.vstack([0.0 * shares[:1], lengths[:, None] * shares[:-1]]), axis=0)
    steps = np.append(0.0, np.cumsum(lengths))
    whole = np.diff(steps[at])[:, None]
    return np.where(
        whole > 0, np.diff(sums[at], axis=0) / np.maximum(whole, 1e-300), shares[at[:-1]]
    )


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
    logs = logarithmic((t.shape[1] - len(_FIRST) - _NOISE) // 3)[:-_NOISE]
    return np.where(logs, np.exp(np.where(logs, t[:, :-_NOISE], 0.0)), t[:, :-_NOISE])


def logarithmic(domains: int) -> Bools:
    """Return which parameters (9 + 3D,) are logarithms: all but those that are no scales."""
    logs = np.ones(len(_FIRST) + 3 * domains + _NOISE, bool)
    logs[[0, _EXPONENT, -2, -1]] = False  # floor, exponent; spread and power of the noise
    return logs


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
    best = _with_free(fixed, free, ends[0][1])
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


def _with_free(fixed: Floats, free: Bools, t: NDArray[Any]) -> NDArray[Any]:
    """Return all parameters (…, 9 + 3D), with the free ones t (…, k)."""
    whole = np.broadcast_to(fixed, (*t.shape[:-1], len(fixed))).astype(t.dtype)
    whole[..., free] = t
    return whole


def _bounds(mean: Floats, deviation: Floats) -> tuple[Floats, Floats]:
    low = mean - _FARTHEST * deviation
    low[_EXPONENT] = 0.0
    return low, mean + _FARTHEST * deviation


def _descend(
    data: Data, fixed: Floats, free: Bools, point: Floats, before: tuple[Floats, Floats]
) -> tuple[float, Floats]:
    """Return the cost and the free parameters that a start leads to."""
    fitted = np.isfinite(data.losses)
    known = np.log(data.losses[fitted])
    low, high = _bounds(*before)

    def residuals(t: Floats) -> tuple[Floats, Floats]:
        logs, slopes = value_and_slopes(_with_free(fixed, free, t), free, data)
        return logs[fitted] - known, slopes[:, fitted]

    prior = before[0][free], before[1][free]
    return descend(
        residuals, point, prior, (low[free], high[free]), widths=_WIDTHS, trusted=_TRUSTED
    )


def value_and_slopes(t: Floats, free: Bools, data: Data) -> tuple[Floats, Floats]:
    """Return log losses (R, n + 1) and their derivatives (k, R, n + 1) by free parameters."""
    return log_and_slopes(lambda x: values(_with_free(t, free, x), data), t[free])


def spread(fit: ShareFitted, data: Data) -> tuple[Floats, Floats]:
    """Return log losses (R, n + 1) and the standard deviations of their errors."""
    logs, slopes = value_and_slopes(fit.parameters, fit.free, data)
    of_parameters = np.einsum("pra,pq,qra->ra", slopes, fit.covariance, slopes)
    return logs, np.sqrt(of_parameters + fit.scale**2)


def draws(fit: ShareFitted, data: Data, inflation: float, count: int) -> Floats:
    """Return parameters (count, 9 + 3D) that fit nearly as well: the best, and draws about it."""
    fitted = np.isfinite(data.losses)
    best, free = fit.parameters, fit.free

    def logs(points: Floats) -> Floats:
        rows = _with_free(best, free, points).astype(complex)
        return logs_of(values(rows, data)[:, fitted])

    middle = logs(best[None, free])

    def change(points: Floats) -> Floats:
        return ((logs(points) - middle) ** 2).sum(axis=1)

    expected = 2.0 * free.sum() * (inflation * fit.scale) ** 2
    low, high = _bounds(*prior(len(data.runs.repeats), data.losses[fitted].min()))
    points = nearby(
        best[free], inflation**2 * fit.covariance, change, expected, count - 1,
        (low[free], high[free]),
    )  # fmt: skip
    return np.vstack([best, _with_free(best, free, points)])
