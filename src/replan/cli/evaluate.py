"""replan evaluate: the exact learning curves of a protocol."""

from __future__ import annotations

from pathlib import Path

import click

import replan
from replan.cli._options import (
    Command,
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
from replan.errors import ArgumentError


@click.command("evaluate", cls=Command)
@problem_file
@protocol_options
@click.option("--at", metavar="T1,T2,…", help="Also give the losses at these times.")
@click.option("--rtol", default=1e-9, show_default=True, help="Relative accuracy of the losses.")
@json_output
@csv_output
@plot_output
def command(
    file: Path,
    strategy: str | None,
    settings: tuple[str, ...],
    protocol: str | None,
    at: str | None,
    rtol: float,
    json: Path | None,
    csv: Path | None,
    plot: Path | None,
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
    problem, sections = load_problem(file)
    times = [] if at is None else _times(at, problem.duration)
    chosen = chosen_protocol(problem, strategy, settings, protocol)
    run = replan.evaluate(problem, chosen, rtol=rtol, throw=False)
    result = run.to_dict()
    if run.status == "ok":
        click.echo(run)
        if times:
            result |= {"at": times, "losses_at": run.losses_at(times).tolist()}
    for time, losses in zip(times, result.get("losses_at", []), strict=False):
        click.echo(f"losses at {time:g}: " + ", ".join(f"{loss:.6g}" for loss in losses))
    if json is not None:
        write_json(json, result, sections, strategy=strategy, set=settings, protocol=protocol)
    if csv is not None:
        run.save(csv)
    if plot is not None:
        run.plot(plot)
    say_written(json, csv, plot)
    if run.status != "ok":
        raise replan.IntegrationError(run.advice)


def _times(text: str, duration: float) -> list[float]:
    from replan import check

    try:
        times = [float(part) for part in text.split(",")]
    except ValueError:
        raise ArgumentError("--at", "numbers separated by commas", f"{text!r}") from None
    return [check.number("--at", time, at_least=0, at_most=duration) for time in times]
