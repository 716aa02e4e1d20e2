"""E[Θ_a Θ_b c⁺ d⁺] of four different Gaussians of variance 1, and its derivatives.

The formulas are in `relu`. Sets of four units, 0 to 3, are looked at side by side, in lanes, so
that loops are vectorised: every array ends with an axis of LANES. Pairs have the places 01, 02, 03,
12, 13, 23 in this order, so that the places of a pair and of the other two add up to 5.
"""

from __future__ import annotations

import math
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from replan.check import Floats, Ints
from replan.core.compiled import compiled, index, inlined
from replan.core.moments import orthants
from replan.core.moments.erf import arcsine
from replan.core.moments.orthants import NOTHING, OVER_TWO_PI, bounded

LANES = 16
LEAST = 1e-8  # a sine that divides: units that are closer cannot be told apart
_ROUNDING = 1e-15  # of a difference, relative to what is subtracted from
_FLAT = 1e-12  # below this, four units count as lying in a plane

FIRST, SECOND = np.array(list(combinations(range(4), 2)), dtype=np.uint64).T.copy()
PLACES = np.zeros((4, 4), dtype=np.uint64)  # of pairs
PLACES[FIRST, SECOND] = PLACES[SECOND, FIRST] = np.arange(6)


class Quadruples(NamedTuple):
    """Sets of four units and what their moments are made of."""

    units: Ints  # (4, LANES) for those who call
    rho: Floats  # (6, LANES) correlations of the pairs
    sines: Floats  # (6, LANES) √(1 − ρ²)
    inverses: Floats  # (6, LANES) 1 / sines
    angles: Floats  # (LANES,) Σ asin ρ
    left: Floats  # (4, 6, LANES) at i and a pair: its covariance given i
    minors: Floats  # (6, LANES) of each pair: the covariance given the others, times what follows
    cofactors: Floats  # (4, LANES) of each unit: the determinant of the others' correlations
    partial: Floats  # (6, LANES) of each pair: the correlation of the others where the two are 0
    orthants: Floats  # (6, LANES) R
    given: Floats  # (18, LANES) for the integral of the probability
    turned: Floats  # (LANES,) the smallest multiple correlation
    whole: Floats  # (LANES,) P(a, b, c, d > 0)
    crossings: Floats  # (4, 4, LANES) X
    moments: Floats  # (6, LANES) E[Θ Θ c⁺ d⁺] with the steps Θ of each pair
    meetings: Floats  # (6, LANES) their derivatives by the correlation of the pair


@compiled
def make_quadruples() -> Quadruples:
    """Allocate the arrays, with units that are uncorrelated."""
    pairs = (6, LANES)
    return Quadruples(
        np.zeros((4, LANES), np.int64), np.zeros(pairs), np.ones(pairs), np.ones(pairs),
        np.zeros(LANES), np.zeros((4, 6, LANES)), np.zeros(pairs), np.zeros((4, LANES)),
        np.zeros(pairs), np.zeros(pairs), np.zeros((18, LANES)), np.zeros(LANES),
        np.zeros(LANES), np.zeros((4, 4, LANES)), np.zeros(pairs), np.zeros(pairs),
    )  # fmt: skip


@inlined
def set_quadruples(count: int, fours: Quadruples) -> None:
    """Fill in all that follows from correlations, sines, their inverses and angles."""
    lanes = index(4) * ((index(count) + index(3)) // index(4))
    for again in (False, True):
        _condition(lanes, fours)
        _set_minors(lanes, fours)
        _set_cofactors(lanes, fours)
        if again or not _thicken(lanes, fours):
            break
    _set_orthants(lanes, fours)
    _place(lanes, fours)
    orthants.integrate(lanes, fours.given, fours.turned, fours.whole)
    for lane in range(lanes):
        closed = 0.0625 + 0.25 * OVER_TWO_PI * fours.angles[lane]
        fours.whole[lane] = closed + OVER_TWO_PI * OVER_TWO_PI * fours.whole[lane]
    _set_crossings(lanes, fours)
    _set_moments(lanes, fours)


@inlined
def _condition(lanes: Any, fours: Quadruples) -> None:
    """Fill in covariances given one unit."""
    rho, left = fours.rho, fours.left
    for pair in range(index(6)):
        j, k = FIRST[pair], SECOND[pair]
        for i in (FIRST[index(5) - pair], SECOND[index(5) - pair]):
            ij, ik = PLACES[i, j], PLACES[i, k]
            for lane in range(lanes):
                left[i, pair, lane] = rho[pair, lane] - rho[ij, lane] * rho[ik, lane]


@inlined
def _set_minors(lanes: Any, fours: Quadruples) -> None:
    """Fill in the covariances of pairs ab given the others, i and j, times their determinant.

    Each can be had by two ways; that with the smaller terms is the more accurate.
    """
    left, sines = fours.left, fours.sines
    for ab in range(index(6)):
        ij = index(5) - ab
        a, b, i, j = FIRST[ab], SECOND[ab], FIRST[ij], SECOND[ij]
        aj, bj, ai, bi = PLACES[a, j], PLACES[b, j], PLACES[a, i], PLACES[b, i]
        for lane in range(lanes):
            by_i = left[i, aj, lane] * left[i, bj, lane]
            by_j = left[j, ai, lane] * left[j, bi, lane]
            square = sines[ij, lane] * sines[ij, lane]
            first = left[i, ab, lane] * square - by_i
            second = left[j, ab, lane] * square - by_j
            fours.minors[ab, lane] = first if abs(by_i) < abs(by_j) else second


@inlined
def _set_cofactors(lanes: Any, fours: Quadruples) -> None:
    """Fill in the determinants of three units' correlations, by the best of three ways."""
    left, sines = fours.left, fours.sines
    for d in range(index(4)):
        i, j, k = (d + index(1)) % index(4), (d + index(2)) % index(4), (d + index(3)) % index(4)
        ij, ik, jk = PLACES[i, j], PLACES[i, k], PLACES[j, k]
        for lane in range(lanes):
            s_ij, s_ik, s_jk = sines[ij, lane], sines[ik, lane], sines[jk, lane]
            size, part = s_ij * s_ik, left[i, jk, lane]
            part = left[j, ik, lane] if s_ij * s_jk < size else part
            size = min(size, s_ij * s_jk)
            part = left[k, ij, lane] if s_ik * s_jk < size else part
            size = min(size, s_ik * s_jk)
            size *= size
            fours.cofactors[d, lane] = max(max(size - part * part, _ROUNDING * size), NOTHING)


@inlined
def _thicken(lanes: Any, fours: Quadruples) -> bool:
    """Take four units that lie in a plane, as far as rounding can tell, out of it by a little.

    Only ρ and s change, because what follows divides by them: the sum of the angles is exact.
    """
    changed = False
    for lane in range(lanes):
        most = 0.0
        for d in range(index(4)):
            most = max(most, fours.cofactors[d, lane])
        if most < _FLAT:
            changed = True
            for pair in range(index(6)):
                rho = (1.0 - _FLAT) * fours.rho[pair, lane]
                fours.rho[pair, lane] = rho
                fours.sines[pair, lane] = math.sqrt((1.0 - rho) * (1.0 + rho))
                fours.inverses[pair, lane] = 1.0 / fours.sines[pair, lane]
    return changed


@inlined
def _set_orthants(lanes: Any, fours: Quadruples) -> None:
    """Fill in R, the probability that two are positive where the others are 0."""
    cofactors = fours.cofactors
    for pair in range(index(6)):
        other = index(5) - pair
        a, b = FIRST[other], SECOND[other]
        for lane in range(lanes):
            size = math.sqrt(cofactors[a, lane] * cofactors[b, lane])
            partial = bounded(fours.minors[other, lane] / size, 1.0)
            fours.partial[pair, lane] = partial
            fours.orthants[pair, lane] = orthants.two(arcsine(partial))


@inlined
def _place(lanes: Any, fours: Quadruples) -> None:
    """Choose d, the unit that turns least with the others, and list what its integral needs."""
    rho, left, sines = fours.rho, fours.left, fours.sines
    for lane in range(lanes):
        d: Any = index(0)
        for other in range(index(1), index(4)):
            d = other if fours.cofactors[other, lane] < fours.cofactors[d, lane] else d
        square = 0.0
        for step in range(index(3)):
            i = (d + step + index(1)) % index(4)
            j = (d + (step + index(1)) % index(3) + index(1)) % index(4)
            k = (d + (step + index(2)) % index(3) + index(1)) % index(4)
            di, ij, ik = PLACES[d, i], PLACES[i, j], PLACES[i, k]
            square += rho[di, lane] * fours.minors[di, lane]
            row = index(6) * step
            fours.given[row, lane] = rho[di, lane]
            fours.given[row + index(1), lane] = left[i, PLACES[j, k], lane]
            fours.given[row + index(2), lane] = sines[ij, lane] * sines[ij, lane]
            fours.given[row + index(3), lane] = sines[ik, lane] * sines[ik, lane]
            fours.given[row + index(4), lane] = left[i, PLACES[j, d], lane]
            fours.given[row + index(5), lane] = left[i, PLACES[k, d], lane]
        share = max(square, 0.0) / fours.cofactors[d, lane]
        fours.turned[lane] = math.sqrt(min(share, 1.0))


@inlined
def _set_crossings(lanes: Any, fours: Quadruples) -> None:
    """Fill in X_id = E[δ_i Θ_j Θ_k d⁺]."""
    left, inverses, orthants, sines = fours.left, fours.inverses, fours.orthants, fours.sines
    for i in range(index(4)):
        for d in range(index(4)):
            if i == d:
                continue
            pair = PLACES[i, d]
            j, k = FIRST[index(5) - pair], SECOND[index(5) - pair]
            ij, ik, dj, dk = PLACES[i, j], PLACES[i, k], PLACES[d, j], PLACES[d, k]
            for lane in range(lanes):
                size = sines[pair, lane]
                by_j = bounded(left[i, dj, lane] * inverses[ij, lane], size)
                by_k = bounded(left[i, dk, lane] * inverses[ik, lane], size)
                total = orthants[ij, lane] * by_j + orthants[ik, lane] * by_k
                total += orthants[pair, lane] * size
                fours.crossings[i, d, lane] = OVER_TWO_PI * total


@inlined
def _set_moments(lanes: Any, fours: Quadruples) -> None:
    """Fill in E[Θ_a Θ_b c⁺ d⁺] for all pairs ab."""
    rho, X = fours.rho, fours.crossings
    for ab in range(index(6)):
        cd = index(5) - ab
        a, b, c, d = FIRST[ab], SECOND[ab], FIRST[cd], SECOND[cd]
        ac, bc = PLACES[a, c], PLACES[b, c]
        for lane in range(lanes):
            edges = rho[ac, lane] * X[a, d, lane] + rho[bc, lane] * X[b, d, lane]
            inner = rho[cd, lane] * fours.whole[lane] + X[c, d, lane]
            fours.moments[ab, lane] = inner + edges


@inlined
def set_meetings(count: int, fours: Quadruples) -> None:
    """Fill in E[δ_a δ_b c⁺ d⁺], the derivatives of the moments by ρ_ab, after `set_quadruples`."""
    lanes = index(4) * ((index(count) + index(3)) // index(4))
    for ab in range(index(6)):
        c, d = FIRST[index(5) - ab], SECOND[index(5) - ab]
        for lane in range(lanes):
            partial, inverse = fours.partial[ab, lane], fours.inverses[ab, lane]
            size = math.sqrt(fours.cofactors[c, lane] * fours.cofactors[d, lane])
            lengths = min(size * inverse * inverse, 1.0)
            sine = math.sqrt((1.0 - partial) * (1.0 + partial))
            value = OVER_TWO_PI * sine + partial * fours.orthants[ab, lane]
            fours.meetings[ab, lane] = OVER_TWO_PI * lengths * value * inverse
