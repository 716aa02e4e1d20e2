"""replan export: a schedule as another project's trainer reads it."""

from __future__ import annotations

from pathlib import Path

import click

from replan.cli._options import Command, OneOf, output, problem_file, say_written
from replan.errors import ArgumentError, renamed

_STAGES = 4
_ENOUGH = 0.01  # of the loss: stages that gain less are not worth having


@click.command("export", cls=Command)
@problem_file
@click.option("--to", required=True, cls=OneOf, words="replan.exports:FORMATS")
@click.option(
    "--steps", type=int, help="Training steps (llm-foundry: tokens); a law's are its own."
)
@click.option("--names", metavar="A,B,…", help="Names or paths of the tasks' data sets.")
@click.option(
    "--stages",
    type=int,
    help="Most stages; fewer are enough within 1 % of the loss.  "
    f"[default: {_STAGES}; as many as there are for a learning rate alone]",
)
@click.option(
    "--multiple", default=1, show_default=True, help="Stages begin at multiples of so many steps."
)
@output("--out", (), "The file to write; of several, FILE-1, FILE-2, …  [default: print]")
def command(
    file: Path,
    to: str,
    steps: int | None,
    names: str | None,
    stages: int | None,
    multiple: int,
    out: Path | None,
) -> None:
    """Write a schedule for another trainer.

    A plan becomes a few constant stages that lose the least; their losses are shown.

    FILE: a plan or a recommended schedule (replan solve … --json), or any protocol.

    \b
    Examples:
      replan export plan.json --steps 10000 --to levanter --names web,code
      replan export plan.json --steps 9000 --to energon --out blend.yaml
      replan export plan.json --steps 10000 --to lambda-lr --out rate.json
    """
    from replan import check, exports, files

    check.one_of("to", to, exports.FORMATS)
    with renamed({"path": "FILE"}):
        source = exports.load(file)
    protocol, steps = source.protocol, source.steps if steps is None else steps
    if steps is None:
        raise ArgumentError("steps", "the steps of the whole training", "nothing")
    most = _STAGES if stages is None else stages
    runs = []
    with renamed({"most": "--stages"}):
        if stages is None and (protocol.tasks == 1 or to == "lambda-lr"):
            pass  # a learning rate, at every step
        elif source.plan is not None:
            runs = source.plan.stages(most)
            enough = runs[-1].loss + _ENOUGH * abs(runs[-1].loss)
            protocol = next(run.protocol for run in runs if run.loss <= enough)
        else:
            protocol = protocol.stages(most)[-1]
    chosen = source.names if names is None else [name.strip() for name in names.split(",")]
    texts = exports.export(protocol, to, steps=steps, names=chosen, multiple=multiple)
    if source.plan is not None and runs:
        losses = ", ".join(f"{run.loss:.4g}" for run in runs)
        most_stages = "1 stage" if len(runs) == 1 else f"1 to {len(runs)} stages"
        click.echo(f"loss in {most_stages}: {losses}; the plan: {source.plan.loss:.4g}", err=True)
    rates = protocol.knobs.get("lr")
    if to in exports.WEIGHTS_ALONE and rates is not None and rates.min() < rates.max():
        click.echo(
            f"{to} has no learning rates: those of these stages go from {rates.min():.4g} to "
            f"{rates.max():.4g}; see them by --to csv with the same --stages",
            err=True,
        )
    if out is None:
        click.echo("---\n".join(texts), nl=False)
        return
    paths = [out]
    if len(texts) > 1:
        paths = [out.with_stem(f"{out.stem}-{k + 1}") for k in range(len(texts))]
    for place, text in zip(paths, texts, strict=True):
        files.write(place, text.encode())
    say_written(*paths)
