"""Rounding of shares to one task per step."""

from __future__ import annotations

import numpy as np

from replan.check import Bools, Floats, Ints
from replan.core import library
from replan.core.threads import Pace
from replan.errors import ArgumentError

_PACE = Pace()


def follow(shares: Floats, lengths: Floats, patience: float, there: Bools, lag: Floats) -> Ints:
    """Continue `sum_up` from `lag` (T,), how far each task lags; it is updated."""
    steps = len(shares)
    chosen = np.empty(steps, np.int64)
    done = _PACE.run(library.FOLLOW, steps, patience, shares, lengths, there, lag, chosen)
    if done < steps:
        raise ArgumentError("there", "a task in every step", f"none in step {done + 1}")
    return chosen


def sum_up(shares: Floats, lengths: Floats, patience: float, there: Bools) -> Ints:
    """Return one task per step (steps,) from shares (steps, T) and lengths (steps,).

    Every step goes to the task that lags its integrated share most. On equal steps the integrated
    shares then never deviate by more than (½ + … + 1/T) × the step (for two tasks on any grid, ½ ×
    the longest step). (Sager, Bock & Diehl 2012; Kirches, Lenders & Manns 2020)

    With `patience` a task continues until another lags by that many steps more. Tasks that are not
    `there` (steps, T) do not catch up.
    """
    return follow(shares, lengths, patience, there, np.zeros(shares.shape[1]))
