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
    """Return a problem as the words that address.js reads.

    The start of a seed that the page knows stays a seed; any other is written out. A law is written
    out whole.
    """
    import numpy as np

    from replan.models.registry import find

    model: Any = problem.model
    if model.kind in ("rate-law", "share-law"):
        return urlencode({"w": json.dumps(problem.to_dict())})
    kind: Any = find("teacher-student")
    if type(model) is not kind:
        expected = "a teacher-student problem or a law"
        raise ArgumentError("FILE", expected, f"the kind {model.kind!r}")
    K, T, gamma = model.hidden, model.tasks, float(model.teacher_overlaps[0, -1])
    plain = kind.similar(gamma, tasks=T, hidden=K, activation=model.activation, noise=model.noise)
    if not (2 <= K <= 6 and 2 <= T <= 5 and 0 <= gamma < 1) or plain.to_dict() != model.to_dict():
        expected = "2 to 5 tasks of one similarity from 0 to 0.99 and 2 to 6 hidden units"
        raise ArgumentError("FILE", expected, "another model, which the page cannot show")
    rates = problem.control.knobs.get("lr")
    words = {"g": gamma, "k": K, "t": T, "a": model.activation, "n": model.noise}
    words |= {"d": problem.duration, "fr": _FREE[problem.control.tasks]}
    words["fl"] = _FREE[False if rates is None else "constant" if rates.constant else True]
    words["lr"] = int(rates is not None)
    words["l"] = f"6y.{_base36(round(1000 * problem.knobs['lr']))}"
    pretrain = {"task": 1, "lr": 1.0, **sections["start"].get("pretrain", {})}
    seed = pretrain.pop("seed", 0)
    usual = pretrain == {"task": 1, "duration": 1000.0, "lr": 1.0}
    if T == 2 and usual and 1 <= seed <= 20:
        return urlencode(words | {"s": seed})
    start = np.concatenate([np.ravel(getattr(problem.start, part)) for part in "QMV"]).astype("<f8")
    return urlencode(words | {"x": base64.b64encode(start.tobytes()).decode()})


_FREE = {False: "given", "constant": "constant", True: "curve"}


def _base36(number: int) -> str:
    digits = "0123456789abcdefghijklmnopqrstuvwxyz"
    return (_base36(number // 36) if number > 35 else "") + digits[number % 36]
