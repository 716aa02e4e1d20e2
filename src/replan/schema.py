"""Sections of files: checking their keys, and writing TOML."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable, Mapping
from typing import Any

from replan import check
from replan.errors import ArgumentError


def from_keys(function: Any, content: Mapping[str, Any], name: str) -> Any:
    """Return function(**content), where the keys of a section are the function's arguments."""
    check.instance(name, content, Mapping, "a table of keys")
    known = inspect.signature(function).parameters
    check_keys(content, known, name)
    for key, parameter in known.items():
        if key not in content and parameter.default is parameter.empty:
            raise ArgumentError(f"{name}.{key}", "given", "nothing")
    return function(**content)


def check_keys(content: Iterable[str], known: Iterable[str], name: str) -> None:
    """Refuse unknown keys of a section, and suggest the nearest known one."""
    known = list(known)
    for key in content:
        if key not in known:
            near = check.hint(key, known) or f"; known are {', '.join(known)}"
            path = f"{name}.{key}" if name else key
            raise ArgumentError(path, "a known key", f"an unknown one{near}")


def paths(content: Mapping[str, Any], name: str) -> dict[str, str]:
    """Return the full path of every key in a section and in the tables within it."""
    found = {}
    for key, value in content.items():
        found[key] = f"{name}.{key}"
        if isinstance(value, Mapping):
            found |= paths(value, found[key])
    return found


def task_from_one(name: str, value: int, tasks: int) -> int:
    """Return the index from 0 of a task that people count from 1."""
    if not 1 <= value <= tasks:
        expected = "1, the only task" if tasks == 1 else f"a task from 1 to {tasks}"
        raise ArgumentError(name, expected, check.show(value))
    return value - 1


def toml(value: Any) -> str:
    """Format a value as TOML."""
    if isinstance(value, Mapping):
        pairs = ", ".join(f"{toml_key(key)} = {toml(x)}" for key, x in value.items())
        return f"{{ {pairs} }}" if pairs else "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml, value))}]"
    if isinstance(value, str | bool):
        return json.dumps(value, ensure_ascii=False)
    return str(value)  # a number, or a date


def toml_key(key: str) -> str:
    """Format a key as TOML."""
    bare = key.isascii() and key.replace("-", "_").isidentifier()
    return key if bare or key.isdecimal() else toml(key)
