"""replan explore: the whole theory on a page in the browser."""

from __future__ import annotations

from pathlib import Path

import click

from replan.cli._options import Command


@click.command("explore", cls=Command)
@click.argument("file", type=click.Path(path_type=Path), required=False)
@click.option(
    "--port", type=int, help="Where to listen; by default 5006, or any other if that is taken."
)
@click.option(
    "--address",
    default="localhost",
    show_default=True,
    help="The address to listen on. Others than this machine's let others in: there is no "
    "password.",
)
@click.option(
    "--origin",
    "origins",
    metavar="HOST:PORT",
    multiple=True,
    help="A further host under which browsers may reach the page; repeat for more.",
)
@click.option(
    "--browser/--no-browser", default=True, show_default=True, help="Whether to open a browser."
)
def command(
    file: Path | None, port: int | None, address: str, origins: tuple[str, ...], browser: bool
) -> None:
    """Explore a problem in the browser.

    Sliders, live curves, the optimum and a protocol to draw. Needs the extra `explore`. Ctrl-C
    ends it.

    \b
    Examples:
      replan explore
      replan explore problem.toml --port 8000 --no-browser
    """
    from replan.explorer import State, serve

    def ready(url: str) -> None:
        click.echo(f"replan explorer at {url} (Ctrl-C ends it)")

    state = None
    if file is not None:
        from replan._common import files

        try:
            state = State.from_text(files.read_text(file))
        except ValueError as error:
            raise ValueError(f"{file}: {error}") from None
    try:
        serve(state, port=port, address=address, origins=origins, browser=browser, ready=ready)
    except ImportError as error:
        raise click.ClickException(str(error)) from None
