"""RK4 and its exact reverse, compiled once for every kind of parameters.

A model's functions (`rate`, `losses`, their vjps) are found by the type of their first argument, a
NamedTuple class that only this model uses: a function passed as an argument would be compiled anew
in every process.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from functools import cache, wraps
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar, get_type_hints

import numpy as np
from numba.extending import overload

from replan import check
from replan.check import Floats
from replan.core.compiled import REORDERED, NumbaError, compiled, inlined
from replan.core.kernels import Kernels
from replan.core.schedule import Schedule
from replan.errors import ArgumentError

# Kernels become part of the loops: handing over a model's scratch arrays would take as long as the
# work of a small one. The types that come with numba lack one of these.
_OPTIONS: Any = {"error_model": "numpy", "no_cfunc_wrapper": True, "forceinline": True}
_KERNELS: dict[type, Kernels] = {}  # by the type of their functions' first argument

_ARGUMENTS = {
    "rate": "p, state, shares, knobs, out",
    "losses": "p, state, out",
    "rate_vjp": "p, state, cotangent, shares, knobs, scale, by_state, by_shares, by_knobs",
    "losses_vjp": "p, state, cotangent, out",
    "make_work": "p",
    "make_vjp_work": "p",
}


Loop = Callable[..., tuple[int, int]]
_L = TypeVar("_L")


class Loops(NamedTuple, Generic[_L]):
    """The compiled loops around a model's kernels, or something for each of them."""

    roll_out: _L
    roll_out_vjp: _L
    all_losses: _L
    all_losses_vjp: _L


@cache
def loops(kernels: Kernels) -> Loops[Loop]:
    """Return the loops for a model's kernels."""
    _check(kernels)
    for found in (kernels.parameters, *_returned(kernels)):
        if _KERNELS.setdefault(found, kernels) != kernels:
            raise ArgumentError("parameters", "a class that no other model uses", f"{found}")
    functions = (_roll_out, _roll_out_vjp, _all_losses, _all_losses_vjp)
    keep = kernels.rate.__module__.startswith("replan.core")
    return Loops(*(_explained(compiled(keep=keep)(function)) for function in functions))


def _check(kernels: Kernels) -> None:
    """Refuse kernels that are not compiled or have other arguments than they are called with."""
    if not hasattr(kernels.parameters, "_fields"):
        raise ArgumentError("parameters", "a NamedTuple class", check.show(kernels.parameters))
    for name, arguments in _ARGUMENTS.items():
        function: Any = getattr(kernels, name)
        if function is None:
            continue
        if not hasattr(function, "py_func"):
            raise ArgumentError(name, "a function made by `compiled`", check.show(function))
        given = inspect.signature(function.py_func).parameters
        if len(given) != arguments.count(",") + 1:
            raise ArgumentError(name, f"the arguments ({arguments})", f"({', '.join(given)})")


def _explained(loop: Any) -> Callable[..., Any]:
    """Cut numba's errors, which are pages long, down to one line.

    Compiled code that raises was given a state of the wrong length: nothing else varies.
    """

    @wraps(loop)
    def call(*arguments: Any) -> Any:
        try:
            return loop(*arguments)
        except NumbaError as error:
            raise ArgumentError(*_one_line(str(error))) from error
        except (ValueError, IndexError) as error:
            raise ArgumentError(
                "pack",
                "a function that returns states for `rate` and `losses`",
                f"one of {arguments[1].shape[-1]} numbers: {str(error).partition(chr(10))[0]}",
            ) from error

    return call


def _one_line(text: str) -> tuple[str, str, str]:
    """Return which kernel numba could not compile, what it must be, and why it is not."""
    kernel = re.search(r">>> (\w+)\(", text)
    if kernel is None:
        return "parameters", "numbers and arrays", text.strip().splitlines()[-1]
    _, _, inner = text.partition("specific error:")
    lines = [line.strip().removeprefix("TypingError: ") for line in inner.splitlines()]
    reasons = [line for line in lines if line and not line.startswith("Failed in")] + ["?"]
    reason = " ".join(reasons[: 2 if reasons[0].endswith(":") else 1])
    places = re.findall(r'File "(?:[^"]*[/\\])?([^"]+)", line (\d+)', inner)
    where = [f" ({name}, line {line})" for name, line in places if name != Path(__file__).name]
    return kernel[1], "code that numba can compile", "".join([reason, *where[:1]])


def _returned(kernels: Kernels) -> Iterator[type]:
    """Yield the NamedTuple classes that the makers of scratch arrays say they return."""
    for name in ("make_work", "make_vjp_work"):
        maker: Any = getattr(kernels, name)
        if maker is None:
            continue
        found: Any = get_type_hints(maker.py_func).get("return")
        if not hasattr(found, "_fields"):
            raise ArgumentError(
                name, "an annotation with the NamedTuple class that it returns", found
            )
        yield found


# The functions of a model, found by the type of their first argument.


def _by_type(name: str) -> Callable[..., Any]:
    def kernel(*arguments: Any) -> Any: ...

    kernel.__name__ = name  # for errors
    for fastmath in (False, REORDERED):
        _serve(kernel, name, fastmath)
    return kernel


def _serve(kernel: Callable[..., Any], name: str, fastmath: Any) -> None:
    """Let a model's function stand for `kernel` if its own option `fastmath` is this one."""

    @overload(kernel, strict=False, jit_options=_OPTIONS | {"fastmath": fastmath})
    def find(*arguments: Any) -> Any:
        found: Any = getattr(_KERNELS[arguments[0].instance_class], name)
        if found is None:
            return None if fastmath else lambda p: p
        return found.py_func if found.targetoptions.get("fastmath", False) == fastmath else None


_make_work = _by_type("make_work")
_make_vjp_work = _by_type("make_vjp_work")
_rate = _by_type("rate")
_losses = _by_type("losses")
_rate_vjp = _by_type("rate_vjp")
_losses_vjp = _by_type("losses_vjp")


# The loops


@inlined
def _copy(source: Floats, target: Floats) -> None:
    """Copy (n,) numbers; numba takes seconds to compile what an assignment says of bad shapes."""
    for i in range(target.size):
        target[i] = source[i]


@inlined
def _stages(
    work: Any, shares: Floats, knobs: Floats, step: float, stages: Floats, slope: Floats,
    total: Floats,
) -> None:  # fmt: skip
    """Fill in the states of the stages (4, n) after the first, and the sum k₁ + 2k₂ + 2k₃ + k₄."""
    for j in range(4):
        _rate(work, stages[j], shares, knobs, slope)
        weight = 2.0 if 0 < j < 3 else 1.0
        length = 0.5 * step if j < 2 else step
        for i in range(total.size):
            total[i] = (total[i] if j > 0 else 0.0) + weight * slope[i]
            if j < 3:
                stages[j + 1, i] = stages[0, i] + length * slope[i]


# Each continues from a position for about `most` steps and returns the new one; see `ChunkedLoop`.


def _roll_out(
    p: Any, pieces: Schedule, starts: Floats, ends: Floats, tape: Floats,
    piece: int, part: int, most: int,
) -> tuple[int, int]:  # fmt: skip
    """Classical RK4 with `pieces.substeps[i]` equal steps on piece i, from starts[i] to ends[i].

    starts, ends: (pieces, n). In a chain the two share memory, so that each piece starts where the
    last one ended. tape: (steps, 4, n) the stages of all steps for the reverse pass; with one row,
    scratch space. Continues from step `part` of a piece, from the state in its end. Returns part −1
    with the piece where a number is no longer finite.
    """
    count, n = pieces.lengths.size, starts.shape[1]
    work = _make_work(p)
    state, slope, total = np.empty(n), np.empty(n), np.empty(n)
    kept = tape.shape[0] > 1
    at = part
    for i in range(piece):
        at += pieces.substeps[i]
    while piece < count:
        _copy(ends[piece] if part > 0 else starts[piece], state)
        step = pieces.lengths[piece] / pieces.substeps[piece]
        shares, knobs = pieces.shares[piece], pieces.knobs[piece]
        last = min(pieces.substeps[piece], part + most)
        most -= last - part
        for _ in range(part, last):
            row = tape[at if kept else 0]
            _copy(state, row[0])
            _stages(work, shares, knobs, step, row, slope, total)
            size = 0.0
            for i in range(n):
                state[i] += step / 6.0 * total[i]
                size += abs(state[i])
            if not np.isfinite(size):
                return piece, -1
            at += 1
        _copy(state, ends[piece])
        if last < pieces.substeps[piece]:
            return piece, last
        piece, part = piece + 1, 0
        if most == 0:
            break
    return piece, 0


def _roll_out_vjp(
    p: Any, cotangents: Floats, pieces: Schedule, tape: Floats,
    adjoints: Floats, by_shares: Floats, by_knobs: Floats, done: int, _: int, most: int,
) -> tuple[int, int]:  # fmt: skip
    """Reverse of `_roll_out`: exact gradients of Σ_i cotangents[i] · states[i].

    cotangents: (pieces + 1, n). tape: (steps, 4, n) of the roll-out. Fills in the adjoints
    (pieces + 1, n), the gradients by the state at each edge, and adds to those by shares (pieces,
    T) and by knobs (pieces, C). Continues by whole pieces before the last `done` ones.
    """
    count, n = pieces.lengths.size, cotangents.shape[1]
    work = _make_vjp_work(p)
    total, back, pulled, cotangent = np.empty(n), np.empty(n), np.empty(n), np.empty(n)
    if done == 0:
        _copy(cotangents[count], adjoints[count])
    at = 0
    for piece in range(count - done):
        at += pieces.substeps[piece]
    for piece in range(count - 1 - done, -1, -1):
        if most <= 0:
            return count - 1 - piece, 0
        substeps = pieces.substeps[piece]
        most -= substeps
        step = pieces.lengths[piece] / substeps
        shares, knobs = pieces.shares[piece], pieces.knobs[piece]
        _copy(adjoints[piece + 1], back)
        for _sub in range(substeps):
            at -= 1
            # x⁺ = x + h/6 (k₁ + 2k₂ + 2k₃ + k₄): the cotangent of each kᵢ in turn, over h.
            for i in range(n):
                cotangent[i] = back[i] / 6.0
                total[i] = 0.0
            for j in range(3, -1, -1):
                _rate_vjp(
                    work, tape[at, j], cotangent, shares, knobs, step,
                    pulled, by_shares[piece], by_knobs[piece],
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
    return count, 0


def _all_losses(
    p: Any, states: Floats, out: Floats, row: int, _: int, most: int
) -> tuple[int, int]:
    """Fill in all losses (m, L) at states (m, n)."""
    work = _make_work(p)
    last = min(states.shape[0], row + most)
    for i in range(row, last):
        _losses(work, states[i], out[i])
    return last, 0


def _all_losses_vjp(
    p: Any, states: Floats, cotangents: Floats, out: Floats, row: int, _: int, most: int
) -> tuple[int, int]:
    """Reverse of `_all_losses`: fill in gradients (m, n) by states; cotangents are (m, L)."""
    work = _make_vjp_work(p)
    last = min(states.shape[0], row + most)
    for i in range(row, last):
        _losses_vjp(work, states[i], cotangents[i], out[i])
    return last, 0
