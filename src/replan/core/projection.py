"""Compiled projection onto the relaxed controls: rows in the simplex, a box, budgets of both."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from replan.check import Bools, Floats, Ints
from replan.core.compiled import compiled, inner
from replan.core.interrupt import run_interruptibly

_CYCLES = 2000  # through the prices of all tasks
_TURNS = 200  # at the price of one of them
_EXACT = 1e-14
_LARGE = 100_000  # numbers whose projection may take long
_FAR = 1e18  # a price at which a task has all or nothing, to rounding


class Domain(NamedTuple):
    """Vectors that hold `rows` rows of shares (T each) and then m numbers between 0 and 1.

    available: (rows, T) whether a task can have a share in a row; (0, T) where all always can. The
    mean share of task t over all rows lies between low[t] and high[t]. Of the numbers x, the mean
    weights[g] · x of each of G disjoint groups lies between least[g] and most[g]; weights are
    (G, m), positive on the group.

    old: (rows, T) whether a task counts as replay in a row; the mean of their shares over the rows
    from spans[i, 0] to spans[i, 1], which have none in common, is at most caps[i].
    """

    rows: int
    available: Bools
    low: Floats
    high: Floats
    weights: Floats
    least: Floats
    most: Floats
    old: Bools = np.zeros((0, 0), bool)
    spans: Ints = np.zeros((0, 2), np.int64)
    caps: Floats = np.zeros(0)


@inner
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


@inner
def _next_price(
    price: float, excess: float, slope: float, lower: float, upper: float, turn: int
) -> float:
    """Return the next guess at the price at which a mean, which falls with it, meets its bound.

    excess: the mean minus its bound at a price; slope: how fast it falls there. The mean is linear
    between kinks, so Newton's step is exact near the end; others keep it within what is known.
    """
    step = price + excess / slope
    if turn % 4 < 3 and lower < step < upper:
        return step
    if upper == np.inf:
        return max(1.0, 2.0 * price)
    if lower == -np.inf:
        return min(-1.0, 2.0 * price)
    return 0.5 * (lower + upper)


@inner
def _mean(rows: Floats, shift: Floats, t: int, out: Floats) -> tuple[float, float]:
    """Return the mean share of a task and how fast it falls with the task's price."""
    project_rows(rows, shift, out)
    T = rows.shape[1]
    mean, slope = 0.0, 0.0
    for i in range(out.shape[0]):
        mean += out[i, t]
        if out[i, t] > 0.0:
            above = 0
            for other in range(T):
                above += out[i, other] > 0.0
            slope += 1.0 - 1.0 / above
    return mean / out.shape[0], slope / out.shape[0]


@inner
def _old_mean(
    rows: Floats, shift: Floats, old: Bools, price: float, moved: Floats, out: Floats
) -> tuple[float, float]:
    """Return the mean share of old tasks at their price, and how fast it falls with that.

    moved: where to write the rows with the price taken off old tasks.
    """
    for i in range(rows.shape[0]):
        for t in range(rows.shape[1]):
            moved[i, t] = rows[i, t] - price if old[i, t] else rows[i, t]
    project_rows(moved, shift, out)
    mean, slope = 0.0, 0.0
    for i in range(out.shape[0]):
        above, counted = 0, 0
        for t in range(out.shape[1]):
            if out[i, t] > 0.0:
                above += 1
                if old[i, t]:
                    counted += 1
                    mean += out[i, t]
        slope += counted * (1.0 - counted / above)
    return mean / out.shape[0], slope / out.shape[0]


@inner
def _price_of_replay(
    rows: Floats, shift: Floats, old: Bools, cap: float, moved: Floats, out: Floats
) -> float:
    """Return the price of old tasks at which their mean share is at most a cap; see `_old_mean`."""
    price, lower, upper = 0.0, -np.inf, np.inf
    mean, slope = _old_mean(rows, shift, old, price, moved, out)
    for turn in range(_TURNS):
        if abs(mean - cap) <= _EXACT or (turn == 0 and mean < cap):
            break
        if mean > cap:
            lower = price
        else:
            upper = price
        new = _next_price(price, mean - cap, slope, lower, upper, turn)
        if new in (lower, upper) or abs(new) > _FAR:
            break
        price = new
        mean, slope = _old_mean(rows, shift, old, price, moved, out)
    return price


@inner
def _project_with_budgets(given: Floats, domain: Domain, out: Floats) -> None:
    """Find the price `shift` of each task in turn at which its budget is kept, and of replay.

    A task's mean share falls with its own price; the price is 0 unless the budget binds. Replay has
    a price in each span, which comes on top.
    """
    T, low, high = given.shape[1], domain.low, domain.high
    shift, prices, rows = np.zeros(T), np.zeros(domain.caps.size), given.copy()
    for _ in range(_CYCLES):
        moved, largest = 0.0, 0.0
        for k in range(domain.caps.size):
            first, last = domain.spans[k, 0], domain.spans[k, 1]
            before, prices[k] = prices[k], _price_of_replay(
                given[first:last], shift, domain.old[first:last], domain.caps[k],
                rows[first:last], out[first:last],
            )  # fmt: skip
            moved = max(moved, abs(prices[k] - before))
            largest = max(largest, prices[k])
        for t in range(T):
            before, shift[t] = shift[t], 0.0
            mean, slope = _mean(rows, shift, t, out)
            bound = min(max(mean, low[t]), high[t])
            lower, upper = -np.inf, np.inf
            for turn in range(_TURNS):
                if abs(mean - bound) <= _EXACT:
                    break
                if mean > bound:
                    lower = shift[t]
                else:
                    upper = shift[t]
                price = _next_price(shift[t], mean - bound, slope, lower, upper, turn)
                if price in (lower, upper) or abs(price) > _FAR:
                    break
                shift[t] = price
                mean, slope = _mean(rows, shift, t, out)
            moved = max(moved, abs(shift[t] - before))
            largest = max(largest, abs(shift[t]))
        if moved <= 1e-12 * (1.0 + largest):
            break
    project_rows(rows, shift, out)


def project(x: Floats, domain: Domain) -> Floats:
    """Return the nearest vector of the domain."""
    if x.size > _LARGE:  # with budgets it can take seconds
        return np.asarray(run_interruptibly(nearest_point, x, domain))
    return np.asarray(nearest_point(x, domain))


@compiled
def nearest_point(x: Floats, domain: Domain) -> Floats:
    """Return the nearest vector of the domain; for compiled code."""
    T = domain.low.size
    out = np.empty_like(x)
    end = domain.rows * T
    if domain.rows:
        rows, shares = x[:end].reshape(-1, T), out[:end].reshape(-1, T)
        if domain.available.size:
            rows = rows.copy()
            for i in range(domain.rows):
                for t in range(T):
                    if not domain.available[i, t]:
                        rows[i, t] = -np.inf
        bound = domain.caps.size > 0
        for t in range(T):
            bound |= domain.low[t] > 0.0 or domain.high[t] < 1.0
        if not bound:
            project_rows(rows, np.zeros(T), shares)
        else:
            _project_with_budgets(rows, domain, shares)
    for i in range(end, x.size):
        out[i] = min(max(x[i], 0.0), 1.0)
    for g in range(domain.least.size):
        _project_mean(x[end:], domain.weights[g], domain.least[g], domain.most[g], out[end:])
    return out


@inner
def _project_mean(x: Floats, weights: Floats, least: float, most: float, out: Floats) -> None:
    """Move a group within its box so that its mean is within bounds, to the nearest such point.

    That lowers every number by its weight × one price. `out` holds the box's nearest point.
    """
    largest = 0.0  # the mean of ones, which rounding can leave below a bound of 1
    for i in range(x.size):
        largest += weights[i]
    price, lower, upper = 0.0, -np.inf, np.inf
    for turn in range(_TURNS):
        mean, slope = 0.0, 0.0
        for i in range(x.size):
            if weights[i] > 0.0:
                moved = x[i] - price * weights[i]
                out[i] = min(max(moved, 0.0), 1.0)
                mean += weights[i] * out[i]
                if 0.0 < moved < 1.0:
                    slope += weights[i] * weights[i]
        if turn == 0:
            bound = min(max(mean, least, 0.0), most, largest)
        if abs(mean - bound) <= _EXACT:
            break
        if mean > bound:
            lower = price
        else:
            upper = price
        new = _next_price(price, mean - bound, slope, lower, upper, turn)
        if new in (lower, upper) or abs(new) > _FAR:
            break
        price = new
