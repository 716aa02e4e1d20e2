"""What commands share: reading a problem and a protocol, `--set`, and writing results."""

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

_PICTURES = (".png", ".pdf", ".svg")


class Command(click.Command):
    """A command whose errors name its options instead of the library's arguments.

    For that, an option bears the name of the library's argument: `--max-gradients` that of
    `max_gradients`, and `--protocol` of `initial` where it stands for that.
    """

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        names = {
            str(option.name): option.opts[0]
            if isinstance(option, click.Option)
            else str(option.name).upper()
            for option in self.params
        }
        with renamed(names):
            return super().invoke(ctx)


class OneOf(click.Option):
    """An option whose help lists the words it takes.

    words: where the library keeps them, or the function that lists them, as "module:NAME"; it is
    imported when help is shown.
    """

    def __init__(self, *names: Any, words: str, **settings: Any) -> None:
        super().__init__(*names, **settings)
        self.words = words

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Return the names and the help of the option."""
        more = "; repeat for more" if self.multiple else ""
        words = resolve_name(self.words)
        self.help = f"One of {', '.join(words() if callable(words) else words)}{more}."
        return super().get_help_record(ctx)


# Files

problem_file = click.argument("file", type=click.Path(path_type=Path))


def output(name: str, endings: Sequence[str], text: str) -> Callable[[_C], _C]:
    """Return an option for a file to write; one that cannot be written is refused at once."""

    def checked(_: click.Context, __: click.Parameter, value: Path | None) -> Path | None:
        from replan import files

        return None if value is None else files.output(name, value, endings)

    return click.option(name, type=click.Path(path_type=Path), callback=checked, help=text)


def outputs(*, csv: str = "", plot: str) -> Callable[[_C], _C]:
    """Return the options `--json`, `--csv` (if `csv` says what it holds) and `--plot`."""

    def add(command: _C) -> _C:
        command = output("--plot", _PICTURES, f"{plot} (.png, .pdf, .svg).")(command)
        if csv:
            command = output("--csv", [".csv"], f"Write {csv}.")(command)
        return output("--json", [".json"], "Write the result.")(command)

    return add


def load_problem(file: Path) -> tuple[replan.Problem, dict[str, Any]]:
    """Return the problem in a file, and the file's sections."""
    from replan.problem.file import read_sections

    if file.suffix == ".csv":
        expected = "a problem file (.toml or .json), such as `replan fit --out` writes"
        raise ArgumentError("file", expected, f"'{file}'")
    with renamed({"path": "FILE"}):
        return replan.Problem.load(file), read_sections(file)


def show(
    result: Any,
    sections: dict[str, Any],
    paths: dict[str, Path | None],
    content: dict[str, Any] | None = None,
    *,
    ok: bool = True,
    **options: Any,
) -> None:
    """Write a result to the paths by kind (json, csv, plot), print it if ok, and name the files.

    The JSON file holds `content`, by default `result.to_dict()`, and the settings: the sections of
    the problem file and the command's options.
    """
    from replan import files

    if paths["json"] is not None:  # first: a picture may fail
        content = result.to_dict() if content is None else content
        settings = {"settings": {"file": sections} | options}
        files.write_json(paths["json"], content | settings)
    if paths.get("csv") is not None:
        result.save(paths["csv"])
    if ok:
        click.echo(result)
    if paths["plot"] is not None:
        result.plot(paths["plot"])
    say_written(*paths.values())


def say_written(*paths: Path | None) -> None:
    """Name the files that were written."""
    written = [click.format_filename(path) for path in paths if path is not None]
    if written:
        click.echo(f"wrote {', '.join(written)}")


# The choice of a protocol


def protocol_options(command: _C) -> _C:
    """Add `--strategy`, `--set` and `--protocol`, from which `chosen_protocol` makes a protocol."""
    for option in (
        click.option(
            "--protocol",
            type=click.Path(),
            help="A protocol file (.json, .csv), instead of a strategy or for it to work on.",
        ),
        click.option(
            "--set",
            "settings",
            metavar="KEY=VALUE",
            multiple=True,
            help="A setting of the strategy, such as focus=7 or shares=0.2,0.8; repeat for more.",
        ),
        click.option("--strategy", metavar="NAME", cls=OneOf, words="replan.strategies:STRATEGIES"),
    ):
        command = option(command)
    return command


def load_protocol(path: str) -> replan.Protocol:
    """Return the protocol in the file of `--protocol`."""
    with renamed({"path": "--protocol"}):
        return replan.Protocol.load(path)


def chosen_protocol(
    problem: replan.Problem, strategy: str | None, settings: Sequence[str], protocol: str | None
) -> replan.Protocol:
    """Return the protocol that the options ask for."""
    from replan import check
    from replan.strategies import STRATEGIES, arguments, settings_of

    base = None if protocol is None else load_protocol(protocol)
    if strategy is None:
        if settings:
            raise ArgumentError("--set", "given with `--strategy`", f"{settings[0]!r} without one")
        if base is None:
            raise ArgumentError("--strategy", "given where `--protocol` is not", "neither")
        return base
    recipe = STRATEGIES[check.one_of("--strategy", strategy, STRATEGIES)]
    if base is not None and "protocol" not in inspect.signature(recipe).parameters:
        expected = f"absent with `--strategy {strategy}`, which makes its own"
        raise ArgumentError("--protocol", expected, f"{protocol!r}")
    keys = settings_of(recipe)
    with renamed({name: f"--set {name}" for name in keys}):
        values = parse_settings(settings)
        for name in values:
            if name not in keys:
                expected = f"KEY=VALUE with a key of {strategy} ({', '.join(keys)})"
                raise ArgumentError("--set", expected, f"the key {name!r}")
        chosen = arguments(recipe, values, problem.model.tasks)
        return recipe(problem, **chosen | ({} if base is None else {"protocol": base}))


def parse_settings(texts: Sequence[str]) -> dict[str, Any]:
    """Return the values of KEY=VALUE by key, with hyphens in keys as underscores."""
    settings: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        name = key.replace("-", "_")
        if not name or not equals:
            raise ArgumentError("--set", "KEY=VALUE", f"{text!r}")
        if name in settings:
            raise ArgumentError("--set", "each key once", f"{name} twice")
        settings[name] = parse_value(value) if value else ""
    return settings


def parse_value(text: str) -> Any:
    """Return JSON, values separated by commas, or else the text itself."""
    for form in (text, f"[{text}]"):
        with suppress(ValueError, RecursionError):
            return json.loads(form)
    return text
