"""Gaussian moments of g(z) = z, whose slope is 1.

Notation as in `relu`.
"""

from __future__ import annotations

from replan.check import Floats
from replan.core.compiled import compiled, inlined


@inlined
def activation(field: float) -> float:
    """g(z)."""
    return field


@inlined
def slope(field: float) -> float:
    """g′(z)."""
    return 1.0


@compiled
def i2(cov: Floats, a: int, b: int) -> float:
    """E[g(λ_a) g(λ_b)] = C_ab."""
    return cov[a, b]


@compiled
def i3(cov: Floats, n: int, k: int, h: int) -> float:
    """E[g(λ_n) g′(λ_k) λ_h] = C_nh, whatever k is."""
    return cov[n, h]


@compiled
def i4(cov: Floats, n: int, m: int, k: int, h: int) -> float:
    """E[g(λ_n) g(λ_m) g′(λ_k) g′(λ_h)] = C_nm, whatever k and h are."""
    return cov[n, m]


@compiled
def pull_i2(cov: Floats, a: int, b: int, bar: float, out: Floats) -> None:
    """Reverse of `i2`."""
    out[a, b] += 0.5 * bar
    out[b, a] += 0.5 * bar


@compiled
def pull_i3(cov: Floats, n: int, k: int, h: int, bar: float, out: Floats) -> None:
    """Reverse of `i3`."""
    pull_i2(cov, n, h, bar, out)


@compiled
def pull_i4(cov: Floats, n: int, m: int, k: int, h: int, bar: float, out: Floats) -> None:
    """Reverse of `i4`."""
    pull_i2(cov, n, m, bar, out)
