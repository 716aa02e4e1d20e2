"""make(figures, out): compute figures, write their tables and pictures, check their claims."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from replan._common import check, files
from replan.paper.claims import Claim, page
from replan.sweeps import sweep

if TYPE_CHECKING:
    from replan.paper._parts import Tables

FIGURES = (
    "dynamics",
    "similarity",
    "learning-rate",
    "multitask",
    "overlaps",
    "annealing",
    "three-tasks",
    "readout",
    "curriculum",
    "dropout",
    "denoising",
    "levers",
    "activation",
)
"""The figures that `replan figure all` makes without image data.

Examples:
    >>> replan.paper.FIGURES[:3]
    ('dynamics', 'similarity', 'learning-rate')
"""
IMAGE_FIGURES = ("fashion-dynamics", "fashion-similarity", "cifar-dynamics")
"""The figures that need image data.

Examples:
    >>> replan.paper.IMAGE_FIGURES
    ('fashion-dynamics', 'fashion-similarity', 'cifar-dynamics')
"""
LONG_FIGURES = ("networks", "robust", "stream")
"""The figures that take half an hour and more: each is made by its name alone.

Examples:
    >>> replan.paper.LONG_FIGURES
    ('networks', 'robust', 'stream')
"""
_ALL = (*FIGURES, *IMAGE_FIGURES, *LONG_FIGURES)
_MOST_SEEDS = 100_000  # which all have a place in one table
_PARTS = ("FULL", "QUICK", "compute", "draw", "claims")  # of a module that is a figure


@dataclass(frozen=True)
class Made:
    """A figure that was made: its files, its claims, and how many plans in it did not converge.

    Examples:
        >>> [made] = replan.paper.make(["readout"], "figures", quick=True, workers=1)
        >>> made.name, [path.name for path in made.files]
        ('readout', ['readout.png', 'readout.pdf', 'readout.csv'])
    """

    name: str
    files: list[Path]
    claims: list[Claim]
    unconverged: int


def make(
    figures: Sequence[str | ModuleType],
    out: files.FilePath,
    *,
    quick: bool = False,
    seeds: int | None = None,
    changes: dict[str, Any] | None = None,
    workers: int | None = None,
    executor: Any = None,
    progress: bool = False,
) -> list[Made]:
    """Make figures in the folder `out`, and return what was made.

    `figures`: names of the paper's, and modules with figures of one's own (docs/extending.md).
    Writes NAME.png, NAME.pdf, NAME.csv (and NAME-….csv where there are more tables), and adds to
    claims.json and claims.md. What is computed is kept in `out`/cache: a figure that was stopped
    continues from where it was.

    **Other arguments**

    - `quick`: a coarse version. `seeds`: how many initialisations, where a figure has any.
    - `changes`: other settings to change, in the figures that have them in their `FULL`.
    - `workers`: processes, by default one per core; `executor`: another place to compute, as for
      `replan.sweep`. `progress`: show a bar on a terminal.

    Examples:
        >>> [made] = replan.paper.make(["readout"], "figures", quick=True, workers=1)
        >>> made.name, [path.name for path in made.files]
        ('readout', ['readout.png', 'readout.pdf', 'readout.csv'])
    """
    return list(
        make_each(
            figures,
            out,
            quick=quick,
            seeds=seeds,
            changes={} if changes is None else changes,
            workers=workers,
            executor=executor,
            progress=progress,
        )
    )


def make_each(
    figures: Sequence[str | ModuleType],
    out: files.FilePath,
    *,
    quick: bool,
    seeds: int | None,
    changes: dict[str, Any],
    workers: int | None,
    executor: Any,
    progress: bool,
) -> Iterator[Made]:
    """Yield each figure of `make` as soon as it is made."""
    modules = dict(map(_find, check.items("figures", figures, "figures")))
    if not modules:
        raise ValueError("`figures` expects at least one, got none")
    check.boolean("quick", quick)
    if seeds is not None:
        check.integer("seeds", seeds, at_least=1)
    check.instance("changes", changes, dict, "settings by name")
    standard = {name: module.QUICK if quick else module.FULL for name, module in modules.items()}
    for key in changes:
        check.one_of("changes", key, sorted({key for known in standard.values() for key in known}))
    settings = {name: _settings(known, seeds, changes) for name, known in standard.items()}
    folder = files.folder("out", out)
    own = [f"{name}.{ending}" for name in modules for ending in ("png", "pdf", "csv")]
    for file in (*own, "claims.json", "claims.md"):
        files.output("out", folder / file)
    record = _Record(folder / "claims.json")
    options = [" --quick"] * quick + [f" --seeds {seeds}"] * (seeds is not None)
    options += [f" --set {key}={json.dumps(value)}" for key, value in changes.items()]
    run = partial(
        sweep, cache=folder / "cache", workers=workers, executor=executor, progress=progress
    )
    for name, module in modules.items():
        made = _write(folder, name, module, module.compute(run, **settings[name]))
        command = f"replan figure {name}{''.join(options)}"
        if name not in _ALL:
            command = f"replan.paper.make([{module.__name__}], …)"
        record.add(made, command, settings[name])
        yield made


def _find(figure: str | ModuleType) -> tuple[str, ModuleType]:
    """Return the name of a figure and its module, for a name of the paper's or a module."""
    if not isinstance(figure, ModuleType):
        name = check.one_of("figures", figure, _ALL)
        return name, import_module(f"replan.paper.{name.replace('-', '_')}")
    name = figure.__name__.rpartition(".")[2].replace("_", "-")
    if name in _ALL and figure.__package__ != __package__:
        raise ValueError(
            f"`figures` expects modules with names of their own, got {check.show(name)}"
        )
    for part in _PARTS:
        if not hasattr(figure, part):
            raise ValueError(
                f"`figures` expects modules with {', '.join(_PARTS)}, "
                f"got {check.show(name)} without {part}"
            )
    return name, figure


def _settings(
    standard: dict[str, Any], seeds: int | None, changes: dict[str, Any]
) -> dict[str, Any]:
    """Return the settings of a figure, with those of the changes that it knows."""
    if seeds is not None:
        changes = changes | {"seeds": seeds}
    known = {key: value for key, value in changes.items() if key in standard}
    return standard | {key: _like(key, value, standard[key]) for key, value in known.items()}


def _like(name: str, value: Any, standard: Any) -> Any:
    """Return a setting if it is of the same kind as the standard one; in a list, each value once.

    Rows of a table are told apart by these values: values that are nearly the same are refused.
    """
    if isinstance(standard, str):
        return check.instance(name, value, str, "a word")
    if isinstance(standard, float):
        return check.number(name, value)
    if isinstance(standard, int):
        if name == "seeds":
            return check.integer(name, value, at_least=1, at_most=_MOST_SEEDS)
        return check.integer(name, value)
    if not isinstance(standard, list) or not standard:
        return value
    values = [_like(name, one, standard[0]) for one in check.items(name, value, "values")]
    if not values:
        raise ValueError(f"`{name}` expects at least one value, got none")
    for one, other in pairwise(sorted(values)):
        if one == other or (isinstance(one, float) and other - one < 1e-9 * max(1.0, abs(one))):
            raise ValueError(f"`{name}` expects different values, got {one} and {other}")
    return values


def _write(folder: Path, name: str, module: Any, tables: Tables) -> Made:
    """Write the tables and the pictures of a figure, and check its claims."""
    from replan._common import plotting

    picture = module.draw(tables)
    paths = [folder / f"{name}.{ending}" for ending in ("png", "pdf")]
    for path in paths:
        plotting.save(picture, path)
    for i, (part, table) in enumerate(tables.items()):
        paths.append(folder / (f"{name}-{part}.csv" if i else f"{name}.csv"))
        files.write_frame(paths[-1], table)
    status = [table["status"] for table in tables.values() if "status" in table]
    unconverged = sum(int((column != "converged").sum()) for column in status)
    return Made(name, paths, module.claims(tables), unconverged)


class _Record:
    """The claims of all figures in a folder: claims.json, and claims.md for people."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._figures()  # a file that we did not write is refused before anything is computed

    def _figures(self) -> dict[str, Any]:
        if not self.path.exists():
            return {}
        content = files.read_json(self.path)
        try:
            page(content["figures"])
        except (KeyError, TypeError, ValueError, AttributeError):
            raise ValueError(
                f"{self.path}: expects a file that `replan figure` wrote, got another"
            ) from None
        found: dict[str, Any] = content["figures"]
        return found

    def add(self, made: Made, command: str, settings: dict[str, Any]) -> None:
        """Put the claims of a figure in place of its old ones."""
        entry = {
            "command": command,
            "settings": settings,
            "unconverged": made.unconverged,
            "claims": [claim.to_dict() for claim in made.claims],
        }
        with files.locked(self.path):  # another process may add to it as well
            figures = self._figures() | {made.name: entry}
            own = [name for name in figures if name not in _ALL]
            ordered = {name: figures[name] for name in (*_ALL, *own) if name in figures}
            files.write_json(self.path, {"figures": ordered})
            files.write(self.path.with_suffix(".md"), page(ordered).encode())
