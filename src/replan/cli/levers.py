"""replan levers: what each thing that can be controlled is worth."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import click

import replan
from replan.cli._options import (
    PICTURES,
    Command,
    json_output,
    load_problem,
    output,
    problem_file,
    say_written,
    write_json,
)


@click.command("levers", cls=Command)
@problem_file
@click.option(
    "--seeds",
    type=int,
    default=1,
    show_default=True,
    help="How many initialisations: the seed in [start] of FILE, and those after it.",
)
@click.option(
    "--tolerance",
    type=float,
    default=1e-4,
    show_default=True,
    help="How much may be left to gain, as a fraction of what the controls can change.",
)
@output(
    "--plot",
    PICTURES,
    "The picture (.png, .pdf, .svg); by default FILE-levers.png in this folder.",
)
@json_output
@output("--csv", [".csv"], "Write the table.")
def command(
    file: Path,
    seeds: int,
    tolerance: float,
    plot: Path | None,
    json: Path | None,
    csv: Path | None,
) -> None:
    """Show what each thing that can be controlled is worth.

    The best loss with nothing controlled, with constant shares, one constant rate, shares over
    time, a rate curve, rate curves for all tasks, each other knob, and all of these; what each
    lever buys alone, and what it adds when all others are used.

    \b
    Examples:
      replan levers problem.toml --json levers.json
      replan levers problem.toml --seeds 10 --plot levers.pdf --csv levers.csv
    """
    from replan import check, files

    check.integer("seeds", seeds, at_least=1)
    problem, sections = load_problem(file)
    problems = [problem]
    if seeds > 1:
        problems += map(replan.Problem.from_dict, _seeded(file, sections, seeds))
    picture = plot or files.output("--plot", f"{file.stem}-levers.png")
    result = replan.levers(problems, tolerance=tolerance, progress=True)
    if json is not None:
        write_json(json, result.to_dict(), sections, seeds=seeds, tolerance=tolerance)
    if csv is not None:
        result.save(csv)
    click.echo(result)
    result.plot(picture)
    say_written(json, csv, picture)


def _seeded(file: Path, sections: dict[str, Any], count: int) -> Iterator[dict[str, Any]]:
    """Yield the sections with the seeds after the one in `[start]`, until there are `count`."""
    start = sections["start"]
    tables = [key for key, value in start.items() if isinstance(value, dict) and "seed" in value]
    if len(tables) != 1:
        raise ValueError(
            "`--seeds` expects a seed in the section [start], such as pretrain = { seed = 0 }, "
            f"which {file} does not have"
        )
    for more in range(1, count):
        content = deepcopy(sections)
        content["start"][tables[0]]["seed"] += more
        yield content
