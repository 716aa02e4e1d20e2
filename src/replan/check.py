"""Checks of arguments on entry: each names the argument, what it expects and what it got."""

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
# The index of a task. Where people count tasks from 1, this marks the parameters that are tasks.
Task = Annotated[int, "Task, from 0"]
"""A task, counted from 0 in Python and from 1 on the command line and in files.

Examples:
    >>> from collections.abc import Sequence
    >>> from replan.strategies import Task
    >>> def blocks(problem, *, order: Sequence[Task] = (0, 1)):
    ...     return replan.strategies.sequential(problem, order=order)  # `--set order=2,1`: [1, 0]
"""

LARGEST = 2**63 - 1  # of the integers that arrays, files and compiled code can hold
_HUGE = 1e300  # products of larger numbers, and those of numbers below its inverse, are lost

_WIDEST = 100  # characters of a value in a message
_repr = Repr()
_repr.maxstring = _repr.maxother = _repr.maxlong = _WIDEST

_T = TypeVar("_T")


def show(value: object) -> str:
    """Return any value as one short line, for a message."""
    try:
        text = " ".join(_repr.repr(value).split())
    except Exception:  # such as that of an integer of 5,000 digits
        return f"a value of type {type(value).__name__} that cannot be shown"
    return text if len(text) <= _WIDEST else f"{text[:_WIDEST]}…"


def number(
    name: str,
    value: object,
    *,
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
) -> float:
    """Return `value` as a finite float within the given bounds."""
    expects = "a finite number"
    if at_least is not None:
        expects += f" of at least {at_least:.12g}"
    if above is not None:
        expects += f" above {above:.12g}"
    if at_most is not None:
        expects += (" and" if at_least is not None or above is not None else " of") + (
            f" at most {at_most:.12g}"
        )
    try:
        x = float(value) if isinstance(value, Real) and not isinstance(value, bool) else np.nan
    except OverflowError:
        x = np.inf
    good = (
        np.isfinite(x)
        and (at_least is None or x >= at_least)
        and (above is None or x > above)
        and (at_most is None or x <= at_most)
    )
    if good and x != 0 and not 1 / _HUGE <= abs(x) <= _HUGE:
        expects, good = "a number from 1e-300 to 1e300 in size", False
    if not good:
        raise ArgumentError(name, expects, f"{show(value)}")
    return x


def integer(name: str, value: object, *, at_least: int = 0, at_most: int = LARGEST) -> int:
    """Return `value` as an int within the given bounds."""
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    if not whole or not at_least <= int(value) <= at_most:  # type: ignore[call-overload]
        expects = f"an integer of at least {at_least}"
        if at_most < LARGEST or (whole and int(value) > at_most):  # type: ignore[call-overload]
            expects += f" and at most {at_most}"
        raise ArgumentError(name, expects, f"{show(value)}")
    return int(value)  # type: ignore[call-overload]


def boolean(name: str, value: object) -> bool:
    """Return `value` if it is True or False."""
    if not isinstance(value, bool | np.bool_):
        raise ArgumentError(name, "true or false", f"{show(value)}")
    return bool(value)


def word(name: str, value: Any) -> str:
    """Return `value` if it is text that is not empty."""
    if not isinstance(value, str) or not value:
        raise ArgumentError(name, "a word", f"{show(value)}")
    return value


def instance(name: str, value: Any, kind: type[_T], expects: str) -> _T:
    """Return `value` if it is of a class; `expects` says which, in words."""
    if not isinstance(value, kind):
        raise ArgumentError(name, expects, f"{show(value)}")
    return value


def function(name: str, value: _T, expects: str = "a function") -> _T:
    """Return `value` if it can be called."""
    if not callable(value):
        raise ArgumentError(name, expects, f"{show(value)}")
    return value


def path(name: str, value: Any) -> Path:
    """Return the path of a file or folder."""
    text = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    if not isinstance(text, str) or "\0" in text:
        raise ArgumentError(name, "a path", f"{show(value)}")
    return Path(text)


def task(name: str, value: object, tasks: int) -> int:
    """Return `value` as the index (from 0) of one of `tasks` tasks."""
    if not isinstance(value, Integral) or isinstance(value, bool) or not 0 <= int(value) < tasks:
        expects = "0, the only task" if tasks == 1 else f"a task index from 0 to {tasks - 1}"
        raise ArgumentError(name, expects, f"{show(value)}")
    return int(value)


def task_list(name: str, value: Any, tasks: int) -> Ints:
    """Return indices (from 0) of some of `tasks` tasks (n,); a long array is checked at once."""
    listed = items(name, value, "tasks")
    whole = all(issubclass(t, Integral) and not issubclass(t, bool) for t in set(map(type, listed)))
    if not whole or (listed and not 0 <= min(listed) <= max(listed) < tasks):
        for one in listed:  # which one it is
            task(name, one, tasks)
    return np.array(listed, dtype=np.int64)


def losses(name: str, value: Mapping[int, float], tasks: int) -> dict[int, float]:
    """Return losses by task (from 0), of some or of all `tasks` tasks, as floats, finite or not."""
    if not isinstance(value, Mapping):
        raise ArgumentError(name, "a dict of losses by task", f"{show(value)}")
    return {task(name, t, tasks): _loss(name, x) for t, x in value.items()}


def _loss(name: str, value: Any) -> float:
    """Return a number, or what another library has for one, such as a tensor, as a float."""
    try:
        if isinstance(value, np.ndarray | np.generic | bool | str):
            return float(array(name, value, (), finite=False))
        return float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        raise ArgumentError(name, "a number for each task", f"{show(value)}") from None


def items(name: str, value: Any, expects: str) -> list[Any]:
    """Return the items of a list, tuple, array or generator; `expects` says what they should be."""
    words = isinstance(value, str | bytes | bytearray | Mapping)
    if words or not isinstance(value, Iterable) or getattr(value, "ndim", 1) != 1:
        raise ArgumentError(name, f"a list of {expects}", f"{show(value)}")
    if np.ma.is_masked(value):
        raise ArgumentError(name, f"a list of {expects}", "one with masked values")
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
    expects = "an array of numbers" + ("" if shape is None else f" of shape {_show_shape(shape)}")
    given = _real(value)
    if given is None:
        raise ArgumentError(name, expects, f"{_describe(value)}")
    fits = shape is None or (
        given.ndim == len(shape)
        and all(
            isinstance(want, str) or want == have
            for want, have in zip(shape, given.shape, strict=True)
        )
    )
    if not fits:
        raise ArgumentError(name, expects, f"shape {_show_shape(given.shape)}")
    try:
        with np.errstate(over="ignore"):  # what is too large becomes infinite
            a = np.array(given, dtype=np.float64)
    except OverflowError:
        raise ArgumentError(name, "finite numbers", f"{show(value)}") from None
    if finite and not np.all(np.isfinite(a)):
        where = tuple(int(i) for i in np.argwhere(~np.isfinite(a))[0])
        at = f" at index {list(where)}" if where else ""
        raise ArgumentError(name, "finite numbers", f"{a[where]}{at}")
    return a


def _real(value: Any) -> NDArray[Any] | None:
    """Return a value as an array, of numbers or of objects that are numbers; None if it is not."""
    try:
        made = hasattr(value, "__array__")
        given = np.asarray(value) if made else np.array(value, dtype=object)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return None
    if given.dtype.kind == "O":
        kinds = set(map(type, given.ravel().tolist()))
        if not all(issubclass(kind, Real) for kind in kinds):  # scalars of other libraries, maybe
            flat = [_scalar(x) for x in given.ravel()]
            given = np.array([*flat, None], dtype=object)[:-1].reshape(given.shape)
            kinds = set(map(type, flat))
        good = all(issubclass(kind, Real) and not issubclass(kind, bool) for kind in kinds)
    else:
        good = given.dtype.kind in "iuf"
    return given if good and not _masked(value, given.ndim) else None


def _scalar(value: Any) -> Any:
    """Return a scalar of another library as a Python number; anything else as it is."""
    number = getattr(value, "shape", None) == () and not np.ma.is_masked(value)
    return value.item() if number else value


def _masked(value: Any, ndim: int) -> bool:
    """Whether something is masked in what makes an array of `ndim` axes, or in parts of it."""
    if not isinstance(value, list | tuple):
        return bool(np.ma.is_masked(value))
    deeper = (list, tuple, np.ma.MaskedArray) if ndim > 2 else (np.ma.MaskedArray,)
    kinds = {kind for kind in set(map(type, value)) if issubclass(kind, deeper)}
    return bool(kinds) and any(_masked(x, ndim - 1) for x in value if type(x) in kinds)


def _describe(value: Any) -> str:
    """Return what is wrong with an array where its values do not show it, else the value."""
    if isinstance(value, np.ma.MaskedArray):
        return "one with masked values"
    kind = getattr(getattr(value, "dtype", None), "kind", "")
    return f"{show(value)} of type {value.dtype}" if kind in ("b", "c") else show(value)


def simplex_rows(name: str, value: ArrayLike, shape: tuple[int | str, ...]) -> Floats:
    """Return an array whose last axis holds non-negative shares that sum to 1.

    To 1e-9, or to the precision of the numbers given where that is less, as in float32.
    """
    a = array(name, value, shape)
    if a.size and a.min() < -1e-12:
        raise ArgumentError(name, "shares of at least 0", f"{a.min():g}")
    a = np.maximum(a, 0.0)
    sums = a.sum(axis=-1)
    worst = float(sums.flat[np.argmax(np.abs(sums - 1.0))]) if sums.size else 1.0
    if abs(worst - 1.0) > 1e-9:
        given = np.asarray(value).dtype
        precision = float(np.finfo(given).eps) if given.kind == "f" else 0.0
        if abs(worst - 1.0) > max(1e-9, 2 * a.shape[-1] * precision):
            raise ArgumentError(name, "shares that sum to 1", f"a sum of {worst:.12g}")
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
    spelt = {one.lower(): one for one in known}
    begun = [one for one in spelt if one.startswith(word.lower())]
    near = begun if len(begun) == 1 else get_close_matches(word.lower(), spelt, n=1, cutoff=0.5)
    return f", did you mean `{spelt[near[0]]}`?" if near else ""


def _show_shape(shape: tuple[Any, ...]) -> str:
    return "(" + ", ".join(str(n) for n in shape) + ("," if len(shape) == 1 else "") + ")"
