"""Ensembles in problem files: `seeds` in `[start]`, and the section `[ensemble]`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from replan import check
from replan.check import Floats
from replan.errors import ArgumentError, renamed
from replan.models.registry import DEFAULT
from replan.models.stacked import in_threads
from replan.problem.risk import risk_of
from replan.schema import check_keys, toml

_SPANNED = ("risk", "weights", "test_seeds")  # beside keys of [model]
_LISTED = ("risk", "weights", "members", "test_members", "test_weights")
_OWN = {*_SPANNED, *_LISTED}
_MEMBER = ("name", "model", "start")  # the keys of a member that is listed
_MOST = 100_000  # members

Make = Callable[[Mapping[str, Any]], Any]


class _Member(NamedTuple):
    """A member as its name and the sections of its problem file."""

    name: str
    content: dict[str, Any]


class _Described(NamedTuple):
    """What a file describes: members, those to test on, and the weights of these, if it has any.

    test_weights: by the weights of the members.
    """

    members: list[_Member]
    tests: list[_Member]
    test_weights: Callable[[Floats], Any]


def is_ensemble(content: Mapping[str, Any]) -> bool:
    """Return whether the sections of a problem file describe an ensemble."""
    return "ensemble" in content or bool(_seeded(content))


def kinds(content: Mapping[str, Any]) -> set[str]:
    """Return the kinds of all models that the sections of a problem file, checked, describe."""
    section = content.get("ensemble", {})
    models = [one["model"] for one in section.get("members", [])] or [content["model"]]
    return {model.get("kind", DEFAULT) for model in models} | set(section.get("kind", ()))


def ensemble_from(ensemble: Callable[..., Any], content: Mapping[str, Any], make: Make) -> Any:
    """Return the ensemble that the sections describe; `make` makes the problem of a member."""
    section = check.instance("ensemble", content.get("ensemble", {}), Mapping, "a table of keys")
    shared = {key: x for key, x in content.items() if key != "ensemble"}
    listed = "members" in section
    described = _one_by_one(shared, section) if listed else _spanned(shared, section)
    count = len(described.members)
    with renamed({"member_weights": "ensemble.weights", "risk": "ensemble.risk"}):
        risk = risk_of(section.get("risk", "mean"), section.get("weights"), count)
    members, tests = (_made(some, make, section) for some in described[:2])
    unseen = None
    if tests:
        with renamed({"member_weights": "ensemble.test_weights"}):
            unseen = ensemble(tests, described.test_weights(risk.weights))
    return ensemble(members, risk.weights, risk.word, unseen=unseen)


def _made(members: Sequence[_Member], make: Make, section: Mapping[str, Any]) -> dict[str, Any]:
    """Return the problems of members by name, made in threads: starts may be pretrained."""
    names = {f"model.{key}": f"ensemble.{key}" for key in section if key not in _OWN}

    def one(i: int) -> Any:
        with renamed(names):
            return make(members[i].content)

    if not members:
        return {}
    problems = [one(0), *in_threads(lambda i: one(i + 1), len(members) - 1)]
    return dict(zip([member.name for member in members], problems, strict=True))


# StackedModel that are listed


def _one_by_one(shared: Mapping[str, Any], section: Mapping[str, Any]) -> _Described:
    """Return the members that a file lists."""
    for key in section:
        if key not in _LISTED:
            raise ValueError(
                f"`ensemble.{key}` does not go with `ensemble.members`, beside which only "
                f"{', '.join(x for x in _LISTED if x != 'members')} are known"
                f"{check.hint(key, _LISTED)}"
            )
    members = _listed(shared, section, "members")
    if not members:
        raise ArgumentError("ensemble.members", "at least one member", "none")
    tests = _listed(shared, section, "test_members")
    if tests and "weights" in section and "test_weights" not in section:
        raise ValueError(
            "`ensemble.test_weights` is missing: where members have `ensemble.weights`, those to "
            "test on have theirs"
        )
    return _Described(members, tests, lambda _: section.get("test_weights"))


def _listed(shared: Mapping[str, Any], section: Mapping[str, Any], key: str) -> list[_Member]:
    """Return the members that a key lists."""
    found = []
    for i, one in enumerate(check.items(f"ensemble.{key}", section.get(key, []), "tables")):
        name = f"ensemble.{key}[{i}]"
        check.instance(name, one, Mapping, "a table with `model` and `start`")
        check_keys(one, _MEMBER, name)
        for part in ("model", "start"):
            if part not in one:
                raise ValueError(f"`{name}.{part}` is missing")
        own = {part: one[part] for part in ("model", "start")}
        word = check.word(f"{name}.name", one.get("name", f"member {i + 1}"))
        found.append(_Member(word, {**shared, **own}))
    _different(f"ensemble.{key}", "names", [member.name for member in found])
    return found


# StackedModel by seeds and by keys of the model


def _spanned(shared: Mapping[str, Any], section: Mapping[str, Any]) -> _Described:
    """Return the members that seeds and keys of the model span."""
    for key in ("test_members", "test_weights"):
        if key in section:
            raise ValueError(
                f"`ensemble.{key}` goes with `ensemble.members`, which is missing: members by "
                "seeds are tested on `ensemble.test_seeds`"
            )
    axes = {key: _values(key, x) for key, x in section.items() if key not in _OWN}
    seeds, tests = _seeds_of(shared), []
    if "test_seeds" in section:
        tests = _test_seeds(section["test_seeds"], seeds)
    members = _product(shared, axes, seeds)

    def test_weights(weights: Floats) -> Floats:
        """Give members to test on the weight of their model, in equal parts."""
        each = weights.reshape(-1, len(seeds or [0])).sum(axis=1)
        return np.repeat(each / len(tests), len(tests))

    return _Described(members, _product(shared, axes, tests) if tests else [], test_weights)


def _product(
    shared: Mapping[str, Any], axes: Mapping[str, list[Any]], seeds: Sequence[int] | None
) -> list[_Member]:
    """Return a member for each choice of keys of the model and each seed, these last."""
    starts = _starts(shared, seeds)
    count = len(starts)
    for choices in axes.values():
        count *= len(choices)
    if count > _MOST:
        raise ArgumentError("ensemble", f"at most {_MOST} members", count)
    fixed = check.instance("model", shared.get("model", {}), Mapping, "a table of keys")
    found = []
    for values in product(*axes.values()):
        own = dict(zip(axes, values, strict=True))
        words = [f"{key} {value}" for key, value in own.items()]
        for word, start in starts:
            name = ", ".join([*words, *([word] if word else [])]) or "member 1"
            content = {**shared, "model": {**fixed, **own}} | start
            found.append(_Member(name, content))
    return found


def _starts(
    shared: Mapping[str, Any], seeds: Sequence[int] | None
) -> list[tuple[str, dict[str, Any]]]:
    """Return the names of all starts, and the section that each makes of `[start]`, if any."""
    if seeds is None:
        return [("", {})]
    start, [key] = shared["start"], _seeded(shared)
    table = {name: x for name, x in start[key].items() if name != "seeds"}
    return [(f"seed {seed}", {"start": {**start, key: {**table, "seed": seed}}}) for seed in seeds]


def _seeded(content: Mapping[str, Any]) -> list[str]:
    """Return the tables in `[start]` that have several seeds."""
    start = content.get("start")
    if not isinstance(start, Mapping):
        return []
    return [key for key, x in start.items() if isinstance(x, Mapping) and "seeds" in x]


def _seeds_of(shared: Mapping[str, Any]) -> list[int] | None:
    """Return the seeds in `[start]`, None where there are none."""
    tables = _seeded(shared)
    if not tables:
        return None
    if len(tables) > 1:
        raise ArgumentError("start", "`seeds` in one table", f"{' and '.join(tables)}")
    [key] = tables
    if "seed" in shared["start"][key]:
        raise ArgumentError(f"start.{key}", "`seed` or `seeds`", "both")
    return _seeds(f"start.{key}.seeds", shared["start"][key]["seeds"], 0)


def _test_seeds(given: Any, seeds: list[int] | None) -> list[int]:
    """Return seeds that are not among the others; a count means those after them."""
    if seeds is None:
        raise ArgumentError(
            "ensemble.test_seeds", "`seeds` in [start], such as pretrain = { seeds = 8 }", "none"
        )
    found = _seeds("ensemble.test_seeds", given, max(seeds) + 1)
    for seed in found:
        if seed in seeds:
            raise ArgumentError("ensemble.test_seeds", "seeds that are not in [start]", seed)
    return found


def _seeds(name: str, given: Any, first: int) -> list[int]:
    """Return seeds that are listed, or so many from `first` on."""
    if isinstance(given, list | tuple):
        if not given:
            raise ArgumentError(name, "at least one seed", "none")
        return _different(name, "seeds", [check.integer(name, seed) for seed in given])
    return list(range(first, first + check.integer(name, given, at_least=1, at_most=_MOST)))


def _values(key: str, given: Any) -> list[Any]:
    """Return the values of a key of the model, of which there is at least one."""
    near = check.hint(key, _SPANNED)
    if not isinstance(given, list | tuple) or not given:
        raise ArgumentError(
            f"ensemble.{key}", "a list of values for a key of [model]", f"{check.show(given)}{near}"
        )
    return _different(f"ensemble.{key}", "values", given, near)


def _different(name: str, what: str, given: Iterable[Any], near: str = "") -> list[Any]:
    """Return what is given, each of which must be there once."""
    seen, found = set(), list(given)
    for one in found:
        text = json.dumps(float(one) if type(one) is int else one, sort_keys=True, default=str)
        if text in seen:
            raise ArgumentError(name, f"different {what}", f"{toml(one)} twice{near}")
        seen.add(text)
    return found
