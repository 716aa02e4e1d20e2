"""What the compiled code of the image network shares: its weights, and how it is compiled.

Weights are one vector [W, b, V, c] of single or double precision, which is that of all work.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from replan._common.compiled import compiled, inlined

Reals = NDArray[Any]  # float32 or float64

# Sums may be taken in any order, so that they are vectorised; but NaN stays NaN.
_SUMS = {"reassoc", "contract", "nsz", "arcp"}
fast = compiled(fastmath=_SUMS)
part = compiled(fastmath=_SUMS, no_cpython_wrapper=True)  # called by compiled code alone

# Arrays are read by index, never by row: a view of an array that threads share makes them wait for
# each other, as all of them count who uses it.


class Parts(NamedTuple):
    """Weights W (K, D), b (K,), V (T, C, K), c (T, C)."""

    features: Reals
    biases: Reals
    heads: Reals
    head_biases: Reals


@inlined
def parts(weights: Reals, K: int, D: int, T: int, C: int) -> Parts:
    i, j, k = K * D, K * D + K, K * D + K + T * C * K
    return Parts(
        weights[:i].reshape((K, D)),
        weights[i:j],
        weights[j:k].reshape((T, C, K)),
        weights[k : k + T * C].reshape((T, C)),
    )


@inlined
def to_probabilities(o: Reals) -> Any:
    """Replace outputs by their softmax; return the logarithm of Σ_c exp(o_c)."""
    most = o[0]
    for c in range(1, o.size):
        most = max(most, o[c])
    total = o.dtype.type(0.0)
    for c in range(o.size):
        o[c] = np.exp(o[c] - most)
        total += o[c]
    for c in range(o.size):
        o[c] /= total
    return most + np.log(total)
