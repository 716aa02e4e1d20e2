"""replan data: the data sets that the figures on images use."""

from __future__ import annotations

from pathlib import Path

import click

import replan
from replan.cli._options import Command


@click.group("data")
def command() -> None:
    """Get the data sets that the figures on images use."""


@command.command("fetch", cls=Command)
@click.argument("name", metavar="fashion-mnist|cifar10")
@click.option(
    "--root",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where to put it; by default $REPLAN_DATA, or the user's cache.",
)
@click.option(
    "--packages/--no-packages",
    default=True,
    help="Fall back on apt-get or npm where the download fails.  [default: yes]",
)
def fetch(name: str, root: Path | None, packages: bool) -> None:
    """Download a data set and check it.

    \b
    Examples:
      replan data fetch fashion-mnist
      replan data fetch cifar10 --no-packages
    """
    found = replan.networks.fetch(name, root, packages=packages, say=click.echo)
    click.echo(f"{name} is in {found}")
