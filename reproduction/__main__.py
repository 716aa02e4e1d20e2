"""python -m reproduction: compute figures, write their tables and pictures, check their claims."""

import argparse
import hashlib
import json
import sys
from dataclasses import asdict
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import matplotlib

import replan
from reproduction.base import Claim, page
from reproduction.drawing import STYLE

FIGURES = {
    "dynamics": "theory.dynamics",
    "similarity": "theory.similarity",
    "learning-rate": "theory.learning_rate",
    "multitask": "theory.multitask",
    "fashion-dynamics": "images.fashion_dynamics",
    "fashion-similarity": "images.fashion_similarity",
    "overlaps": "theory.overlaps",
    "annealing": "theory.annealing",
    "three-tasks": "theory.three_tasks",
    "cifar-dynamics": "images.cifar_dynamics",
    "readout": "theory.readout",
    "curriculum": "theory.curriculum",
    "dropout": "theory.dropout",
    "denoising": "theory.denoising",
    "levers": "theory.levers",
    "activation": "theory.activation",
    "robust": "theory.robust",
    "stream": "theory.stream",
    "networks": "images.networks",
    "tuned-replay": "practice.tuned_replay",
    "focus-end": "practice.focus_end",
    "late-replay": "practice.late_replay",
    "held-out-gap": "practice.held_out_gap",
}
LONG = tuple(FIGURES)[-6:]  # from `stream` on: half an hour and more, so `all` leaves them out


def make(
    name: str, out: Path, *, quick: bool, changes: dict[str, Any], workers: int | None
) -> list[Claim]:
    """Make one figure in the folder `out` and return its claims.

    Writes NAME.csv (further tables as NAME-….csv), NAME.png, NAME.pdf and NAME-claims.json, and
    puts the claims of all figures in the folder into claims.md. Finished cases are kept in
    `out`/cache, from where the same call continues.
    """
    module = load(name)
    settings = module.QUICK if quick else module.FULL
    settings = settings | {key: value for key, value in changes.items() if key in settings}

    def run(function: Any, cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
        kept = {"cache": out / "cache", "key": digest()}
        return replan.sweep(function, cases, workers=workers, progress=True, **kept)

    tables = module.compute(run, **settings)
    for i, (table, rows) in enumerate(tables.items()):
        rows.to_csv(out / (f"{name}-{table}.csv" if i else f"{name}.csv"), index=False)
    if hasattr(module, "draw"):
        with matplotlib.rc_context(STYLE):
            picture = module.draw(tables)
            for ending in ("png", "pdf"):
                picture.savefig(out / f"{name}.{ending}")
    statuses = [status for rows in tables.values() for status in rows.get("status", [])]
    if poor := len(statuses) - statuses.count("converged"):
        print(f"{name}: {poor} of {len(statuses)} plans did not converge", file=sys.stderr)
    claims = module.claims(tables) if hasattr(module, "claims") else []
    options = [" --quick"] * quick
    options += [f" --set '{key}={json.dumps(x)}'" for key, x in changes.items() if key in settings]
    entry = {
        "command": f"python -m reproduction {name}{''.join(options)}",
        "settings": settings,
        "claims": [asdict(claim) for claim in claims],
    }
    (out / f"{name}-claims.json").write_text(json.dumps(entry, indent=1, ensure_ascii=False))
    files = {known: out / f"{known}-claims.json" for known in FIGURES}
    entries = {known: json.loads(x.read_text()) for known, x in files.items() if x.exists()}
    (out / "claims.md").write_text(page(entries))
    return claims


@cache
def digest() -> str:
    """Return a digest of all code here: results of edited figures are computed again."""
    paths = [x for x in Path(__file__).parent.rglob("*.py") if "tests" not in x.parts]
    return hashlib.sha256(b"".join(path.read_bytes() for path in sorted(paths))).hexdigest()


def load(name: str) -> Any:
    """Return the module of a figure."""
    return import_module(f"reproduction.{FIGURES[name]}")


def setting(text: str) -> tuple[str, Any]:
    """Return the name and value of KEY=VALUE; what is not JSON is a word."""
    key, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"must be KEY=VALUE, got {text}")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    parser = argparse.ArgumentParser("python -m reproduction", description=__doc__.split(": ")[1])
    parser.add_argument("names", nargs="*", metavar="NAME", help="figures, or all")
    parser.add_argument("--quick", action="store_true", help="a coarse version, in seconds")
    parser.add_argument("--out", type=Path, help="folder for tables, pictures and claims")
    parser.add_argument("--workers", type=int, help="processes (default: one per core)")
    parser.add_argument(
        "--set", type=setting, action="append", default=[], dest="changes", metavar="KEY=VALUE",
        help="another value of a setting, as JSON; repeat for more",
    )  # fmt: skip
    chosen = parser.parse_args(arguments)
    if not chosen.names:
        print(*FIGURES, f"all (without {', '.join(LONG)}, which take long)", sep="\n")
        return 0
    for name in chosen.names:
        if name not in (*FIGURES, "all"):
            parser.error(f"NAME must be one of {', '.join(FIGURES)}, all, got {name}")
    if chosen.out is None:
        parser.error("--out DIR is needed")
    everything = [name for name in FIGURES if name not in LONG]
    names = everything if "all" in chosen.names else chosen.names
    changes = dict(chosen.changes)
    for key in changes:
        if not any(key in load(name).FULL for name in names):
            parser.error(f"no figure among {', '.join(names)} has the setting {key}")
    chosen.out.mkdir(parents=True, exist_ok=True)
    failed = []
    for name in names:
        try:
            claims = make(
                name, chosen.out, quick=chosen.quick, changes=changes, workers=chosen.workers
            )
        except KeyboardInterrupt:
            kept = chosen.out / "cache"
            print(f"finished cases are kept in {kept}; the same command continues", file=sys.stderr)
            return 130
        except (ValueError, ImportError, OSError) as error:  # the other figures can still be made
            print(f"{name}: {error}", file=sys.stderr)
            failed.append(name)
        else:
            print(name, *claims, sep="\n  ")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
