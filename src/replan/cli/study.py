"""replan study: strategies and plans on many problems; one table."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

import replan
from replan.cli._options import Command, problem_file, say_written
from replan.errors import ArgumentError

_ANSWER = 10  # seconds in which a scheduler must answer


@click.command("study", cls=Command)
@problem_file
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="The folder of results; by default the name of FILE without its ending.",
)
@click.option("--workers", type=int, help="Processes; by default one per core.")
@click.option("--dask", metavar="ADDRESS", help="Use a Dask cluster, such as tcp://host:8786.")
@click.option("--x", metavar="AXIS", help="The axis of the picture; by default the first one.")
def command(
    file: Path, out: Path | None, workers: int | None, dask: str | None, x: str | None
) -> None:
    """Run strategies and solve on many problems.

    \b
      problem = "fig2.toml"      # or the sections of a problem file
      [axes]
      model.similarity = [0.1, 0.3, 0.6]
      start.pretrain.seed = [1, 2, 3]
      [run]
      strategies = ["interleaved", "no-replay"]
      solve = true

    Writes table.csv with a row for each run on each problem, study.json with the plans as well, and
    picture.png. Finished cases are kept in OUT/cache: the same command continues from there, and
    computes only what is new in FILE.

    \b
    Examples:
      replan study study.toml --out results
      replan study study.toml --out results --x start.pretrain.seed
      replan study study.toml --out results --dask tcp://host:8786
    """
    folder = out or Path(file.stem)
    with ExitStack() as stack:
        executor = None if dask is None else stack.enter_context(_client(dask))
        try:
            made = replan.study(file, folder, workers=workers, executor=executor, progress=True)
        except KeyboardInterrupt:
            kept = f"finished cases are kept in {folder / 'cache'}; the same command continues"
            click.echo(kept, err=True)
            raise
    if x is not None:
        made.plot(folder / "picture.png", x=x)
    click.echo(made)
    names = ("table.csv", "study.json", "picture.png")
    say_written(*(folder / name for name in names if (folder / name).exists()))
    valued = {row["run"] for row in made.rows if row["value"] is not None}
    if without := [name for name in made.runs if name not in valued]:
        raise replan.IntegrationError(f"every run of {', '.join(without)} failed")


def _client(address: str) -> Any:
    """Return a client of the Dask cluster at an address."""
    try:
        from distributed import Client
    except ImportError:
        expected = "used where Dask is installed (pip install 'replan[dask]')"
        raise ArgumentError("--dask", expected, repr(address)) from None
    try:
        return Client(address, timeout=_ANSWER)
    except (OSError, ValueError) as error:
        expected = "the address of a scheduler that answers, such as tcp://host:8786"
        raise ArgumentError("--dask", expected, f"{address!r} ({error})") from None
