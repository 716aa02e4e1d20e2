"""replan compare: all strategies side by side."""

from __future__ import annotations

from pathlib import Path

import click

import replan
from replan.cli._options import PICTURES, json_output, output, problem_file, say_written
from replan.cli._time import COMPARE, tell_if_long


@click.command("compare")
@problem_file
@output(
    "--plot",
    PICTURES,
    "The picture (.png, .pdf, .svg); by default FILE-compare.png in this folder.",
)
@json_output
@output("--csv", [".csv"], "Write the table.")
def command(file: Path, plot: Path | None, json: Path | None, csv: Path | None) -> None:
    """Show all strategies on a problem in a table and a picture.

    The best strategy comes first.

    \b
    Example:
      replan compare problem.toml --plot compare.pdf --csv compare.csv
    """
    problem = replan.Problem.load(file)
    tell_if_long(problem, COMPARE)
    result = replan.compare(problem, progress=True)
    click.echo(result)
    for path in (json, csv):
        if path is not None:
            result.save(path)
    if not result.runs:
        say_written(json, csv)
        raise replan.IntegrationError("no strategy has a learning curve: try a smaller `lr`")
    picture = plot or Path(f"{file.stem}-compare.png")
    result.plot(picture)
    say_written(json, csv, picture)
