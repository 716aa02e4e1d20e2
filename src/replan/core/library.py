"""The door to the compiled core: every call of C goes through `Function`, which checks it first."""

from __future__ import annotations

import ctypes
import os
import re
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from replan.errors import ArgumentError

_FOLDER = Path(__file__).parent
_DTYPES = {
    "floats": np.dtype(np.float64),
    "ints": np.dtype(np.int64),
    "bools": np.dtype(np.bool_),
    "shorts": np.dtype(np.int16),
}
_SCALARS: dict[str, Any] = {"size": ctypes.c_int64, "int": ctypes.c_int64, "float": ctypes.c_double}
_FOUND = ("size", "flag")  # without the caller
_NEVER = ctypes.c_int64(0)  # a flag that nobody sets
_NOTHING: Any = ctypes.c_char * 0


@cache
def library() -> ctypes.CDLL:
    """Load the compiled core: the build for recent processors where this is one.

    The environment variable REPLAN_CORE names another build, such as one with sanitizers.
    """
    if chosen := os.environ.get("REPLAN_CORE"):
        return ctypes.CDLL(chosen)
    base = _FOLDER / "_core-base.so"
    if not base.exists():
        raise ImportError(f"replan's compiled core is missing ({base.name}): install replan again")
    core, recent = ctypes.CDLL(str(base)), _FOLDER / "_core-v3.so"
    return ctypes.CDLL(str(recent)) if recent.exists() and core.replan_has_v3() else core


class _Argument(NamedTuple):
    kind: str
    written: bool
    name: str
    shape: tuple[int | str, ...]
    dtype: np.dtype[Any] | None


class Function:
    """A function of the core, declared by its prototype in C.

    Each argument is a kind and a name: `floats`, `ints`, `bools` or `shorts` are arrays, whose
    shape is given by names of sizes or by numbers, and written to where marked by `!`; `size` is a
    size found from the arrays' shapes, which callers leave out; `int` and `float` are numbers;
    `address` is an object of ctypes or a number that the caller vouches for; `flag` is set to stop
    the call.

    Examples:
        >>> follow = Function("replan_follow", "size steps, size T, float patience, …")
    """

    def __init__(self, symbol: str, prototype: str) -> None:
        self._symbol = symbol
        self._arguments = [_parse(text) for text in re.split(r",\s+", prototype)]
        shapes = {axis for argument in self._arguments for axis in argument.shape}
        self._numbers: dict[int | str, int] = {n: n for n in shapes if isinstance(n, int)}
        self._given = [(i, a) for i, a in enumerate(self._arguments) if a.kind not in _FOUND]
        self._sizes = [(i, a.name) for i, a in enumerate(self._arguments) if a.kind == "size"]

    @cached_property
    def _c_function(self) -> Any:
        function = library()[self._symbol]
        function.argtypes = [
            _SCALARS.get(argument.kind, ctypes.c_void_p) for argument in self._arguments
        ]
        function.restype = ctypes.c_int64
        return function

    def __call__(self, *values: Any, stop: ctypes.c_int64 = _NEVER) -> int:
        """Call the function; arrays of another type, shape or order are refused."""
        sizes = self._numbers.copy()
        passed: list[Any] = [ctypes.addressof(stop)] * len(self._arguments)  # the flag stays
        for (i, argument), value in zip(self._given, values, strict=True):
            passed[i] = value if argument.dtype is None else _address(argument, value, sizes)
        for i, name in self._sizes:
            passed[i] = sizes[name]
        return self._c_function(*passed)


def _parse(text: str) -> _Argument:
    found = re.fullmatch(r"(\w+)(!?) (\w+)(?:\[([\w,]+)\])?", text)
    assert found, text
    kind, written, name, shape = found.groups()
    axes = [] if shape is None else shape.split(",")
    sizes = tuple(int(axis) if axis.isdigit() else axis for axis in axes)
    return _Argument(kind, bool(written), name, sizes, _DTYPES.get(kind))


def _address(argument: _Argument, array: Any, sizes: dict[int | str, int]) -> int:
    """Return where an array's numbers are, if it fits; note the sizes its shape gives names to."""
    _, written, _, shape, dtype = argument
    if isinstance(array, np.ndarray) and array.dtype == dtype and array.ndim == len(shape):
        flags = array.flags
        fits = flags.c_contiguous and flags.aligned and (flags.writeable or not written)
        for axis, length in zip(shape, array.shape, strict=False):
            fits &= sizes.setdefault(axis, length) == length
        if fits and flags.writeable:
            return ctypes.addressof(_NOTHING.from_buffer(array))  # in half the time of the next
        if fits:
            return int(array.ctypes.data)
    axes = ", ".join(str(sizes.get(axis, axis)) for axis in shape)
    got = f"{array.dtype}{list(array.shape)}" if isinstance(array, np.ndarray) else repr(array)
    raise ArgumentError(argument.name, f"contiguous {argument.kind} of shape ({axes})", f"{got}")


# The integrator, rk4.c

ROWS = 4  # of n numbers each, which the integrator takes of the scratch space

_SCHEDULE = (
    "floats shares[pieces,T], floats knobs[pieces,C], floats lengths[pieces], ints substeps[pieces]"
)
ROLL_OUT = Function(
    "replan_roll_out",
    "address model, floats parameters[count], size pieces, size T, size C, size n, size steps, "
    f"{_SCHEDULE}, floats starts[pieces,n], floats! ends[pieces,n], floats! tape[steps,4,n], "
    "floats! work[room], flag stop",
)
ROLL_OUT_VJP = Function(
    "replan_roll_out_vjp",
    "address model, floats parameters[count], size pieces, size edges, size T, size C, size n, "
    f"size steps, {_SCHEDULE}, floats cotangents[edges,n], floats tape[steps,4,n], "
    "floats! adjoints[edges,n], floats! by_shares[pieces,T], floats! by_knobs[pieces,C], "
    "floats! work[room], flag stop",
)
RATE = Function(
    "replan_rate",
    "address model, floats parameters[count], size n, floats state[n], floats shares[T], "
    "floats knobs[C], floats! out[n], floats! work[room]",
)
LOSSES = Function(
    "replan_losses",
    "address model, floats parameters[count], size rows, size n, size L, floats states[rows,n], "
    "floats! out[rows,L], floats! work[room], flag stop",
)
LOSSES_VJP = Function(
    "replan_losses_vjp",
    "address model, floats parameters[count], size rows, size n, size L, floats states[rows,n], "
    "floats cotangents[rows,L], floats! out[rows,n], floats! work[room], flag stop",
)

# The relaxed controls, projection.c

DOMAIN_ROOM = 14  # integers, which a domain as the core reads it takes
SET_DOMAIN = Function(
    "replan_set_domain",
    "size T, size m, size groups, size spans, size known, int rows, bools available[known,T], "
    "floats low[T], floats high[T], floats weights[groups,m], floats least[groups], "
    "floats most[groups], bools old[counted,tasks], ints span[spans,2], floats caps[spans], "
    "ints! place[14]",
)
PROJECT = Function(
    "replan_project",
    "address domain, floats x[n], floats! out[n], floats! work[room], flag stop",
)
DESCEND = Function(
    "replan_descend",
    "address domain, size n, size p, float scale, floats sides[p,n], floats inverse[p,p], "
    "floats! x[n], floats! slope[n], floats! work[room], flag stop",
)

# One task per step, shortest_path.c

CHEAPEST_PATH = Function(
    "replan_cheapest_path",
    "size steps, size edges, size T, size S, size C, size R, int dwell, int switches, "
    "floats costs[steps,T], floats sums[edges,T], bools available[steps,T], bools old[steps,T], "
    "bools begins[steps], ints replays[steps], ints low[T], ints high[T], ints sizes[T], "
    "ints strides[T], floats! best[layers,T,S,C,R], shorts! came[edges,T,S,C,R], "
    "ints! tasks[steps], ints! stays[T], flag stop",
)
FOLLOW = Function(
    "replan_follow",
    "size steps, size T, float patience, floats shares[steps,T], floats lengths[steps], "
    "bools there[steps,T], floats! lag[T], ints! chosen[steps], flag stop",
)

# SGD at finite size, sgd.c

ACTIVATIONS = ("erf", "relu", "linear")
DRAW = Function(
    "replan_draw",
    "address generator, address normal, address chi_square, size samples, size columns, "
    "float freedom, float noise, floats! draws[samples,columns]",
)
ADVANCE_REDUCED = Function(
    "replan_advance_reduced",
    "size samples, size K, size r, size P, size T, size columns, size m, size n, int activation, "
    "float dimension, float noise, floats! along[K,r], floats! rest[K,K], floats! heads[T,K], "
    "ints tasks[samples], floats rates[samples], floats head_rates[samples], floats frame[P,r], "
    "floats teacher_heads[T,P], floats draws[samples,columns], ints marks[m], floats! states[m,n], "
    "floats! work[room]",
)
TRAIN = Function(
    "replan_train",
    "size samples, size K, size N, size P, size T, size moving, int activation, int batch, "
    "int filled, float momentum, floats! weights[K,N], floats! heads[T,K], "
    "floats! velocity[moving,N], floats! head_velocity[heads_moving,K], floats inputs[samples,N], "
    "floats noise[samples], ints tasks[samples], floats rates[samples], "
    "floats head_rates[samples], floats teachers[P,N], floats teacher_heads[T,P], "
    "floats! work[room]",
)
