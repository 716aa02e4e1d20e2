"""The problem file (TOML): its sections, read by the constructors they describe."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from replan import check, files
from replan.errors import ArgumentError, in_file, renamed
from replan.models import Model
from replan.models.registry import DEFAULT, find, import_named
from replan.problem.axes import flatten, span
from replan.problem.control import Control, Range
from replan.problem.limits import Limits
from replan.problem.objective import Objective
from replan.schema import check_keys, from_keys, paths, task_from_one, toml, toml_key

if TYPE_CHECKING:
    from replan.problem.problem import Problem

_SECTIONS = ("model", "start", "training", "control", "objective", "limits", "ensemble")
_NEEDED = ("model", "start", "training")
_TRAINING = ("duration", "steps", "arrivals", "departures")
_ENSEMBLE = ("risk", "weights", "axes", "members")
_NEVER = "inf"  # a time; JSON has no infinite numbers, and files are kept in results


def read_problem(path: files.FilePath) -> Problem:
    """Return the problem in a file."""
    import_named()  # first: what goes wrong there is not the file's mistake
    content = read_sections(path)
    with in_file(path):
        return problem_from(content)


def read_sections(path: files.FilePath) -> dict[str, Any]:
    """Return the sections of a problem file."""
    if str(path).endswith(".json"):
        return with_never({key: x for key, x in files.read_json(path).items() if key in _SECTIONS})
    text = files.read_text(path)
    try:
        content = tomllib.loads(text)
    except ValueError as error:
        raise ValueError(f"{path}: not a TOML file ({error})") from None
    except RecursionError:
        raise ValueError(f"{path}: brackets are nested too deeply") from None
    return with_never(content)


def with_never(value: Any) -> Any:
    """Return content of a file with the word "inf" for infinite numbers, which JSON lacks."""
    if isinstance(value, Mapping):
        return {key: with_never(x) for key, x in value.items()}
    if isinstance(value, list):
        return [with_never(x) for x in value]
    return _NEVER if isinstance(value, float) and value == math.inf else value


def problem_from(content: Mapping[str, Any], model: Model | None = None) -> Problem:
    """Return the problem that the sections describe, with `model` if given, or the ensemble.

    A mistake is an ArgumentError that names the key by its full path.
    """
    from replan.problem.problem import Problem

    check.instance("content", content, Mapping, "the sections of a problem file")
    if "axes" in content:
        raise ArgumentError("axes", "absent from a problem file", "a study: use `replan study`")
    check_keys(content, _SECTIONS, "")
    if "ensemble" in content:
        return _ensemble_from(content, model)
    for name in _NEEDED:
        if name not in content:
            raise ArgumentError(name, "a section of the file", "nothing")
    for name, section in content.items():
        check.instance(name, section, Mapping, "a table of keys")
    if model is None:
        settings = dict(content["model"])
        kind = find(settings.pop("kind", DEFAULT))
        with renamed(paths(settings, "model")):
            model = kind.from_dict(settings)
    with renamed(paths(content["start"], "start")):
        start = model.start_from_dict(content["start"])
    training = dict(content["training"])
    knobs = list(model.layout.knobs)
    check_keys(training, [*_TRAINING, *knobs], "training")
    if "duration" not in training:
        raise ArgumentError("training.duration", "given", "nothing")
    for name in ("arrivals", "departures"):
        if isinstance(training.get(name), list):
            training[name] = [math.inf if x == _NEVER else x for x in training[name]]
    own = {key: f"start.{key}" for key in content["start"]}
    own |= {key: f"training.{key}" for key in (*_TRAINING, *knobs)}
    own |= paths(content.get("objective", {}), "objective")
    own |= {key: f"limits.{key}" for key in Limits.__dataclass_fields__}
    with renamed(own):
        return Problem(
            model,
            start,
            **training,
            objective=_objective(content.get("objective", {}), model.loss_names),
            control=_control(content.get("control", {}), knobs),
            limits=_limits(content.get("limits", {})),
        )


def _objective(section: Mapping[str, Any], losses: Sequence[str]) -> Objective:
    """Return the objective; the file has targets by name, or by number from 1."""
    given = dict(section)
    if "targets" in given:
        name = "objective.targets"
        targets = check.instance(name, given["targets"], Mapping, "a table such as { 1 = 0.01 }")
        listed: list[Any] = [None] * len(losses)
        for key, target in targets.items():
            if key in losses:
                listed[losses.index(key)] = target
            elif key.isdecimal():
                listed[task_from_one(name, int(key[:9]), len(losses))] = target
            else:
                raise ArgumentError(name, "a table by task, such as 1, or by loss", toml(key))
        given["targets"] = listed
    return from_keys(Objective, given, "objective")


def _control(section: Mapping[str, Any], knobs: Sequence[str]) -> Control:
    check_keys(section, ["tasks", *knobs], "control")
    with renamed({"tasks": "control.tasks"}):
        return Control(
            section.get("tasks", True),
            **{
                name: _range(f"control.{name}", value)
                for name, value in section.items()
                if name != "tasks" and value is not False
            },
        )


def _range(name: str, value: Any) -> Range:
    """Return the range of a knob: { min, max } and whether it is constant or shared."""
    check.instance(name, value, Mapping, "false or { min = …, max = … }")
    fields = {"min": "low", "max": "high", "constant": "constant", "shared": "shared"}
    check_keys(value, fields, name)
    for key in ("min", "max"):
        if key not in value:
            raise ArgumentError(f"{name}.{key}", "given", "nothing")
    with renamed({field: f"{name}.{key}" for key, field in fields.items()}):
        return Range(**{fields[key]: x for key, x in value.items()})


def _limits(section: Mapping[str, Any]) -> Limits:
    given = dict(section)
    if "mean" in given:
        means = check.instance("limits.mean", given["mean"], Mapping, "a table of means by knob")
        given["mean"] = {knob: _mean(f"limits.mean.{knob}", value) for knob, value in means.items()}
    return from_keys(Limits, given, "limits")


def _mean(name: str, value: Any) -> Any:
    """Return a mean as a number or a pair; the file has a range as { min, max }."""
    if not isinstance(value, Mapping):
        return check.number(name, value)
    bounds = _range(name, value)
    return bounds.low, bounds.high


# Ensembles


def _ensemble_from(content: Mapping[str, Any], model: Model | None) -> Problem:
    """Return the ensemble whose members `[ensemble]` lists, or spans by axes."""
    from replan.problem.problem import Problem

    section = check.instance("ensemble", content["ensemble"], Mapping, "a table of keys")
    check_keys(section, _ENSEMBLE, "ensemble")
    if model is not None or ("axes" in section) == ("members" in section):
        got = "a model given besides" if model is not None else ", ".join(section) or "nothing"
        raise ArgumentError("ensemble", "a table with either `axes` or `members`", got)
    shared = {key: x for key, x in content.items() if key != "ensemble"}
    if "axes" in section:
        points = span(shared, flatten(section["axes"], "ensemble.axes"), "ensemble.axes")
        members = {
            ", ".join(f"{key} {toml(x)}" for key, x in point.values.items()): point.content
            for point in points
        }
    else:
        members = _listed(shared, section["members"])
    problems = {name: problem_from(member) for name, member in members.items()}
    with renamed({"weights": "ensemble.weights", "risk": "ensemble.risk"}):
        return Problem.ensemble(
            problems, weights=section.get("weights"), risk=section.get("risk", "mean")
        )


def _listed(shared: Mapping[str, Any], members: Any) -> dict[str, dict[str, Any]]:
    """Return the sections of members that a file lists one by one, by name."""
    listed: dict[str, dict[str, Any]] = {}
    for i, member in enumerate(check.items("ensemble.members", members, "tables")):
        name = f"ensemble.members[{i}]"
        check.instance(name, member, Mapping, "a table with `model` and `start`")
        check_keys(member, ["name", "model", "start"], name)
        word = check.word(f"{name}.name", member.get("name", f"member {i + 1}"))
        if word in listed:
            raise ArgumentError(f"{name}.name", "different from the others", repr(word))
        listed[word] = {**shared, **{key: x for key, x in member.items() if key != "name"}}
    return listed


# Writing


def problem_to_dict(problem: Problem) -> dict[str, Any]:
    """Return a problem as the sections of a problem file, its start as a state."""
    if problem.is_ensemble:
        sections = [member.to_dict() for member in problem.members]
        shared = {key: x for key, x in sections[0].items() if key not in ("model", "start")}
        members = [
            {"name": name, "model": section["model"], "start": section["start"]}
            for name, section in zip(problem.names, sections, strict=True)
        ]
        risk = {"risk": problem.risk.word, "weights": problem.risk.weights.tolist()}
        return {"ensemble": risk | {"members": members}} | shared
    training: dict[str, Any] = {"duration": problem.duration, "steps": problem.steps}
    for name in ("arrivals", "departures"):
        if problem.arguments[name] is not None:
            training[name] = getattr(problem.availability, name).tolist()
    control: dict[str, Any] = {"tasks": problem.control.tasks}
    if "lr" in problem.knobs:
        control["lr"] = False
    for name, free in problem.control.knobs.items():
        ties = {"constant": free.constant, "shared": free.shared}
        control[name] = {"min": free.low, "max": free.high} | {k: v for k, v in ties.items() if v}
    return {
        "model": {"kind": problem.model.kind} | problem.model.to_dict(),
        "start": problem.model.start_to_dict(problem.start),
        "training": training | problem.settings,
        "control": control,
        "objective": problem.objective.to_dict(),
        "limits": problem.limits.to_dict(),
    }


def to_toml(content: Mapping[str, Mapping[str, Any]]) -> str:
    """Return sections as the text of a problem file."""
    tables = [
        "\n".join([f"[{name}]", *(f"{toml_key(key)} = {toml(x)}" for key, x in section.items())])
        for name, section in content.items()
    ]
    return "\n\n".join(tables) + "\n"
