"""Checks of arguments on entry: each names the argument, what it expects and what it got."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from numbers import Integral, Real
from typing import Annotated, Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
# The index of a task. Where people count tasks from 1, this marks the parameters that are tasks.
Task = Annotated[int, "from 0"]

_T = TypeVar("_T")


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
        expects += f" of at least {at_least:g}"
    if above is not None:
        expects += f" above {above:g}"
    if at_most is not None:
        expects += (" and" if at_least is not None or above is not None else " of") + (
            f" at most {at_most:g}"
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
    if not good:
        raise ValueError(f"`{name}` expects {expects}, got {value!r}")
    return x


def integer(name: str, value: object, *, at_least: int = 0, at_most: int | None = None) -> int:
    """Return `value` as an int within the given bounds."""
    good = isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= at_least
    if not good or (at_most is not None and int(value) > at_most):  # type: ignore[call-overload]
        expects = f"of at least {at_least}" + ("" if at_most is None else f" and at most {at_most}")
        raise ValueError(f"`{name}` expects an integer {expects}, got {value!r}")
    return int(value)  # type: ignore[call-overload]


def boolean(name: str, value: object) -> bool:
    """Return `value` if it is True or False."""
    if not isinstance(value, bool | np.bool_):
        raise ValueError(f"`{name}` expects true or false, got {value!r}")
    return bool(value)


def instance(name: str, value: Any, kind: type[_T], expects: str) -> _T:
    """Return `value` if it is of a class; `expects` says which, in words."""
    if not isinstance(value, kind):
        raise ValueError(f"`{name}` expects {expects}, got {value!r}")
    return value


def task(name: str, value: object, tasks: int) -> int:
    """Return `value` as the index (from 0) of one of `tasks` tasks."""
    if not isinstance(value, Integral) or isinstance(value, bool) or not 0 <= int(value) < tasks:
        expects = "0, the only task" if tasks == 1 else f"a task index from 0 to {tasks - 1}"
        raise ValueError(f"`{name}` expects {expects}, got {value!r}")
    return int(value)


def losses(name: str, value: Mapping[int, float], tasks: int) -> dict[int, float]:
    """Return losses by task (from 0), of some or of all `tasks` tasks, as floats, finite or not."""
    if not isinstance(value, Mapping):
        raise ValueError(f"`{name}` expects a dict of losses by task, got {value!r}")
    try:
        return {task(name, t, tasks): float(x) for t, x in value.items()}
    except TypeError:
        raise ValueError(f"`{name}` expects a number for each task, got {dict(value)}") from None


def items(name: str, value: Any, expects: str) -> list[Any]:
    """Return the items of a list, tuple or array; `expects` says what they should be."""
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise ValueError(f"`{name}` expects a list of {expects}, got {value!r}")
    return list(value)


def array(name: str, value: ArrayLike, shape: tuple[int | str, ...] | None = None) -> Floats:
    """Return a new float64 array of the given shape; a letter in `shape` stands for any length."""
    expects = "an array of numbers" + ("" if shape is None else f" of shape {_show_shape(shape)}")
    try:
        a = np.array(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"`{name}` expects {expects}, got {value!r}") from None
    fits = shape is None or (
        a.ndim == len(shape)
        and all(
            isinstance(want, str) or want == have for want, have in zip(shape, a.shape, strict=True)
        )
    )
    if not fits:
        raise ValueError(f"`{name}` expects {expects}, got shape {_show_shape(a.shape)}")
    if not np.all(np.isfinite(a)):
        where = tuple(int(i) for i in np.argwhere(~np.isfinite(a))[0])
        raise ValueError(f"`{name}` expects finite numbers, got {a[where]} at index {list(where)}")
    return a


def simplex_rows(name: str, value: ArrayLike, shape: tuple[int | str, ...]) -> Floats:
    """Return an array whose last axis holds non-negative shares that sum to 1 (to 1e-9)."""
    a = array(name, value, shape)
    if a.size and a.min() < -1e-12:
        raise ValueError(f"`{name}` expects shares of at least 0, got {a.min():g}")
    a = np.maximum(a, 0.0)
    sums = a.sum(axis=-1)
    worst = float(sums.flat[np.argmax(np.abs(sums - 1.0))]) if sums.size else 1.0
    if abs(worst - 1.0) > 1e-9:
        raise ValueError(f"`{name}` expects shares that sum to 1, got a sum of {worst:.12g}")
    return np.asarray(a / sums[..., None])


def symmetric(name: str, a: Floats) -> Floats:
    """Return the square matrix `a` made exactly symmetric; refuse one that is not (to 1e-9)."""
    gap = float(np.max(np.abs(a - a.T), initial=0.0))
    if gap > 1e-9 * max(1.0, float(np.max(np.abs(a), initial=0.0))):
        raise ValueError(
            f"`{name}` expects a symmetric matrix, got entries that differ by {gap:g} "
            "from their mirror image"
        )
    return (a + a.T) / 2


def positive_semidefinite(name: str, a: Floats) -> None:
    """Refuse a symmetric matrix with an eigenvalue below zero (beyond 1e-8 of its size)."""
    lowest = float(np.linalg.eigvalsh(a)[0])
    if lowest < -1e-8 * max(1.0, float(np.max(np.abs(a)))):
        raise ValueError(
            f"`{name}` expects a positive semi-definite matrix, got a smallest eigenvalue "
            f"of {lowest:.3g}"
        )


def one_of(name: str, value: str, known: Iterable[str]) -> str:
    """Return `value` if it is among `known`; else name the nearest."""
    known = list(known)
    if value not in known:
        raise ValueError(
            f"`{name}` expects one of {', '.join(known)}; got {value!r}{hint(value, known)}"
        )
    return value


def hint(word: str, known: Iterable[str]) -> str:
    """Return ", did you mean …?" with the nearest of the known words, or nothing."""
    near = get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f", did you mean `{near[0]}`?" if near else ""


def _show_shape(shape: tuple[Any, ...]) -> str:
    return "(" + ", ".join(str(n) for n in shape) + ("," if len(shape) == 1 else "") + ")"
