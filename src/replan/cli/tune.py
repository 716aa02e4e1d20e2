"""replan tune: the settings of a rule that are best in theory."""

from __future__ import annotations

from pathlib import Path

import click

import replan
from replan.cli._options import (
    Command,
    OneOf,
    json_output,
    load_problem,
    parse_settings,
    problem_file,
    say_written,
    settings_option,
    write_json,
)


@click.command("tune", cls=Command)
@problem_file
@click.option(
    "--rule",
    default="focus-then-replay",
    show_default=True,
    cls=OneOf,
    words="replan.policies:RULES",
)
@click.option(
    "--every",
    type=int,
    help="Steps of the problem from one observation of the losses to the next.  "
    "[default: a 50th of all]",
)
@settings_option("A setting to keep as it is, such as patience=2 or until=met; repeat for more.")
@json_output
def command(
    file: Path, rule: str, every: int | None, settings: tuple[str, ...], json: Path | None
) -> None:
    """Tune the settings of a rule by theory.

    They are the best for a problem, or over the members of an ensemble. The rule runs in the theory
    as it would in a training loop, and what makes it is printed, to put into one.

    \b
    Examples:
      replan tune ensemble.toml --rule focus-then-replay --json rule.json
      replan tune ensemble.toml --set patience=2 --set smoothing=0.5
    """
    problem, sections = load_problem(file)
    kept = parse_settings(settings)
    result = replan.tune(problem, rule, every=every, progress=True, **kept)
    if json is not None:
        write_json(json, result.to_dict(), sections, rule=rule, every=every, set=settings)
    click.echo(result)
    say_written(json)
