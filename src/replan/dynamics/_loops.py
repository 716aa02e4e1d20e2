"""RK4 and its exact reverse, compiled once for every kind of parameters.

What is particular to a model (`rate`, `losses`, their reverses) is found by the type of its first
argument, a NamedTuple class of the model's own: a function passed as an argument would be compiled
anew in every process.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple, get_type_hints

import numpy as np
from numba.extending import overload

from replan._common.check import Floats
from replan._common.compiled import compiled, inlined
from replan.dynamics._dynamics import Pieces
from replan.dynamics._kernels import Kernels

_KERNELS: dict[type, Kernels] = {}  # by the type of their functions' first argument


class Loops(NamedTuple):
    """The compiled loops around a model's kernels."""

    roll_out: Callable[..., Any]
    pull_back: Callable[..., Any]
    all_losses: Callable[..., Any]
    pull_all_losses: Callable[..., Any]


@cache
def loops(kernels: Kernels) -> Loops:
    """Return the loops for a model's kernels; code compiled from older sources is not used."""
    made = (kernels.make_work, kernels.make_pull_work)
    for found in (kernels.parameters, *(_returned(maker) for maker in made if maker is not None)):
        if _KERNELS.setdefault(found, kernels) != kernels:
            raise ValueError(f"`parameters` expects a class of the model's own, got {found} again")
    functions = (_roll_out, _pull_back, _all_losses, _pull_all_losses)
    return Loops(*(compiled(model=kernels.rate)(function) for function in functions))


def _returned(maker: Any) -> type:
    """Return the NamedTuple class in a compiled function's return annotation."""
    found = get_type_hints(maker.py_func).get("return")
    if not isinstance(found, type):
        raise ValueError(
            f"`{maker.__name__}` expects an annotation with the NamedTuple class that it returns, "
            f"got {found}"
        )
    return found


# The functions of a model, found by the type of their first argument.


def _by_type(name: str) -> Callable[..., Any]:
    def kernel(*arguments: Any) -> Any: ...

    @overload(kernel, strict=False, jit_options={"error_model": "numpy"})
    def find(*arguments: Any) -> Any:
        found: Any = getattr(_KERNELS[arguments[0].instance_class], name)
        return (lambda p: p) if found is None else found.py_func

    return kernel


_make_work = _by_type("make_work")
_make_pull_work = _by_type("make_pull_work")
_rate = _by_type("rate")
_losses = _by_type("losses")
_pull_rate = _by_type("pull_rate")
_pull_losses = _by_type("pull_losses")


# The loops


@inlined
def _stages(
    work: Any, shares: Floats, lr: Floats, step: float, stages: Floats,
    slope: Floats, total: Floats,
) -> None:  # fmt: skip
    """Fill in the states of the last three stages (4, n) and the sum k₁ + 2k₂ + 2k₃ of slopes."""
    n = total.size
    _rate(work, stages[0], shares, lr, slope)
    for i in range(n):
        total[i] = slope[i]
        stages[1, i] = stages[0, i] + 0.5 * step * slope[i]
    _rate(work, stages[1], shares, lr, slope)
    for i in range(n):
        total[i] += 2.0 * slope[i]
        stages[2, i] = stages[0, i] + 0.5 * step * slope[i]
    _rate(work, stages[2], shares, lr, slope)
    for i in range(n):
        total[i] += 2.0 * slope[i]
        stages[3, i] = stages[0, i] + step * slope[i]


@inlined
def _finish(
    work: Any, shares: Floats, lr: Floats, step: float, stages: Floats,
    slope: Floats, total: Floats, end: Floats,
) -> None:  # fmt: skip
    """Write the end x + h/6 (k₁ + 2k₂ + 2k₃ + k₄) of a step whose stages are known."""
    _rate(work, stages[3], shares, lr, slope)
    for i in range(total.size):
        end[i] = stages[0, i] + step / 6.0 * (total[i] + slope[i])


def _roll_out(p: Any, start: Floats, pieces: Pieces) -> tuple[Floats, int]:
    """Classical RK4 with `pieces.substeps[i]` equal steps on piece i.

    Returns the states (pieces + 1, n) at the edges and how many pieces ended with finite numbers.
    """
    count, n = pieces.lengths.size, start.size
    work = _make_work(p)
    states = np.empty((count + 1, n))
    states[0] = start
    stages, slope, total = np.empty((4, n)), np.empty(n), np.empty(n)
    stages[0] = start
    for piece in range(count):
        step = pieces.lengths[piece] / pieces.substeps[piece]
        shares, lr = pieces.shares[piece], pieces.lr[piece]
        for _ in range(pieces.substeps[piece]):
            _stages(work, shares, lr, step, stages, slope, total)
            _finish(work, shares, lr, step, stages, slope, total, stages[0])
            size = 0.0
            for i in range(n):
                size += abs(stages[0, i])
            if not np.isfinite(size):
                return states, piece
        states[piece + 1] = stages[0]
    return states, count


def _pull_back(
    p: Any, states: Floats, cotangents: Floats, pieces: Pieces
) -> tuple[Floats, Floats, Floats]:
    """Reverse of `_roll_out`: exact gradients of Σ_i cotangents[i] · states[i].

    states, cotangents: (pieces + 1, n). Returns the adjoints (pieces + 1, n), the gradients by the
    state at each edge, and the gradients by shares and by lr (pieces, T).
    """
    count, n = pieces.lengths.size, states.shape[1]
    T = pieces.shares.shape[1]
    work, pull_work = _make_work(p), _make_pull_work(p)
    adjoints = np.empty_like(states)
    by_shares, by_lr = np.zeros((count, T)), np.zeros((count, T))
    most = 1
    for piece in range(count):
        most = max(most, pieces.substeps[piece])
    stages = np.empty((most, 4, n))
    slope, total = np.empty(n), np.empty(n)
    back, pulled, cotangent = np.empty(n), np.empty(n), np.empty(n)
    adjoints[count] = cotangents[count]
    for piece in range(count - 1, -1, -1):
        substeps = pieces.substeps[piece]
        step = pieces.lengths[piece] / substeps
        shares, lr = pieces.shares[piece], pieces.lr[piece]
        stages[0, 0] = states[piece]
        for sub in range(substeps):  # the stages again, going forwards
            _stages(work, shares, lr, step, stages[sub], slope, total)
            if sub + 1 < substeps:
                _finish(work, shares, lr, step, stages[sub], slope, total, stages[sub + 1, 0])
        back[:] = adjoints[piece + 1]
        for sub in range(substeps - 1, -1, -1):
            # x⁺ = x + h/6 (k₁ + 2k₂ + 2k₃ + k₄): the cotangent of each kᵢ in turn, over h.
            for i in range(n):
                cotangent[i] = back[i] / 6.0
                total[i] = 0.0
            for j in range(3, -1, -1):
                _pull_rate(
                    pull_work, stages[sub, j], cotangent, shares, lr, step,
                    pulled, by_shares[piece], by_lr[piece],
                )  # fmt: skip
                for i in range(n):
                    pulled[i] *= step
                    total[i] += pulled[i]
                    if j == 3:
                        cotangent[i] = back[i] / 3.0 + pulled[i]
                    elif j == 2:
                        cotangent[i] = back[i] / 3.0 + 0.5 * pulled[i]
                    elif j == 1:
                        cotangent[i] = back[i] / 6.0 + 0.5 * pulled[i]
            for i in range(n):
                back[i] += total[i]
        for i in range(n):
            adjoints[piece, i] = back[i] + cotangents[piece, i]
    return adjoints, by_shares, by_lr


def _all_losses(p: Any, states: Floats, tasks: int) -> Floats:
    """Return the loss of every task (m, T) at states (m, n)."""
    work = _make_work(p)
    out = np.empty((states.shape[0], tasks))
    for row in range(states.shape[0]):
        _losses(work, states[row], out[row])
    return out


def _pull_all_losses(p: Any, states: Floats, cotangents: Floats) -> Floats:
    """Reverse of `_all_losses`: gradients (m, n) by states; cotangents are (m, T)."""
    work = _make_pull_work(p)
    out = np.empty_like(states)
    for row in range(states.shape[0]):
        _pull_losses(work, states[row], cotangents[row], out[row])
    return out
