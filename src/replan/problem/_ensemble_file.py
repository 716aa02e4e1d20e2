"""Ensembles in problem files: `seeds` in `[start]`, and the section `[ensemble]`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

from replan._common import check
from replan._common.naming import named
from replan.dynamics._members import in_threads

_OWN = ("risk", "weights", "test_seeds", "members", "test_members")  # others are keys of [model]
_MOST = 100_000  # members

Make = Callable[[Mapping[str, Any]], Any]


class _Member(NamedTuple):
    """A member as its name and the sections of its problem file."""

    name: str
    content: dict[str, Any]


def is_ensemble(content: Mapping[str, Any]) -> bool:
    """Return whether the sections of a problem file describe an ensemble."""
    return "ensemble" in content or bool(_seeded(content))


def ensemble_from(ensemble: Callable[..., Any], content: Mapping[str, Any], make: Make) -> Any:
    """Return the ensemble that the sections describe; `make` makes the problem of a member."""
    section = check.instance("ensemble", content.get("ensemble", {}), Mapping, "a table of keys")
    shared = {key: x for key, x in content.items() if key != "ensemble"}
    members, unseen = _listed(shared, section, "members"), []
    if "members" in section:
        _refuse(section, [key for key in section if key not in (*_OWN[:2], *_OWN[3:])])
        if "test_members" in section:
            unseen = _listed(shared, section, "test_members")
    else:
        _refuse(section, [key for key in ("test_members",) if key in section])
        axes = {key: _values(key, x) for key, x in section.items() if key not in _OWN}
        seeds = _seeds_of(shared)
        members = _product(shared, axes, seeds)
        if "test_seeds" in section:
            tests = _test_seeds(section["test_seeds"], seeds)
            unseen = _product(shared, axes, tests)
    names = {key: f"ensemble.{key}" for key in ("weights", "risk")}
    made = _made(members, make, section), _made(unseen, make, section)
    with named(names):
        return ensemble(
            made[0], section.get("weights"), section.get("risk", "mean"), unseen=made[1]
        )


def _made(members: Sequence[_Member], make: Make, section: Mapping[str, Any]) -> dict[str, Any]:
    """Return the problems of members by name, made in threads: starts may be pretrained."""
    names = {f"model.{key}": f"ensemble.{key}" for key in section if key not in _OWN}

    def one(i: int) -> Any:
        with named(names):
            return make(members[i].content)

    if not members:
        return {}
    problems = [one(0), *in_threads(lambda i: one(i + 1), len(members) - 1)]
    return dict(zip([member.name for member in members], problems, strict=True))


def _refuse(section: Mapping[str, Any], keys: Sequence[str]) -> None:
    for key in keys:
        other = "members" if "members" in section else "test_seeds"
        raise ValueError(
            f"`ensemble.{key}` does not go with `ensemble.{other}`, which names the members one by "
            "one" if "members" in section
            else f"`ensemble.{key}` only with `ensemble.members`, expects `ensemble.{other}`"
        )  # fmt: skip


def _listed(shared: Mapping[str, Any], section: Mapping[str, Any], key: str) -> list[_Member]:
    """Return members that a file names one by one."""
    found = []
    for i, one in enumerate(check.items(f"ensemble.{key}", section.get(key, []), "tables")):
        name = f"ensemble.{key}[{i}]"
        check.instance(name, one, Mapping, "a table with `model` and `start`")
        for part in ("model", "start"):
            if part not in one:
                raise ValueError(f"`{name}.{part}` is missing")
        own = {part: one[part] for part in ("model", "start")}
        found.append(_Member(str(one.get("name", f"member {i + 1}")), {**shared, **own}))
    return found


def _product(
    shared: Mapping[str, Any], axes: Mapping[str, list[Any]], seeds: Sequence[Any] | None
) -> list[_Member]:
    """Return a member for each choice of keys of the model and each seed, these last."""
    starts = _starts(shared, seeds)
    count = len(starts)
    for choices in axes.values():
        count *= len(choices)
    if count > _MOST:
        raise ValueError(f"`ensemble` expects at most {_MOST} members, got {count}")
    given = isinstance(shared["start"], Mapping) and "members" in shared["start"]
    found = []
    for values in product(*axes.values()):
        own = dict(zip(axes, values, strict=True))
        words = [f"{key} {value}" for key, value in own.items()]
        for word, start in starts:
            name = ", ".join([*words, *([word] if word else [])]) or "member 1"
            model = {**dict(shared.get("model", {})), **own}
            found.append(_Member(name, {**shared, "model": model, "start": start}))
    return _with_starts(found, shared["start"]["members"]) if given else found


def _with_starts(members: Sequence[_Member], starts: Any) -> list[_Member]:
    """Return members with starts that are listed one by one, as results hold them."""
    listed = check.items("start.members", starts, "starts, one for each member")
    each = len(listed) // max(len(members), 1)
    if not listed or each * len(members) != len(listed):
        raise ValueError(
            f"`start.members` expects as many starts for each of {len(members)} models, "
            f"got {len(listed)}"
        )
    return [
        _Member(
            f"{members[i // each].name}, start {i % each + 1}" if each > 1 else f"member {i + 1}",
            {**members[i // each].content, "start": start},
        )
        for i, start in enumerate(listed)
    ]


def _starts(shared: Mapping[str, Any], seeds: Sequence[Any] | None) -> list[tuple[str, Any]]:
    """Return the names and sections of all starts."""
    start = shared.get("start", {})
    if seeds is None:
        return [("", start)]
    [key] = _seeded(shared) or [key for key, x in start.items() if isinstance(x, Mapping)]
    table = {name: x for name, x in start[key].items() if name != "seeds"}
    return [(f"seed {seed}", {**start, key: {**table, "seed": seed}}) for seed in seeds]


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
    [key] = tables
    if "seed" in shared["start"][key]:
        raise ValueError(f"`start.{key}` expects `seed` or `seeds`, got both")
    return _seeds(f"start.{key}.seeds", shared["start"][key]["seeds"], 0)


def _test_seeds(given: Any, seeds: list[int] | None) -> list[int]:
    """Return seeds that are not among the others; a count means those after them."""
    if seeds is None:
        raise ValueError(
            "`ensemble.test_seeds` expects `seeds` in [start], such as pretrain = { seeds = 8 }, "
            "got none"
        )
    found = _seeds("ensemble.test_seeds", given, max(seeds) + 1)
    for seed in found:
        if seed in seeds:
            raise ValueError(
                f"`ensemble.test_seeds` expects seeds that are not in [start], got {seed}"
            )
    return found


def _seeds(name: str, given: Any, first: int) -> list[int]:
    """Return seeds that are listed, or so many from `first` on."""
    if isinstance(given, list | tuple):
        found = [check.integer(name, seed) for seed in given]
        if not found or len(set(found)) < len(found):
            raise ValueError(f"`{name}` expects different seeds, got {check.show(given)}")
        return found
    return list(range(first, first + check.integer(name, given, at_least=1, at_most=_MOST)))


def _values(key: str, given: Any) -> list[Any]:
    """Return the values of a key of the model, of which there is at least one."""
    if not isinstance(given, list | tuple) or not given:
        raise ValueError(
            f"`ensemble.{key}` expects a list of values for the key of [model], "
            f"got {check.show(given)}"
        )
    return list(given)
