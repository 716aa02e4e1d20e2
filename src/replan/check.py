"""Checks of arguments on entry: errors name the argument, what it must be and what it was."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from numbers import Integral, Real
from pathlib import Path
from reprlib import Repr
from typing import Annotated, Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from replan.errors import ArgumentError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
# A task, counted from 0 in Python. It marks settings of strategies that count from 1 in files and
# on the command line: `order: Sequence[Task]` is [1, 0] after `--set order=2,1`.
Task = Annotated[int, "Task, from 0"]

LARGEST = 2**63 - 1  # of the integers that arrays, files and compiled code can hold
_HUGE = 1e300  # products of larger numbers, and those of numbers below its inverse, are lost

_WIDEST = 100  # characters of a value in a message
_repr = Repr()
_repr.maxstring = _repr.maxother = _repr.maxlong = _WIDEST

_T = TypeVar("_T")


def show(value: object) -> str:
    """Format any value as one short line, for messages."""
    text = " ".join(_repr.repr(value).split())
    return text if len(text) <= _WIDEST else f"{text[:_WIDEST]}…"


# Single values


def number(
    name: str,
    value: object,
    *,
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
) -> float:
    """Return `value` as a finite float within the given bounds."""
    bounds = {"of at least": at_least, "above": above, "at most": at_most}
    words = [f"{word} {bound:.12g}" for word, bound in bounds.items() if bound is not None]
    expected = f"a finite number {' and '.join(words)}".strip()
    try:
        x = float(value) if isinstance(value, Real) and not isinstance(value, bool) else np.nan
    except OverflowError:
        x = np.inf
    within = (
        (at_least is None or x >= at_least)
        and (above is None or x > above)
        and (at_most is None or x <= at_most)
    )
    if not within or not (x == 0 or 1 / _HUGE <= abs(x) <= _HUGE):
        raise ArgumentError(name, expected, show(value))
    return x


def integer(name: str, value: object, *, at_least: int = 0, at_most: int = LARGEST) -> int:
    """Return `value` as an int within the given bounds."""
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    if not whole or not at_least <= int(value) <= at_most:  # type: ignore[call-overload]
        most = f" and at most {at_most}" if at_most < LARGEST else ""
        raise ArgumentError(name, f"an integer of at least {at_least}{most}", show(value))
    return int(value)  # type: ignore[call-overload]


def boolean(name: str, value: object) -> bool:
    """Return `value` if it is True or False."""
    if not isinstance(value, bool | np.bool_):
        raise ArgumentError(name, "true or false", show(value))
    return bool(value)


def word(name: str, value: Any) -> str:
    """Return `value` if it is text that is not empty."""
    if not isinstance(value, str) or not value:
        raise ArgumentError(name, "a word", show(value))
    return value


def one_of(name: str, value: Any, known: Iterable[str]) -> str:
    """Return `value` if it is among `known`; else name the nearest."""
    known = list(known)
    if not isinstance(value, str) or value not in known:
        raise ArgumentError(
            name, f"one of {', '.join(known)}", f"{show(value)}{hint(value, known)}"
        )
    return value


def hint(word: Any, known: Iterable[str]) -> str:
    """Return ", did you mean …?" with the nearest of the known words, or nothing."""
    if not isinstance(word, str) or len(word) > _WIDEST:
        return ""
    spelt = {name.lower(): name for name in known}
    begun = [name for name in spelt if name.startswith(word.lower())]
    near = begun if len(begun) == 1 else get_close_matches(word.lower(), spelt, n=1, cutoff=0.5)
    return f", did you mean `{spelt[near[0]]}`?" if near else ""


def instance(name: str, value: Any, kind: type[_T], expected: str) -> _T:
    """Return `value` if it is of a class; `expected` says which, in words."""
    if not isinstance(value, kind):
        raise ArgumentError(name, expected, show(value))
    return value


def function(name: str, value: _T, expected: str = "a function") -> _T:
    """Return `value` if it can be called."""
    if not callable(value):
        raise ArgumentError(name, expected, show(value))
    return value


def path(name: str, value: Any) -> Path:
    """Return the path of a file or folder."""
    text = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    if not isinstance(text, str) or "\0" in text:
        raise ArgumentError(name, "a path", show(value))
    return Path(text)


# Tasks


def task(name: str, value: object, tasks: int) -> int:
    """Return `value` as the index (from 0) of one of `tasks` tasks."""
    if not isinstance(value, Integral) or isinstance(value, bool) or not 0 <= int(value) < tasks:
        expected = "0, the only task" if tasks == 1 else f"a task index from 0 to {tasks - 1}"
        raise ArgumentError(name, expected, show(value))
    return int(value)


def task_list(name: str, value: Any, tasks: int) -> Ints:
    """Return indices (from 0) of some of `tasks` tasks (n,)."""
    listed = items(name, value, "tasks")
    whole = all(
        issubclass(kind, Integral) and not issubclass(kind, bool) for kind in set(map(type, listed))
    )
    if not whole or (listed and not 0 <= min(listed) <= max(listed) < tasks):
        for index in listed:  # names the wrong one
            task(name, index, tasks)
    return np.array(listed, dtype=np.int64)


def losses(name: str, value: Mapping[int, float], tasks: int) -> dict[int, float]:
    """Return losses by task (from 0), of some or of all `tasks` tasks, as floats, finite or not."""
    instance(name, value, Mapping, "a dict of losses by task")
    return {task(name, index, tasks): _loss(name, loss) for index, loss in value.items()}


def _loss(name: str, value: Any) -> float:
    """Convert a number, or a scalar of another library such as a tensor, to a float."""
    try:
        if not isinstance(value, str):
            return float(value)
    except (TypeError, ValueError, RuntimeError):
        pass
    raise ArgumentError(name, "a number for each task", show(value))


# Lists and arrays


def items(name: str, value: Any, expected: str) -> list[Any]:
    """Return the items of a list, tuple, array or generator; `expected` says what they are."""
    words = isinstance(value, str | bytes | bytearray | Mapping)
    if words or not isinstance(value, Iterable) or getattr(value, "ndim", 1) != 1:
        raise ArgumentError(name, f"a list of {expected}", show(value))
    return list(value)


def array(
    name: str,
    value: ArrayLike,
    shape: tuple[int | str, ...] | None = None,
    *,
    finite: bool = True,
) -> Floats:
    """Return a new float64 array of the given shape; a letter in `shape` stands for any length.

    Real numbers only: no truth values, no text, nothing complex, nothing masked.
    """
    expected = "an array of numbers" + ("" if shape is None else f" of shape {_show_shape(shape)}")
    try:
        given = np.asarray(value)
        real = given.dtype.kind in "iuf" or (
            given.dtype.kind == "O"
            and all(isinstance(x, Real) and not isinstance(x, bool) for x in given.flat)
        )
        a = np.array(given, dtype=np.float64) if real else None
    except (TypeError, ValueError, OverflowError, RuntimeError):  # ragged, huge, another library's
        a = None
    if a is None or np.ma.is_masked(value):
        raise ArgumentError(name, expected, show(value))
    if shape is not None:
        fits = len(shape) == a.ndim and all(
            isinstance(n, str) or n == length for n, length in zip(shape, a.shape, strict=True)
        )
        if not fits:
            raise ArgumentError(name, expected, f"shape {_show_shape(a.shape)}")
    if finite and not np.all(np.isfinite(a)):
        where = tuple(int(i) for i in np.argwhere(~np.isfinite(a))[0])
        at = f" at index {list(where)}" if where else ""
        raise ArgumentError(name, "finite numbers", f"{a[where]}{at}")
    return a


def _show_shape(shape: tuple[Any, ...]) -> str:
    return "(" + ", ".join(str(n) for n in shape) + ("," if len(shape) == 1 else "") + ")"


def simplex_rows(name: str, value: ArrayLike, shape: tuple[int | str, ...]) -> Floats:
    """Return an array whose last axis holds non-negative shares that sum to 1.

    To 1e-9, or to the precision of the numbers given where that is less, as in float32.
    """
    a = array(name, value, shape)
    if a.size and a.min() < -1e-12:
        raise ArgumentError(name, "shares of at least 0", f"{a.min():g}")
    a = np.maximum(a, 0.0)
    sums = a.sum(axis=-1)
    given = np.asarray(value).dtype
    precision = float(np.finfo(given).eps) if given.kind == "f" else 0.0
    wrong = np.abs(sums - 1.0) > max(1e-9, 2 * a.shape[-1] * precision)
    if np.any(wrong):
        raise ArgumentError(name, "shares that sum to 1", f"a sum of {sums[wrong].flat[0]:.12g}")
    return np.asarray(a / sums[..., None])


def symmetric(name: str, a: Floats) -> Floats:
    """Return the square matrix `a` made exactly symmetric; refuse one that is not (to 1e-9)."""
    with np.errstate(over="ignore"):
        gap = float(np.max(np.abs(a - a.T), initial=0.0))
    if gap > 1e-9 * max(1.0, float(np.max(np.abs(a), initial=0.0))):
        raise ArgumentError(
            name, "a symmetric matrix", f"entries that differ by {gap:g} from their mirror image"
        )
    return a / 2 + a.T / 2


def positive_semidefinite(name: str, a: Floats) -> None:
    """Refuse a symmetric matrix with an eigenvalue below zero (beyond 1e-8 of its size)."""
    lowest = float(np.linalg.eigvalsh(a)[0])
    if lowest < -1e-8 * max(1.0, float(np.max(np.abs(a)))):
        raise ArgumentError(
            name, "a positive semi-definite matrix", f"a smallest eigenvalue of {lowest:.3g}"
        )
