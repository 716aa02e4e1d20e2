"""Gaussian moments of g(z) = erf(z/√2), all from one identity.

g′(z) = √(2/π) exp(−z²/2), so multiplying by g′(λ_k) tilts a centred Gaussian of covariance C
into another one:

    E_C[g′(λ_k) F(λ)] = √(2/π) (1 + C_kk)^(−½) E_{C^k}[F],   C^k = C − C_·k C_k· / (1 + C_kk).

I₂ is then the only special function (Saad & Solla 1995); I₃ is one tilt and one derivative
(Stein's lemma), I₄ is two tilts and I₂. The paper's Λ formulas give the same numbers; its I₃ is
printed with its indices in a different order from that of the equations of motion.

Notation: `cov` is C (n×n); `norm` of a unit is (1 + C_aa)^(−½).
"""

from __future__ import annotations

import math

import numpy as np

from replan._common.check import Floats
from replan._common.compiled import compiled, inlined

TWO_OVER_PI = 2.0 / math.pi


@compiled
def norm(variance: float) -> float:
    """(1 + C_aa)^(−½); E[g′(λ_a)] is √(2/π) times this."""
    return 1.0 / math.sqrt(1.0 + variance)


@compiled
def tilted(c_ab: float, c_ak: float, c_bk: float, inverse: float) -> float:
    """Entry (a, b) of C^k, with inverse = 1 / (1 + C_kk)."""
    return c_ab - c_ak * c_bk * inverse


@compiled
def i2(c_ab: float, norm_a: float, norm_b: float) -> float:
    """E[g(λ_a) g(λ_b)]."""
    return TWO_OVER_PI * math.asin(c_ab * norm_a * norm_b)


@compiled
def tilt(cov: Floats, k: int) -> Floats:
    """C^k as a new matrix."""
    out = np.empty_like(cov)
    inverse = 1.0 / (1.0 + cov[k, k])
    for a in range(cov.shape[0]):
        for b in range(cov.shape[0]):
            out[a, b] = tilted(cov[a, b], cov[a, k], cov[b, k], inverse)
    return out


@inlined
def pull_tilt(bar: Floats, cov: Floats, k: int, inverse: float, out: Floats) -> None:
    """Add to `out` the derivative by C of what depends on C^k through `bar`.

    All are (n, n); inverse = 1 / (1 + C_kk).
    """
    total = 0.0
    for n in range(cov.shape[0]):
        row = 0.0
        for m in range(cov.shape[0]):
            out[n, m] += bar[n, m]
            row += (bar[n, m] + bar[m, n]) * cov[m, k]
        out[n, k] -= inverse * row
        total += 0.5 * row * cov[n, k]
    out[k, k] += inverse * inverse * total


@compiled
def i3(cov: Floats, n: int, k: int, h: int) -> float:
    """E[g(λ_n) g′(λ_k) λ_h]: the index order of the equations of motion."""
    once = tilt(cov, k)
    return TWO_OVER_PI * norm(cov[k, k]) * norm(once[n, n]) * once[n, h]


@compiled
def i4(cov: Floats, n: int, m: int, k: int, h: int) -> float:
    """E[g(λ_n) g(λ_m) g′(λ_k) g′(λ_h)]."""
    once = tilt(cov, k)
    twice = tilt(once, h)
    slopes = TWO_OVER_PI * norm(cov[k, k]) * norm(once[h, h])
    return slopes * i2(twice[n, m], norm(twice[n, n]), norm(twice[m, m]))
