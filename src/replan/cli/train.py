"""replan train: strategies side by side on tasks that arrive one after another."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from replan.cli._options import Command, say_written


@click.command("train", cls=Command)
@click.option(
    "--pairs",
    help="Pairs of classes of Fashion-MNIST, in order.  [default: 01,23,45,67,89]",
)
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Tasks of your own instead, in the order of their names: for each an .npz file with the "
    "arrays x and y, or a folder with a sub-folder of images for each class.",
)
@click.option(
    "--strategies",
    metavar="NAME,…",
    default="no-replay,fixed-replay,focus-then-replay",
    show_default=True,
    help="Any of no-replay, interleaved, fixed-replay, focus-until-halved, focus-then-replay, "
    "focus-then-loss.",
)
@click.option(
    "--tune",
    is_flag=True,
    help="Let each strategy search for its own learning rate, decay and share of replay first, "
    "from those given here, on validation data and with other seeds: up to 110 more runs each.",
)
@click.option(
    "--heads", help="A head per task, or one for all classes: task, one.  [default: task]"
)
@click.option("--optimizer", help="sgd or adam.  [default: sgd]")
@click.option("--lr", type=float, help="Learning rate.  [default: 0.2; adam: 0.001]")
@click.option(
    "--decay", help="Of the rate, for each task anew: constant, cosine.  [default: constant]"
)
@click.option(
    "--share",
    type=float,
    help="Of old samples where a strategy replays at a fixed share.  [default: 0.1; one head: 0.5]",
)
@click.option("--memory", type=int, help="Samples kept of earlier tasks, in all.  [default: 200]")
@click.option("--images", type=int, help="Samples of each task to learn from; by default all.")
@click.option(
    "--samples",
    type=int,
    help="Samples to train on for each task, old ones included, in whole batches; at least ten "
    "batches, for ten tests.  [default: 12800]",
)
@click.option("--batch-size", type=int, help="Samples in a batch.  [default: 64]")
@click.option("--hidden", type=int, help="Units of the hidden layer.  [default: 200]")
@click.option("--seeds", default=3, show_default=True, help="How many runs of each strategy.")
@click.option("--seed", default=1, show_default=True, help="Seed of the first of them.")
@click.option("--workers", type=int, help="Processes; by default one per core.")
@click.option(
    "--root",
    type=click.Path(path_type=Path),
    help="Where Fashion-MNIST is, if not in $REPLAN_DATA or the user's cache.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default="train",
    show_default=True,
    help="The folder of results.",
)
def command(
    pairs: str | None,
    data: Path | None,
    strategies: str,
    tune: bool,
    seeds: int,
    seed: int,
    workers: int | None,
    root: Path | None,
    out: Path,
    **settings: Any,
) -> None:
    """Train on tasks, one after another, with several strategies.

    The tasks are pairs of classes of Fashion-MNIST (`replan data fetch fashion-mnist`) or your own
    (--data). Needs PyTorch. Writes settings.json, metrics.csv, decisions.json, summary.json and
    losses.png, with --tune also tuning.csv, and events for TensorBoard where it is installed.
    Finished runs are kept in OUT/cache: the same command continues with the others.

    \b
    Examples:
      replan train
      replan train --pairs 01,23 --memory 1000 --out larger
      replan train --tune --seeds 12 --out tuned
      replan train --tune --seeds 12 --data my-tasks --heads one --out mine
    """
    if find_spec("torch") is None:
        raise click.ClickException("`replan train` needs PyTorch: pip install 'replan[torch]'")
    from replan.networks._experiment import FILES
    from replan.networks._practice import SplitTraining, train_tasks
    from replan.networks._task_data import PAIRS

    if data is not None and (pairs, root) != (None, None):
        raise click.UsageError("`--data` brings tasks of its own: leave out `--pairs` and `--root`")
    given = {name: value for name, value in settings.items() if value is not None}
    try:
        result = train_tasks(
            out,
            SplitTraining(**given),
            pairs=PAIRS if pairs is None else pairs.split(","),
            data=data,
            root=root,
            strategies=strategies.split(","),
            tune=tune,
            seeds=seeds,
            seed=seed,
            workers=workers,
            progress=True,
        )
    except KeyboardInterrupt:
        kept = f"finished runs are kept in {out / 'cache'}; the same command continues"
        click.echo(kept, err=True)
        raise
    click.echo(result)
    say_written(*(out / name for name in (*FILES, *(["tuning.csv"] if tune else []))))
