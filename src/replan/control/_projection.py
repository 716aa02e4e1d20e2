"""Compiled projection onto the relaxed controls: rows in the simplex, a box, budgets of both."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from replan._common.check import Floats
from replan._common.compiled import compiled

_CYCLES = 200
_EXACT = 1e-13
_FAR = 1e18  # a price at which a task has all or nothing, to rounding


class Domain(NamedTuple):
    """Vectors that hold `rows` rows of shares (T each) and then m numbers between 0 and 1.

    The mean share of task t over all rows lies between low[t] and high[t]. Of the numbers x, the
    mean weights[g] · x of each of G groups, which have none in common, lies between least[g] and
    most[g]; weights are (G, m), positive on the group.
    """

    rows: int
    low: Floats
    high: Floats
    weights: Floats
    least: Floats
    most: Floats


@compiled
def project_rows(rows: Floats, shift: Floats, out: Floats) -> None:
    """Write the nearest point of the simplex to every row minus `shift`; all (steps, T) or (T,).

    All entries that end above zero are lowered by the same amount; one that falls below zero leaves
    that set for good. (Michelot 1986)
    """
    T = rows.shape[1]
    for i in range(rows.shape[0]):
        level, count = -np.inf, T + 1
        while True:
            total, above = -1.0, 0
            for t in range(T):
                if rows[i, t] - shift[t] > level:
                    total += rows[i, t] - shift[t]
                    above += 1
            if above >= count or above == 0:  # by rounding
                break
            level, count = total / above, above
        for t in range(T):
            out[i, t] = max(rows[i, t] - shift[t] - level, 0.0)


@compiled
def _mean(rows: Floats, shift: Floats, t: int, out: Floats) -> float:
    project_rows(rows, shift, out)
    total = 0.0
    for i in range(out.shape[0]):
        total += out[i, t]
    return total / out.shape[0]


@compiled
def _project_with_budgets(rows: Floats, low: Floats, high: Floats, out: Floats) -> None:
    """Find the price `shift` of each task in turn at which its budget is kept, by bisection.

    A task's mean share falls with its own price; the price is 0 unless the budget binds.
    """
    T = rows.shape[1]
    shift = np.zeros(T)
    for _ in range(_CYCLES):
        moved, largest = 0.0, 0.0
        for t in range(T):
            before = shift[t]
            shift[t] = 0.0
            share = _mean(rows, shift, t, out)
            if share > high[t] or share < low[t]:
                bound = high[t] if share > high[t] else low[t]
                sign = 1.0 if share > high[t] else -1.0
                near, far = 0.0, sign
                while abs(far) < _FAR and sign * (_mean_at(rows, shift, t, far, out) - bound) > 0.0:
                    near, far = far, 2.0 * far
                while abs(far - near) > _EXACT * abs(far):
                    middle = 0.5 * (near + far)
                    if middle in (near, far):
                        break
                    if sign * (_mean_at(rows, shift, t, middle, out) - bound) > 0.0:
                        near = middle
                    else:
                        far = middle
                shift[t] = far
            moved = max(moved, abs(shift[t] - before))
            largest = max(largest, abs(shift[t]))
        if moved <= 1e-12 * (1.0 + largest):
            break
    project_rows(rows, shift, out)


@compiled
def _mean_at(rows: Floats, shift: Floats, t: int, price: float, out: Floats) -> float:
    shift[t] = price
    return _mean(rows, shift, t, out)


@compiled
def project(x: Floats, domain: Domain) -> Floats:
    """Return the nearest vector of the domain."""
    T = domain.low.size
    out = np.empty_like(x)
    end = domain.rows * T
    if domain.rows:
        rows, shares = x[:end].reshape(-1, T), out[:end].reshape(-1, T)
        bound = False
        for t in range(T):
            bound |= domain.low[t] > 0.0 or domain.high[t] < 1.0
        if not bound:
            project_rows(rows, np.zeros(T), shares)
        else:
            _project_with_budgets(rows, domain.low, domain.high, shares)
    for i in range(end, x.size):
        out[i] = min(max(x[i], 0.0), 1.0)
    for g in range(domain.least.size):
        _project_mean(x[end:], domain.weights[g], domain.least[g], domain.most[g], out[end:])
    return out


@compiled
def _project_mean(x: Floats, weights: Floats, least: float, most: float, out: Floats) -> None:
    """Move a group within its box so that its mean is within bounds, to the nearest such point.

    That lowers every number by its weight × one price, found by bisection. `out` holds the box's
    nearest point.
    """
    mean = np.dot(weights, out)
    if least <= mean <= most:
        return
    bound, sign = (most, 1.0) if mean > most else (least, -1.0)
    largest = 0.0  # the mean of ones, which rounding can leave below a bound of 1
    for i in range(x.size):
        largest += weights[i]
    bound = min(max(bound, 0.0), largest)
    near, far = 0.0, sign
    while sign * (_shifted_mean(x, weights, far, out) - bound) > 0.0:
        near, far = far, 2.0 * far
    while abs(far - near) > _EXACT * abs(far):
        middle = 0.5 * (near + far)
        if middle in (near, far):
            break
        if sign * (_shifted_mean(x, weights, middle, out) - bound) > 0.0:
            near = middle
        else:
            far = middle
    _shifted_mean(x, weights, far, out)


@compiled
def _shifted_mean(x: Floats, weights: Floats, price: float, out: Floats) -> float:
    mean = 0.0
    for i in range(x.size):
        if weights[i] > 0.0:
            out[i] = min(max(x[i] - price * weights[i], 0.0), 1.0)
            mean += weights[i] * out[i]
    return mean
