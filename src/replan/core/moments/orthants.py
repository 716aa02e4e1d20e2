"""Probabilities that two, three or four centred Gaussians of unit variance are all positive.

Two and three are sums of arcsines of the correlations ρ (Sheppard 1899). Four have no closed form.
Scale the correlations of one of them, d, with the others by t from 0 to 1; by Plackett's identity
(1954) the probability changes by

    Σ_i ρ_id / (2π √(1 − t²ρ_id²)) · P₂(ρ_jk|id(t)),   i, j, k the others,

and all but the arcsine in this P₂ is integrated exactly:

    P₄ = 1/16 + Σ asin ρ / 8π + (1/4π²) Σ_i ∫₀¹ ρ_id asin(ρ_jk|id(t)) / √(1 − t²ρ_id²) dt.

The integrand is analytic but for branch points on the real axis, |t| ≥ 1/R, where R is the
multiple correlation of d with the others; so d is the one with the smallest R. With t = (1 − c²)/R
the nearest branch point is none in c: 8 Gauss-Legendre nodes give P₄ to 1e-13 up to R = 0.7, and 16
up to 0.98. Beyond, others may be close to c = 0, on the imaginary axis: 32 nodes in log c are far
from all.

Many sets of four are looked at side by side, in lanes, so that loops are vectorised.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from replan.check import Floats
from replan.core.compiled import index, inlined
from replan.core.moments.erf import arcsine

OVER_TWO_PI = 0.5 / math.pi
NOTHING = 1e-28  # below what rounding leaves of a variance that is 0 given two others
_FAR, _NEAR = 0.7, 0.98  # R up to which 8 and 16 nodes are enough
_LEAST = 1e-6  # c below which nothing is left to integrate: (1e-6)²


def _rule(nodes: int) -> tuple[Floats, Floats]:
    x, weights = np.polynomial.legendre.leggauss(nodes)
    return 0.5 * (1.0 + x), 0.5 * weights


_FEW, _FEW_WEIGHTS = _rule(8)
_NODES, _WEIGHTS = _rule(16)
_MORE, _MORE_WEIGHTS = _rule(32)


@inlined
def two(angle: float) -> float:
    """P(a, b > 0) from the arcsine of their correlation."""
    return 0.25 + OVER_TWO_PI * angle


@inlined
def three(angle_ab: float, angle_ac: float, angle_bc: float) -> float:
    """P(a, b, c > 0) from the arcsines of their correlations."""
    return 0.125 + 0.5 * OVER_TWO_PI * (angle_ab + angle_ac + angle_bc)


@inlined
def bounded(value: float, bound: float) -> float:
    """Return a number brought back to [−bound, bound], which rounding may have left."""
    return max(-bound, min(bound, value))


@inlined
def integrate(lanes: Any, given: Floats, turned: Floats, out: Floats) -> None:
    """Fill in (lanes,) sums of the three integrals, lanes side by side.

    given: (18, lanes), for each of the three i: ρ_id and, given i, the covariances jk, jj, kk, jd
    and kd. turned: (lanes,) R.
    """
    most = 0.0
    for lane in range(lanes):
        most = max(most, turned[lane])
        out[lane] = 0.0
    nodes, weights = (_FEW, _FEW_WEIGHTS) if most <= _FAR else (_NODES, _WEIGHTS)
    for node in range(nodes.size):
        v, weight = nodes[node], weights[node]
        for lane in range(lanes):
            end = math.sqrt(1.0 - turned[lane])
            c, scale = 1.0 - (1.0 - end) * v, 1.0 / (1.0 + end)
            value = _integrands(v * (1.0 + c) * scale, given, lane)
            out[lane] += 2.0 * weight * c * scale * value
    if most > _NEAR:
        for lane in range(lanes):
            if turned[lane] > _NEAR:
                out[lane] = _in_logarithm(given, turned[lane], lane)


@inlined
def _in_logarithm(given: Floats, R: float, lane: Any) -> float:
    """Integrate in log c = v log(end)."""
    total, depth = 0.0, math.log(max(math.sqrt(1.0 - R), _LEAST))
    for node in range(_MORE.size):
        c = math.exp(depth * _MORE[node])
        value = _integrands((1.0 - c * c) / R, given, lane)
        total += _MORE_WEIGHTS[node] * c * c * value
    return -total * 2.0 * depth / R


@inlined
def _integrands(t: float, given: Floats, lane: Any) -> float:
    """Σ_i ρ_id asin(ρ_jk|id(t)) / √(1 − t²ρ_id²)."""
    total, square = 0.0, t * t
    for row in range(index(0), index(18), index(6)):
        with_d, jk = given[row, lane], given[row + index(1), lane]
        jj, kk = given[row + index(2), lane], given[row + index(3), lane]
        jd, kd = given[row + index(4), lane], given[row + index(5), lane]
        left = max(1.0 - square * with_d * with_d, 1e-16)
        both = jk * left - square * jd * kd
        one = max(jj * left - square * jd * jd, NOTHING)
        other = max(kk * left - square * kd * kd, NOTHING)
        size, root = math.sqrt(one * other), math.sqrt(left)
        inverse = 1.0 / (size * root)
        total += with_d * size * inverse * arcsine(bounded(both * root * inverse, 1.0))
    return total
