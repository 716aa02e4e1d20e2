"""The image network in problem files: its keys and their types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, model_validator

from replan._common.sections import Section, read, task_from_one
from replan.networks._tasks import ImageTasks, image_tasks


class _Tasks(Section):
    data: str
    similarity: float | None = Field(None, ge=0)
    classes: list[list[int]] | None = None
    upstream: list[int] | None = None
    auxiliary: list[int] | None = None
    normalise: Literal["unit", "standard"] | None = None
    test_samples: int | None = Field(None, ge=1)


class _Model(_Tasks):
    hidden: int = Field(8, ge=1)
    loss: Literal["squared-error", "cross-entropy"] | None = None
    biases: bool | None = None
    memory: int | None = Field(None, ge=1)
    samples: int | None = Field(None, ge=1)
    realisations: int | list[int] | None = None
    seed: int | None = Field(None, ge=0)
    weight_std: float | None = Field(None, ge=0)
    head_std: float | None = Field(None, ge=0)
    precision: Literal["single", "double"] | None = None


class _Fresh(Section):
    pass


class _Pretrain(Section):
    steps: int | None = Field(None, ge=1)
    lr: float | None = Field(None, ge=0)
    task: int | None = Field(None, ge=1)


class _Start(Section):
    pretrain: _Pretrain | None = None
    fresh: _Fresh | None = None
    weights: str | None = None

    @model_validator(mode="after")
    def _one_of_three(self) -> _Start:
        given = self.given()
        if len(given) != 1:
            got = ", ".join(f"`{key}`" for key in given) or "none of them"
            raise ValueError(f"one of `pretrain`, `fresh` and `weights`, got {got}")
        return self


def read_model(content: Mapping[str, Any]) -> tuple[ImageTasks, dict[str, Any]]:
    """Return the tasks and the other settings that a `[model]` section gives."""
    given = read(_Model, content, "model").given()
    tasks = {key: given.pop(key) for key in _Tasks.model_fields if key in given}
    return image_tasks(**tasks), given


def task_keys(tasks: ImageTasks) -> dict[str, Any]:
    """Return the keys of a `[model]` section that describe tasks; none if no file can."""
    if "data" not in tasks.settings:
        return {}
    return {key: value for key, value in tasks.settings.items() if key in _Tasks.model_fields}


def read_start(content: Mapping[str, Any], tasks: int) -> tuple[str, Any]:
    """Return which start a `[start]` section describes, and its settings or weights."""
    [(way, given)] = read(_Start, content, "start").given().items()
    if way == "pretrain" and "task" in given:
        given["task"] = task_from_one("start.pretrain.task", given["task"], tasks)
    return way, given
