"""Compiled loops over rows of shares: rounding to one task a step, projection on the simplex."""

from __future__ import annotations

import numpy as np
from numba import njit

from replan.check import Floats, Ints

_TIE = 1e-9  # differences below this, in steps, are rounding errors: the first task wins


@njit(cache=True, nogil=True)
def sum_up(shares: Floats, lengths: Floats) -> Ints:
    """Return one task a step (steps,) from shares (steps, T) and lengths (steps,).

    Every step goes to the task that lags its integrated share most. The integrated shares then
    never deviate by more than (½ + … + 1/T) × the longest step where all steps are equal (½ for
    two tasks on any grid). (Sager, Bock & Diehl 2012; Kirches, Lenders & Manns 2020)
    """
    steps, tasks = shares.shape
    chosen = np.empty(steps, np.int64)
    lag = np.zeros(tasks)
    for i in range(steps):
        best = 0
        for t in range(tasks):
            lag[t] += shares[i, t] * lengths[i]
            if lag[t] > lag[best] + _TIE * lengths[i]:
                best = t
        lag[best] -= lengths[i]
        chosen[i] = best
    return chosen


@njit(cache=True, nogil=True)
def project_rows(rows: Floats) -> Floats:
    """Return the nearest point of the simplex for every row (steps, T).

    What is above zero in the end is all lowered by the same amount; terms leave that set one after
    the other, the smallest first. (Held, Wolfe & Crowder 1974)
    """
    out = np.empty_like(rows)
    for i in range(rows.shape[0]):
        ordered = np.sort(rows[i])
        total, count = ordered.sum() - 1.0, ordered.size
        for smallest in ordered:
            if smallest * count > total:
                break
            total -= smallest
            count -= 1
        for t in range(rows.shape[1]):
            out[i, t] = max(rows[i, t] - total / count, 0.0)
    return out
