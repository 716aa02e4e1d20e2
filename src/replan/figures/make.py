"""make(names, out): compute figures, write their tables and pictures, check their claims."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from replan import check, files
from replan.claims import Claim, page
from replan.figures.parts import Tables
from replan.sweep import Sweep

FIGURES = (
    "dynamics",
    "similarity",
    "learning-rate",
    "multitask",
    "overlaps",
    "annealing",
    "three-tasks",
    "readout",
)
IMAGE_FIGURES = ("fashion-dynamics", "fashion-similarity", "cifar-dynamics")


@dataclass(frozen=True)
class Made:
    """A figure that was made: its name, the files written and its claims, checked."""

    name: str
    files: list[Path]
    claims: list[Claim]


def make(
    names: Sequence[str],
    out: files.FilePath,
    *,
    quick: bool = False,
    seeds: int | None = None,
    workers: int | None = None,
    progress: bool = False,
) -> Iterator[Made]:
    """Make figures of the paper in the folder `out`, and give each as soon as it is made.

    Writes NAME.png, NAME.pdf, NAME.csv (and NAME-….csv where there are more tables), and adds to
    claims.json and claims.md. What is computed is kept in `out`/cache: a figure that was stopped
    goes on where it was.

    **Other arguments**

    - `quick`: a coarse version. `seeds`: how many initialisations, where a figure has any.
    - `workers`: processes, by default one a core. `progress`: show a bar on a terminal.
    """
    modules = {
        name: import_module(f"replan.figures.{name.replace('-', '_')}")
        for name in (check.one_of("name", name, [*FIGURES, *IMAGE_FIGURES]) for name in names)
    }
    settings = {
        name: _settings(module.QUICK if quick else module.FULL, seeds)
        for name, module in modules.items()
    }
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    # The threads only wait: the cases of all figures share the workers, while pictures are drawn.
    with (
        ThreadPoolExecutor(1 if workers == 1 else len(modules)) as threads,
        Sweep(folder / "cache", workers, "problems" if progress else None) as run,
    ):
        tables = {
            name: threads.submit(module.compute, run, **settings[name])
            for name, module in modules.items()
        }
        for name, module in modules.items():
            yield _write(folder, name, module, quick, settings[name], tables[name].result())


def _settings(standard: dict[str, Any], seeds: int | None) -> dict[str, Any]:
    if seeds is None or "seeds" not in standard:
        return standard
    return standard | {"seeds": check.integer("seeds", seeds, at_least=1)}


def _write(
    folder: Path, name: str, module: Any, quick: bool, settings: dict[str, Any], tables: Tables
) -> Made:
    """Write the tables, the pictures and the claims of a figure."""
    paths = [folder / f"{name}.{ending}" for ending in ("png", "pdf")]
    for path in paths:
        module.draw(tables, path)
    for i, (part, table) in enumerate(tables.items()):
        paths.append(folder / (f"{name}-{part}.csv" if i else f"{name}.csv"))
        files.write_csv(paths[-1], list(table.columns), table.to_numpy(dtype=object).tolist())
    claims = module.claims(tables)
    _record(folder, name, quick, settings, claims)
    return Made(name, paths, claims)


def _record(
    folder: Path, name: str, quick: bool, settings: dict[str, Any], claims: list[Claim]
) -> None:
    """Put the claims of a figure in place of its old ones in claims.json and claims.md."""
    path = folder / "claims.json"
    figures = files.read_json(path)["figures"] if path.exists() else {}
    figures[name] = {
        "command": f"replan figure {name}{' --quick' if quick else ''}",
        "settings": settings,
        "claims": [claim.to_dict() for claim in claims],
    }
    figures = {known: figures[known] for known in (*FIGURES, *IMAGE_FIGURES) if known in figures}
    files.write_json(path, {"figures": figures})
    files.write_text(folder / "claims.md", page(figures))
