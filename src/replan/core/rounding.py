"""Rounding of shares to one task per step, compiled."""

from __future__ import annotations

import numpy as np

from replan.check import Bools, Floats, Ints
from replan.core.compiled import compiled

_TIE = 1e-9  # differences below this, in steps, are rounding errors: the first task wins


@compiled
def follow(shares: Floats, lengths: Floats, patience: float, there: Bools, lag: Floats) -> Ints:
    """Continue `sum_up` from `lag` (T,), how far each task lags; it is updated."""
    steps, tasks = shares.shape
    chosen = np.empty(steps, np.int64)
    for i in range(steps):
        best = -1
        for t in range(tasks):
            lag[t] += shares[i, t] * lengths[i]
            if there[i, t] and (best < 0 or lag[t] > lag[best] + _TIE * lengths[i]):
                best = t
        if patience > 0.0 and i > 0:
            before = chosen[i - 1]
            if there[i, before] and lag[best] <= lag[before] + patience * lengths[i]:
                best = before
        lag[best] -= lengths[i]
        chosen[i] = best
    return chosen


@compiled
def sum_up(shares: Floats, lengths: Floats, patience: float, there: Bools) -> Ints:
    """Return one task per step (steps,) from shares (steps, T) and lengths (steps,).

    Every step goes to the task that lags its integrated share most. On equal steps the integrated
    shares then never deviate by more than (½ + … + 1/T) × the step (for two tasks on any grid, ½ ×
    the longest step). (Sager, Bock & Diehl 2012; Kirches, Lenders & Manns 2020)

    With `patience` a task continues until another lags by that many steps more. Tasks that are not
    `there` (steps, T) do not catch up.
    """
    return follow(shares, lengths, patience, there, np.zeros(shares.shape[1]))
