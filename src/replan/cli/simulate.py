"""replan simulate: SGD at finite size, beside the theory."""

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
    plot_output,
    problem_file,
    protocol_options,
    say_written,
    write_json,
)


@click.command("simulate", cls=Command)
@problem_file
@protocol_options
@click.option("--dimension", default=20_000, show_default=True, help="Input dimension N.")
@click.option("--seeds", default=8, show_default=True, help="How many runs.")
@click.option("--seed", default=0, show_default=True, help="Seed of all runs together.")
@click.option(
    "--order",
    default="spread",
    show_default=True,
    cls=OneOf,
    words="replan.samples:ORDERS",
)
@click.option(
    "--engine", metavar="NAME", help="How to simulate, where the model knows several ways."
)
@json_output
@csv_output
@plot_output
def command(
    file: Path,
    strategy: str | None,
    settings: tuple[str, ...],
    protocol: str | None,
    dimension: int,
    seeds: int,
    seed: int,
    order: str,
    engine: str | None,
    json: Path | None,
    csv: Path | None,
    plot: Path | None,
) -> None:
    """Train by SGD at finite N, beside the theory.

    The protocol comes from a strategy or a file. Ctrl-C keeps the runs that are finished.

    \b
    Examples:
      replan simulate problem.toml --strategy interleaved --plot sgd.png
      replan simulate problem.toml --protocol plan.json --dimension 1000
    """
    problem, sections = load_problem(file)
    chosen = chosen_protocol(problem, strategy, settings, protocol)
    result = replan.simulate(
        problem,
        chosen,
        dimension=dimension,
        seeds=seeds,
        seed=seed,
        order=order,
        engine=engine,
        progress=True,
    )
    given = {"strategy": strategy, "set": settings, "protocol": protocol}
    if json is not None:
        write_json(json, result.to_dict(), sections, **given)
    if csv is not None:
        result.save(csv)
    click.echo(result)
    if plot is not None:
        result.plot(plot)
    say_written(json, csv, plot)
    if len(result.failures) == seeds:
        raise replan.IntegrationError("every run diverged: try a smaller `lr`")
