"""States that relax independently, x′ ∝ target − x: in closed form over pieces, and its reverse."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]  # real, or complex for derivatives


def relax(first: Array, exponents: Array, targets: Array) -> Array:
    """Return the states (n + 1, …) at the edges of n pieces, from the first (…).

    exponents: (n, …) the integral of the relaxation rate over each piece. targets: (n, …).
    """
    decay = np.exp(-exponents)
    added = (1.0 - decay) * targets
    states = np.empty((len(decay) + 1, *decay.shape[1:]), added.dtype)
    states[0] = first
    for k in range(len(decay)):
        np.multiply(decay[k], states[k], out=states[k + 1])
        states[k + 1] += added[k]
    return states


def relax_vjp(
    states: Array, cotangents: Array, exponents: Array, targets: Array
) -> tuple[Array, Array, Array]:
    """Return gradients by the states (n + 1, …), the exponents and the targets (n, …)."""
    decay = np.exp(-exponents)
    adjoints = cotangents.copy()
    for k in range(len(decay) - 1, -1, -1):
        adjoints[k] += decay[k] * adjoints[k + 1]
    ends = adjoints[1:]
    return adjoints, ends * decay * (targets - states[:-1]), ends * (1.0 - decay)
