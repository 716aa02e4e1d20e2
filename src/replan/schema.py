"""Sections of a problem file: their keys and types, and mistakes reported in one line."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, TypeVar, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from replan import check
from replan.errors import ArgumentError

_WIDEST = 100  # characters of a value in a message

# What a key expects, by pydantic's type of the mistake
_EXPECTS = {
    "bool_type": "true or false",
    "dict_type": "a table",
    "finite_number": "a finite number",
    "float_type": "a number",
    "greater_than": "a number above {gt:g}",
    "greater_than_equal": "a number of at least {ge:g}",
    "int_type": "an integer",
    "list_type": "a list of numbers, one for each task",
    "literal_error": "{expected}",
    "model_type": "a table",
    "value_error": "{error}",
}


def _rows(value: Any) -> Any:
    good = isinstance(value, list) and all(isinstance(row, list) for row in value)
    if value is not None and not good:
        raise ValueError("a matrix such as [[1.0, 0.3], [0.3, 1.0]]")
    return value


Matrix = Annotated[list[list[float]], BeforeValidator(_rows)]


class Section(BaseModel):
    """A table of keys; unknown keys are mistakes.

    A validator raises a ValueError with what it expects, and, if that is not what the key holds,
    ", got …".
    """

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
    """Return function(**content), where the keys of a section are the function's arguments.

    Examples:
        >>> section = {"teacher_overlaps": [[1.0, 0.3], [0.3, 1.0]], "hidden": 2}
        >>> replan.models.from_keys(replan.TeacherStudent, section, "model").tasks
        2
    """
    check.instance(name, content, Mapping, "a table of keys")
    known = inspect.signature(function).parameters
    check_keys(content, known, name)
    for key, parameter in known.items():
        if key not in content and parameter.default is parameter.empty:
            raise ArgumentError(f"{name}.{key}", "given", "nothing")
    return function(**content)


def check_keys(content: Iterable[str], known: Iterable[str], name: str) -> None:
    """Refuse keys of a section that are not known; name the nearest that is."""
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
        expects = "1, the only task" if tasks == 1 else f"a task from 1 to {tasks}"
        raise ArgumentError(name, expects, check.show(value))
    return value - 1


def toml(value: Any) -> str:
    """Return a value as TOML spells it."""
    if isinstance(value, Mapping):
        pairs = ", ".join(f"{toml_key(key)} = {toml(x)}" for key, x in value.items())
        return f"{{ {pairs} }}" if pairs else "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml, value))}]"
    if isinstance(value, str | bool):
        return json.dumps(value, ensure_ascii=False)
    return str(value)  # a number, or a date


def toml_key(key: str) -> str:
    """Return a key as TOML spells it."""
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else toml(key)


def _unknown(name: str, key: str, known: list[str]) -> str:
    near = check.hint(key, known) or f", expects {', '.join(known)}"
    return f"`{name}` is not a known key{near}"


def _one_line(error: ValidationError, section: type[Section], prefix: str) -> str:
    """Return the first mistake as one line: the key, what it expects, what it got."""
    # A misspelt key often leaves another one missing: name the misspelt one.
    first = min(error.errors(), key=lambda found: found["type"] != "extra_forbidden")
    keys = [part for part in first["loc"] if isinstance(part, str)]
    name = ".".join([prefix] * bool(prefix) + keys)
    if first["type"] == "extra_forbidden":
        return _unknown(name, keys[-1], list(_within(section, keys[:-1]).model_fields))
    if first["type"] == "missing":
        return f"`{name}` is missing"
    name += "".join(f"[{part}]" for part in first["loc"] if isinstance(part, int))
    expects = first["msg"].removeprefix("Input should be ")
    if first["type"] in _EXPECTS:
        expects = _EXPECTS[first["type"]].format(**first.get("ctx", {}))
    if ", got " in expects:
        return f"`{name}` expects {expects}"
    got = toml(first["input"])
    return f"`{name}` expects {expects}, got {got[:_WIDEST]}{'…' if len(got) > _WIDEST else ''}"


def _within(section: type[Section], location: list[str]) -> type[Section]:
    """Return the section at a location below another."""
    for key in location:
        annotation = section.model_fields[key].annotation
        found = [x for x in (annotation, *get_args(annotation)) if inspect.isclass(x)]
        [section] = [x for x in found if issubclass(x, Section)]
    return section
