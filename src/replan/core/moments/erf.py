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

from replan.check import Floats
from replan.core.compiled import compiled, inlined

TWO_OVER_PI = 2.0 / math.pi
_HALF_PI = 0.5 * math.pi
_SLOPE = math.sqrt(2.0 / math.pi)


@inlined
def activation(field: float) -> float:
    """g(z)."""
    return math.erf(field * math.sqrt(0.5))


@inlined
def slope(field: float) -> float:
    """g′(z)."""
    return _SLOPE * math.exp(-0.5 * field * field)


@compiled
def norm(variance: float) -> float:
    """(1 + C_aa)^(−½); E[g′(λ_a)] is √(2/π) times this."""
    return 1.0 / math.sqrt(1.0 + variance)


@compiled
def tilted(c_ab: float, c_ak: float, c_bk: float, inverse: float) -> float:
    """Entry (a, b) of C^k, with inverse = 1 / (1 + C_kk)."""
    return c_ab - c_ak * c_bk * inverse


@inlined
def arcsine(x: float) -> float:
    """Return asin x to 4e-16, without branches and calls, so that loops over it are vectorised.

    asin s = s + s t f(t) with t = s² ≤ ¼, where f is interpolated at 12 Chebyshev nodes; and
    asin |x| = π/2 − 2 asin s with s² = (1 − |x|)/2 where |x| > ½.
    """
    size = abs(x)
    small = size <= 0.5
    t = x * x if small else 0.5 - 0.5 * size
    s = size if small else math.sqrt(t)
    t2 = t * t
    t4 = t2 * t2
    low = (0.1666666666666665 + 0.07500000000020765 * t) + (
        0.04464285710342321 + 0.030381947367126603 * t
    ) * t2
    middle = (0.022372047630842756 + 0.017355259972574907 * t) + (
        0.013929652707668464 + 0.011875495831397978 * t
    ) * t2
    high = (0.007802942553252435 + 0.016035534893576755 * t) + (
        -0.010749084786912803 + 0.028169243006249404 * t
    ) * t2
    f = low + (middle + high * t4) * t4
    y = s + s * (t * f)
    return math.copysign(y if small else _HALF_PI - 2.0 * y, x)


@compiled
def i2(c_ab: float, norm_a: float, norm_b: float) -> float:
    """E[g(λ_a) g(λ_b)]."""
    return TWO_OVER_PI * arcsine(c_ab * norm_a * norm_b)


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


# Reverses: each adds `bar` × the derivative of a moment by C to `out` (n, n): what
# belongs to C_ab = C_ba is the sum of out_ab and out_ba, which `relu` and `linear` make equal.


@compiled
def pull_i2(cov: Floats, a: int, b: int, bar: float, out: Floats) -> None:
    """Reverse of `i2`, of a whole covariance."""
    norm_a, norm_b = norm(cov[a, a]), norm(cov[b, b])
    z = cov[a, b] * norm_a * norm_b
    bar *= TWO_OVER_PI / math.sqrt(1.0 - z * z)
    out[a, b] += bar * norm_a * norm_b
    out[a, a] -= 0.5 * bar * z * norm_a * norm_a
    out[b, b] -= 0.5 * bar * z * norm_b * norm_b


@compiled
def pull_i3(cov: Floats, n: int, k: int, h: int, bar: float, out: Floats) -> None:
    """Reverse of `i3`."""
    once, by_once = tilt(cov, k), np.zeros_like(cov)
    norm_k, norm_n = norm(cov[k, k]), norm(once[n, n])
    by_once[n, h] += bar * TWO_OVER_PI * norm_k * norm_n
    value = by_once[n, h] * once[n, h]
    by_once[n, n] -= 0.5 * value * norm_n * norm_n
    out[k, k] -= 0.5 * value * norm_k * norm_k
    pull_tilt(by_once, cov, k, norm_k * norm_k, out)


@compiled
def pull_i4(cov: Floats, n: int, m: int, k: int, h: int, bar: float, out: Floats) -> None:
    """Reverse of `i4`."""
    once, by_once, by_twice = tilt(cov, k), np.zeros_like(cov), np.zeros_like(cov)
    norm_k, norm_h = norm(cov[k, k]), norm(once[h, h])
    value = bar * i4(cov, n, m, k, h)
    pull_i2(tilt(once, h), n, m, bar * TWO_OVER_PI * norm_k * norm_h, by_twice)
    by_once[h, h] -= 0.5 * value * norm_h * norm_h
    pull_tilt(by_twice, once, h, norm_h * norm_h, by_once)
    out[k, k] -= 0.5 * value * norm_k * norm_k
    pull_tilt(by_once, cov, k, norm_k * norm_k, out)
