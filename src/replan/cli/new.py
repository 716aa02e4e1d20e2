"""replan new: a problem file to start from."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import click


@click.command("new")
@click.argument("file", type=click.Path(path_type=Path), default="problem.toml")
def command(file: Path) -> None:
    """Write a commented problem file to start from.

    It describes the problem of the paper's Fig. 2.

    \b
    Example:
      replan new problem.toml
    """
    example = files("replan").joinpath("problem/example.toml").read_text(encoding="utf-8")
    try:
        with file.open("x", encoding="utf-8") as out:
            out.write(example)
    except FileExistsError:
        raise ValueError(f"`FILE` expects a new file, got '{file}', which exists") from None
    click.echo(f"wrote {file}; next: replan compare {file}")
