"""The teacher-student model in problem files: what its sections ask for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from replan import check
from replan.errors import ArgumentError
from replan.models.teacher_student.overlaps import Overlaps
from replan.schema import check_keys, task_from_one

if TYPE_CHECKING:
    from replan.models.teacher_student.model import TeacherStudent

# The keys that go with each kind of `teachers`
_TEACHERS: dict[str, tuple[str, ...]] = {
    "drift": (),
    "random": ("seed",),
    "blocks": ("blocks", "between"),
}
_UNITS = ("teacher_overlaps", "teacher_heads", "similarity", "tasks", "teachers")
_OTHERS = ("hidden", "activation", "noise", "train_heads", "head_lr", "batch", "momentum")
_KEYS = (*_OTHERS, *_UNITS, *(key for keys in _TEACHERS.values() for key in keys))
_FRESH = ("seed", "dimension", "weight_variance", "head_variance", "heads")
_PRETRAIN = ("task", "duration", "lr")
_OVERLAPS = ("Q", "M", "V")


def read_model(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of the constructor that a `[model]` section asks for.

    It is `stream` with `teachers`, else `similar` with `similarity`, else the class.
    """
    settings = dict(content)
    if settings.get("teacher_activation") == settings.get("activation", "erf"):
        settings.pop("teacher_activation")  # in files of version 0.1
    check_keys(settings, _KEYS, "model")
    if ("similarity" in settings) == ("teacher_overlaps" in settings):
        got = "both" if "similarity" in settings else "neither"
        raise ArgumentError("model", "given by either `similarity` or `teacher_overlaps`", got)
    for key in ("tasks", "teachers"):
        if key in settings and "similarity" not in settings:
            raise ArgumentError(f"model.{key}", "given with `similarity`", "`teacher_overlaps`")
    teachers = settings.get("teachers")
    for kind, keys in _TEACHERS.items():
        for key in keys:
            if key in settings and teachers != kind:
                raise ArgumentError(
                    f"model.{key}", f'given with teachers = "{kind}"', check.show(teachers)
                )
    heads = settings.get("teacher_heads")
    if isinstance(heads, list) and heads and not isinstance(heads[0], list):
        settings["teacher_heads"] = [heads]  # of a single task
    if teachers is not None:
        check.one_of("model.teachers", teachers, _TEACHERS)
        return {"tasks": 2} | settings
    return settings


def read_start(model: TeacherStudent, content: Mapping[str, Any]) -> Overlaps:
    """Return the start that a `[start]` section asks for: fresh, pretrained, or the overlaps."""
    check_keys(content, ["pretrain", "fresh", *_OVERLAPS], "start")
    if set(content) == set(_OVERLAPS):
        return Overlaps(**content)
    if set(content) not in ({"pretrain"}, {"fresh"}):
        raise ArgumentError(
            "start",
            "given by one of `pretrain`, `fresh`, or all of `Q`, `M` and `V`",
            ", ".join(f"`{key}`" for key in content) or "none of them",
        )
    [(way, table)] = content.items()
    check.instance(f"start.{way}", table, Mapping, "a table of keys")
    known = _FRESH if way == "fresh" else (*_PRETRAIN, *_FRESH)
    check_keys(table, known, f"start.{way}")
    start = model.fresh(**{key: x for key, x in table.items() if key in _FRESH})
    if way == "fresh":
        return start
    pretrain = {key: x for key, x in table.items() if key in _PRETRAIN}
    task = check.integer("start.pretrain.task", pretrain.get("task", 1))
    pretrain["task"] = task_from_one("start.pretrain.task", task, model.tasks)
    return model.pretrain(start=start, **pretrain)
