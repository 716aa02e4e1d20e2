"""replan simulate: SGD at finite size, beside the theory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

import replan
from replan.cli._options import (
    Command,
    OneOf,
    chosen_protocol,
    load_problem,
    outputs,
    problem_file,
    protocol_options,
    show,
)


@click.command("simulate", cls=Command)
@problem_file
@protocol_options
@click.option("--dimension", default=20_000, show_default=True, help="Input dimension N.")
@click.option("--runs", default=8, show_default=True, help="How many runs.")
@click.option("--seed", default=0, show_default=True, help="Seed of all runs together.")
@click.option(
    "--order", default="spread", show_default=True, cls=OneOf, words="replan.protocol:ORDERS"
)
@click.option("--engine", metavar="NAME", help="Where the model has several: reduced or full.")
@outputs(csv="the curves", plot="Draw the curves")
def command(
    file: Path,
    strategy: str | None,
    settings: tuple[str, ...],
    protocol: str | None,
    json: Path | None,
    csv: Path | None,
    plot: Path | None,
    **options: Any,
) -> None:
    """Train by SGD at finite N, beside the theory.

    The protocol comes from a strategy or a file. Ctrl-C keeps the finished runs; the exit code is
    130.

    \b
    Examples:
      replan simulate problem.toml --strategy interleaved --plot sgd.png
      replan simulate problem.toml --protocol plan.json --dimension 1000
    """
    problem, sections = load_problem(file)
    chosen = chosen_protocol(problem, strategy, settings, protocol)
    result = replan.simulate(problem, chosen, **options, progress=True)
    paths = {"json": json, "csv": csv, "plot": plot}
    show(result, sections, paths, strategy=strategy, set=settings, protocol=protocol)
    if "stopped" in result.failures.values():
        raise KeyboardInterrupt
    if len(result.failures) == options["runs"]:
        raise replan.IntegrationError("every run diverged: try a smaller `lr`")
