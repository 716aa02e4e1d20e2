"""Gaussian moments of g(z) = erf(z/√2), and of max(z, 0), in JAX, for models by `AutoModel`.

The same as `moments.erf` and `moments.relu`, for whole covariances C (n×n) at once; see there for
what is behind them. Needs the extra `jax`.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp


def tilt(cov: Any, k: Any) -> Any:
    """C^k = C − C_·k C_k· / (1 + C_kk): the covariance under the weight g′(λ_k)."""
    return cov - jnp.outer(cov[:, k], cov[k]) / (1.0 + cov[k, k])


def i2(cov: Any) -> Any:
    """E[g(λ_a) g(λ_b)] (n, n)."""
    norms = 1.0 / jnp.sqrt(1.0 + jnp.diag(cov))
    return 2.0 / jnp.pi * jnp.arcsin(cov * norms[:, None] * norms)


def i3(cov: Any) -> Any:
    """E[g(λ_n) g′(λ_k) λ_h] (n, k, h), in the index order of the equations of motion."""

    def of_slope(k: Any) -> Any:
        once = tilt(cov, k)
        scale = 2.0 / jnp.pi / jnp.sqrt((1.0 + cov[k, k]) * (1.0 + jnp.diag(once)))
        return scale[:, None] * once

    return jnp.swapaxes(jax.vmap(of_slope)(jnp.arange(len(cov))), 0, 1)


def i4(cov: Any) -> Any:
    """E[g(λ_n) g(λ_m) g′(λ_k) g′(λ_h)] (n, m, k, h)."""
    units = jnp.arange(len(cov))

    def of_slopes(k: Any, h: Any) -> Any:
        once = tilt(cov, k)
        scale = 2.0 / jnp.pi / jnp.sqrt((1.0 + cov[k, k]) * (1.0 + once[h, h]))
        return scale * i2(tilt(once, h))

    pairs = jax.vmap(lambda k: jax.vmap(lambda h: of_slopes(k, h))(units))(units)
    return jnp.transpose(pairs, (2, 3, 0, 1))


def _units(cov: Any) -> tuple[Any, Any, Any]:
    """Return lengths (n,), their inverses, 0 for a unit of length 0, and correlations (n, n).

    Correlations are 0 for a unit with itself and at most 1, which rounding may exceed.
    """
    variances = jnp.diag(cov)
    alive = variances > 0.0
    roots = jnp.sqrt(jnp.where(alive, variances, 1.0))  # that of 0 has no derivative
    lengths, inverses = jnp.where(alive, roots, 0.0), jnp.where(alive, 1.0 / roots, 0.0)
    rho = jnp.where(_own(cov), 0.0, cov * inverses[:, None] * inverses)
    # Beyond the bound, a derivative by ρ is that at the bound
    return lengths, inverses, rho + jax.lax.stop_gradient(jnp.clip(rho, -1.0, 1.0) - rho)


def _own(cov: Any) -> Any:
    """Return which entries (n, n) are a unit's own."""
    return jnp.eye(len(cov), dtype=bool)


def _sines_and_angles(rho: Any) -> tuple[Any, Any]:
    """Return √(1 − ρ²) and asin ρ, with derivatives 0 where |ρ| = 1.

    They are infinite there, but cancel in the moments.
    """
    inside = jnp.abs(rho) < 1.0
    within = jnp.where(inside, rho, 0.0)
    sines = jnp.where(inside, jnp.sqrt((1.0 - within) * (1.0 + within)), 0.0)
    ends = jax.lax.stop_gradient(jnp.pi / 2 * jnp.sign(rho))
    return sines, jnp.where(inside, jnp.arcsin(within), ends)


def relu_i2(cov: Any) -> Any:
    """E[g(λ_a) g(λ_b)] (n, n) of ReLU units."""
    lengths, _, rho = _units(cov)
    sines, angles = _sines_and_angles(rho)
    both = (sines + rho * (jnp.pi / 2 + angles)) / (2.0 * jnp.pi)
    return jnp.where(_own(cov), cov / 2.0, jnp.outer(lengths, lengths) * both)


def relu_i3(cov: Any) -> Any:
    """E[g(λ_n) g′(λ_k) λ_h] (n, k, h) of ReLU units."""
    lengths, inverses, rho = _units(cov)
    sines, angles = _sines_and_angles(rho)
    positive = jnp.where(_own(cov), 0.5, 0.25 + angles / (2.0 * jnp.pi))
    along = jnp.where(_own(cov), 0.0, sines) * lengths[:, None] * inverses / (2.0 * jnp.pi)
    return positive[:, :, None] * cov[:, None, :] + along[:, :, None] * cov[None, :, :]
