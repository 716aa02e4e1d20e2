"""The problem file (TOML): its keys and their types; example.toml is a commented one."""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from replan._common import check, files
from replan.dynamics import Overlaps, TeacherStudent
from replan.problem import Control, Limits, Problem

_Matrix = list[list[float]]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


def _given(section: _Section) -> dict[str, Any]:
    """Return the keys that the file has: what it leaves out is left to the library's defaults."""
    return section.model_dump(exclude_unset=True)


def _heads(value: Any) -> Any:
    """Take P numbers for the heads of a single task."""
    flat = isinstance(value, list) and value and not isinstance(value[0], list)
    return [value] if flat else value


def _all_or_each(value: Any) -> Any:
    good = isinstance(value, bool) or (
        isinstance(value, list) and all(isinstance(flag, bool) for flag in value)
    )
    if not good:
        raise ValueError("expects true, false or a list of them, one a task")
    return value


def _range_or_false(value: Any) -> Any:
    if value is not False and not isinstance(value, dict):
        raise ValueError("expects false or { min = …, max = … }")
    return None if value is False else value


class _Model(_Section):
    hidden: int = Field(ge=1)
    similarity: float | None = None
    tasks: int = Field(2, ge=1)
    teacher_overlaps: _Matrix | None = None
    teacher_heads: Annotated[_Matrix | None, BeforeValidator(_heads)] = None
    activation: Literal["erf"] | None = None
    noise: float | None = Field(None, ge=0)
    train_heads: Annotated[bool | list[bool] | None, BeforeValidator(_all_or_each)] = None
    head_lr: float | None = Field(None, ge=0)

    @model_validator(mode="after")
    def _one_of_two(self) -> _Model:
        if (self.similarity is None) == (self.teacher_overlaps is None):
            raise ValueError("expects either `similarity` or `teacher_overlaps`")
        if "tasks" in self.model_fields_set and self.similarity is None:
            raise ValueError("`tasks` goes with `similarity`; `teacher_overlaps` says it already")
        return self

    def build(self) -> TeacherStudent:
        settings = _given(self)
        similarity, tasks = settings.pop("similarity", None), settings.pop("tasks", self.tasks)
        if similarity is not None:
            return TeacherStudent.similar(similarity, tasks, **settings)
        return TeacherStudent(**settings)


class _Fresh(_Section):
    seed: int | None = Field(None, ge=0)
    dimension: int | None = Field(None, ge=1)
    weight_variance: float | None = Field(None, ge=0)
    head_variance: float | None = Field(None, ge=0)
    heads: _Matrix | None = None


class _Pretrain(_Fresh):
    task: int = Field(1, ge=1)
    duration: float | None = Field(None, gt=0)
    lr: float | None = Field(None, ge=0)


class _Start(_Section):
    pretrain: _Pretrain | None = None
    fresh: _Fresh | None = None
    Q: _Matrix | None = None
    M: _Matrix | None = None
    V: _Matrix | None = None

    @model_validator(mode="after")
    def _one_of_three(self) -> _Start:
        given = [self.Q is not None, self.M is not None, self.V is not None]
        ways = [self.pretrain is not None, self.fresh is not None, any(given)]
        if sum(ways) != 1 or any(given) != all(given):
            raise ValueError("expects one of `pretrain`, `fresh`, or all of `Q`, `M` and `V`")
        return self

    def build(self, model: TeacherStudent) -> Overlaps:
        if self.fresh is not None:
            return model.fresh(**_given(self.fresh))
        if self.pretrain is not None:
            settings = _given(self.pretrain)
            task = task_from_one("start.pretrain.task", self.pretrain.task, model.tasks)
            training = {key: settings[key] for key in ("duration", "lr") if key in settings}
            weights = {key: settings[key] for key in _Fresh.model_fields if key in settings}
            return model.pretrain(task, start=model.fresh(**weights), **training)
        return Overlaps(**self.model_dump(include={"Q", "M", "V"}))


class _Training(_Section):
    duration: float = Field(gt=0)
    steps: int | None = Field(None, ge=1)
    lr: float | None = Field(None, ge=0)


class _LrRange(_Section):
    min: float = Field(ge=0)
    max: float = Field(ge=0)


class _Control(_Section):
    tasks: bool = True
    lr: Annotated[_LrRange | None, BeforeValidator(_range_or_false)] = None


class _Objective(_Section):
    weights: list[float] | None = None
    running: list[float] | None = None
    targets: dict[str, float] | None = None

    def target_list(self, tasks: int) -> list[float | None] | None:
        """Return the targets of all tasks; the file names tasks from 1."""
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


class _Limits(_Section):
    min_share: list[float] | None = None
    max_share: list[float] | None = None
    min_dwell: float = 0.0
    max_switches: int | None = None


class _File(_Section):
    model: _Model
    start: _Start
    training: _Training
    control: _Control = _Control()
    objective: _Objective = _Objective()
    limits: _Limits = _Limits()


_SECTIONS: dict[tuple[str, ...], type[_Section]] = {
    (): _File,
    ("model",): _Model,
    ("start",): _Start,
    ("start", "pretrain"): _Pretrain,
    ("start", "fresh"): _Fresh,
    ("training",): _Training,
    ("control",): _Control,
    ("control", "lr"): _LrRange,
    ("objective",): _Objective,
    ("limits",): _Limits,
}


def read(path: files.FilePath) -> Problem:
    """Read a problem file; any mistake in it is a ValueError of one line that names the key."""
    where = os.fspath(path)
    try:
        content = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{where}: not a TOML file ({error})") from None
    try:
        return from_dict(content)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def from_dict(content: dict[str, Any]) -> Problem:
    """Return the problem that the sections of a problem file describe."""
    try:
        file = _File.model_validate(content)
    except ValidationError as error:
        raise ValueError(_one_line(error)) from None
    model = file.model.build()
    lr = file.control.lr
    return Problem(
        model,
        file.start.build(model),
        **_given(file.training),
        weights=file.objective.weights,
        running=file.objective.running,
        targets=file.objective.target_list(model.tasks),
        control=Control(file.control.tasks, None if lr is None else (lr.min, lr.max)),
        limits=Limits(**_given(file.limits)),
    )


def task_from_one(name: str, value: int, tasks: int) -> int:
    """Return the index from 0 of a task that people count from 1."""
    if not 1 <= value <= tasks:
        expects = "1, the only task" if tasks == 1 else f"a task from 1 to {tasks}"
        raise ValueError(f"`{name}` expects {expects}, got {value}")
    return value - 1


def _one_line(error: ValidationError) -> str:
    """Return the first mistake as one line: the key, what it takes, what it got."""
    # A misspelt key is often a missing one too: name the one that is there.
    first = min(error.errors(), key=lambda found: found["type"] != "extra_forbidden")
    location = tuple(str(part) for part in first["loc"])
    name = ".".join(location)
    if first["type"] == "extra_forbidden":
        known = list(_SECTIONS[location[:-1]].model_fields)
        near = check.hint(location[-1], known) or f", expects {', '.join(known)}"
        return f"`{name}` is not a known key{near}"
    if first["type"] == "missing":
        return f"`{name}` is missing"
    message = first["msg"].removeprefix("Value error, ")
    message = message.replace("Input should be greater", "expects a number greater")
    message = message.replace("Input should be", "expects")
    message = re.sub(r"a valid dictionary or instance of \w+", "a table of keys", message)
    message = message.replace("a valid list", "a list of numbers, one a task")
    message = message.replace("a valid dictionary", "a table such as { 1 = 0.01 }")
    got = "" if isinstance(first["input"], _Section | dict) else f", got {first['input']!r}"
    return f"`{name}` {message}{got}"
