"""What commands share: files, `--set` and the choice of a protocol."""

from __future__ import annotations

import inspect
import json
import tomllib
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from pkgutil import resolve_name
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin

import click

import replan

Command = TypeVar("Command", bound=Callable[..., Any])

PICTURES = (".png", ".pdf", ".svg")


class OneOf(click.Option):
    """An option whose help lists the words it expects.

    words: where the library keeps them, as "module:NAME"; it is imported when help is shown.
    """

    def __init__(self, *names: Any, words: str, **settings: Any) -> None:
        super().__init__(*names, **settings)
        self.words = words

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Return the names and the help of the option."""
        self.help = f"One of {', '.join(resolve_name(self.words))}."
        return super().get_help_record(ctx)


# The files a command reads and writes

problem_file = click.argument("file", type=click.Path(path_type=Path))


def output(name: str, endings: Sequence[str], text: str) -> Callable[[Command], Command]:
    """Return an option for a file to write; refuse, before any work, one that cannot be written."""

    def checked(_: click.Context, __: click.Parameter, value: Path | None) -> Path | None:
        if value is not None and value.suffix.lower() not in endings:
            raise ValueError(
                f"`{name}` expects a file name that ends in {' or '.join(endings)}, got '{value}'"
            )
        if value is not None and not value.parent.is_dir():
            raise ValueError(f"`{name}` expects a file in a folder that exists, got '{value}'")
        return value

    return click.option(name, type=click.Path(path_type=Path), callback=checked, help=text)


json_output = output("--json", [".json"], "Write the result.")
csv_output = output("--csv", [".csv"], "Write the curves.")
plot_output = output("--plot", PICTURES, "Draw the curves.")


def write_json(path: Path, result: dict[str, Any], file: Path, **given: Any) -> None:
    """Write a result with its settings: the problem file and other options."""
    from replan._common import files

    settings = {"file": tomllib.loads(file.read_text(encoding="utf-8"))} | given
    files.write_json(path, result | {"settings": settings})


def say_written(*paths: Path | None) -> None:
    """Tell which files were written."""
    written = [click.format_filename(path) for path in paths if path is not None]
    if written:
        click.echo(f"wrote {', '.join(written)}")


# --set KEY=VALUE


def settings_option(text: str) -> Callable[[Command], Command]:
    """Return the option `--set`, whose values `parse_settings` understands."""
    return click.option("--set", "settings", metavar="KEY=VALUE", multiple=True, help=text)


def parse_settings(texts: Sequence[str]) -> dict[str, Any]:
    """Return the values of KEY=VALUE by key: JSON, numbers separated by commas, or else a word."""
    settings: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        name = key.replace("-", "_")
        if not name or not equals:
            raise ValueError(f"`--set` expects KEY=VALUE, got {text!r}")
        if name in settings:
            raise ValueError(f"`--set` expects each key once, got {name} twice")
        try:
            settings[name] = _value(value)
        except RecursionError:
            raise ValueError(f"`{name}` expects fewer brackets, got {value:.80}…") from None
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


def protocol_options(command: Command) -> Command:
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
    from replan._common import check

    given = None if protocol is None else replan.Protocol.load(protocol)
    if strategy is None:
        if settings:
            raise ValueError(f"`--set` goes with `--strategy`, got {settings[0]!r} without one")
        if given is None:
            raise ValueError("`--strategy` or `--protocol` is missing, expects one of them")
        return given
    known = replan.strategies.STRATEGIES
    recipe = known[check.one_of("--strategy", strategy, known)]
    parameters = inspect.signature(recipe, eval_str=True).parameters
    if given is not None and "protocol" not in parameters:
        raise ValueError(
            f"`--protocol` does not go with `--strategy {strategy}`: expects one of them"
        )
    keys = [name for name in parameters if name not in ("problem", "protocol", "progress")]
    chosen: dict[str, Any] = {} if given is None else {"protocol": given}
    for name, value in parse_settings(settings).items():
        if name not in keys:
            raise ValueError(
                f"`--set` expects KEY=VALUE with a key of {strategy} ({', '.join(keys)}), "
                f"got the key {name!r}"
            )
        chosen[name] = _argument(name, value, parameters[name].annotation, problem.model.tasks)
    return recipe(problem, **chosen)


def _argument(name: str, value: Any, annotation: Any, tasks: int) -> Any:
    """Return a value as the annotation of a parameter asks: as a list, and tasks from 0."""
    from replan._common import check
    from replan._common.sections import task_from_one

    def task(one: Any) -> int:
        return task_from_one(name, check.integer(name, one, at_least=1), tasks)

    union = get_origin(annotation) in (Union, UnionType)
    kinds = get_args(annotation) if union else (annotation,)
    if check.Task in kinds:
        return task(value)
    if set(kinds) <= {int, float, str, NoneType}:
        return value
    if isinstance(value, str):
        raise ValueError(f"`{name}` expects numbers separated by commas, got {value!r}")
    values = value if isinstance(value, list) else [value]
    return [task(one) for one in values] if Sequence[check.Task] in kinds else values
