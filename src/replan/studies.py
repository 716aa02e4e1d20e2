"""study(file): strategies and plans on every problem that the axes of a file span; one table."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from replan import check, files
from replan.control import Relax, solve
from replan.curves import evaluate
from replan.errors import ArgumentError, in_file
from replan.models.registry import IMPORTS, import_named
from replan.problem import Problem
from replan.problem.axes import flatten, span
from replan.problem.file import read_sections, with_never
from replan.results import Result
from replan.schema import check_keys
from replan.strategies import STRATEGIES, arguments, settings_of
from replan.sweeps import SweepError, sweep

if TYPE_CHECKING:
    import pandas as pd

Content = dict[str, Any]

_SOLVE = ("starts", "seed", "tolerance")  # settings of `Relax` in a file
_PLAN = ("relaxed_value", "integrality_gap", "pmp_residual", "switches")


def study(
    study: files.FilePath | Mapping[str, Any],
    out: files.FilePath | None = None,
    *,
    workers: int | None = None,
    executor: Any = None,
    progress: bool = False,
) -> Study:
    """Run strategies and `solve` on every combination of the values of a study's axes.

    - `study`: the path of a study file (docs/files.md), or its content as a dict.
    - `out`: a folder for table.csv, study.json and picture.png, created if missing. Finished cases
      are kept in `out`/cache: a study that was stopped or extended computes only what is missing.
    - `workers`, `executor`, `progress`: as for `sweep`.

    A case that fails is a row without a value; the study continues.

    The result prints as a table of medians. `rows`: one for each run on each problem, with the
    values of the axes, the name of the run, value (None if it failed), losses, mean shares, status
    and advice; for plans also the certificate and the protocol. `failed`: the rows without a value.
    `to_frame()` returns them as a table, `plot(path, x=axis)` draws the values, `save(folder)`
    writes all files.

    Examples:
        >>> content = {
        ...     "model": {"hidden": 2, "similarity": 0.3},
        ...     "start": {"fresh": {"seed": 0}},
        ...     "training": {"duration": 5.0, "steps": 10},
        ...     "axes": {"model.similarity": [0.3, 0.6]},
        ...     "run": {"strategies": ["interleaved"]},
        ... }
        >>> found = replan.study(content, workers=1)
        >>> found.to_frame()[["model.similarity", "run", "value"]].round(3)
           model.similarity          run  value
        0               0.3  interleaved  0.164
        1               0.6  interleaved  0.163
    """
    import_named()  # the user's own strategies may be among the runs
    if isinstance(study, Mapping):
        problem, axes, runs, key = _design(with_never(study), Path())
    else:
        with in_file(study):
            problem, axes, runs, key = _design(read_sections(study), Path(study).parent)
    names = [(point, name) for point in span(problem, axes) for name in runs]
    imports = os.environ.get(IMPORTS, "")
    cases = [
        {"problem": point.content, "run": runs[name], "imports": imports} for point, name in names
    ]
    folder = None if out is None else check.path("out", out)
    options: Content = {"workers": workers, "executor": executor, "progress": progress}
    try:
        results = sweep(run_case, cases, cache=folder and folder / "cache", key=key, **options)
    except SweepError as error:
        results = error.results
        for i, failure in error.failures.items():
            results[i] = {"value": None, "status": "failed", "advice": failure.split("\n")[0]}
    rows = [
        {**point.values, "run": name, **result}
        for (point, name), result in zip(names, results, strict=True)
    ]
    made = Study(problem, axes, runs, rows)
    if folder is not None:
        made.save(folder)
    return made


def _design(
    study: Mapping[str, Any], folder: Path
) -> tuple[Content, dict[str, list[Any]], dict[str, Content], Any]:
    """Return the problem's sections, the axes, the runs and the key of a study in a folder."""
    content = dict(study)
    axes, run = flatten(content.pop("axes", {})), content.pop("run", {})
    base = content.pop("problem", None)
    if base is not None:
        if content or not isinstance(base, str):
            expected = "the name of a problem file, without sections of a problem beside it"
            raise ArgumentError("problem", expected, ", ".join([repr(base), *content]))
        content = read_sections(folder / base)
    check.instance("run", run, Mapping, "a table")
    check_keys(run, ("strategies", "solve", "key"), "run")
    runs = _runs(run)
    Problem.from_dict(span(content, axes)[0].content)  # refuses unknown keys
    return content, axes, runs, run.get("key")


def run_case(problem: Content, run: Content, imports: str) -> Content:
    """Run a strategy or `solve` on a problem, and return its row of the table.

    imports: the user's modules with models and strategies, for workers on other machines.
    """
    if imports:
        os.environ[IMPORTS] = imports
    posed = Problem.from_dict(problem)
    if "solve" in run:
        plan = solve(posed, Relax(**run["solve"]))
        protocol, found = plan.protocol, plan.to_dict()
        found["protocol"] = protocol.to_dict()
    else:
        settings = {key: value for key, value in run.items() if key != "strategy"}
        recipe = STRATEGIES[run["strategy"]]
        protocol = recipe(posed, **arguments(recipe, settings, posed.model.tasks))
        found = evaluate(posed, protocol, throw=False).to_dict()
    row = {key: found.get(key) for key in ("value", "losses", "status", "advice", "error")}
    row |= {"shares": protocol.mean_shares}
    return row | {key: found[key] for key in (*_PLAN, "protocol") if key in found}


@dataclass(frozen=True, eq=False, repr=False)
class Study(Result):
    """The result of `study`.

    problem: the sections of the problem file. axes: the values by key. runs: the settings by name.
    """

    problem: Content
    axes: dict[str, list[Any]]
    runs: dict[str, Content]
    rows: list[Content]

    def to_frame(self) -> pd.DataFrame:
        """Return a pandas table of the rows, with columns loss_1, …, share_1, … for the tasks."""
        import pandas as pd

        tasks = max(len(row.get("losses") or []) for row in self.rows)
        table = []
        for row in self.rows:
            cells = {key: _cell(row[key]) for key in self.axes}
            cells |= {"run": row["run"], "value": row["value"]}
            for key, name in (("losses", "loss"), ("shares", "share")):
                numbers = row.get(key) or [None] * tasks
                cells |= {f"{name}_{t}": number for t, number in enumerate(numbers, 1)}
            cells |= {key: row.get(key) for key in ("status", "advice", "error")}
            table.append(cells | {key: row[key] for key in _PLAN if key in row})
        return pd.DataFrame(table)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON types."""
        return vars(self)

    def save(self, path: files.FilePath) -> None:
        """Write table.csv, study.json and picture.png to a folder."""
        folder = Path(path)
        files.write_frame(folder / "table.csv", self.to_frame())
        files.write_json(folder / "study.json", self.to_dict())
        picture = folder / "picture.png"
        if self.axes and len(self.failed) < len(self.rows):
            self.plot(picture)
        else:
            picture.unlink(missing_ok=True)  # of an earlier study

    @property
    def failed(self) -> list[Content]:
        """The rows without a value."""
        return [row for row in self.rows if row["value"] is None]

    def __repr__(self) -> str:
        return f"Study({len(self.rows)} rows over {', '.join(self.axes)})"


def _cell(value: Any) -> Any:
    """Format a value as a cell of a table: a number, a word, or JSON."""
    return json.dumps(value) if isinstance(value, dict | list | bool) else value


def _runs(section: Content) -> dict[str, Content]:
    """Return what runs on each problem, by name; `solve` alone if the section is empty."""
    runs: dict[str, Content] = {}
    for i, entry in enumerate(section.get("strategies", [])):
        where = f"run.strategies[{i}]"
        run = (
            {"strategy": entry}
            if isinstance(entry, str)
            else dict(
                check.instance(where, entry, Mapping, "a strategy, or a table with its settings")
            )
        )
        name = run.pop("name", None)
        word = run.get("strategy")
        recipe = STRATEGIES[check.one_of(where, word, STRATEGIES)]
        check_keys(run, ("strategy", *settings_of(recipe)), where)
        texts = [f"{key}={_cell(value)}" for key, value in run.items() if key != "strategy"]
        name = name or f"{word} ({', '.join(texts)})".removesuffix(" ()")
        if name in runs:
            raise ArgumentError(f"{where}.name", "a name that no other run has", repr(name))
        runs[name] = run
    solve = section.get("solve", not runs)
    if solve is not False:
        settings = {} if solve is True else check.instance("run.solve", solve, Mapping, "a table")
        check_keys(settings, _SOLVE, "run.solve")
        runs["plan"] = {"solve": dict(settings)}
    if not runs:
        raise ArgumentError("run", "given strategies, or solve = true", "neither")
    return runs
