"""The next pilot of a law of shares: see `replan.pilots.next_pilot`.

Notation: K schedules of shares, L losses, k free parameters of a law.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from replan.check import Floats
from replan.pilots import shares
from replan.pilots.descent import NORMAL
from replan.pilots.next_pilot import NextPilot
from replan.pilots.runs import Run
from replan.pilots.share_rivals import in_words

if TYPE_CHECKING:
    from replan.pilots.share_fit import LossFit, ShareFit

_BETWEEN = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)  # of two mixtures


def next_share_pilot(fit: ShareFit) -> NextPilot:
    """Return the switch of shares, or constant ones, that would narrow the answer most.

    The answer is the widest difference in the mean end loss between the best of these schedules
    and those that cannot be told from it.
    """
    runs = tuple(_schedules(fit))
    values, slopes = zip(*(_ends(fit, x, runs) for x in fit.fits), strict=True)
    total = np.mean([np.exp(x) for x in values], axis=0)
    best = int(np.argmin(total))
    covariances = [x.inflation**2 * x.fitted.covariance for x in fit.fits]

    def around(covariances: list[Floats]) -> Floats:
        """Return the standard deviations (K,) of the differences from the best schedule."""
        squares = np.zeros(len(runs))
        for value, slope, covariance in zip(values, slopes, covariances, strict=True):
            by_loss = np.exp(value) * slope
            contrast = (by_loss - by_loss[:, best, None]) / len(values)
            squares += np.einsum("pk,pq,qk->k", contrast, covariance, contrast)
        return np.sqrt(squares)

    # What pilots leave open is far from linear: no more than the law was wrong about one left out.
    worst = np.mean([np.abs(x.errors["law"]).max() for x in fit.fits])
    linear = around(covariances)
    tamed = np.minimum(1.0, worst / np.maximum(linear, 1e-300))
    own = fit.covered["error"] * total[best]
    close = total - total[best] <= NORMAL * np.hypot(tamed * linear, own)
    now = float((tamed * linear)[close].max())
    later = [
        (tamed * around([
            _with_more(x, covariance, slope[:, i])
            for x, covariance, slope in zip(fit.fits, covariances, slopes, strict=True)
        ]))[close].max()
        for i in range(len(runs))
    ]  # fmt: skip
    before, after = NORMAL * np.hypot([now, min(later)], own)
    run = runs[int(np.argmin(later))]
    domains = fit.pilots.domains
    return NextPilot(run, "shares", float(before), float(after), bool(now <= own), domains)


def _schedules(fit: ShareFit) -> Iterator[Run]:
    """Yield runs as the best pilot, with other shares in its halves."""
    mixtures, like = fit.law.mixtures, _with_row(fit.best_run, 0.5 * fit.best_run.steps[-1])
    if len(mixtures) == 2:
        points = np.array([(1 - x) * mixtures[0] + x * mixtures[1] for x in _BETWEEN])
    else:
        points = np.vstack([mixtures, mixtures.mean(axis=0)])
    late = like.steps >= 0.5 * like.steps[-1]
    for first, last in product(points, repeat=2):
        if fit.stages == 1 and np.any(first != last):
            continue
        halves = dict.fromkeys(in_words(fit.pilots.domains, row) for row in (first, last))
        name = ", from half-way on ".join(halves)
        yield replace(like, name=name, shares=np.where(late[:, None], last, first))


def _with_row(run: Run, step: float) -> Run:
    """Return a run that has a row at a step, without a loss."""
    if step in run.steps:
        return run
    at = int(np.searchsorted(run.steps, step))
    return replace(
        run,
        steps=np.insert(run.steps, at, step),
        rates=np.insert(run.rates, at, np.interp(step, run.steps, run.rates)),
        losses=np.insert(run.losses, at, np.nan, axis=0),
        shares=np.insert(run.shares, at, run.shares[at - 1], axis=0),
        batch=np.insert(run.batch, at, run.batch[at - 1]),
        first=run.first + (at <= run.first),
    )


def _ends(fit: ShareFit, loss: LossFit, runs: tuple[Run, ...]) -> tuple[Floats, Floats]:
    """Return the log losses (K,) at the end of runs, and their derivatives (k, K)."""
    data = shares.data_of(fit.pilots, runs, fit.unit, loss.noisy)
    values, slopes = shares.value_and_slopes(loss.fitted.parameters, loss.fitted.free, data)
    return values[:, -1], slopes[:, :, -1]


def _with_more(loss: LossFit, covariance: Floats, slope: Floats) -> Floats:
    """Return the covariance (k, k) with another end loss, whose log has derivatives (k,)."""
    gained = covariance @ slope
    error = (loss.inflation * loss.fitted.scale) ** 2
    return covariance - np.outer(gained, gained) / (error + slope @ gained)
