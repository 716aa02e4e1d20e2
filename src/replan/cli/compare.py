"""replan compare: strategies side by side, and the optimum beside them."""

from __future__ import annotations

from pathlib import Path

import click

import replan
from replan.cli._options import Command, OneOf, load_problem, outputs, problem_file, show


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
@click.option(
    "--optimum",
    is_flag=True,
    help="Solve the problem too, at the given learning rate and with the rate free.",
)
@outputs(csv="the table", plot="Draw the protocols; by default FILE-compare.png in this folder")
def command(
    file: Path, strategies: tuple[str, ...], optimum: bool, plot: Path | None, **paths: Path | None
) -> None:
    """Show strategies on a problem in a table and a picture.

    All of them, or those given by --strategy, best first. Strategies that set the learning rate are
    a separate group: compare like with like.

    \b
    Examples:
      replan compare problem.toml --optimum
      replan compare problem.toml --plot compare.pdf --csv compare.csv
      replan compare problem.toml --strategy interleaved --strategy no-replay
    """
    from replan import files

    problem, sections = load_problem(file)
    picture = plot or files.output("--plot", f"{file.stem}-compare.png")
    result = replan.compare(problem, strategies or None, optimum=optimum, progress=True)
    paths["plot"] = picture if result.runs else None
    show(result, sections, paths, strategy=strategies, optimum=optimum)
    if not result.runs:
        raise replan.IntegrationError("no strategy has a learning curve: try a smaller `lr`")
