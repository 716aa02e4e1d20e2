"""The problem file (TOML): its keys and their types; `example` gives a commented one."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import BeforeValidator, Field, create_model

from replan._common import check, files
from replan._common.naming import named
from replan._common.sections import Section, paths, read, task_from_one, toml, toml_key
from replan.dynamics import Dynamics, find
from replan.dynamics._registry import DEFAULT
from replan.problem._control import Control
from replan.problem._ensemble_file import ensemble_from, is_ensemble
from replan.problem._limits import Limits

if TYPE_CHECKING:
    from replan.problem._problem import Problem

_P = TypeVar("_P", bound="Problem")


def _true_false_or_constant(value: Any) -> Any:
    if not isinstance(value, bool) and value != "constant":
        raise ValueError('true, false or "constant"')
    return value


def _range_or_false(value: Any) -> Any:
    if value is not False and not isinstance(value, dict):
        raise ValueError("false or { min = …, max = … }")
    return None if value is False else value


def _table_of_losses(value: Any) -> Any:
    if not isinstance(value, dict):
        raise ValueError("a table such as { 1 = 0.01 }")
    return value


def _number_or_range(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float | dict):
        raise ValueError("a number or { min = …, max = … }")
    return value


def _number_or_never(value: Any) -> Any:
    return math.inf if value == _NEVER else value


_NEVER = "inf"  # a time; JSON has no infinite numbers, and files are kept in results
_Time = Annotated[float, Field(allow_inf_nan=True), BeforeValidator(_number_or_never)]


class _Training(Section):
    duration: float = Field(gt=0)
    steps: int | None = Field(None, ge=1)
    arrivals: list[_Time] | None = None
    departures: list[_Time] | None = None


class _Range(Section):
    min: float
    max: float


class _Free(_Range):
    constant: bool = False
    shared: bool = False


_Knob = Annotated[_Free | None, BeforeValidator(_range_or_false)]


class _Control(Section):
    tasks: Annotated[bool | Literal["constant"], BeforeValidator(_true_false_or_constant)] = True


class _Objective(Section):
    goal: str = "final"
    weights: list[float] | None = None
    running: list[float] | None = None
    targets: Annotated[dict[str, float] | None, BeforeValidator(_table_of_losses)] = None

    def target_list(self, names: Sequence[str]) -> list[float | None] | None:
        """Return the targets of all losses; the file has them by name, or by number from 1."""
        if self.targets is None:
            return None
        listed: list[float | None] = [None] * len(names)
        for name, target in self.targets.items():
            if name in names:
                listed[names.index(name)] = target
                continue
            if not name.isdecimal() or len(name) > 9:
                raise ValueError(
                    "`objective.targets` expects tasks as keys, such as 1, or names of losses, "
                    f"got {toml(name)}"
                )
            listed[task_from_one("objective.targets", int(name), len(names))] = target
        return listed


_Mean = Annotated[float | _Range, BeforeValidator(_number_or_range)]


class _Limits(Section):
    min_share: list[float] | None = None
    max_share: list[float] | None = None
    min_dwell: float = 0.0
    max_switches: int | None = None
    mean: dict[str, _Mean] | None = None
    max_replay: float | None = None

    def limits(self) -> Limits:
        """Return the limits themselves."""
        given = self.given()
        if self.mean is not None:
            given["mean"] = {
                name: (mean.min, mean.max) if isinstance(mean, _Range) else mean
                for name, mean in self.mean.items()
            }
        return Limits(**given)


class _File(Section):
    model: dict[str, Any]
    start: dict[str, Any]
    training: dict[str, Any]
    control: dict[str, Any] = Field(default_factory=dict)
    objective: dict[str, Any] = Field(default_factory=dict)
    limits: _Limits = _Limits()


def sections(path: files.FilePath) -> dict[str, Any]:
    """Return the sections of a problem file."""
    text = files.read_text(path)
    try:
        return parsed(text)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def parsed(text: str) -> dict[str, Any]:
    """Return the sections in the text of a problem file."""
    try:
        content = tomllib.loads(text)
    except ValueError as error:
        raise ValueError(f"not a TOML file ({error})") from None
    except RecursionError:
        raise ValueError("brackets are nested too deeply") from None
    training = content.get("training")
    if isinstance(training, dict):
        times = {"arrivals", "departures"} & training.keys()
        content["training"] = training | {name: _with_nevers(training[name]) for name in times}
    return content


def _with_nevers(value: Any) -> Any:
    """Return times, or lists of them, with the word for infinite ones."""
    if isinstance(value, list):
        return [_with_nevers(x) for x in value]
    return _NEVER if value == math.inf else value


def to_toml(content: Mapping[str, Mapping[str, Any]]) -> str:
    """Return sections as the text of a problem file."""
    tables = [
        "\n".join([f"[{name}]", *(f"{toml_key(key)} = {toml(x)}" for key, x in section.items())])
        for name, section in content.items()
    ]
    return "\n\n".join(tables) + "\n"


def problem_from(
    problem: type[_P],
    content: Mapping[str, Any],
    model: Dynamics | None = None,
    *,
    sketch: bool = False,
) -> _P:
    """Return the problem that the sections describe, with `model` if given, or the ensemble.

    A mistake is a ValueError that names the key by its full path. sketch: with a start that costs
    nothing (`Dynamics.sketch_start`), to find the mistakes.
    """
    check.instance("content", content, Mapping, "the sections of a problem file")
    if "axes" in content:
        raise ValueError("`axes` makes this a study: `replan study FILE` runs it")
    if model is None and is_ensemble(content):
        make = partial(problem_from, problem, sketch=sketch)
        return ensemble_from(problem.of_members, content, make)
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
    names = list(model.panel.knobs)
    settings = read(_with_knobs(_Training, names, float | None), file.training, "training").given()
    free = read(_with_knobs(_Control, names, _Knob), file.control, "control")
    turned = {name: getattr(free, name) for name in names if getattr(free, name) is not None}
    with named({name: f"control.{name}" for name in names} | {"lr min": "control.lr.min"}):
        control = Control(
            free.tasks,
            knobs={name: (x.min, x.max) for name, x in turned.items()},
            constant=[name for name, x in turned.items() if x.constant],
            shared=[name for name, x in turned.items() if x.shared],
        )
    objective = read(_by_name(file.objective), file.objective, "objective")
    own = {key: f"training.{key}" for key in (*_Training.model_fields, *names)}
    own |= {key: f"objective.{key}" for key in _Objective.model_fields}
    own |= {key: f"limits.{key}" for key in _Limits.model_fields}
    with named(start_paths | own):
        return problem(
            model,
            start,
            **{key: x for key, x in settings.items() if key in _Training.model_fields},
            knobs={key: x for key, x in settings.items() if key in names},
            goal=objective.goal,  # type: ignore[arg-type]
            weights=objective.weights,
            running=objective.running,
            targets=objective.target_list(model.loss_names),
            control=control,
            limits=file.limits.limits(),
        )


def _by_name(content: Mapping[str, Any]) -> type[_Objective]:
    """Return the section of the objective, with tables of numbers where it has these for lists."""
    tables = [key for key in ("weights", "running") if isinstance(content.get(key), dict)]
    keys: dict[str, Any] = dict.fromkeys(tables, (dict[str, float] | None, None))
    return create_model("_Objective", __base__=_Objective, **keys)


def _with_knobs(section: type[Section], names: Sequence[str], what: Any) -> Any:
    """Return a section with a further key for every knob."""
    keys: dict[str, Any] = dict.fromkeys(names, (what, None))
    return create_model(section.__name__, __base__=section, **keys)
