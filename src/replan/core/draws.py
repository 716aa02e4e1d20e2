"""Random numbers of numpy's in the order in which the reduced simulator uses them."""

from __future__ import annotations

import ctypes
from functools import cache

import numpy as np

from replan.check import Floats
from replan.core import library


def draw(rng: np.random.Generator, freedom: int, noise: float, out: Floats) -> None:
    """Fill in the random numbers of samples (n, r + K + 2); see `replan_draw`.

    Where numpy does not export its functions, in another order.
    """
    functions = _numpy_functions()
    if functions is None:
        out[:, :-2] = rng.standard_normal(out[:, :-2].shape)
        out[:, -2] = np.sqrt(rng.chisquare(freedom, len(out))) if freedom > 0 else 0.0
        out[:, -1] = rng.standard_normal(len(out)) if noise > 0 else 0.0
        return
    source = rng.bit_generator
    with source.lock:
        library.DRAW(source.ctypes.bit_generator, *functions, freedom, noise, out)


@cache
def _numpy_functions() -> tuple[int | None, ...] | None:
    """Return the addresses of numpy's normal and χ² random numbers; None if it hides them."""
    try:
        numpy = ctypes.CDLL(np.random._generator.__file__)
        names = "random_standard_normal", "random_chisquare"
        return tuple(ctypes.cast(numpy[name], ctypes.c_void_p).value for name in names)
    except (OSError, AttributeError):
        return None
