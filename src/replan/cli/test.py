"""replan test: protocols on realisations and images that they were not planned on."""

from __future__ import annotations

from pathlib import Path

import click

import replan
from replan.cli._options import (
    Command,
    OneOf,
    chosen_protocol,
    csv_output,
    json_output,
    load_problem,
    load_protocol,
    problem_file,
    say_written,
    write_json,
)


@click.command("test", cls=Command)
@problem_file
@click.option(
    "--protocol",
    "files",
    type=click.Path(),
    multiple=True,
    help="A protocol file (.json, .csv), such as a plan's; repeat for more.",
)
@click.option(
    "--strategy",
    "strategies",
    metavar="NAME",
    multiple=True,
    cls=OneOf,
    words="replan.strategies:STRATEGIES",
)
@click.option("--realisations", default=100, show_default=True, help="How many unseen ones.")
@json_output
@csv_output
def command(
    file: Path,
    files: tuple[str, ...],
    strategies: tuple[str, ...],
    realisations: int,
    json: Path | None,
    csv: Path | None,
) -> None:
    """Test protocols on realisations and images they have not seen.

    For models with realisations, such as networks. Differences are paired, and counted from the
    protocol that is given first; files come before strategies.

    \b
    Examples:
      replan test problem.toml --protocol plan.json --strategy interleaved
      replan test problem.toml --strategy no-replay --realisations 400 --csv losses.csv
    """
    problem, sections = load_problem(file)
    protocols = {path: load_protocol(path) for path in files}
    protocols |= {name: chosen_protocol(problem, name, (), None) for name in strategies}
    if not protocols:
        raise ValueError("`--strategy` or `--protocol` is missing, expects at least one of them")
    result = replan.networks.test(problem, protocols, realisations=realisations)
    click.echo(result)
    if json is not None:
        given = {"protocol": files, "strategy": strategies, "realisations": realisations}
        write_json(json, result.to_dict(), sections, **given)
    if csv is not None:
        result.save(csv)
    say_written(json, csv)
