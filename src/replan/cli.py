"""The command line: parse, call the library, show."""

from __future__ import annotations

import inspect
import os
import sys
import tomllib
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from json import loads
from pathlib import Path
from typing import Any

import click
from tqdm import tqdm

from replan import __version__
from replan._common import check, files
from replan._common.interrupt import interrupted
from replan._common.sections import task_from_one
from replan.comparison import compare
from replan.control import METHODS, solve
from replan.dynamics import IntegrationError
from replan.dynamics._integrate import RTOL
from replan.paper import FIGURES, IMAGE_FIGURES, make
from replan.problem import Problem
from replan.problem._file import example
from replan.protocol import Protocol
from replan.protocol._samples import ORDERS
from replan.simulation import simulate
from replan.strategies import STRATEGIES
from replan.trajectory import evaluate

_PICTURES = (".png", ".pdf", ".svg")


def main() -> None:
    """Run the command line; every error is one line, exit code 2 for bad input."""
    try:
        sys.exit(app.main(prog_name="replan", standalone_mode=False) or 0)
    except click.ClickException as error:
        _fail(error.format_message(), 2)
    except (click.Abort, KeyboardInterrupt):
        _fail("stopped", 130)
    except OSError as error:
        _fail(f"{error.filename}: {error.strerror}" if error.filename else str(error), 2)
    except ValueError as error:
        _fail(str(error), 2)
    except IntegrationError as error:
        _fail(str(error), 1)
    except Exception as error:
        if interrupted(error):
            _fail("stopped", 130)
        if "REPLAN_DEBUG" in os.environ:
            raise
        what = f"{type(error).__name__}: {error}"
        _fail(f"internal error, a bug in replan: {what} (REPLAN_DEBUG=1 shows where)", 70)


def _fail(message: str, code: int) -> None:
    click.echo(f"replan: {' '.join(message.split())}", err=True)
    sys.exit(code)


def _output(endings: tuple[str, ...]) -> Callable[..., Path | None]:
    """Refuse, before any work, a file that could not be written."""

    def checked(_: click.Context, option: click.Parameter, value: Path | None) -> Path | None:
        if value is not None and value.suffix.lower() not in endings:
            raise ValueError(
                f"`--{option.name}` expects a file name that ends in {' or '.join(endings)}, "
                f"got '{value}'"
            )
        if value is not None and not value.parent.is_dir():
            raise ValueError(
                f"`--{option.name}` expects a file in a folder that exists, got '{value}'"
            )
        return value

    return checked


_file = click.argument("file", type=click.Path(path_type=Path))
_json = click.option(
    "--json",
    type=click.Path(path_type=Path),
    callback=_output((".json",)),
    help="Write the result.",
)

_curves_csv = click.option(
    "--csv", type=click.Path(path_type=Path), callback=_output((".csv",)), help="Write the curves."
)
_curves_plot = click.option(
    "--plot", type=click.Path(path_type=Path), callback=_output(_PICTURES), help="Draw the curves."
)
_strategy = click.option("--strategy", metavar="NAME", help=f"One of {', '.join(STRATEGIES)}.")
_settings = click.option(
    "--set",
    "settings",
    metavar="KEY=VALUE",
    multiple=True,
    help="A setting of the strategy; repeat for more.",
)
_protocol_file = click.option(
    "--protocol",
    type=click.Path(path_type=Path),
    help="A protocol file (.json, .csv), instead of a strategy or as what it works on.",
)


@click.group(invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="%(prog)s %(version)s")
@click.pass_context
def app(context: click.Context) -> None:
    """Plan how to train on several tasks without forgetting.

    \b
    Examples:
      replan new problem.toml
      replan compare problem.toml
      replan solve problem.toml --json plan.json --plot plan.png
      replan evaluate problem.toml --strategy interleaved --json out.json
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


@app.command()
@click.argument("file", type=click.Path(path_type=Path), default="problem.toml")
def new(file: Path) -> None:
    """Write a commented problem file to start from, the problem of the paper's Fig. 2.

    \b
    Example:
      replan new problem.toml
    """
    try:
        with file.open("x", encoding="utf-8") as out:
            out.write(example())
    except FileExistsError:
        raise ValueError(f"`FILE` expects a new file, got '{file}', which exists") from None
    click.echo(f"wrote {file}; next: replan compare {file}")


@app.command("compare")
@_file
@click.option(
    "--plot",
    type=click.Path(path_type=Path),
    callback=_output(_PICTURES),
    help="The picture (.png, .pdf, .svg); by default FILE-compare.png in this folder.",
)
@_json
@click.option(
    "--csv", type=click.Path(path_type=Path), callback=_output((".csv",)), help="Write the table."
)
def compare_command(file: Path, plot: Path | None, json: Path | None, csv: Path | None) -> None:
    """Show all strategies on a problem in a table and a picture, the best first.

    \b
    Example:
      replan compare problem.toml --plot compare.pdf --csv compare.csv
    """
    result = compare(Problem.load(file), progress=True)
    picture = plot or Path(f"{file.stem}-compare.png")
    click.echo(result)
    for path in (json, csv):
        if path is not None:
            result.save(path)
    if result.runs:
        result.plot(picture)
    _say_written(json, csv, picture if result.runs else None)
    if not result.runs:
        raise IntegrationError("no strategy has a learning curve: try a smaller `lr`")


@app.command("solve")
@_file
@click.option("--method", default="relax", show_default=True, help=f"One of {', '.join(METHODS)}.")
@click.option(
    "--starts", default=2, show_default=True, help="Random starts besides the strategies."
)
@click.option("--seed", default=0, show_default=True, help="Seed of the random starts.")
@click.option(
    "--max-gradients", default=5000, show_default=True, help="Gradients to spend at most."
)
@click.option(
    "--protocol",
    type=click.Path(path_type=Path),
    help="A protocol file to begin from; where only the learning rate is free, the tasks.",
)
@_json
@click.option(
    "--plot", type=click.Path(path_type=Path), callback=_output(_PICTURES), help="Draw the plan."
)
def solve_command(
    file: Path,
    method: str,
    starts: int,
    seed: int,
    max_gradients: int,
    protocol: Path | None,
    json: Path | None,
    plot: Path | None,
) -> None:
    """Find the best protocol for a problem, and say how good it is.

    Ctrl-C ends the search and keeps the best plan so far.

    \b
    Examples:
      replan solve problem.toml --json plan.json --plot plan.png
      replan solve problem.toml --method sweep
      replan evaluate problem.toml --protocol plan.json
    """
    problem = Problem.load(file)
    given = None if protocol is None else Protocol.load(protocol)
    with tqdm(desc="gradients", leave=False, disable=None) as bar:

        def watch(value: float, gradients: int) -> None:
            bar.update(gradients - bar.n)
            bar.set_postfix_str(f"best {value:.6g}")

        plan = solve(
            problem,
            method=method,
            start=given,
            starts=starts,
            seed=seed,
            max_gradients=max_gradients,
            watch=watch,
        )
    click.echo(plan)
    if json is not None:
        settings = {"file": tomllib.loads(file.read_text(encoding="utf-8"))}
        files.write_json(json, plan.to_dict() | {"settings": settings})
    if plot is not None:
        plan.plot(plot)
    _say_written(json, plot)


@app.group()
def data() -> None:
    """Get the data sets that the figures on images use."""


@data.command("fetch")
@click.argument("name", metavar="fashion-mnist|cifar10")
@click.option(
    "--root",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where to put it; by default $REPLAN_DATA, or the user's cache.",
)
def fetch_command(name: str, root: Path | None) -> None:
    """Download a data set and check it.

    \b
    Example:
      replan data fetch fashion-mnist
    """
    from replan.networks._download import fetch

    click.echo(f"{name} is in {fetch(name, root, say=click.echo)}")


@app.command("train")
@click.option("--pairs", default="01,23,45,67,89", show_default=True, help="Of classes, in order.")
@click.option(
    "--strategies",
    metavar="NAME,…",
    default="no-replay,fixed-replay,focus-then-replay",
    show_default=True,
    help="Of no-replay, fixed-replay, focus-then-replay, focus-then-loss.",
)
@click.option("--memory", type=int, help="Images kept of the pairs before, in all.  [default: 200]")
@click.option(
    "--samples",
    type=int,
    help="Trained on for each pair, in whole batches; ten at least, for ten tests.  "
    "[default: 12800]",
)
@click.option("--batch-size", type=int, help="Samples in a batch.  [default: 64]")
@click.option("--lr", type=float, help="Learning rate.  [default: 0.05]")
@click.option("--seeds", default=3, show_default=True, help="How many runs of each strategy.")
@click.option("--seed", default=1, show_default=True, help="Seed of the first of them.")
@click.option("--workers", type=int, help="Processes; by default one a core.")
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
def train_command(
    pairs: str,
    strategies: str,
    seeds: int,
    seed: int,
    workers: int | None,
    root: Path | None,
    out: Path,
    **settings: Any,
) -> None:
    """Train on pairs of classes of Fashion-MNIST one after the other, strategies side by side.

    Needs PyTorch and `replan data fetch fashion-mnist`. Writes settings.json, metrics.csv,
    decisions.json, summary.json and losses.png, and events for TensorBoard where it is installed.
    Runs that are finished are kept in OUT/cache: the same command goes on with the others.

    \b
    Examples:
      replan train
      replan train --pairs 01,23 --memory 1000 --out larger
    """
    if find_spec("torch") is None:
        raise click.ClickException("`replan train` needs PyTorch: pip install 'replan[torch]'")
    from replan.networks._practice import SplitTraining, side_by_side

    given = {name: value for name, value in settings.items() if value is not None}
    try:
        summary = side_by_side(
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
        kept = f"finished runs are kept in {out / 'cache'}; the same command goes on"
        click.echo(kept, err=True)
        raise
    click.echo(_side_by_side(summary))
    click.echo(
        f"\nMeans over pairs and runs ({seeds}), ± half of a 95 % interval. loss: at the end;"
        "\non the way: of the pairs so far, since the second came; forgetting: accuracy"
        "\nlost since a pair was learnt; focus: part of its samples before replay began."
    )
    names = ("settings.json", "metrics.csv", "decisions.json", "summary.json", "losses.png")
    _say_written(*(out / name for name in names))


def _side_by_side(summary: Any) -> str:
    """Return the summary of `replan train` as a table of 78 columns."""
    lines = [f"{'':17}{'loss':>17}{'on the way':>17}{'accuracy':>10}{'forgetting':>11}{'focus':>6}"]
    for name, row in summary.iterrows():
        losses = []
        for key in ("loss", "on the way"):
            half = row[f"{key} half width"]
            losses.append(f"{row[key]:.4f}" + (f" ± {half:.4f}" if half > 0 else ""))
        shares = f"{row['accuracy']:>10.2%}{row['forgetting']:>11.2%}{row['focus']:>6.0%}"
        lines.append(f"{name:17}{losses[0]:>17}{losses[1]:>17}{shares}")
    return "\n".join(lines)


@app.command("evaluate")
@_file
@_strategy
@_settings
@_protocol_file
@click.option("--at", metavar="T1,T2,…", help="Also give the losses at these times.")
@click.option("--rtol", default=RTOL, show_default=True, help="Relative accuracy of the losses.")
@_json
@_curves_csv
@_curves_plot
def evaluate_command(
    file: Path,
    strategy: str | None,
    settings: tuple[str, ...],
    protocol: Path | None,
    at: str | None,
    rtol: float,
    json: Path | None,
    csv: Path | None,
    plot: Path | None,
) -> None:
    """Compute the exact learning curves of a strategy or a protocol on a problem.

    \b
    Examples:
      replan evaluate problem.toml --strategy interleaved --json out.json
      replan evaluate problem.toml --strategy interleaved --set shares=0.2,0.8
      replan evaluate problem.toml --strategy focus-then-revise --set focus=7
      replan evaluate problem.toml --protocol out.json --at 1,2,3
      replan evaluate problem.toml --strategy shuffled --protocol out.json
    """
    problem = Problem.load(file)
    times = [] if at is None else _numbers("--at", at)
    for time in times:
        check.number("--at", time, at_least=0, at_most=problem.duration)
    chosen = _protocol(problem, strategy, settings, protocol)
    run = evaluate(problem, chosen, rtol=rtol, throw=False)
    content = run.to_dict()
    content["settings"] = _as_given(file, strategy, settings, protocol)
    if times and run.status == "ok":
        content["at"] = times
        content["losses_at"] = run.losses_at(times).tolist()
    if run.status == "ok":
        click.echo(run)
    for time, losses in zip(times, content.get("losses_at", []), strict=False):
        click.echo(f"losses at {time:g}: " + ", ".join(f"{loss:.6g}" for loss in losses))
    if json is not None:
        files.write_json(json, content)
    if csv is not None:
        run.save(csv)
    if plot is not None:
        run.plot(plot)
    _say_written(json, csv, plot)
    if run.status != "ok":
        raise IntegrationError(run.advice)


@app.command("simulate")
@_file
@_strategy
@_settings
@_protocol_file
@click.option("--dimension", default=20_000, show_default=True, help="Input dimension N.")
@click.option("--seeds", default=8, show_default=True, help="How many runs.")
@click.option("--seed", default=0, show_default=True, help="Seed of all runs together.")
@click.option("--order", default="spread", show_default=True, help=f"One of {', '.join(ORDERS)}.")
@click.option("--engine", default="reduced", show_default=True, help="One of reduced, full.")
@_json
@_curves_csv
@_curves_plot
def simulate_command(
    file: Path,
    strategy: str | None,
    settings: tuple[str, ...],
    protocol: Path | None,
    dimension: int,
    seeds: int,
    seed: int,
    order: str,
    engine: str,
    json: Path | None,
    csv: Path | None,
    plot: Path | None,
) -> None:
    """Train by SGD at finite N with a strategy or a protocol, beside the theory.

    Ctrl-C keeps the runs that are finished.

    \b
    Examples:
      replan simulate problem.toml --strategy interleaved --plot sgd.png
      replan simulate problem.toml --protocol plan.json --dimension 1000 --seeds 100 --json sgd.json
    """
    problem = Problem.load(file)
    chosen = _protocol(problem, strategy, settings, protocol)
    total = round(problem.duration * dimension) * seeds
    with tqdm(desc="samples", total=total, unit_scale=True, leave=False, disable=None) as bar:
        result = simulate(
            problem,
            chosen,
            dimension=dimension,
            seeds=seeds,
            seed=seed,
            order=order,
            engine=engine,
            progress=True,
        )
    click.echo(result)
    if json is not None:
        given = _as_given(file, strategy, settings, protocol)
        files.write_json(json, result.to_dict() | {"settings": given})
    if csv is not None:
        result.save(csv)
    if plot is not None:
        result.plot(plot)
    _say_written(json, csv, plot)
    if len(result.failures) == seeds:
        raise IntegrationError("every run diverged: try a smaller `lr`")


@app.command("figure", epilog=f"NAME is one of {', '.join([*FIGURES, *IMAGE_FIGURES])}.")
@click.argument("name", metavar="NAME|all|images")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="The folder for pictures, tables and claims; by default figures, or figures-quick.",
)
@click.option("--quick", is_flag=True, help="A coarse version, in seconds.")
@click.option("--seeds", type=int, help="How many initialisations.")
@click.option(
    "--set", "changes", metavar="KEY=VALUE", multiple=True, help="Another setting; repeat for more."
)
@click.option("--workers", type=int, help="Processes; by default one a core.")
def figure_command(
    name: str,
    out: Path | None,
    quick: bool,
    seeds: int | None,
    changes: tuple[str, ...],
    workers: int | None,
) -> None:
    """Recompute a figure of the paper and check its claims.

    `all` makes every figure of the theory, about ten minutes on two cores, `images` those on real
    images (see `replan data`). Writes NAME.png, NAME.pdf and NAME.csv, claims.json and claims.md.
    What is finished is kept in OUT/cache, so that a run that was stopped goes on where it was.

    \b
    Examples:
      replan figure similarity --quick
      replan figure all --out figures
      replan figure fashion-dynamics --set lr=0.03 --out faster
    """
    check.one_of("NAME", name, [*FIGURES, *IMAGE_FIGURES, "all", "images"])
    names = {"all": FIGURES, "images": IMAGE_FIGURES}.get(name, (name,))
    folder = out or Path("figures-quick" if quick else "figures")
    changed = dict(_setting(text) for text in changes)
    try:
        for made in make(
            names, folder, quick=quick, seeds=seeds, changes=changed, workers=workers, progress=True
        ):
            tqdm.write(f"{made.name}: wrote {', '.join(map(str, made.files))}")
            for claim in made.claims:
                tqdm.write(f"  {claim}")
            if made.unconverged:
                tqdm.write(f"  {made.unconverged} plans did not converge")
    except KeyboardInterrupt:
        kept = f"finished problems are kept in {folder / 'cache'}; the same command goes on"
        click.echo(kept, err=True)
        raise
    _say_written(folder / "claims.json", folder / "claims.md")


def _setting(text: str) -> tuple[str, Any]:
    """Return the name and the value of KEY=VALUE: JSON, numbers with commas, or else a word."""
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"`--set` expects KEY=VALUE, got {text!r}")
    for attempt in (value, f"[{value}]"):
        with suppress(ValueError):
            return name, loads(attempt)
    return name, value


def _as_given(
    file: Path, strategy: str | None, settings: tuple[str, ...], protocol: Path | None
) -> dict[str, Any]:
    """Return what a result was asked for with."""
    return {
        "file": tomllib.loads(file.read_text(encoding="utf-8")),
        "strategy": strategy,
        "set": list(settings),
        "protocol": None if protocol is None else str(protocol),
    }


def _say_written(*paths: Path | None) -> None:
    written = [str(path) for path in paths if path is not None]
    if written:
        click.echo(f"wrote {', '.join(written)}")


def _protocol(
    problem: Problem, strategy: str | None, settings: tuple[str, ...], path: Path | None
) -> Protocol:
    """Return the protocol that the options ask for."""
    given = None if path is None else Protocol.load(path)
    if strategy is None:
        if settings:
            raise ValueError(f"`--set` goes with `--strategy`, got {settings[0]!r} without one")
        if given is None:
            raise ValueError("`--strategy` or `--protocol` is missing, expects one of them")
        return given
    recipe = STRATEGIES[check.one_of("--strategy", strategy, STRATEGIES)]
    known = [name for name in inspect.signature(recipe).parameters if name != "problem"]
    if given is not None and "protocol" not in known:
        raise ValueError(
            f"`--protocol` does not go with `--strategy {strategy}`: expects one of them"
        )
    chosen: dict[str, Any] = {} if given is None else {"protocol": given}
    for setting in settings:
        name, equals, text = setting.partition("=")
        name = name.replace("-", "_")
        expects = [key for key in known if key in _SETTINGS]
        if not equals or name not in expects:
            raise ValueError(
                f"`--set` expects KEY=VALUE with a key of {strategy} ({', '.join(expects)}), "
                f"got {setting!r}"
            )
        if name in chosen:
            raise ValueError(f"`--set` expects each key once, got {name} twice")
        chosen[name] = _SETTINGS[name](name, text, problem.model.tasks)
    return recipe(problem, **chosen)


def _number(name: str, text: str, _: int) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"`{name}` expects a number, got {text!r}") from None


def _integer(name: str, text: str, _: int) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"`{name}` expects an integer, got {text!r}") from None


def _numbers(name: str, text: str, _: int = 0) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"`{name}` expects numbers with commas between, got {text!r}") from None


def _task(name: str, text: str, tasks: int) -> int:
    return task_from_one(name, _integer(name, text, tasks), tasks)


def _tasks(name: str, text: str, tasks: int) -> list[int]:
    return [_task(name, part, tasks) for part in text.split(",")]


_SETTINGS: dict[str, Callable[[str, str, int], Any]] = {
    "task": _task,
    "new_task": _task,
    "order": _tasks,
    "shares": _numbers,
    "focus": _number,
    "after": _number,
    "seed": _integer,
    "lr": _number,
    "initial": _number,
    "scale": _number,
    "exponent": _number,
}
