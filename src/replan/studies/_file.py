"""The section [sweep] of a study: what runs on each problem, and which axes move together."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BeforeValidator, Field

from replan import check
from replan.control import METHODS
from replan.errors import renamed
from replan.samples import ORDERS
from replan.schema import Section, check_keys, from_keys, read, toml
from replan.simulation import simulate
from replan.strategies import STRATEGIES
from replan.strategies._arguments import settings_of


def _list(value: Any) -> Any:
    if not isinstance(value, list) or not value:
        raise ValueError('a list of words such as ["…"], or of tables with settings')
    return value


def _groups(value: Any) -> Any:
    good = isinstance(value, list) and all(isinstance(group, list) for group in value)
    if not good or not all(isinstance(name, str) for group in value for name in group):
        raise ValueError('lists of axes such as [["model.similarity", "training.lr"]]')
    return value


class _Simulate(Section):
    dimension: int | None = Field(None, ge=1)
    seeds: int | None = Field(None, ge=1)
    seed: int | None = Field(None, ge=0)
    order: str | None = None
    engine: str | None = None


class _Sweep(Section):
    strategies: Annotated[list[Any], BeforeValidator(_list)] | None = None
    solvers: Annotated[list[Any], BeforeValidator(_list)] | None = None
    simulate: _Simulate | None = None
    zip: Annotated[list[list[str]], BeforeValidator(_groups)] = Field([])


@dataclass(frozen=True)
class Run:
    """A strategy or a solver with its settings.

    what: "strategy" or "solver". word: its name in the library. name: the one in the table. where:
    the key of the file, for mistakes.
    """

    what: Literal["strategy", "solver"]
    word: str
    settings: dict[str, Any]
    name: str
    where: str

    @property
    def spec(self) -> dict[str, Any]:
        """The run as a table: its word and its settings."""
        return {"strategy" if self.what == "strategy" else "method": self.word} | self.settings

    @property
    def searches(self) -> bool:
        """Whether it is a strategy that looks for its best rates, unless they are all given."""
        return self.what == "strategy" and bool(STRATEGIES[self.word].turns) and not self.settings

    @contextmanager
    def naming(self) -> Iterator[None]:
        """Have mistakes name the keys of the file."""
        with renamed({key: f"{self.where}.{key}" for key in self.settings}):
            yield

    def to_dict(self) -> dict[str, Any]:
        """Return the run with all its settings, those by default included."""
        thing: Any = STRATEGIES[self.word] if self.what == "strategy" else METHODS[self.word]
        known = inspect.signature(thing).parameters
        keys = settings_of(thing) if self.what == "strategy" else known
        defaults = {key: known[key].default for key in keys if _is_plain(known[key].default)}
        return {"name": self.name} | self.spec | defaults | self.settings


def _is_plain(value: Any) -> bool:
    """Whether a file can hold a value."""
    return isinstance(value, bool | int | str | None) or (
        isinstance(value, float) and math.isfinite(value)
    )


class Asked(NamedTuple):
    """What a section asks for.

    simulate: the settings of simulations of all runs, if any. groups: names of axes that move
    together.
    """

    runs: list[Run]
    simulate: dict[str, Any] | None
    groups: list[list[str]]


def read_sweep(content: Any) -> Asked:
    """Return what a section asks for; by default the first solver, which `solve` uses, too."""
    section = read(_Sweep, content, "sweep")
    if section.strategies is None and section.solvers is None:
        section.solvers = [next(iter(METHODS))]
    runs = [
        *(_run("strategy", one, i) for i, one in enumerate(section.strategies or [])),
        *(_run("solver", one, i) for i, one in enumerate(section.solvers or [])),
    ]
    _check_names(runs)
    if section.simulate is None:
        return Asked(runs, None, section.zip)
    known = inspect.signature(simulate).parameters
    settings = {key: known[key].default for key in _Simulate.model_fields}
    settings |= section.simulate.given()
    check.one_of("sweep.simulate.order", settings["order"], ORDERS)
    return Asked(runs, settings, section.zip)


def _check_names(runs: Sequence[Run]) -> None:
    names = [run.name for run in runs]
    for i, run in enumerate(runs):
        if run.name in names[:i]:
            raise ValueError(
                f"`{run.where}` expects another `name` than the runs before it, got "
                f"{toml(run.name)} twice"
            )


def _run(what: Literal["strategy", "solver"], given: Any, number: int) -> Run:
    """Return a run: a word, or a table with its settings and a name for the table."""
    where = f"sweep.{'strategies' if what == 'strategy' else 'solvers'}[{number}]"
    key = "strategy" if what == "strategy" else "method"
    known: Mapping[str, Any] = STRATEGIES if what == "strategy" else METHODS
    table = {key: given} if isinstance(given, str) else given
    if not isinstance(table, dict) or key not in table:
        raise ValueError(
            f'`{where}` expects a word, or a table such as {{ {key} = "…" }}, got {toml(given)}'
        )
    settings = dict(table)
    word = check.one_of(where, settings.pop(key), known)
    name = settings.pop("name", None)
    if name is None:
        texts = ", ".join(f"{key}={toml(x)}" for key, x in settings.items())
        name = f"{word} ({texts})" if texts else word
    if not isinstance(name, str) or not name:
        raise ValueError(f"`{where}.name` expects a word, got {toml(name)}")
    run = Run(what, word, settings, name, where)
    if what == "strategy":
        check_keys(settings, settings_of(STRATEGIES[word]), where)
        return run
    with run.naming():
        own = {key: x for key, x in settings.items() if key != "max_gradients"}
        from_keys(METHODS[word], own, where)
        check.integer("max_gradients", settings.get("max_gradients", 1), at_least=1)
    return run
