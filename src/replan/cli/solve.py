"""replan solve: the best protocol for a problem."""

from __future__ import annotations

from pathlib import Path

import click

import replan
from replan.cli._options import (
    PICTURES,
    OneOf,
    json_output,
    output,
    problem_file,
    say_written,
    write_json,
)


@click.command("solve")
@problem_file
@click.option(
    "--method", default="relax", show_default=True, cls=OneOf, words="replan.control:METHODS"
)
@click.option(
    "--starts", default=2, show_default=True, help="Random starts besides the strategies."
)
@click.option("--seed", default=0, show_default=True, help="Seed of the random starts.")
@click.option(
    "--max-gradients", default=5000, show_default=True, help="Gradients to spend at most."
)
@click.option(
    "--protocol",
    type=click.Path(),
    help="A protocol file to begin from; where only the learning rate is free, the tasks.",
)
@json_output
@output("--plot", PICTURES, "Draw the plan.")
def command(
    file: Path,
    method: str,
    starts: int,
    seed: int,
    max_gradients: int,
    protocol: str | None,
    json: Path | None,
    plot: Path | None,
) -> None:
    """Find the best protocol for a problem, and say how good it is.

    Ctrl-C ends the search and keeps the best plan so far.

    \b
    Examples:
      replan solve problem.toml --json plan.json --plot plan.png
      replan solve problem.toml --method sweep
      replan evaluate problem.toml --protocol plan.json
    """
    from replan._common.progress import Meter

    problem = replan.Problem.load(file)
    start = None if protocol is None else replan.Protocol.load(protocol)
    with Meter(True, "gradients") as meter:
        plan = replan.solve(
            problem,
            method=method,
            start=start,
            starts=starts,
            seed=seed,
            max_gradients=max_gradients,
            watch=lambda value, gradients: meter.advance(
                gradients - meter.done, note=f"best {value:.6g}"
            ),
        )
    click.echo(plan)
    if json is not None:
        write_json(json, plan.to_dict(), file)
    if plot is not None:
        plan.plot(plot)
    say_written(json, plot)
