"""Stages: a schedule as the few straight lines that trainers execute."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from replan.check import Floats
from replan.core.segments import segmentations

_CLOSE = 0.02  # of the largest rate: no rate differs by more


class Stage(NamedTuple):
    """A part of a schedule over which the rate changes linearly."""

    from_step: float
    to_step: float
    from_lr: float
    to_lr: float


def stages(edges: Floats, rates: Floats, low: float, high: float) -> list[Stage]:
    """Return the fewest least-squares lines near the rates (n,) of equal pieces between edges.

    A rate is that of the middle of its piece. Stages keep within `low` and `high` where rates do.
    """
    top = rates.max()
    times, values = np.arange(0.5, len(rates)), rates / top
    for cuts in _cuts(times, values):
        ends, heights = _joined(times, values, cuts)
        steps = np.interp(ends, np.arange(len(edges)), edges)
        lrs = np.clip(top * heights, min(low, rates.min()), max(high, top))
        if np.abs(np.interp(times, ends, lrs) - rates).max() <= _CLOSE * top:
            break
    return [
        Stage(*(float(x) for x in (*steps[k : k + 2], *lrs[k : k + 2])))
        for k in range(0, len(ends), 2)
    ]


def _cuts(times: Floats, values: Floats) -> Iterator[list[int]]:
    """Return the rows [0, …, n] at which 1, 2, … lines with the least squared error begin."""
    t, v, tt, tv, vv, count = (
        np.subtract.outer(sums, sums).T  # [i, j]: over rows i to j - 1
        for sums in (
            np.append(0.0, np.cumsum(x))
            for x in (times, values, times**2, times * values, values**2, np.ones(len(times)))
        )
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        squares = vv - v**2 / count - (tv - t * v / count) ** 2 / (tt - t**2 / count)
    squares[count == 1] = 0.0
    squares[count < 1] = np.inf
    return segmentations(squares)


def _joined(times: Floats, values: Floats, cuts: list[int]) -> tuple[Floats, Floats]:
    """Return where each line begins and ends, and its values there: (2 k,) each.

    Neighbours meet where they cross between two rows, or are close; else the rate jumps.
    """
    lines = [
        np.polyfit(times[i:j], values[i:j], 1) if j - i > 1 else np.array([0.0, values[i]])
        for i, j in pairwise(cuts)
    ]
    ends, heights = [0.0], [lines[0][1]]
    for cut, ((a, b), (c, d)) in zip(cuts[1:-1], pairwise(lines), strict=True):
        crossing = (d - b) / (a - c) if a != c else np.inf
        at = crossing if abs(crossing - cut) <= 0.5 + 1e-6 else float(cut)
        left, right = a * at + b, c * at + d
        if abs(left - right) <= _CLOSE:
            left = right = 0.5 * (left + right)
        ends += [at, at]
        heights += [left, right]
    ends.append(float(len(times)))
    heights.append(np.polyval(lines[-1], len(times)))
    return np.round(ends, 6), np.round(heights, 9)
