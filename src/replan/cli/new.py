"""replan new: a problem file to start from."""

from __future__ import annotations

from pathlib import Path

import click

from replan.cli._options import Command, OneOf
from replan.errors import ArgumentError


@click.command("new", cls=Command)
@click.argument("file", type=click.Path(path_type=Path), default="problem.toml")
@click.option("--kind", cls=OneOf, words="replan.models.registry:KINDS")
def command(file: Path, kind: str | None) -> None:
    """Write a commented problem file to start from.

    It describes the problem of the paper's Fig. 2, or one for another kind of model.

    \b
    Examples:
      replan new problem.toml
      replan --import linear.py new linear.toml --kind linear
    """
    from replan import files
    from replan.problem.template import problem_template

    if file.exists():
        raise ArgumentError("FILE", "a new file", f"'{file}', which exists")
    text = problem_template() if kind is None else problem_template(kind)
    files.write(files.output("FILE", file), text.encode())
    name = click.format_filename(file)
    click.echo(f"wrote {name}; next: replan compare {name}")
