"""replan figure: the paper's figures and claims."""

from __future__ import annotations

from pathlib import Path

import click

import replan
from replan.cli._options import Command, parse_settings, say_written, settings_option


class _Figure(Command):
    """A command whose epilog lists the figures; the library is imported when help is shown."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        paper = replan.paper
        names = [*paper.FIGURES, *paper.IMAGE_FIGURES, *paper.LONG_FIGURES]
        self.epilog = f"NAME is one of {', '.join(names)}."
        super().format_epilog(ctx, formatter)


@click.command("figure", cls=_Figure)
@click.argument("name", metavar="NAME|all|images")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="The folder for pictures, tables and claims; by default figures, or figures-quick.",
)
@click.option("--quick", is_flag=True, help="A coarse version, in seconds.")
@click.option("--seeds", type=int, help="How many initialisations.")
@settings_option("Another setting, such as lr=0.03; repeat for more.", "changes")
@click.option("--workers", type=int, help="Processes; by default one per core.")
def command(
    name: str,
    out: Path | None,
    quick: bool,
    seeds: int | None,
    changes: tuple[str, ...],
    workers: int | None,
) -> None:
    """Recompute a figure of the paper and check its claims.

    `all` makes the figures of the theory, in a quarter of an hour on two cores, but not `stream`,
    which takes longer; `images` those on real images (see `replan data`); `networks`, also on
    images, takes hours. Writes NAME.png, NAME.pdf and NAME.csv, claims.json and claims.md. What is
    finished is kept in OUT/cache: the same command continues from there.

    \b
    Examples:
      replan figure similarity --quick
      replan figure all --out figures
      replan figure fashion-dynamics --set lr=0.03 --out faster
    """
    from tqdm import tqdm

    from replan._common import check
    from replan.paper import FIGURES, IMAGE_FIGURES, LONG_FIGURES
    from replan.paper._make import make_each
    from replan.sweeps import SweepError

    check.one_of("name", name, [*FIGURES, *IMAGE_FIGURES, *LONG_FIGURES, "all", "images"])
    names = {"all": FIGURES, "images": IMAGE_FIGURES}.get(name, (name,))
    folder = out or Path("figures-quick" if quick else "figures")
    try:
        for made in make_each(
            names,
            folder,
            quick=quick,
            seeds=seeds,
            changes=parse_settings(changes),
            workers=workers,
            executor=None,
            progress=True,
        ):
            tqdm.write(f"{made.name}: wrote {', '.join(map(str, made.files))}")
            for claim in made.claims:
                tqdm.write(f"  {claim}")
            if made.unconverged:
                tqdm.write(f"  {made.unconverged} plans did not converge")
    except (KeyboardInterrupt, SweepError):
        kept = f"finished problems are kept in {folder / 'cache'}; the same command continues"
        click.echo(kept, err=True)
        raise
    say_written(folder / "claims.json", folder / "claims.md")
