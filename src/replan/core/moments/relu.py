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
"""

from __future__ import annotations

import math

from replan.core.compiled import inlined
from replan.core.moments import orthants
from replan.core.moments.orthants import OVER_TWO_PI, bounded
from replan.core.moments.quadruples import LEAST

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
