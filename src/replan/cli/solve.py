"""replan solve: the best protocol for a problem."""

from __future__ import annotations

from inspect import signature
from pathlib import Path

import click

import replan
from replan.cli._options import (
    PICTURES,
    Command,
    OneOf,
    json_output,
    load_problem,
    load_protocol,
    output,
    problem_file,
    say_written,
    write_json,
)


@click.command("solve", cls=Command)
@problem_file
@click.option(
    "--method", default="relax", show_default=True, cls=OneOf, words="replan.control:METHODS"
)
@click.option(
    "--starts",
    type=int,
    help="Random starts besides the strategies (relax, flips).  [default: 2]",
)
@click.option("--seed", type=int, help="Seed of the random starts (relax, flips).  [default: 0]")
@click.option(
    "--tolerance",
    type=float,
    help="How much may be left to gain, as a fraction of what the controls can change "
    "(relax, flips).  [default: 1e-4, flips 5e-7]",
)
@click.option(
    "--max-gradients", default=5000, show_default=True, help="How many gradients may be computed."
)
@click.option(
    "--workers", type=int, help="Starts searched from at a time; by default one per core."
)
@click.option(
    "--protocol",
    "start",
    type=click.Path(),
    help="A protocol file to begin from, averaged over the problem's steps where its own differ; "
    "where only the learning rate is free, it sets the tasks.",
)
@json_output
@output("--plot", PICTURES, "Draw the plan.")
def command(
    file: Path,
    method: str,
    max_gradients: int,
    workers: int | None,
    start: str | None,
    json: Path | None,
    plot: Path | None,
    **settings: int | float | None,
) -> None:
    """Find the best protocol for a problem, and say how good it is.

    Ctrl-C ends the search and keeps the best plan so far.

    \b
    Examples:
      replan solve problem.toml --json plan.json --plot plan.png
      replan solve problem.toml --method sweep
      replan evaluate problem.toml --protocol plan.json
    """
    problem, sections = load_problem(file)
    protocol = None if start is None else problem.accept(load_protocol(start), "start")
    if protocol is not None and protocol.split(problem.edges).steps != problem.steps:
        click.echo(
            f"the {protocol.steps} steps of {start} are averaged over the problem's {problem.steps}"
        )
    solver = _solver(method, settings)
    plan = replan.solve(
        problem,
        solver,
        start=protocol,
        max_gradients=max_gradients,
        workers=workers,
        progress=True,
    )
    options = {"method": method, "max_gradients": max_gradients, "protocol": start} | settings
    if json is not None:  # before anything else, which may fail
        write_json(json, plan.to_dict(), sections, **options)
    click.echo(plan)
    if plot is not None:
        plan.plot(plot)
    say_written(json, plot)


def _solver(method: str, settings: dict[str, int | float | None]) -> replan.control.Solver:
    """Return the solver that a word stands for, with the settings that are given."""
    from replan import check

    solver = replan.control.METHODS[check.one_of("method", method, replan.control.METHODS)]
    given = {name: value for name, value in settings.items() if value is not None}
    for name in given:
        if name not in signature(solver).parameters:
            raise ValueError(f"`--{name}` does not go with `--method {method}`")
    return solver(**given)
