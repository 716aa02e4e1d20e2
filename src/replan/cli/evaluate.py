"""replan evaluate: the exact learning curves of a protocol."""

from __future__ import annotations

from pathlib import Path

import click

import replan
from replan.cli._options import (
    Command,
    chosen_protocol,
    load_problem,
    outputs,
    parse_value,
    problem_file,
    protocol_options,
    show,
)


@click.command("evaluate", cls=Command)
@problem_file
@protocol_options
@click.option("--at", metavar="T1,T2,…", help="Also give the losses at these times.")
@click.option("--rtol", default=1e-9, show_default=True, help="Relative accuracy of the losses.")
@outputs(csv="the curves", plot="Draw the curves")
def command(
    file: Path,
    strategy: str | None,
    settings: tuple[str, ...],
    protocol: str | None,
    at: str | None,
    rtol: float,
    **paths: Path | None,
) -> None:
    """Compute the exact learning curves of a strategy or a protocol.

    \b
    Examples:
      replan evaluate problem.toml --strategy interleaved --json out.json
      replan evaluate problem.toml --strategy interleaved --set shares=0.2,0.8
      replan evaluate problem.toml --strategy focus-then-replay --set focus=7
      replan evaluate problem.toml --protocol out.json --at 1,2,3
      replan evaluate problem.toml --strategy shuffled --protocol out.json
    """
    from replan import check

    problem, sections = load_problem(file)
    times = [] if at is None else check.items("--at", parse_value(f"[{at}]"), "times")
    times = [check.number("--at", t, at_least=0, at_most=problem.duration) for t in times]
    chosen = chosen_protocol(problem, strategy, settings, protocol)
    run = replan.evaluate(problem, chosen, rtol=rtol, throw=False)
    content = run.to_dict()
    if run.status == "ok" and times:
        content |= {"at": times, "losses_at": run.losses_at(times).tolist()}
    options = {"strategy": strategy, "set": settings, "protocol": protocol}
    show(run, sections, paths, content, ok=run.status == "ok", **options)
    for time, losses in zip(times, content.get("losses_at", []), strict=False):
        click.echo(f"losses at {time:g}: " + ", ".join(f"{loss:.6g}" for loss in losses))
    if run.status != "ok":
        raise replan.IntegrationError(run.advice)
