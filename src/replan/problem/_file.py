"""The problem file (TOML): its keys and their types; `example` gives a commented one."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeVar

from pydantic import BeforeValidator, Field

from replan._common import check, files
from replan._common.naming import named
from replan._common.sections import Section, paths, read, task_from_one, toml, toml_key
from replan.dynamics import Dynamics, find
from replan.dynamics._registry import DEFAULT
from replan.problem._control import Control
from replan.problem._limits import Limits

_P = TypeVar("_P")


def _range_or_false(value: Any) -> Any:
    if value is not False and not isinstance(value, dict):
        raise ValueError("false or { min = …, max = … }")
    return None if value is False else value


def _table_of_tasks(value: Any) -> Any:
    if not isinstance(value, dict):
        raise ValueError("a table such as { 1 = 0.01 }")
    return value


class _Training(Section):
    duration: float = Field(gt=0)
    steps: int | None = Field(None, ge=1)
    lr: float | None = Field(None, ge=0)


class _LrRange(Section):
    min: float = Field(ge=0)
    max: float = Field(ge=0)


class _Control(Section):
    tasks: bool = True
    lr: Annotated[_LrRange | None, BeforeValidator(_range_or_false)] = None


class _Objective(Section):
    weights: list[float] | None = None
    running: list[float] | None = None
    targets: Annotated[dict[str, float] | None, BeforeValidator(_table_of_tasks)] = None

    def target_list(self, tasks: int) -> list[float | None] | None:
        """Return the targets of all tasks; the file counts tasks from 1."""
        if self.targets is None:
            return None
        listed: list[float | None] = [None] * tasks
        for name, target in self.targets.items():
            if not name.isdecimal() or len(name) > 9:
                raise ValueError(
                    f"`objective.targets` expects tasks as keys, such as 1, got {toml(name)}"
                )
            listed[task_from_one("objective.targets", int(name), tasks)] = target
        return listed


class _Limits(Section):
    min_share: list[float] | None = None
    max_share: list[float] | None = None
    min_dwell: float = 0.0
    max_switches: int | None = None


class _File(Section):
    model: dict[str, Any]
    start: dict[str, Any]
    training: _Training
    control: _Control = _Control()
    objective: _Objective = _Objective()
    limits: _Limits = _Limits()


def sections(path: files.FilePath) -> dict[str, Any]:
    """Return the sections of a problem file."""
    text = files.read_text(path)
    try:
        return tomllib.loads(text)
    except ValueError as error:
        raise ValueError(f"{os.fspath(path)}: not a TOML file ({error})") from None
    except RecursionError:
        raise ValueError(f"{os.fspath(path)}: brackets are nested too deeply") from None


def to_toml(content: Mapping[str, Mapping[str, Any]]) -> str:
    """Return sections as the text of a problem file."""
    tables = [
        "\n".join([f"[{name}]", *(f"{toml_key(key)} = {toml(x)}" for key, x in section.items())])
        for name, section in content.items()
    ]
    return "\n\n".join(tables) + "\n"


def problem_from(
    problem: Callable[..., _P],
    content: Mapping[str, Any],
    model: Dynamics | None = None,
    *,
    sketch: bool = False,
) -> _P:
    """Return the problem that the sections describe, with `model` if given.

    A mistake is a ValueError that names the key by its full path. sketch: with a start that costs
    nothing (`Dynamics.sketch_start`), to find the mistakes.
    """
    check.instance("content", content, Mapping, "the sections of a problem file")
    file = read(_File, content)
    if model is None:
        settings = dict(file.model)
        kind = settings.pop("kind", DEFAULT)
        if not isinstance(kind, str):
            raise ValueError(f"`model.kind` expects a word, got {toml(kind)}")
        with named(paths(file.model, "model")):
            model = find(kind).from_dict(settings)
    check.instance("model", model, Dynamics, "a dynamics such as TeacherStudent")
    start_paths = paths(file.start, "start")
    with named(start_paths):
        start = (model.sketch_start if sketch else model.start_from_dict)(file.start)
    lr = file.control.lr
    with named({"lr": "control.lr", "lr min": "control.lr.min"}):
        control = Control(file.control.tasks, None if lr is None else (lr.min, lr.max))
    own = {key: f"training.{key}" for key in _Training.model_fields}
    own |= {key: f"objective.{key}" for key in _Objective.model_fields}
    own |= {key: f"limits.{key}" for key in _Limits.model_fields}
    with named(start_paths | own):
        return problem(
            model,
            start,
            **file.training.given(),
            weights=file.objective.weights,
            running=file.objective.running,
            targets=file.objective.target_list(model.tasks),
            control=control,
            limits=Limits(**file.limits.given()),
        )
