"""Settings of strategies as people write them: words, numbers and lists, with tasks from 1."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from replan import check
from replan.errors import ArgumentError
from replan.schema import task_from_one
from replan.strategies._strategy import Strategy

_OTHERS = ("problem", "protocol", "progress")  # arguments that are no settings


def settings_of(strategy: Strategy) -> list[str]:
    """Return the names of a strategy's settings."""
    return [name for name in inspect.signature(strategy).parameters if name not in _OTHERS]


def arguments(strategy: Strategy, settings: Mapping[str, Any], tasks: int) -> dict[str, Any]:
    """Return settings, whose names are known, as the strategy takes them for so many tasks."""
    parameters = _parameters(strategy)
    return {
        name: _argument(name, value, parameters[name], tasks) for name, value in settings.items()
    }


def _parameters(strategy: Strategy) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of a strategy, their annotations evaluated where that is possible."""
    with suppress(Exception):  # such as names that are imported for type checkers only
        return inspect.signature(strategy, eval_str=True).parameters
    return inspect.signature(strategy).parameters


_SCALARS = {bool: "true or false", int: "an integer", float: "a finite number", str: "a word"}


def _argument(name: str, value: Any, parameter: inspect.Parameter, tasks: int) -> Any:
    """Return a value as its parameter asks: a word, a number, a list; tasks from 0.

    The annotation says what that is, or else the type of the default; a default of None that has
    no annotation says nothing, and the value stays as it is.
    """

    def task(one: Any) -> int:
        return task_from_one(name, check.integer(name, one, at_least=1), tasks)

    annotation, default = parameter.annotation, parameter.default
    if (
        annotation is parameter.empty
        or isinstance(annotation, str)
        or get_origin(annotation) is Literal
    ):
        annotation = Any if default is None else type(default)
    union = get_origin(annotation) in (Union, UnionType)
    kinds = get_args(annotation) if union else (annotation,)
    if annotation is Any or (value is None and (NoneType in kinds or default is None)):
        return value
    if check.Task in kinds:
        return task(value)
    if set(kinds) <= {*_SCALARS, NoneType}:
        return _scalar(name, value, [kind for kind in kinds if kind is not NoneType])
    if isinstance(value, str):
        raise ArgumentError(name, "numbers separated by commas", check.show(value))
    values = value if isinstance(value, list) else [value]
    return [task(one) for one in values] if Sequence[check.Task] in kinds else values


def _scalar(name: str, value: Any, kinds: list[type]) -> Any:
    """Return a value of one of the kinds; an integer is a number, too."""
    if type(value) in kinds and type(value) is not float:
        return value
    if float in kinds and type(value) in (int, float):
        return check.number(name, value)
    expects = " or ".join(_SCALARS[kind] for kind in kinds)
    raise ArgumentError(name, expects, check.show(value))
