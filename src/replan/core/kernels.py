"""Kernels: the compiled functions that a model provides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple


class Kernels(NamedTuple):
    """The functions of a compiled model, made by `compiled`, and the type they are found by.

    - `parameters`: a NamedTuple class of numbers and arrays, all that the functions know about a
      model. No two models share it, because the functions are found by it. `p` is an instance.
    - `rate(p, state, shares, knobs, out)`: write Σ_t shares[t] f_t(state, knobs of task t) to `out`
      (n,). `knobs` (C,) are the values of the model's knobs in their order, T numbers for a knob
      with a value for each task, else one; for the learning rate alone, that of each task.
    - `losses(p, state, out)`: write all losses to `out` (L,).
    - `rate_vjp(p, state, cotangent, shares, knobs, scale, by_state, by_shares, by_knobs)`: write
      the gradient of cotangent · rate by the state to `by_state` (n,); add `scale` × those by
      shares and by knobs to `by_shares` (T,) and `by_knobs` (C,).
    - `losses_vjp(p, state, cotangent, out)`: write the gradient of Σ_l cotangent[l] × loss l by
      the state to `out` (n,).
    - `make_work(p)`, `make_vjp_work(p)`: optional; make the scratch arrays that the functions take
      in place of `p`, once per roll-out: for rate and losses, and for their vjps. Each is annotated
      with the NamedTuple class that it returns.

    Examples:
        >>> kernels = replan.TeacherStudent.similar(0.3).kernels()
        >>> kernels._fields[:5]
        ('parameters', 'rate', 'losses', 'rate_vjp', 'losses_vjp')
    """

    parameters: type
    rate: Callable[..., Any]
    losses: Callable[..., Any]
    rate_vjp: Callable[..., Any]
    losses_vjp: Callable[..., Any]
    make_work: Callable[..., Any] | None = None
    make_vjp_work: Callable[..., Any] | None = None
