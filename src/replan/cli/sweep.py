"""replan sweep: strategies, solvers and simulations on every problem that a file spans."""

from __future__ import annotations

from pathlib import Path

import click

import replan
from replan.cli._executor import chosen_executor, executor_options
from replan.cli._options import Command, problem_file, say_written


@click.command("sweep", cls=Command)
@problem_file
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="The folder of results; by default the name of FILE without its ending.",
)
@executor_options
@click.option("--x", metavar="AXIS", help="The axis across the picture, such as similarity.")
@click.option("--y", metavar="AXIS", help="Another one: a map over both for each run.")
def command(
    file: Path,
    out: Path | None,
    workers: int | None,
    dask: str | None,
    x: str | None,
    y: str | None,
) -> None:
    """Run strategies and solvers on every problem that a file spans.

    FILE is a problem file with lists or ranges in place of values, and a section [sweep]:

    \b
      [model]
      hidden = 2
      similarity = { from = 0.05, to = 0.95, count = 19 }
      [start]
      pretrain = { task = 1, seed = { from = 0, to = 9 } }
      [training]
      duration = 25.0
      [sweep]
      strategies = ["no-replay", "interleaved", "focus-then-replay"]
      solvers = ["relax"]

    Writes table.csv with a row for each run on each problem (and table.parquet where pyarrow is
    installed), plans/*.json, picture.png, picture.pdf and study.json. What is finished is kept in
    OUT/cache: the same command continues from there, and computes only what is new in FILE.

    \b
    Examples:
      replan sweep study.toml --out results
      replan sweep study.toml --out results --x similarity --y seed
      replan sweep study.toml --out results --dask tcp://host:8786
    """
    from replan.studies._axes import check_chosen
    from replan.studies._design import Design
    from replan.studies._run import compute, write

    folder = out or Path(file.stem)
    design = Design.read(file, progress=True)
    check_chosen(design.axes, x, y)
    click.echo(f"{click.format_filename(file)}: {design}")
    try:
        with chosen_executor(workers, dask) as executor:
            study = compute(design, folder, workers=workers, executor=executor, progress=True)
    except KeyboardInterrupt:
        kept = f"finished cases are kept in {folder / 'cache'}; the same command continues"
        click.echo(kept, err=True)
        raise
    written = write(design, study, folder, x=x, y=y)
    click.echo(study)
    say_written(*written)
    if len(study.failed) == len(study.rows):
        raise replan.IntegrationError("no run has a value: try a smaller `lr`")
