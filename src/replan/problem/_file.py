"""The problem file (TOML): its keys and their types; `example` gives a commented one."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from replan._common import files
from replan._common.sections import Section, read, task_from_one
from replan.dynamics import Dynamics, find
from replan.dynamics._registry import DEFAULT
from replan.problem._control import Control
from replan.problem._limits import Limits


def _range_or_false(value: Any) -> Any:
    if value is not False and not isinstance(value, dict):
        raise ValueError("expects false or { min = …, max = … }")
    return None if value is False else value


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
    targets: dict[str, float] | None = None

    def target_list(self, tasks: int) -> list[float | None] | None:
        """Return the targets of all tasks; the file counts tasks from 1."""
        if self.targets is None:
            return None
        listed: list[float | None] = [None] * tasks
        for name, target in self.targets.items():
            if not name.isdigit():
                raise ValueError(
                    f"`objective.targets` expects tasks as keys, such as 1, got {name}"
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


def arguments(content: Mapping[str, Any], model: Dynamics | None = None) -> dict[str, Any]:
    """Return the arguments of a `Problem` that the sections describe, with `model` if given."""
    file = read(_File, content)
    if model is None:
        settings = dict(file.model)
        kind = settings.pop("kind", DEFAULT)
        if not isinstance(kind, str):
            raise ValueError(f"`model.kind` expects a word, got {kind!r}")
        model = find(kind).from_dict(settings)
    lr = file.control.lr
    return {
        "model": model,
        "start": model.start_from_dict(file.start),
        **file.training.given(),
        "weights": file.objective.weights,
        "running": file.objective.running,
        "targets": file.objective.target_list(model.tasks),
        "control": Control(file.control.tasks, None if lr is None else (lr.min, lr.max)),
        "limits": Limits(**file.limits.given()),
    }
