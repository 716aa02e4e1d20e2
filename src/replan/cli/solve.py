"""replan solve: the best protocol for a problem."""

from __future__ import annotations

from inspect import signature
from pathlib import Path
from typing import Any, Literal

import click

import replan
from replan.cli._options import (
    Command,
    OneOf,
    load_problem,
    load_protocol,
    outputs,
    problem_file,
    show,
)
from replan.errors import ArgumentError


@click.command("solve", cls=Command)
@problem_file
@click.option(
    "--method", default="relax", show_default=True, cls=OneOf, words="replan.control:METHODS"
)
@click.option(
    "--starts",
    type=int,
    help="Random starts besides the strategies.  [default: relax until the best value is found "
    "again and again, flips 2]",
)
@click.option("--seed", type=int, help="Seed of the random starts (relax, flips).  [default: 0]")
@click.option(
    "--tolerance",
    type=float,
    help="How much may be left to gain, as a fraction of the loss, or of what the controls can "
    "change where that is less (relax, flips).  [default: 1e-3, flips 5e-7]",
)
@click.option(
    "--effort",
    default="normal",
    show_default=True,
    cls=OneOf,
    words="replan.control.search:EFFORTS",
)
@click.option(
    "--max-gradients", default=20000, show_default=True, help="Most gradients to compute."
)
@click.option(
    "--protocol",
    "initial",
    type=click.Path(),
    help="A protocol file to begin from, averaged over the problem's steps where its own differ; "
    "where only the learning rate is free, it sets the tasks.",
)
@click.option(
    "--duration",
    type=float,
    help="Training time, instead of the file's. Of a law: steps after the warm-up, or from "
    "where the running training is.",
)
@click.option(
    "--lift",
    multiple=True,
    cls=OneOf,
    words="replan.pilots.advice:BOUNDS",
)
@outputs(csv="the recommended schedule of a law, or the protocol", plot="Draw the plan")
def command(
    file: Path,
    method: str,
    starts: int | None,
    seed: int | None,
    tolerance: float | None,
    effort: Literal["normal", "high"],
    max_gradients: int,
    initial: str | None,
    duration: float | None,
    lift: tuple[str, ...],
    **paths: Path | None,
) -> None:
    """Find the best protocol for a problem, and say how good it is.

    A law that `replan fit` wrote is planned within what its pilots cover, unless a bound is lifted;
    recommended is the simplest schedule that cannot be told from the best. Of the options only
    --duration, --lift and those of the output files apply to it.

    Ctrl-C ends the search and keeps the best plan so far; the exit code is 130.

    \b
    Examples:
      replan solve problem.toml --json plan.json --plot plan.png
      replan solve problem.toml --method flips
      replan evaluate problem.toml --protocol plan.json
    """
    from replan import check
    from replan.core.threads import interruptible_once
    from replan.pilots.advice import LAWS

    problem, sections = load_problem(file)
    if duration is not None:
        problem = problem.changed(duration=duration)
    if problem.model.kind in LAWS:
        _refuse_search_settings()
        advice = replan.advise(problem, lift=lift, progress=True)
        show(advice, sections, paths, duration=duration, lift=list(lift))
        return
    if lift:
        raise ArgumentError("--lift", "absent unless FILE is a law of pilots", f"{lift[0]!r}")
    protocol = None if initial is None else load_protocol(initial)
    methods = replan.control.METHODS
    solver = methods[check.one_of("method", method, methods)]
    settings: dict[str, Any] = {"starts": starts, "seed": seed, "tolerance": tolerance}
    chosen = {name: value for name, value in settings.items() if value is not None}
    for name, value in chosen.items():
        if name not in signature(solver).parameters:
            raise ArgumentError(name, f"absent with `--method {method}`", f"{value}")
    with interruptible_once():  # a second Ctrl-C would lose the plan before it is written
        plan = replan.solve(
            problem,
            solver(**chosen),
            initial=protocol,
            effort=effort,
            max_gradients=max_gradients,
            progress=True,
        )
        options: dict[str, Any] = {
            "method": method,
            "effort": effort,
            "max_gradients": max_gradients,
        }
        show(plan, sections, paths, protocol=initial, **options, **settings)
    if plan.status == "stopped":
        raise KeyboardInterrupt


def _refuse_search_settings() -> None:
    """Refuse the options of a search: a law of pilots is always planned in the same way."""
    context = click.get_current_context()
    for name in ("method", "starts", "seed", "tolerance", "effort", "max_gradients", "initial"):
        if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
            raise ArgumentError(name, "absent for a law of pilots", f"{context.params[name]}")
