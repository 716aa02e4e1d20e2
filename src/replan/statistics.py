"""Confidence intervals of means, and quantiles, computed in one place."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from replan.check import Floats

if TYPE_CHECKING:
    import pandas as pd


class Interval(NamedTuple):
    """Means and the 95 % confidence interval of each, all of one shape."""

    mean: Floats
    low: Floats
    high: Floats

    @property
    def half_width(self) -> Floats:
        """Half of the interval: what follows ± in a table."""
        return (self.high - self.low) / 2


def mean_interval(values: ArrayLike, level: float = 0.95) -> Interval:
    """Return the mean over the first axis and its interval by Student's t distribution.

    values: (runs, …), such as paired differences. A single run tells nothing about the spread: its
    interval is infinite. So is that of runs some of which are not finite; their mean is infinite,
    or not a number if they are infinite both ways.
    """
    from scipy.stats import t

    runs = np.asarray(values, dtype=np.float64)
    with np.errstate(invalid="ignore"):
        count, mean = len(runs), np.asarray(runs.mean(axis=0))
    known = np.isfinite(mean) & (count > 1)
    low, high = np.full(mean.shape, -np.inf), np.full(mean.shape, np.inf)
    if known.any():
        spread = runs[:, known].std(axis=0, ddof=1) / np.sqrt(count)
        error = t.ppf((1 + level) / 2, count - 1) * spread
        low[known], high[known] = mean[known] - error, mean[known] + error
    return Interval(mean, low, high)


def quantile(values: pd.Series, level: float) -> float:
    """Return a quantile of values; those that are missing count as larger than any."""
    if values.isna().any():
        return float(values.fillna(np.inf).quantile(level, interpolation="higher"))
    return float(values.quantile(level))
