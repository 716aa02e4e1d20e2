"""What commands share: files, `--set` and the choice of a protocol."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, TypeVar

import click

import replan
from replan.errors import ArgumentError, renamed

_C = TypeVar("_C", bound=Callable[..., Any])

PICTURES = (".png", ".pdf", ".svg")


class Command(click.Command):
    """A command whose mistakes name its options where the library names its arguments.

    For that, an option bears the name of the library's argument: `--max-gradients` that of
    `max_gradients`, and `--protocol` of `start` where it stands for that.
    """

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        names = {
            str(one.name): one.opts[0] if isinstance(one, click.Option) else str(one.name).upper()
            for one in self.params
        }
        with renamed(names):
            return super().invoke(ctx)


class OneOf(click.Option):
    """An option whose help lists the words it expects.

    words: where the library keeps them, or the function that lists them, as "module:NAME"; it is
    imported when help is shown.
    """

    def __init__(self, *names: Any, words: str, **settings: Any) -> None:
        super().__init__(*names, **settings)
        self.words = words

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Return the names and the help of the option."""
        more = "; repeat for more" if self.multiple else ""
        found = resolve_name(self.words)
        self.help = f"One of {', '.join(found() if callable(found) else found)}{more}."
        return super().get_help_record(ctx)


# The files a command reads and writes

problem_file = click.argument("file", type=click.Path(path_type=Path))


def output(name: str, endings: Sequence[str], text: str) -> Callable[[_C], _C]:
    """Return an option for a file to write; refuse, before any work, one that cannot be written."""

    def checked(_: click.Context, __: click.Parameter, value: Path | None) -> Path | None:
        from replan import files

        return None if value is None else files.output(name, value, endings)

    return click.option(name, type=click.Path(path_type=Path), callback=checked, help=text)


json_output = output("--json", [".json"], "Write the result.")
csv_output = output("--csv", [".csv"], "Write the curves.")
plot_output = output("--plot", PICTURES, "Draw the curves.")


def load_problem(file: Path) -> tuple[replan.Problem, dict[str, Any]]:
    """Return the problem in a file, and the file's sections, before anybody changes them."""
    from replan.problem.file import sections

    return replan.Problem.load(file), sections(file)


def write_json(path: Path, result: dict[str, Any], file: dict[str, Any], **given: Any) -> None:
    """Write a result with its settings: the sections of the problem file and other options."""
    from replan import files

    files.write_json(path, result | {"settings": {"file": file} | given})


def say_written(*paths: Path | None) -> None:
    """Tell which files were written."""
    written = [click.format_filename(path) for path in paths if path is not None]
    if written:
        click.echo(f"wrote {', '.join(written)}")


# --set KEY=VALUE


def settings_option(text: str, argument: str = "settings") -> Callable[[_C], _C]:
    """Return the option `--set`, whose values `parse_settings` understands."""
    return click.option("--set", argument, metavar="KEY=VALUE", multiple=True, help=text)


def parse_settings(texts: Sequence[str]) -> dict[str, Any]:
    """Return the values of KEY=VALUE by key: JSON, numbers separated by commas, or else a word."""
    settings: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        name = key.replace("-", "_")
        if not name or not equals:
            raise ArgumentError("--set", "KEY=VALUE", f"{text!r}")
        if name in settings:
            raise ArgumentError("--set", "each key once", f"{name} twice")
        try:
            settings[name] = _value(value)
        except RecursionError:
            raise ArgumentError(name, "fewer brackets", f"{value:.80}…") from None
    return settings


def _value(text: str) -> Any:
    for read in (json.loads, _number, lambda text: [_number(part) for part in text.split(",")]):
        with suppress(ValueError):
            return read(text)
    return text


def _number(text: str) -> int | float:
    """Return a number, even one that JSON does not allow, such as .5."""
    with suppress(ValueError):
        return int(text)
    return float(text)


# The choice of a protocol


def load_protocol(path: str) -> replan.Protocol:
    """Return the protocol in the file of `--protocol`."""
    with renamed({"path": "--protocol"}):
        return replan.Protocol.load(path)


def protocol_options(command: _C) -> _C:
    """Add `--strategy`, `--set` and `--protocol`, from which `chosen_protocol` makes a protocol."""
    for option in (
        click.option(
            "--protocol",
            type=click.Path(),
            help="A protocol file (.json, .csv), instead of a strategy or for it to work on.",
        ),
        settings_option(
            "A setting of the strategy, such as focus=7 or shares=0.2,0.8; repeat for more."
        ),
        click.option("--strategy", metavar="NAME", cls=OneOf, words="replan.strategies:STRATEGIES"),
    ):
        command = option(command)
    return command


def chosen_protocol(
    problem: replan.Problem, strategy: str | None, settings: Sequence[str], protocol: str | None
) -> replan.Protocol:
    """Return the protocol that the options ask for."""
    from replan import check
    from replan.strategies._arguments import arguments, settings_of

    given = None if protocol is None else load_protocol(protocol)
    if strategy is None:
        if settings:
            raise ValueError(f"`--set` goes with `--strategy`, got {settings[0]!r} without one")
        if given is None:
            raise ValueError("`--strategy` or `--protocol` is missing, expects one of them")
        return given
    known = replan.strategies.STRATEGIES
    recipe = known[check.one_of("--strategy", strategy, known)]
    if given is not None and "protocol" not in inspect.signature(recipe).parameters:
        raise ValueError(
            f"`--protocol` does not go with `--strategy {strategy}`: expects one of them"
        )
    keys = settings_of(recipe)
    with renamed({name: f"--set {name}" for name in keys}):
        values = parse_settings(settings)
        for name in values:
            if name not in keys:
                raise ArgumentError(
                    "--set",
                    f"KEY=VALUE with a key of {strategy} ({', '.join(keys)})",
                    f"the key {name!r}",
                )
        chosen = arguments(recipe, values, problem.model.tasks)
        return recipe(problem, **chosen, **({} if given is None else {"protocol": given}))
