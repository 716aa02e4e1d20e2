"""Sections of a problem file: their keys and types, and mistakes reported in one line."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from replan._common import check

Matrix = list[list[float]]


class Section(BaseModel):
    """A table of keys; unknown keys are mistakes."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    def given(self) -> dict[str, Any]:
        """Return the keys that the file gives; the others keep the library's defaults."""
        return self.model_dump(exclude_unset=True)


_S = TypeVar("_S", bound=Section)


def read(section: type[_S], content: Any, name: str = "") -> _S:
    """Return the content of a section, checked; a mistake is a ValueError that names the key."""
    try:
        return section.model_validate(content)
    except ValidationError as error:
        raise ValueError(_one_line(error, section, name)) from None


def from_keys(function: Any, content: Mapping[str, Any], name: str) -> Any:
    """Return function(**content), where the keys of a section are the function's arguments."""
    check.instance(name, content, Mapping, "a table of keys")
    known = inspect.signature(function).parameters
    for key in content:
        if key not in known:
            raise ValueError(_unknown(f"{name}.{key}", key, list(known)))
    for key, parameter in known.items():
        if key not in content and parameter.default is parameter.empty:
            raise ValueError(f"`{name}.{key}` is missing")
    return function(**content)


def task_from_one(name: str, value: int, tasks: int) -> int:
    """Return the index from 0 of a task that people count from 1."""
    if not 1 <= value <= tasks:
        expects = "1, the only task" if tasks == 1 else f"a task from 1 to {tasks}"
        raise ValueError(f"`{name}` expects {expects}, got {check.show(value)}")
    return value - 1


def _unknown(name: str, key: str, known: list[str]) -> str:
    near = check.hint(key, known) or f", expects {', '.join(known)}"
    return f"`{name}` is not a known key{near}"


def _one_line(error: ValidationError, section: type[Section], prefix: str) -> str:
    """Return the first mistake as one line: the key, what it expects, what it got."""
    # A misspelt key often leaves another one missing: name the misspelt one.
    first = min(error.errors(), key=lambda found: found["type"] != "extra_forbidden")
    location = [str(part) for part in first["loc"]]
    name = ".".join(part for part in (prefix, *location) if part)
    if first["type"] == "extra_forbidden":
        return _unknown(name, location[-1], list(_within(section, location[:-1]).model_fields))
    if first["type"] == "missing":
        return f"`{name}` is missing"
    message = first["msg"].removeprefix("Value error, ")
    message = message.replace("Input should be greater", "expects a number greater")
    message = message.replace("Input should be", "expects")
    message = re.sub(r"a valid dictionary or instance of \w+", "a table of keys", message)
    message = message.replace("a valid list", "a list of numbers, one for each task")
    message = message.replace("a valid dictionary", "a table such as { 1 = 0.01 }")
    got = (
        "" if isinstance(first["input"], Section | dict) else f", got {check.show(first['input'])}"
    )
    return f"`{name}` {message}{got}"


def _within(section: type[Section], location: list[str]) -> type[Section]:
    """Return the section at a location below another."""
    for key in location:
        annotation = section.model_fields[key].annotation
        found = [x for x in (annotation, *get_args(annotation)) if inspect.isclass(x)]
        [section] = [x for x in found if issubclass(x, Section)]
    return section
