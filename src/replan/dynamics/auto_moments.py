"""Gaussian moments of g(z) = erf(z/√2), and of max(z, 0), in JAX, for models by `AutoDynamics`.

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


def _correlations(cov: Any) -> tuple[Any, Any, Any]:
    """Return which entries are a unit's own, lengths (n,) and correlations, 0 for the own ones.

    There derivatives of what follows are infinite by themselves, though not in the moments.
    """
    own = jnp.eye(len(cov), dtype=bool)
    lengths = jnp.sqrt(jnp.diag(cov))
    return own, lengths, jnp.where(own, 0.0, cov / jnp.outer(lengths, lengths))


def relu_i2(cov: Any) -> Any:
    """E[g(λ_a) g(λ_b)] (n, n) of ReLU units."""
    own, lengths, rho = _correlations(cov)
    both = (jnp.sqrt(1.0 - rho**2) + rho * (jnp.pi / 2 + jnp.arcsin(rho))) / (2.0 * jnp.pi)
    return jnp.where(own, cov / 2.0, jnp.outer(lengths, lengths) * both)


def relu_i3(cov: Any) -> Any:
    """E[g(λ_n) g′(λ_k) λ_h] (n, k, h) of ReLU units."""
    own, lengths, rho = _correlations(cov)
    positive = jnp.where(own, 0.5, 0.25 + jnp.arcsin(rho) / (2.0 * jnp.pi))
    sines = jnp.where(own, 0.0, jnp.sqrt(1.0 - rho**2)) / (2.0 * jnp.pi)
    along = sines * lengths[:, None] / lengths
    return positive[:, :, None] * cov[:, None, :] + along[:, :, None] * cov[None, :, :]
