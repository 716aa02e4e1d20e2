"""Kernels: the compiled functions of a model."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import NamedTuple

from replan.core.library import library
from replan.errors import ArgumentError


class Kernels(NamedTuple):
    """Addresses of the compiled functions of a model, with the signatures of C.

    All arrays are pointers to doubles. `p` are the model's `parameters`, `work` its scratch space.

    - `rate(p, state, shares, knobs, out, work)`: write Σ_t shares[t] f_t(state, knobs of task t) to
      `out` (n,). `knobs` (C,) are the values of the model's knobs in their order, T numbers for a
      knob with a value for each task, else one.
    - `rate_vjp(p, state, cotangent, shares, knobs, scale, by_state, by_shares, by_knobs, work)`:
      write the gradient of cotangent · rate by the state to `by_state` (n,); add `scale`, a double,
      × those by shares and by knobs to `by_shares` (T,) and `by_knobs` (C,).
    - `losses(p, state, out, work)`: write all losses to `out` (L,).
    - `losses_vjp(p, state, cotangent, out, work)`: write the gradient of Σ_l cotangent[l] × loss l
      by the state to `out` (n,).
    - `prepare(p, work)`: fill in what the parameters alone determine, once before every loop; 0 if
      there is nothing to do.
    - `room`: how many doubles of scratch space the functions need.

    Examples:
        >>> kernels = replan.TeacherStudent.similar(0.3).kernels()
        >>> kernels._fields[:4]
        ('rate', 'rate_vjp', 'losses', 'losses_vjp')
    """

    rate: int
    rate_vjp: int
    losses: int
    losses_vjp: int
    prepare: int = 0
    room: int = 0


_Table = ctypes.c_size_t * 5  # the struct `kernels` of replan.h


def table(kernels: Kernels) -> ctypes.Array[ctypes.c_size_t]:
    """Return the functions as the table that the integrator takes."""
    if not all(isinstance(address, int) and address > 0 for address in kernels[:4]):
        raise ArgumentError("kernels", "the addresses of four functions", f"{kernels[:4]}")
    return _Table(*kernels[:5])


@cache
def shipped(activation: str, hidden: int, teacher_units: int, tasks: int) -> Kernels:
    """Return the kernels of networks of K hidden and P teacher units with an activation."""
    rate, rate_vjp, losses, losses_vjp, prepare = _Table.in_dll(library(), f"replan_{activation}")
    measure = library()[f"replan_{activation}_room"]
    measure.argtypes, measure.restype = [ctypes.c_int64] * 3, ctypes.c_int64
    room = measure(hidden, teacher_units, tasks)
    return Kernels(rate, rate_vjp, losses, losses_vjp, prepare, room)
