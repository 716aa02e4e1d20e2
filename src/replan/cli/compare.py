"""replan compare: all strategies side by side."""

from __future__ import annotations

from pathlib import Path

import click

import replan
from replan.cli._options import (
    PICTURES,
    Command,
    OneOf,
    json_output,
    load_problem,
    output,
    problem_file,
    say_written,
    write_json,
)


@click.command("compare", cls=Command)
@problem_file
@click.option(
    "--strategy",
    "strategies",
    metavar="NAME",
    multiple=True,
    cls=OneOf,
    words="replan.strategies:STRATEGIES",
)
@output(
    "--plot",
    PICTURES,
    "The picture (.png, .pdf, .svg); by default FILE-compare.png in this folder.",
)
@json_output
@output("--csv", [".csv"], "Write the table.")
def command(
    file: Path,
    strategies: tuple[str, ...],
    plot: Path | None,
    json: Path | None,
    csv: Path | None,
) -> None:
    """Show strategies on a problem in a table and a picture.

    All of them, or those given by --strategy. The best comes first.

    \b
    Examples:
      replan compare problem.toml --plot compare.pdf --csv compare.csv
      replan compare problem.toml --strategy interleaved --strategy no-replay
    """
    from replan import files

    problem, sections = load_problem(file)
    picture = plot or files.output("--plot", f"{file.stem}-compare.png")
    result = replan.compare(problem, strategies=strategies or None, progress=True)
    if json is not None:
        write_json(json, result.to_dict(), sections, strategy=strategies)
    if csv is not None:
        result.save(csv)
    click.echo(result)
    if not result.runs:
        say_written(json, csv)
        raise replan.IntegrationError("no strategy has a learning curve: try a smaller `lr`")
    result.plot(picture)
    say_written(json, csv, picture)
