"""Gaussian moments of g(z) = max(z, 0), whose slope is the step Θ; all from Stein's identity.

ReLU is homogeneous: with ρ the correlations and σ² the variances, a moment is the same one of units
of variance 1, times the σ of each g and each λ in it. For those, with s = √(1 − ρ²):

    I₂      = E[a⁺ b⁺]          = (s_ab + ρ_ab (π/2 + asin ρ_ab)) / 2π      (Cho & Saul 2009)
    I₃      = E[n⁺ Θ_k λ_h]     = ρ_hn P(n, k > 0) + ρ_hk s_nk / 2π
    I₄      = E[Θ_a Θ_b c⁺ d⁺]  = ρ_cd P(a, b, c, d > 0) + Σ_{i≠d} ρ_ci X_id
    X_id    = E[δ_i Θ Θ d⁺]     = Σ_{j≠i} R_ij e_dj|i / (2π s_ij),  e_dj|i = ρ_dj − ρ_di ρ_ij

with the steps Θ of the other two, and R_ij the probability that the two others than i and j are
positive where i = j = 0. X_id is also the derivative of I₄ by ρ_id, and P(a, b, c, d > 0) that by
ρ_cd (Price's theorem), so derivatives need no further integral. Where indices coincide,
Θ_c c⁺ = c⁺ and Θ_a Θ_a = Θ_a, and two or three units are left.

Units that are aligned divide by s near 0. What they divide is as small: numbers are brought back to
the bounds that Cauchy and Schwarz give them, and what remains of rounding cancels in the moments.
A unit of variance 0 is uncorrelated with all others.

Notation: `cov` is C (n×n); `pull_…` add `bar` × the derivative of a moment by C to `out` (n, n),
symmetrically.
"""

from __future__ import annotations

import math

from replan.check import Floats
from replan.core.compiled import compiled, inlined
from replan.core.moments import orthants
from replan.core.moments.erf import arcsine
from replan.core.moments.orthants import OVER_TWO_PI, bounded
from replan.core.moments.quadruples import (
    FIRST,
    LEAST,
    SECOND,
    Quadruples,
    make_quadruples,
    set_meetings,
    set_quadruples,
)

_TINY = 1e-100  # a length of 0
_PI = math.pi


@inlined
def activation(field: float) -> float:
    """g(z)."""
    return max(field, 0.0)


@inlined
def slope(field: float) -> float:
    """g′(z); 0 at 0, as in training."""
    return 1.0 if field > 0.0 else 0.0


# Units of variance 1: correlations ρ, s = √(1 − ρ²), arcsines of ρ


@inlined
def inverse(length: float) -> float:
    """1 / σ, or 0 for a unit without weights."""
    return 1.0 / length if length > _TINY else 0.0


@inlined
def sine(rho: float) -> float:
    """√(1 − ρ²)."""
    return math.sqrt(max((1.0 - rho) * (1.0 + rho), 0.0))


@inlined
def divided(value: float, sine: float, bound: float) -> float:
    """Return value / s, which is at most `bound`."""
    return bounded(value / max(sine, LEAST), bound)


@inlined
def product(rho: float, sine: float, angle: float) -> float:
    """E[a⁺ b⁺]; its derivative by ρ is P(a, b > 0)."""
    return OVER_TWO_PI * (sine + rho * (0.5 * _PI + angle))


@inlined
def gated_own_square(rho: float, sine: float, angle: float) -> float:
    """E[Θ_a b⁺²]; its derivative by ρ is s / π."""
    return orthants.two(angle) + OVER_TWO_PI * rho * sine


@inlined
def gated_product(
    rho_ab: float, rho_ac: float, rho_bc: float, s_ab: float, s_ac: float, s_bc: float, p3: float
) -> float:
    """E[Θ_a b⁺ c⁺], p3 = P(a, b, c > 0); derivatives are p3 by ρ_bc, and `crossing` by the rest."""
    return rho_bc * p3 + 0.5 * OVER_TWO_PI * (s_bc + rho_ac * s_ab + rho_ab * s_ac)


@inlined
def gated_square(
    rho_ab: float, rho_ac: float, rho_bc: float, s_ab: float, s_ac: float, s_bc: float, p3: float
) -> float:
    """E[Θ_a Θ_b c⁺²]; derivatives are twice `crossing` by ρ_ac and ρ_bc, and `meeting` by ρ_ab."""
    left = rho_bc - rho_ab * rho_ac
    cross = s_ab * rho_ac * (rho_ab * rho_ac + 2.0 * left)
    cross -= rho_ab * left * divided(left, s_ab, 1.0)
    return p3 + 0.5 * OVER_TWO_PI * (cross + rho_ac * s_ac + rho_bc * s_bc)


@inlined
def crossing(rho_il: float, rho_id: float, rho_ld: float, s_il: float, s_id: float) -> float:
    """E[δ_i Θ_l d⁺]."""
    return 0.5 * OVER_TWO_PI * (divided(rho_ld - rho_il * rho_id, s_il, s_id) + s_id)


@inlined
def meeting(rho_ab: float, rho_ac: float, rho_bc: float, s_ab: float, s_ac: float) -> float:
    """E[δ_a δ_b c⁺²]."""
    left = divided(rho_bc - rho_ab * rho_ac, s_ab, s_ac)
    return 0.5 * OVER_TWO_PI * (s_ac * s_ac - left * left) / max(s_ab, LEAST)


# Moments of any covariance


@inlined
def _length(cov: Floats, a: int) -> float:
    """σ_a."""
    return math.sqrt(max(cov[a, a], 0.0))


@inlined
def _correlation(cov: Floats, a: int, b: int) -> float:
    """ρ_ab."""
    lengths = inverse(_length(cov, a)) * inverse(_length(cov, b))
    return bounded(cov[a, b] * lengths, 1.0)


@inlined
def _gates(n: int, m: int, k: int, h: int) -> tuple[int, int, int]:
    """Return how many steps of k and h say more than n⁺ m⁺ does, and which, those first."""
    first, second = k not in (n, m), h not in (n, m) and h != k
    if first and second:
        return 2, k, h
    return (1, k, h) if first else (1 if second else 0, h, k)


@compiled
def _four(cov: Floats, a: int, b: int, c: int, d: int) -> Quadruples:
    """Return what four units have in common, in the first lane."""
    fours, units = make_quadruples(), (a, b, c, d)
    for pair in range(6):
        rho = _correlation(cov, units[FIRST[pair]], units[SECOND[pair]])
        fours.rho[pair, 0] = rho
        fours.sines[pair, 0] = sine(rho)
        fours.inverses[pair, 0] = 1.0 / max(fours.sines[pair, 0], LEAST)
        fours.angles[0] += arcsine(rho)
    set_quadruples(1, fours)
    set_meetings(1, fours)
    return fours


@compiled
def _triple(cov: Floats, a: int, b: int, c: int) -> tuple[float, ...]:
    """Return ρ_ab, ρ_ac, ρ_bc, their s, and P(a, b, c > 0)."""
    ab, ac, bc = _correlation(cov, a, b), _correlation(cov, a, c), _correlation(cov, b, c)
    p3 = orthants.three(arcsine(ab), arcsine(ac), arcsine(bc))
    return ab, ac, bc, sine(ab), sine(ac), sine(bc), p3


@compiled
def i2(cov: Floats, a: int, b: int) -> float:
    """E[g(λ_a) g(λ_b)]."""
    if a == b:
        return 0.5 * cov[a, a]
    rho = _correlation(cov, a, b)
    return _length(cov, a) * _length(cov, b) * product(rho, sine(rho), arcsine(rho))


@compiled
def i3(cov: Floats, n: int, k: int, h: int) -> float:
    """E[g(λ_n) g′(λ_k) λ_h]."""
    if n == k:
        return 0.5 * cov[n, h]
    rho = _correlation(cov, n, k)
    along = cov[h, k] * inverse(_length(cov, k)) * _length(cov, n) * sine(rho) * OVER_TWO_PI
    return cov[h, n] * orthants.two(arcsine(rho)) + along


@compiled
def i4(cov: Floats, n: int, m: int, k: int, h: int) -> float:
    """E[g(λ_n) g(λ_m) g′(λ_k) g′(λ_h)]."""
    count, a, b = _gates(n, m, k, h)
    lengths = _length(cov, n) * _length(cov, m)
    if count == 0:
        return i2(cov, n, m)
    if count == 1 and n == m:
        rho = _correlation(cov, a, n)
        return lengths * gated_own_square(rho, sine(rho), arcsine(rho))
    if count == 1:
        an, am, nm, s_an, s_am, s_nm, p3 = _triple(cov, a, n, m)
        return lengths * gated_product(an, am, nm, s_an, s_am, s_nm, p3)
    if n == m:
        ab, an, bn, s_ab, s_an, s_bn, p3 = _triple(cov, a, b, n)
        return lengths * gated_square(ab, an, bn, s_ab, s_an, s_bn, p3)
    return lengths * _four(cov, a, b, n, m).moments[0, 0]


@inlined
def _pull_correlation(bar: float, cov: Floats, a: int, b: int, out: Floats) -> None:
    """Add to `out` what depends on C through ρ_ab, with the derivative `bar` by it."""
    inverse_a, inverse_b = inverse(_length(cov, a)), inverse(_length(cov, b))
    turned = 0.5 * bar * _correlation(cov, a, b)
    out[a, b] += 0.5 * bar * inverse_a * inverse_b
    out[b, a] += 0.5 * bar * inverse_a * inverse_b
    out[a, a] -= turned * inverse_a * inverse_a
    out[b, b] -= turned * inverse_b * inverse_b


@inlined
def _pull_length(value: float, cov: Floats, a: int, out: Floats) -> None:
    """Add to `out` what is proportional to σ_a; `value` is bar × the moment."""
    out[a, a] += 0.5 * value * inverse(_length(cov, a)) ** 2


@compiled
def pull_i2(cov: Floats, a: int, b: int, bar: float, out: Floats) -> None:
    """Reverse of `i2`."""
    if a == b:
        out[a, a] += 0.5 * bar
        return
    value = bar * i2(cov, a, b)
    lengths = _length(cov, a) * _length(cov, b)
    p2 = orthants.two(arcsine(_correlation(cov, a, b)))
    _pull_correlation(bar * lengths * p2, cov, a, b, out)
    _pull_length(value, cov, a, out)
    _pull_length(value, cov, b, out)


@compiled
def pull_i3(cov: Floats, n: int, k: int, h: int, bar: float, out: Floats) -> None:
    """Reverse of `i3`."""
    rho = 1.0 if n == k else _correlation(cov, n, k)
    s, p2 = sine(rho), orthants.two(arcsine(rho))
    ratio = inverse(_length(cov, k)) * _length(cov, n) * s * OVER_TWO_PI
    for left, right, factor in ((h, n, p2), (h, k, ratio)):
        out[left, right] += 0.5 * bar * factor
        out[right, left] += 0.5 * bar * factor
    if n == k:
        return
    value = bar * cov[h, k] * ratio
    _pull_length(value, cov, n, out)
    _pull_length(-value, cov, k, out)
    bar *= cov[h, n] - cov[h, k] * inverse(_length(cov, k)) * _length(cov, n) * rho
    _pull_correlation(bar * OVER_TWO_PI / max(s, LEAST), cov, n, k, out)


@compiled
def pull_i4(cov: Floats, n: int, m: int, k: int, h: int, bar: float, out: Floats) -> None:
    """Reverse of `i4`."""
    count, a, b = _gates(n, m, k, h)
    if count == 0:
        pull_i2(cov, n, m, bar, out)
        return
    value = bar * i4(cov, n, m, k, h)
    _pull_length(value, cov, n, out)
    _pull_length(value, cov, m, out)
    bar *= _length(cov, n) * _length(cov, m)
    if count == 1 and n == m:
        _pull_correlation(bar * sine(_correlation(cov, a, n)) / _PI, cov, a, n, out)
    elif count == 1:
        an, am, nm, s_an, s_am, _, p3 = _triple(cov, a, n, m)
        _pull_correlation(bar * p3, cov, n, m, out)
        _pull_correlation(bar * crossing(an, am, nm, s_an, s_am), cov, a, n, out)
        _pull_correlation(bar * crossing(am, an, nm, s_am, s_an), cov, a, m, out)
    elif n == m:
        ab, an, bn, s_ab, s_an, s_bn, _ = _triple(cov, a, b, n)
        _pull_correlation(bar * meeting(ab, an, bn, s_ab, s_an), cov, a, b, out)
        _pull_correlation(2.0 * bar * crossing(ab, an, bn, s_ab, s_an), cov, a, n, out)
        _pull_correlation(2.0 * bar * crossing(ab, bn, an, s_ab, s_bn), cov, b, n, out)
    else:
        four = _four(cov, a, b, n, m)
        _pull_correlation(bar * four.whole[0], cov, n, m, out)
        _pull_correlation(bar * four.meetings[0, 0], cov, a, b, out)
        for gate, unit in ((0, a), (1, b)):
            _pull_correlation(bar * four.crossings[gate, 3, 0], cov, unit, n, out)
            _pull_correlation(bar * four.crossings[gate, 2, 0], cov, unit, m, out)
