"""replan train: strategies side by side on pairs of classes of Fashion-MNIST."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from replan.cli._options import Command, say_written


@click.command("train", cls=Command)
@click.option(
    "--pairs", default="01,23,45,67,89", show_default=True, help="Pairs of classes, in order."
)
@click.option(
    "--strategies",
    metavar="NAME,…",
    default="no-replay,fixed-replay,focus-then-replay",
    show_default=True,
    help="Any of no-replay, interleaved, fixed-replay, focus-then-replay, focus-then-loss.",
)
@click.option(
    "--memory", type=int, help="Images kept of the earlier pairs, in all.  [default: 200]"
)
@click.option(
    "--samples",
    type=int,
    help="Samples to train on for each pair, in whole batches; at least ten batches, for ten "
    "tests.  [default: 12800]",
)
@click.option("--batch-size", type=int, help="Samples in a batch.  [default: 64]")
@click.option(
    "--lr",
    type=float,
    help="Learning rate; the default is tuned for none of the strategies.  [default: 0.05]",
)
@click.option("--seeds", default=3, show_default=True, help="How many runs of each strategy.")
@click.option("--seed", default=1, show_default=True, help="Seed of the first of them.")
@click.option("--workers", type=int, help="Processes; by default one per core.")
@click.option(
    "--root",
    type=click.Path(path_type=Path),
    help="Where the data set is, if not in $REPLAN_DATA or the user's cache.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default="train",
    show_default=True,
    help="The folder of results.",
)
def command(
    pairs: str,
    strategies: str,
    seeds: int,
    seed: int,
    workers: int | None,
    root: Path | None,
    out: Path,
    **settings: Any,
) -> None:
    """Train on pairs of classes of Fashion-MNIST, one after another.

    Compares strategies. Needs PyTorch and `replan data fetch fashion-mnist`. Writes
    settings.json, metrics.csv, decisions.json, summary.json and losses.png, and events for
    TensorBoard where it is installed. Finished runs are kept in OUT/cache: the same command
    continues with the others.

    \b
    Examples:
      replan train
      replan train --pairs 01,23 --memory 1000 --out larger
    """
    if find_spec("torch") is None:
        raise click.ClickException("`replan train` needs PyTorch: pip install 'replan[torch]'")
    from replan.networks._experiment import FILES
    from replan.networks._practice import SplitTraining, train_pairs

    given = {name: value for name, value in settings.items() if value is not None}
    try:
        result = train_pairs(
            out,
            SplitTraining(pairs=tuple(pairs.split(",")), **given),
            strategies=strategies.split(","),
            seeds=seeds,
            seed=seed,
            root=root,
            workers=workers,
            progress=True,
        )
    except KeyboardInterrupt:
        kept = f"finished runs are kept in {out / 'cache'}; the same command continues"
        click.echo(kept, err=True)
        raise
    click.echo(result)
    say_written(*(out / name for name in FILES))
