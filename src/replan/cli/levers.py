"""replan levers: what each control is worth."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

import replan
from replan.cli._options import Command, load_problem, outputs, problem_file, show
from replan.errors import ArgumentError


@click.command("levers", cls=Command)
@problem_file
@click.option(
    "--seeds",
    default=1,
    show_default=True,
    help="How many initialisations: the seed in [start] of FILE, and those after it.",
)
@click.option(
    "--tolerance",
    default=1e-3,
    show_default=True,
    help="How much may be left to gain, as a fraction of each loss.",
)
@outputs(csv="the table", plot="Draw the savings; by default FILE-levers.png in this folder")
def command(
    file: Path, seeds: int, tolerance: float, plot: Path | None, **paths: Path | None
) -> None:
    """Show what each control is worth.

    The baseline has equal shares at the given rate. Each lever (constant shares, shares over time,
    one constant rate, a rate curve, one curve for each task, every other knob) is added alone, to
    see what it saves, and removed from all, to see what it adds.

    \b
    Examples:
      replan levers problem.toml --json levers.json
      replan levers problem.toml --seeds 10 --plot levers.pdf --csv levers.csv
    """
    from replan import check, files

    check.integer("seeds", seeds, at_least=1)
    problem, sections = load_problem(file)
    problems = [problem] if seeds == 1 else _seeded(sections, seeds)
    picture = plot or files.output("--plot", f"{file.stem}-levers.png")
    result = replan.levers(problems, tolerance=tolerance, progress=True)
    show(result, sections, {**paths, "plot": picture}, seeds=seeds, tolerance=tolerance)


def _seeded(sections: dict[str, Any], count: int) -> list[replan.Problem]:
    """Return the problems with the seed in `[start]` and those after it."""
    from replan.problem.axes import span

    tables = [key for key, x in sections["start"].items() if isinstance(x, dict) and "seed" in x]
    if len(tables) != 1:
        expected = "1 where [start] has no seed, such as pretrain = { seed = 0 }"
        raise ArgumentError("--seeds", expected, f"{count}")
    first = sections["start"][tables[0]]["seed"]
    axes = {f"start.{tables[0]}.seed": [first + more for more in range(count)]}
    return [replan.Problem.from_dict(point.content) for point in span(sections, axes)]
