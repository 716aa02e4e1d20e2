"""replan new: a problem file to start from."""

from __future__ import annotations

from pathlib import Path

import click

import replan
from replan.cli._options import Command


@click.command("new", cls=Command)
@click.argument("file", type=click.Path(path_type=Path), default="problem.toml")
def command(file: Path) -> None:
    """Write a commented problem file to start from.

    It describes the problem of the paper's Fig. 2.

    \b
    Example:
      replan new problem.toml
    """
    from replan._common import files

    if not file.parent.is_dir():
        raise ValueError(f"`FILE` expects a file in a folder that exists, got '{file}'")
    try:
        files.create(file, replan.problem.example().encode())
    except FileExistsError:
        raise ValueError(f"`FILE` expects a new file, got '{file}', which exists") from None
    click.echo(f"wrote {file}; next: replan compare {file}")
