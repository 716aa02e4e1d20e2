"""replan data: the data sets that the figures on images use."""

from __future__ import annotations

from pathlib import Path

import click

import replan


@click.group("data")
def command() -> None:
    """Get the data sets that the figures on images use."""


@command.command("fetch")
@click.argument("name", metavar="fashion-mnist|cifar10")
@click.option(
    "--root",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where to put it; by default $REPLAN_DATA, or the user's cache.",
)
def fetch(name: str, root: Path | None) -> None:
    """Download a data set and check it.

    \b
    Example:
      replan data fetch fashion-mnist
    """
    click.echo(f"{name} is in {replan.networks.fetch(name, root, say=click.echo)}")
