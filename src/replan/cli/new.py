"""replan new: a problem file to start from."""

from __future__ import annotations

from pathlib import Path

import click

import replan


@click.command("new")
@click.argument("file", type=click.Path(path_type=Path), default="problem.toml")
def command(file: Path) -> None:
    """Write a commented problem file to start from.

    It describes the problem of the paper's Fig. 2.

    \b
    Example:
      replan new problem.toml
    """
    try:
        with file.open("x", encoding="utf-8") as out:
            out.write(replan.problem.example())
    except FileExistsError:
        raise ValueError(f"`FILE` expects a new file, got '{file}', which exists") from None
    name = click.format_filename(file)
    click.echo(f"wrote {name}; next: replan compare {name}")
