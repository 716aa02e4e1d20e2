"""Axes: keys of a problem file that take several values, spanning many problems."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from itertools import product
from typing import Any, NamedTuple

from replan import check
from replan.errors import ArgumentError


class Point(NamedTuple):
    """One of the problems that axes span: the value of each axis, and the sections of its file."""

    values: dict[str, Any]
    content: dict[str, Any]


def flatten(axes: Any, name: str = "axes") -> dict[str, Any]:
    """Return axes by dotted key: TOML reads `model.similarity = […]` as a table in a table."""
    check.instance(name, axes, Mapping, "a table of lists by key, such as model.similarity")
    flat: dict[str, Any] = {}
    for key, value in axes.items():
        if isinstance(value, Mapping):
            flat |= {f"{key}.{rest}": x for rest, x in flatten(value, f"{name}.{key}").items()}
        else:
            flat[key] = value
    return flat


def span(content: Mapping[str, Any], axes: Mapping[str, Any], name: str = "axes") -> list[Point]:
    """Return a point for each combination of values, the last axis varying fastest.

    axes: as `flatten` returns them. name: of the section that holds them, for messages.
    """
    lists = {key: _values(f"{name}.{key}", values) for key, values in axes.items()}
    points = []
    for chosen in product(*lists.values()):
        values = dict(zip(lists, chosen, strict=True))
        changed = deepcopy(dict(content))
        for key, value in values.items():
            _put(changed, key, value, f"{name}.{key}")
        points.append(Point(values, changed))
    return points


def _values(name: str, values: Any) -> list[Any]:
    if not isinstance(values, list | tuple) or not values:
        raise ArgumentError(name, "a list of at least one value", check.show(values))
    for i, value in enumerate(values):
        if value in values[:i]:
            raise ArgumentError(name, "a list of different values", f"{check.show(value)} twice")
    return list(values)


def _put(content: dict[str, Any], key: str, value: Any, name: str) -> None:
    """Set a dotted key in nested tables."""
    *tables, last = key.split(".")
    place = content
    for table in tables:
        place = place.setdefault(table, {})
        if not isinstance(place, dict):
            raise ArgumentError(name, f"a key below tables, but {table} is a value", repr(key))
    place[last] = value
