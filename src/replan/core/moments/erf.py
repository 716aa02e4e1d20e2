"""Gaussian moments of g(z) = erf(z/√2), all from one identity.

g′(z) = √(2/π) exp(−z²/2), so multiplying by g′(λ_k) tilts a centred Gaussian of covariance C
into another one:

    E_C[g′(λ_k) F(λ)] = √(2/π) (1 + C_kk)^(−½) E_{C^k}[F],   C^k = C − C_·k C_k· / (1 + C_kk).

I₂ is then the only special function (Saad & Solla 1995); I₃ is one tilt and one derivative
(Stein's lemma), I₄ is two tilts and I₂. The paper's Λ formulas give the same numbers; its I₃ is
printed with its indices in a different order from that of the equations of motion.

Notation: C is a covariance (n×n); the `norm` of a unit is (1 + C_aa)^(−½).
"""

from __future__ import annotations

import math

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
