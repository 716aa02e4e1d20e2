"""make(name, out): compute a figure, write its tables and pictures, check its claims."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from replan import check, files
from replan.claims import Claim, page
from replan.sweep import sweep

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


def make(
    name: str,
    out: files.FilePath,
    *,
    quick: bool = False,
    seeds: int | None = None,
    workers: int | None = None,
    progress: bool = False,
) -> list[Claim]:
    """Make one figure of the paper in the folder `out` and return its claims, checked.

    Writes NAME.png, NAME.pdf, NAME.csv (and NAME-….csv where there are more tables), and adds to
    claims.json and claims.md. What is computed is kept in `out`/cache: a figure that was stopped
    goes on where it was.

    **Other arguments**

    - `quick`: a coarse version. `seeds`: how many initialisations.
    - `workers`: processes, by default one a core. `progress`: show a bar on a terminal.
    """
    check.one_of("name", name, FIGURES)
    module = import_module(f"replan.figures.{name.replace('-', '_')}")
    settings = dict(module.QUICK if quick else module.FULL)
    if seeds is not None and "seeds" in settings:
        settings["seeds"] = check.integer("seeds", seeds, at_least=1)
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    run = partial(
        sweep, cache=folder / "cache", workers=workers, progress=name if progress else None
    )
    tables = module.compute(run, **settings)
    for i, (part, table) in enumerate(tables.items()):
        files.write_csv(
            folder / (f"{name}-{part}.csv" if i else f"{name}.csv"),
            list(table.columns),
            table.to_numpy(dtype=object).tolist(),
        )
    for ending in ("png", "pdf"):
        module.draw(tables, folder / f"{name}.{ending}")
    claims: list[Claim] = module.claims(tables)
    _record(folder, name, quick, settings, claims)
    return claims


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
    figures = {known: figures[known] for known in FIGURES if known in figures}
    files.write_json(path, {"figures": figures})
    files.write_text(folder / "claims.md", page(figures))
