"""replan explore: the page on which one paints when to replay."""

from __future__ import annotations

import base64
import json
import webbrowser
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import click

from replan.cli._options import Command, load_problem
from replan.errors import ArgumentError

if TYPE_CHECKING:
    from replan.problem import Problem

PAGES = (
    Path(__file__).parents[1] / "page" / "replan.html",  # in the wheel
    Path(__file__).parents[3] / "build" / "replan.html",  # in a clone
)


@click.command("explore", cls=Command)
@click.argument("file", type=click.Path(path_type=Path), required=False)
def command(file: Path | None) -> None:
    """Paint when to replay, in a browser.

    Opens the page, with the problem of a file if given, or a law that `replan fit` wrote. It is one
    file and works offline; in a clone, `make page` builds it.

    \b
    Examples:
      replan explore
      replan explore problem.toml
    """
    page = next((path for path in PAGES if path.exists()), None)
    if page is None:
        raise ArgumentError("the page", "built: run `make page` in a clone", "no page")
    address = page.resolve().as_uri()
    if file is not None:
        address += "#" + _address(*load_problem(file))
    click.echo(address)
    webbrowser.open(address)


def _address(problem: Problem, sections: Mapping[str, Any]) -> str:
    """Return a problem as the words that state.js reads.

    The start of a seed that the page knows stays a seed; any other is written out. A law is written
    out whole.
    """
    import numpy as np

    model: Any = problem.model
    if model.kind in ("rate-law", "share-law"):
        return urlencode({"w": json.dumps(problem.to_dict() | {"fit": sections.get("fit", {})})})
    shown = _shown(problem)
    rates = shown.control.knobs.get("lr")
    words = {"g": float(model.teacher_overlaps[0, -1]), "k": model.hidden, "t": model.tasks}
    words |= {"a": model.activation, "n": model.noise, "d": problem.duration}
    words["fr"] = _FREE[problem.control.tasks]
    words["fl"] = _FREE[False if rates is None else "constant" if rates.constant else True]
    words["lr"] = int(rates is not None)
    words["l"] = f"6y.{_base36(round(1000 * problem.knobs['lr']))}"
    pretrain = {"task": 1, "lr": 1.0, **sections["start"].get("pretrain", {})}
    seed = pretrain.pop("seed", 0)
    usual = pretrain == {"task": 1, "duration": 1000.0, "lr": 1.0}
    if model.tasks == 2 and usual and 1 <= seed <= 20:
        return urlencode(words | {"s": seed})
    start = np.concatenate([np.ravel(getattr(problem.start, part)) for part in "QMV"]).astype("<f8")
    return urlencode(words | {"x": base64.b64encode(start.tobytes()).decode()})


def _shown(problem: Problem) -> Problem:
    """Return the problem as the page shows it; refuse what it would show as another one."""
    import numpy as np

    from replan.models.registry import find
    from replan.problem import Control, Problem, Range

    model: Any = problem.model
    kind: Any = find("teacher-student")
    expected = (
        "a law, or a teacher-student problem with 2 to 5 tasks of one similarity from 0 to 0.99, "
        "2 to 6 hidden units, a duration of 1 to 200, noise of at most 0.5, a rate of at most 5 in "
        "thousandths, the mean of the losses at the end, no limits"
    )
    if type(model) is not kind:
        raise ArgumentError("FILE", expected, f"a problem of the kind {model.kind!r}")
    K, T, gamma = model.hidden, model.tasks, float(model.teacher_overlaps[0, -1])
    lr, duration = problem.knobs["lr"], problem.duration
    are_sizes = 2 <= K <= 6 and 2 <= T <= 5 and 0 <= gamma <= 0.99 and 1 <= duration <= 200
    if not (are_sizes and model.noise <= 0.5 and lr <= 5 and abs(lr - round(lr, 3)) < 1e-9):
        found = f"tasks = {T}, similarity = {gamma:g}, hidden = {K}, duration = {duration:g}"
        raise ArgumentError("FILE", expected, f"{found}, noise = {model.noise:g}, lr = {lr:g}")
    alike = kind.similar(gamma, tasks=T, hidden=K, activation=model.activation, noise=model.noise)
    if not np.array_equal(model.teacher_overlaps, alike.teacher_overlaps):
        raise ArgumentError("FILE", expected, "tasks of several similarities")
    rates = problem.control.knobs.get("lr")
    free = {} if rates is None else {"lr": Range(0.0, 5.0, constant=rates.constant, shared=True)}
    shown = Problem(
        alike,
        problem.start,
        problem.duration,
        steps=250,
        lr=problem.knobs["lr"],
        control=Control(problem.control.tasks, **free),
    )
    page, file = (
        {
            f"{section}.{key}": x
            for section, keys in one.to_dict().items()
            for key, x in keys.items()
        }
        for one in (shown, problem)
    )
    other = {key for key in page.keys() | file.keys() if page.get(key) != file.get(key)}
    if more := other - {"training.steps", "control.lr"}:
        raise ArgumentError("FILE", expected, f"another {', '.join(sorted(more))}")
    if other:
        click.echo("the page searches 250 steps and rates from 0 to 5, one for all tasks", err=True)
    return shown


_FREE = {False: "given", "constant": "constant", True: "curve"}


def _base36(number: int) -> str:
    digits = "0123456789abcdefghijklmnopqrstuvwxyz"
    return (_base36(number // 36) if number > 35 else "") + digits[number % 36]
