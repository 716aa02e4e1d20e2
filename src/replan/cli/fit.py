"""replan fit: from pilot runs to a law of the learning rate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

import replan
from replan.cli._options import Command, output, outputs, say_written, show
from replan.errors import ArgumentError, renamed


@click.command("fit", cls=Command)
@click.argument("pilots", nargs=-1, required=True, type=click.Path(path_type=Path))
@output("--out", [".toml", ".json"], "Write the law: a problem file for `replan solve`.")
@output("--next", [".csv"], "Write the pilot that would tell most, without losses.")
@click.option(
    "--warmup",
    type=float,
    default=0.0,
    help="Steps of a linear warm-up before each run that are not in the file.",
)
@click.option("--lr", help="The column with the learning rate, where it is called otherwise.")
@click.option("--loss", help="The column with the loss, where there are several.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the starts.")
@click.option(
    "--continue",
    "running",
    type=click.Path(path_type=Path),
    help="The log of a running training: it counts as a pilot, and plans begin where it is.",
)
@click.option(
    "--predict",
    type=click.Path(path_type=Path),
    help="Predict the runs of this file, into --json; its losses are not looked at.",
)
@outputs(plot="Draw the pilots, their fit and its residuals")
def command(
    pilots: tuple[Path, ...],
    out: Path | None,
    warmup: float,
    lr: str | None,
    loss: str | None,
    seed: int,
    running: Path | None,
    predict: Path | None,
    next: Path | None,
    **paths: Path | None,
) -> None:
    """Fit a law of the learning rate to pilot runs.

    PILOTS: a table with columns run, step, lr and loss (.csv, .json), or exports of Weights &
    Biases or TensorBoard.

    \b
    Examples:
      replan fit pilots.csv --out law.toml --plot law.png
      replan solve law.toml --duration 70000 --csv schedule.csv
      replan fit pilots.csv --predict other.csv --json predictions.json
      replan fit pilots.csv --next next.csv
      replan fit pilots.csv --continue run.csv --out law.toml
    """
    from replan import files
    from replan.pilots.readers import read_pilots

    if predict is not None and paths["json"] is None:
        raise ArgumentError("--json", "given with `--predict`: predictions go there", "nothing")
    asked = [loss] if loss is not None and not loss.startswith("loss_") else []
    name = None if loss is None or asked else loss.removeprefix("loss_")
    table = read_pilots(*pilots, lr=lr, loss=asked)
    if name is None and loss is not None and f"loss_{loss}" in table:
        name = loss
    log = None
    if running is not None:
        with renamed({"pilots": "--continue"}):
            log = read_pilots(running, lr=lr, loss=asked)
    with renamed({"pilots": "PILOTS", "running": "--continue"}):
        law = replan.fit(table, warmup=warmup, loss=name, seed=seed, running=log)
    content: dict[str, Any] = law.to_dict()
    predicted: dict[str, Any] = {}
    if predict is not None:
        with renamed({"pilots": "--predict"}):
            predicted = law.predict(read_pilots(predict, lr=lr))
        content["predictions"] = {
            run: {
                "step": x.steps.tolist(),
                "loss": x.loss.tolist(),
                "low": x.low.tolist(),
                "high": x.high.tolist(),
            }
            for run, x in predicted.items()
        }
    if out is not None:
        law.save(out)
    if next is not None:
        files.write_frame(next, law.next_pilot().to_frame())
    settings = {"pilots": [str(path) for path in pilots], "warmup": warmup, "seed": seed}
    show(law, settings, paths, content)
    for run, x in predicted.items():
        click.echo(
            f"{run}: predicted loss {x.loss[-1]:.4f} at {x.steps[-1]:g}, 90 % interval "
            f"{x.low[-1]:.4f} to {x.high[-1]:.4f}"
        )
    say_written(out, next)
