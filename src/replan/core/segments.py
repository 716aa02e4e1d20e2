"""Cutting a row of steps into the few segments that fit it best."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import numpy as np

from replan.check import Floats, Ints


def segmentations(errors: Floats) -> Iterator[list[int]]:
    """Yield the steps [0, …, n] at which 1, 2, … segments with the least total error begin.

    errors: (n + 1, n + 1) of one segment over steps i to j - 1, infinite where there are none.
    """
    totals, begins = errors[0], [np.zeros(len(errors), int)]
    while True:
        cuts = [len(errors) - 1]
        for begin in reversed(begins):
            cuts.append(int(begin[cuts[-1]]))
        yield cuts[::-1]
        split = totals[:, None] + errors
        begins.append(split.argmin(axis=0))
        totals = split.min(axis=0)


def constant_segments(values: Floats, weights: Floats) -> Iterator[tuple[Ints, Floats]]:
    """Yield the first steps (k,) and the means (k, c) of k = 1, 2, … constant segments.

    They are nearest to values (n, c) in the sum of squares with weights (n, c). The last are exact.
    """
    begins = np.flatnonzero(np.any(np.diff(values, axis=0, prepend=np.nan) != 0, axis=1))
    ends = np.append(begins, len(values))
    errors = np.zeros((len(ends), len(ends)))
    for x, w in zip(values.T, weights.T, strict=True):
        sums = (np.append(0.0, np.cumsum(y))[ends] for y in (w, w * x, w * x * x))
        weight, first, second = (np.subtract.outer(y, y).T for y in sums)
        with np.errstate(divide="ignore", invalid="ignore"):
            errors += second - first**2 / weight
    errors[np.tril_indices(len(ends))] = np.inf
    for cuts in islice(segmentations(errors), len(begins)):
        steps = begins[cuts[:-1]]
        means = np.add.reduceat(weights * values, steps) / np.add.reduceat(weights, steps)
        yield steps, np.where(np.ptp(values, axis=0) == 0, values[0], means)  # exact if constant
