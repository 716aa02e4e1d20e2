"""Gaussian moments of g(z) = erf(z/√2) in JAX, for all entries of a covariance C (n×n) at once.

Slopes g′ are those of the first K units, the hidden ones.
Multiplying by g′(λ_k) tilts the Gaussian; see core/erf.c for the identity.
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


def i3(cov: Any, K: int) -> Any:
    """E[g(λ_n) g′(λ_k) λ_h] (n, K, n), in the index order of the equations of motion."""

    def of_slope(k: Any) -> Any:
        once = tilt(cov, k)
        scale = 2.0 / jnp.pi / jnp.sqrt((1.0 + cov[k, k]) * (1.0 + jnp.diag(once)))
        return scale[:, None] * once

    return jnp.swapaxes(jax.vmap(of_slope)(jnp.arange(K)), 0, 1)


def i4(cov: Any, K: int) -> Any:
    """E[g(λ_n) g(λ_m) g′(λ_k) g′(λ_h)] (n, n, K, K)."""
    units = jnp.arange(K)

    def of_slopes(k: Any, h: Any) -> Any:
        once = tilt(cov, k)
        scale = 2.0 / jnp.pi / jnp.sqrt((1.0 + cov[k, k]) * (1.0 + once[h, h]))
        return scale * i2(tilt(once, h))

    pairs = jax.vmap(lambda k: jax.vmap(lambda h: of_slopes(k, h))(units))(units)
    return jnp.transpose(pairs, (2, 3, 0, 1))


def slopes(cov: Any, K: int) -> Any:
    """E[g′(λ_k) g′(λ_h)] (K, K)."""
    plus = 1.0 + jnp.diag(cov)[:K]
    return 2.0 / jnp.pi / jnp.sqrt(jnp.outer(plus, plus) - cov[:K, :K] ** 2)
