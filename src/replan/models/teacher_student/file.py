"""The teacher-student model in problem files: its keys and their types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from replan.schema import Matrix, Section, read, task_from_one


def _heads(value: Any) -> Any:
    """Accept P numbers for the heads of a single task."""
    flat = isinstance(value, list) and value and not isinstance(value[0], list)
    return [value] if flat else value


def _all_or_each(value: Any) -> Any:
    good = isinstance(value, bool) or (
        isinstance(value, list) and all(isinstance(flag, bool) for flag in value)
    )
    if not good:
        raise ValueError("true, false or a list of these, one for each task")
    return value


# Constructors of the kinds of `teachers`, and the keys that go with each
_TEACHERS = {
    "drift": ("stream", ()),
    "random": ("random_stream", ("seed",)),
    "blocks": ("block_stream", ("blocks", "between")),
}


class _Model(Section):
    hidden: int = Field(ge=1)
    similarity: float | None = None
    tasks: int = Field(2, ge=1)
    teachers: Literal["drift", "random", "blocks"] | None = None
    seed: int | None = Field(None, ge=0)
    blocks: int | None = Field(None, ge=1)
    between: float | None = None
    teacher_overlaps: Matrix | None = None
    teacher_heads: Annotated[Matrix | None, BeforeValidator(_heads)] = None
    activation: Literal["erf", "relu", "linear"] = "erf"
    teacher_activation: Literal["erf", "relu", "linear"] | None = None  # in files of version 0.1
    noise: float | None = Field(None, ge=0)
    train_heads: Annotated[bool | list[bool] | None, BeforeValidator(_all_or_each)] = None
    head_lr: float | None = Field(None, ge=0)
    batch: int | None = Field(None, ge=1)
    momentum: float | None = Field(None, ge=0)

    @model_validator(mode="after")
    def _consistent(self) -> _Model:
        if (self.similarity is None) == (self.teacher_overlaps is None):
            got = "neither" if self.similarity is None else "both"
            raise ValueError(f"`similarity` or `teacher_overlaps`, got {got}")
        for key in ("tasks", "teachers"):
            if key in self.model_fields_set and self.similarity is None:
                raise ValueError(
                    f"`{key}` only with `similarity`, got it with `teacher_overlaps`, which "
                    "implies it"
                )
        for kind, (_, keys) in _TEACHERS.items():
            for key in keys:
                if key in self.model_fields_set and self.teachers != kind:
                    raise ValueError(f'`{key}` only with teachers = "{kind}", got it without')
        if self.teacher_activation not in (None, self.activation):
            raise ValueError("the same `activation` for students and teachers, got two")
        return self


class _Fresh(Section):
    seed: int | None = Field(None, ge=0)
    dimension: int | None = Field(None, ge=1)
    weight_variance: float | None = Field(None, ge=0)
    head_variance: float | None = Field(None, ge=0)
    heads: Matrix | None = None


class _Pretrain(_Fresh):
    task: int = Field(1, ge=1)
    duration: float | None = Field(None, gt=0)
    lr: float | None = Field(None, ge=0)


class _Start(Section):
    pretrain: _Pretrain | None = None
    fresh: _Fresh | None = None
    Q: Matrix | None = None
    M: Matrix | None = None
    V: Matrix | None = None

    @model_validator(mode="after")
    def _one_of_three(self) -> _Start:
        given = [self.Q is not None, self.M is not None, self.V is not None]
        ways = [self.pretrain is not None, self.fresh is not None, any(given)]
        if sum(ways) != 1 or any(given) != all(given):
            got = ", ".join(f"`{key}`" for key in self.given()) or "none of them"
            raise ValueError(f"one of `pretrain`, `fresh`, or all of `Q`, `M` and `V`, got {got}")
        return self


def read_model(content: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the constructor of `TeacherStudent` that a `[model]` section asks for, and arguments.

    The constructor is "" for the class itself.
    """
    section = read(_Model, content, "model")
    settings = section.given()
    settings.pop("teacher_activation", None)
    teachers = settings.pop("teachers", None)
    if teachers is not None:
        return _TEACHERS[teachers][0], settings | {"tasks": section.tasks}
    return "similar" if section.similarity is not None else "", settings


def read_start(
    content: Mapping[str, Any], tasks: int
) -> tuple[dict[str, Any], dict[str, Any] | None, dict[str, Any] | None]:
    """Return the settings of `fresh` or of `pretrain` if asked for, or else the overlaps."""
    start = read(_Start, content, "start")
    if start.fresh is not None:
        return start.fresh.given(), None, None
    if start.pretrain is None:
        return {}, None, start.given()
    given = start.pretrain.given()
    fresh = {key: given.pop(key) for key in _Fresh.model_fields if key in given}
    task = task_from_one("start.pretrain.task", start.pretrain.task, tasks)
    return fresh, given | {"task": task}, None
