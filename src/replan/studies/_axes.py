"""Axes of a study: keys of a problem file with several values, and the points that they span.

Some forms always stand for an axis: { from = …, to = …, count = … } and { values = […] }. A list is
an axis where its key takes no such list, whatever the kind of the model: the model is asked.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, product
from math import prod
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BeforeValidator, Field, create_model

from replan import check
from replan.core.interrupt import interrupted
from replan.schema import Section, read, toml

MOST = 100_000  # values of an axis, problems and results: more have no place in one table

Path = tuple[str, ...]
Content = Mapping[str, Any]

BEGIN = ("model", "start", "ensemble")  # the sections that say where training begins

_FORMS = {"from", "to", "values"}  # a table with one of these keys is an axis, a section is not
_DIGITS = 12  # of the values of a range: 0.15 rather than 0.15000000000000002
_UNNAMED = 3  # lists at most that a model refuses together without naming any of them
_SHOWN = 5  # values that are shown one by one


@dataclass(frozen=True)
class Axis:
    """The values that a key takes.

    path: of the key, such as ("model", "similarity"). name: the end of it that tells it from those
    of the other axes. group: axes with the same number move together.
    """

    path: Path
    values: list[Any]
    name: str
    group: int

    @property
    def is_seed(self) -> bool:
        """Whether the values only number random draws."""
        return self.path[-1] == "seed"

    @property
    def is_numeric(self) -> bool:
        """Whether the values are numbers."""
        return all(type(x) in (int, float) for x in self.values)

    @cached_property
    def cells(self) -> list[Any]:
        """The values as they stand in a table: all numbers, all words, or all true or false."""
        alike = self.is_numeric or len({type(x) for x in self.values}) == 1
        scalars = all(isinstance(x, str | bool | int | float) for x in self.values)
        return self.values if alike and scalars else [toml(x) for x in self.values]

    def __str__(self) -> str:
        texts = [f"{x:g}" if isinstance(x, float) else str(x) for x in self.cells]
        if len(texts) <= _SHOWN:
            return ", ".join(texts)
        return f"{texts[0]} {'to' if self.is_numeric else '…'} {texts[-1]} ({len(texts)} values)"


def find_axes(
    content: Content, accept: Callable[[Content], object], reserved: re.Pattern[str]
) -> list[Axis]:
    """Return the axes in the sections of a problem file, each in a group of its own.

    accept: refuses sections with a mistake. reserved: names that axes cannot have.
    """
    found = dict(_several(content, ()))
    axes = {path: _explicit(path, x) for path, x in found.items() if isinstance(x, Mapping)}
    lists = {path: x for path, x in found.items() if isinstance(x, list)}
    parts = {name: content[name] for name in BEGIN if name in content}
    if parts.keys() >= {"model", "start"}:  # in them, mistakes are told by code of the user's
        known, more = (
            {path: x for path, x in some.items() if path[0] in parts} for some in (axes, lists)
        )
        axes |= _settled(known, more, parts | {"training": {"duration": 1.0}}, accept)
    axes = _settled(axes, lists, content, accept)
    paths = [path for path in found if path in axes]  # in the order of the file
    return [
        Axis(path, _different(path, axes[path]), _short(path, paths, reserved), group)
        for group, path in enumerate(paths)
    ]


def put(content: Content, values: Mapping[Path, Any]) -> dict[str, Any]:
    """Return sections with values at the given paths."""
    made = dict(content)
    for path, value in values.items():
        inside = made
        for key in path[:-1]:
            inside[key] = inside = dict(inside[key])
        inside[path[-1]] = value
    return made


def zipped(axes: Sequence[Axis], groups: Sequence[Sequence[str]], where: str) -> list[Axis]:
    """Return the axes with those that move together in one group.

    groups: their names, or full paths. where: the key that gives them.
    """
    numbers = {axis.name: axis.group for axis in axes}
    taken: set[str] = set()
    for group in groups:
        known = {name: axis for axis in axes for name in (axis.name, ".".join(axis.path))}
        chosen = [known[check.one_of(where, name, known)] for name in group]
        for axis in chosen:
            if axis.name in taken:
                raise ValueError(f"`{where}` expects each axis once, got {axis.name} twice")
            taken.add(axis.name)
            numbers[axis.name] = chosen[0].group
        if len({len(axis.values) for axis in chosen}) > 1:
            lengths = ", ".join(f"{axis.name} with {len(axis.values)}" for axis in chosen)
            raise ValueError(f"`{where}` expects axes with as many values each, got {lengths}")
    return [Axis(axis.path, axis.values, axis.name, numbers[axis.name]) for axis in axes]


def check_chosen(axes: Sequence[Axis], x: str | None, y: str | None) -> None:
    """Refuse names of axes that a picture cannot be drawn over."""
    named = {axis.name: axis for axis in axes}
    for argument, name in (("x", x), ("y", y)):
        if name is not None and not named:
            raise ValueError(f"`{argument}` expects an axis of the study, which has none")
        if name is not None:
            check.one_of(argument, name, named)
    if x is not None and y is not None and named[x].group == named[y].group:
        raise ValueError(f"`y` expects an axis that does not move with `x`, got {check.show(y)}")


def count(axes: Sequence[Axis]) -> int:
    """Return how many points the axes span."""
    return prod({axis.group: len(axis.values) for axis in axes}.values())


def points(axes: Sequence[Axis]) -> Iterator[tuple[int, ...]]:
    """Yield the points: for every axis which of its values it is, the last axis varying fastest."""
    lengths = {axis.group: len(axis.values) for axis in axes}
    for chosen in product(*(range(length) for length in lengths.values())):
        by_group = dict(zip(lengths, chosen, strict=True))
        yield tuple(by_group[axis.group] for axis in axes)


# Explicit forms


def _number(value: Any) -> Any:
    if type(value) not in (int, float):
        raise ValueError("a number")
    return value


_Number = Annotated[Any, BeforeValidator(_number)]
_KEYS: dict[str, Any] = {  # of a range; `from` cannot be the name of an attribute
    "from": (_Number, ...),
    "to": (_Number, ...),
    "count": (int | None, Field(None, ge=2)),
    "scale": (Literal["linear", "log"], "linear"),
}
_Range = create_model("_Range", __base__=Section, **_KEYS)


def _items(value: Any) -> Any:
    if not isinstance(value, list):
        raise ValueError("a list of values")
    return value


class _Values(Section):
    values: Annotated[list[Any], BeforeValidator(_items)]


def _several(content: Content, path: Path) -> Iterator[tuple[Path, Any]]:
    """Yield what is, or may be, several values, with its path."""
    for key, value in content.items():
        inner = (*path, key)
        explicit = bool(path) and isinstance(value, Mapping) and not _FORMS.isdisjoint(value)
        if isinstance(value, list) or explicit:
            yield inner, value
        elif isinstance(value, Mapping):
            yield from _several(value, inner)


def _explicit(path: Path, table: Content) -> list[Any]:
    """Return the values of { from = …, to = … } or { values = […] }."""
    name = ".".join(path)
    if "values" in table:
        values = read(_Values, table, name).values
        if not values:
            raise ValueError(f"`{name}` expects at least one value, got none")
        return values
    given: Any = read(_Range, table, name)
    first, last = getattr(given, "from"), given.to
    whole = isinstance(first, int) and isinstance(last, int)
    if not (first < last or (first == last and whole and given.count is None)):
        raise ValueError(f"`{name}` expects `from` below `to`, got {toml(table)}")
    if given.count is None and (not whole or given.scale == "log"):
        raise ValueError(
            f"`{name}` expects a `count` of values, unless `from` and `to` are integers, "
            f"got {toml(table)}"
        )
    if given.scale == "log" and first <= 0:
        raise ValueError(f"`{name}` expects `from` above 0 on a log scale, got {toml(table)}")
    _check_count(name, last - first + 1 if given.count is None else given.count)
    if given.count is None:
        return list(range(first, last + 1))
    space = np.geomspace if given.scale == "log" else np.linspace
    inner = [float(f"{x:.{_DIGITS}g}") for x in space(first, last, given.count)[1:-1].tolist()]
    if whole and all(x.is_integer() for x in inner):
        inner = [int(x) for x in inner]
    return [first, *inner, last]


def _check_count(name: str, number: int) -> None:
    if number > MOST:
        raise ValueError(f"`{name}` expects at most {MOST:,} values, got {check.show(number)}")


def _different(path: Path, values: list[Any]) -> list[Any]:
    """Return the values of an axis; refuse one that is there twice."""
    name = ".".join(path)
    _check_count(name, len(values))
    seen = set()
    for value in values:
        text = json.dumps(float(value) if type(value) is int else value, sort_keys=True)
        if text in seen:
            raise ValueError(f"`{name}` expects different values, got {toml(value)} twice")
        seen.add(text)
    return values


# Lists


def _settled(
    axes: dict[Path, list[Any]],
    lists: dict[Path, list[Any]],
    content: Content,
    accept: Callable[[Content], object],
) -> dict[Path, list[Any]]:
    """Return axes and those of the lists that must be axes, as their keys take no such list."""
    try:
        accept(put(content, {path: values[0] for path, values in axes.items() if values}))
        return axes
    except Exception as error:
        if interrupted(error):
            raise
        mistake, name = error, _about(error)
    more = {path: x for path, x in lists.items() if path not in axes}
    guilty = [path for path in more if ".".join(path) == name]
    if guilty:
        try:
            return _settled(axes | {guilty[0]: more[guilty[0]]}, lists, content, accept)
        except ValueError as later:  # of the two, the one that says more
            raise later if _about(later) not in (name, "") else mistake from None
    if name in ("", *content):  # no key is named: whose fault it is, only a try can tell
        for size in range(1, _UNNAMED + 1):
            for some in combinations(more, size):
                try:
                    return _settled(axes | {path: more[path] for path in some}, {}, content, accept)
                except Exception as error:
                    if interrupted(error):
                        raise
    raise mistake


def _about(error: Exception) -> str:
    """Return the key that a message begins with; "" if it names none."""
    found = re.match(r"`([^`\[]+)", str(error))
    return found[1] if found else ""


# Names


def _short(path: Path, others: Sequence[Path], reserved: re.Pattern[str]) -> str:
    """Return the shortest end of a path that no other path has, and that is not reserved."""
    for length in range(1, len(path) + 1):
        end = path[-length:]
        alike = sum(other[-length:] == end for other in others)
        if alike == 1 and not reserved.fullmatch(".".join(end)):
            break
    return ".".join(end)
