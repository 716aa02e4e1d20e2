"""The next pilot of a law of shares: see `replan.pilots.next_pilot`.

Notation: K schedules of shares, L losses, k free parameters of a law.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from replan.check import Floats
from replan.pilots import shares
from replan.pilots.next_pilot import NextPilot
from replan.pilots.runs import Run

if TYPE_CHECKING:
    from replan.pilots.share_fit import LossFit, ShareFit

_NORMAL = 1.645  # of a 90 % interval
_BETWEEN = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)  # of two mixtures


def next_share_pilot(fit: ShareFit) -> NextPilot:
    """Return the switch of shares, or constant ones, that would narrow the answer most.

    The answer is the widest difference in the mean end loss between the best of these schedules
    and those whose predictions are closer to it than the law's own error.
    """
    runs = tuple(_schedules(fit))
    values, slopes = zip(*(_ends(fit, one, runs) for one in fit.fits), strict=True)
    total = np.mean([np.exp(x) for x in values], axis=0)
    best = int(np.argmin(total))
    covariances = [one.inflation**2 * one.fitted.covariance for one in fit.fits]

    def around(covariances: list[Floats]) -> Floats:
        """Return the standard deviations (K,) of the differences from the best schedule."""
        squares = np.zeros(len(runs))
        for value, slope, covariance in zip(values, slopes, covariances, strict=True):
            by_loss = np.exp(value) * slope
            contrast = (by_loss - by_loss[:, best, None]) / len(values)
            squares += np.einsum("pk,pq,qk->k", contrast, covariance, contrast)
        return np.sqrt(squares)

    own = fit.covered["error"] * total[best]
    open_ones = total - total[best] <= _NORMAL * own
    now = float(around(covariances)[open_ones].max())
    later = [
        around([
            _with_more(one, covariance, slope[:, i])
            for one, covariance, slope in zip(fit.fits, covariances, slopes, strict=True)
        ])[open_ones].max()
        for i in range(len(runs))
    ]  # fmt: skip
    before, after = _NORMAL * np.hypot([now, min(later)], own)
    run = runs[int(np.argmin(later))]
    domains = fit.pilots.domains
    return NextPilot(run, "shares", float(before), float(after), bool(now <= own), domains)


def _schedules(fit: ShareFit) -> list[Run]:
    """Return runs as the best pilot, with other shares in its halves."""
    mixtures, like = fit.law.mixtures, fit.best_run
    if len(mixtures) == 2:
        points = np.array([(1 - x) * mixtures[0] + x * mixtures[1] for x in _BETWEEN])
    else:
        points = np.vstack([mixtures, mixtures.mean(axis=0)])
    late = like.steps >= 0.5 * like.steps[-1]
    runs = []
    for first, last in product(points, repeat=2):
        if fit.stages == 1 and np.any(first != last):
            continue
        halves = dict.fromkeys(
            ", ".join(f"{100 * x:.0f} % {d}" for d, x in zip(fit.pilots.domains, row, strict=True))
            for row in (first, last)
        )
        name = ", from half-way on ".join(halves)
        runs.append(replace(like, name=name, shares=np.where(late[:, None], last, first)))
    return runs


def _ends(fit: ShareFit, one: LossFit, runs: tuple[Run, ...]) -> tuple[Floats, Floats]:
    """Return the log losses (K,) at the end of runs, and their derivatives (k, K)."""
    data = shares.data_of(fit.pilots, runs, None, fit.unit, one.noisy)
    values, slopes = shares.value_and_slopes(one.fitted.parameters, one.fitted.free, data)
    return values[:, -1], slopes[:, :, -1]


def _with_more(one: LossFit, covariance: Floats, slope: Floats) -> Floats:
    """Return the covariance (k, k) with another end loss, whose log has derivatives (k,)."""
    gained = covariance @ slope
    error = (one.inflation * one.fitted.scale) ** 2
    return covariance - np.outer(gained, gained) / (error + slope @ gained)
