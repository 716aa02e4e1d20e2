"""study(file): strategies and plans on every problem that the axes of a file span; one table."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from replan.control import Relax, solve
from replan.errors import ArgumentError
from replan.problem import Problem
from replan.strategies import STRATEGIES, arguments, settings_of
from replan.sweeps import VERSION, SweepError, sweep
from replan.trajectory import evaluate

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

FilePath = str | os.PathLike[str]
Content = dict[str, Any]

_SOLVE = ("starts", "seed", "tolerance", "max_gradients")  # settings of `Relax` and `solve`
_PLAN = ("relaxed_value", "integrality_gap", "pmp_residual", "switches")
_IMPORTS = "REPLAN_IMPORT"
_SHOWN = 5  # failures that are printed


def study(
    study: FilePath | Mapping[str, Any],
    out: FilePath | None = None,
    *,
    workers: int | None = None,
    executor: Any = None,
    progress: bool = False,
) -> Study:
    """Run strategies and `solve` on every combination of the values of a study's axes.

    **Main arguments**

    - `study`: the path of a study file (docs/studies.md), or its content as a dict.
    - `out`: a folder for table.csv, study.json and picture.png, created if missing. Finished cases
      are kept in `out`/cache: a study that was stopped or extended computes only what is missing.

    **Other arguments**

    - `workers`, `executor`, `progress`: as for `sweep`.

    A case that fails is a row without a value; the study continues.

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
    design = Design.read(study)
    folder = None if out is None else Path(out)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    made = design.compute(folder and folder / "cache", workers, executor, progress)
    if folder is not None:
        made.save(folder)
    return made


@dataclass(frozen=True)
class Design:
    """What a study file asks for.

    problem: the sections of the problem file. axes: the values by key, such as "model.similarity".
    runs: by name, {"strategy": …, settings} or {"solve": settings}. key: of the kept cases.
    """

    problem: Content
    axes: dict[str, list[Any]]
    runs: dict[str, Content]
    key: Any = None

    @classmethod
    def read(cls, study: FilePath | Mapping[str, Any]) -> Design:
        """Return the design in a file, or in its content; refuse one with a mistake."""
        folder = Path()
        if not isinstance(study, Mapping):
            folder, study = Path(study).parent, _load(Path(study))
        content = _plain(study)
        axes, run = (_table(key, content.pop(key, {})) for key in ("axes", "run"))
        base = content.pop("problem", None)
        if base is not None:
            if content or not isinstance(base, str):
                expected = "the name of a problem file, without sections of a problem beside it"
                raise ArgumentError("problem", expected, ", ".join([repr(base), *content]))
            content = _plain(_load(folder / base))
        design = cls(content, dict(_flat(axes)), {}, run.pop("key", None))
        for name, values in design.axes.items():
            if (
                not isinstance(values, list)
                or not values
                or any(values.count(x) > 1 for x in values)
            ):
                raise ArgumentError(f"axes.{name}", "a list of different values", repr(values))
        Problem.from_dict(design.problem_at(next(design.points())))  # refuses unknown keys
        _check_keys("run", run, ("strategies", "solve"))
        return replace(design, runs=_runs(run))

    def points(self) -> Iterator[Content]:
        """Yield the values of all axes by key for every problem, the last axis varying fastest."""
        for values in product(*self.axes.values()):
            yield dict(zip(self.axes, values, strict=True))

    def problem_at(self, point: Content) -> Content:
        """Return the sections of the problem at a point."""
        problem = deepcopy(self.problem)
        for key, value in point.items():
            *tables, last = key.split(".")
            table = problem
            for name in tables:
                table = table.setdefault(name, {})
                if not isinstance(table, dict):
                    raise ArgumentError(
                        f"axes.{key}", "a key of the problem file", f"no table {name}"
                    )
            table[last] = value
        return problem

    def compute(
        self, cache: Path | None, workers: int | None, executor: Any, progress: bool
    ) -> Study:
        """Return the results of all runs at all points."""
        names = [(point, name) for point in self.points() for name in self.runs]
        imports = os.environ.get(_IMPORTS, "")
        cases = [
            {"problem": self.problem_at(point), "run": self.runs[name], "imports": imports}
            for point, name in names
        ]
        options: Content = {"workers": workers, "executor": executor, "progress": progress}
        try:
            results = sweep(run_case, cases, cache=cache, key=self.key, **options)
        except SweepError as error:
            results = error.results
            for i, failure in error.failures.items():
                results[i] = {"value": None, "status": "failed", "advice": failure.split("\n")[0]}
        rows = [
            {**point, "run": name, **result}
            for (point, name), result in zip(names, results, strict=True)
        ]
        return Study(self.problem, self.axes, self.runs, rows)


def run_case(problem: Content, run: Content, imports: str) -> Content:
    """Return the result of a strategy or of `solve` on a problem, as it stands in a row.

    imports: the modules with models and strategies of the user, for workers on other machines.
    """
    if imports:
        os.environ[_IMPORTS] = imports
    posed = Problem.from_dict(problem)
    if "solve" in run:
        limit = {key: value for key, value in run["solve"].items() if key == "max_gradients"}
        settings = {key: value for key, value in run["solve"].items() if key not in limit}
        plan = solve(posed, Relax(**settings), **limit)
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
class Study:
    """The results of a study.

    problem: the sections of the problem file. axes: the values by key. runs: the settings by name.
    rows: one for each run on each problem, with the values of the axes, the name of the run, value
    (None if it failed), losses, mean shares, status and advice; for plans also the certificate and
    the protocol.
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

    def save(self, folder: FilePath) -> list[Path]:
        """Write table.csv, study.json and picture.png to a folder; return their paths."""
        table, rows, picture = (
            Path(folder) / name for name in ("table.csv", "study.json", "picture.png")
        )
        self.to_frame().to_csv(table, index=False)
        text = json.dumps({"replan": VERSION} | vars(self), indent=1)
        rows.write_text(text, encoding="utf-8")
        if not self.axes or len(self.failed) == len(self.rows):
            picture.unlink(missing_ok=True)  # of an earlier study
            return [table, rows]
        self.plot(picture)
        return [table, rows, picture]

    def plot(self, path: FilePath | None = None, *, x: str | None = None) -> Figure:
        """Draw the value of every run against an axis; return the figure.

        `x`: the key of the axis, by default the first one. `path`: a file to write.
        """
        return draw_study(self, path, x)

    @property
    def failed(self) -> list[Content]:
        """The rows without a value."""
        return [row for row in self.rows if row["value"] is None]

    def __repr__(self) -> str:
        return f"Study({len(self.rows)} rows over {', '.join(self.axes)})"

    def __str__(self) -> str:
        width = max(len(name) for name in self.runs)
        lines = [f"{'':{width}} {'values':>7} {'median':>9} {'10 %':>9} {'90 %':>9}"]
        for name in self.runs:
            values = [row["value"] for row in self.rows if row["run"] == name]
            low, median, high = _quantiles(values)
            count = sum(value is not None for value in values)
            lines.append(f"{name:{width}} {count:>7} {median:9.3g} {low:9.3g} {high:9.3g}")
        for row in self.failed[:_SHOWN]:
            where = ", ".join(f"{key} = {row[key]}" for key in self.axes)
            lines.append(f"{row['status']}: {row['run']} at {where}: {row['advice']}")
        if len(self.failed) > _SHOWN:
            lines.append(f"{len(self.failed)} of {len(self.rows)} rows have no value")
        loose = [row["status"] for row in self.rows if row["status"] not in ("ok", "converged")]
        if len(loose) > len(self.failed):
            lines.append(f"{len(loose) - len(self.failed)} plans did not converge: see `status`")
        return "\n".join(lines)


def draw_study(study: Study, path: FilePath | None, x: str | None) -> Figure:
    """Draw medians and 10-90 % bands over all other axes, such as seeds, against the axis `x`.

    A run that failed counts as worse than any value: leaving it out would flatter learning rates at
    which only the luckiest seeds do not diverge.
    """
    from matplotlib.figure import Figure

    x = next(iter(study.axes), None) if x is None else x
    if x not in study.axes:
        raise ArgumentError("x", f"an axis of the study ({', '.join(study.axes)})", repr(x))
    numeric = all(type(value) in (int, float) for value in study.axes[x])
    values = sorted(study.axes[x]) if numeric else study.axes[x]
    places = values if numeric else list(range(len(values)))
    others = [key for key in study.axes if key != x]
    figure = Figure(figsize=(6.0, 4.0), layout="constrained")
    axes = figure.add_subplot(xlabel=x, ylabel="objective")
    for name in study.runs:
        rows = [row for row in study.rows if row["run"] == name]
        spread = [_quantiles([row["value"] for row in rows if row[x] == v]) for v in values]
        low, median, high = np.where(np.isinf(spread), np.nan, spread).T
        look: Content = {"color": "black", "linestyle": "--"} if name == "plan" else {}
        [line] = axes.plot(places, median, marker="o", markersize=4, label=name, **look)
        if others:
            axes.fill_between(places, low, high, color=line.get_color(), alpha=0.15, linewidth=0)
    if not numeric:
        axes.set_xticks(places, [_cell(value) for value in values])
    elif values[0] > 0 and values[-1] >= 30 * values[0]:
        axes.set_xscale("log")
    shown = np.concatenate([line.get_ydata() for line in axes.get_lines()])
    if (shown > 0).any() and not any((row["value"] or 1) < 0 for row in study.rows):
        axes.set_yscale("log")
    title = f"median, 10 to 90 %\nover {', '.join(others)}" if others else None
    axes.legend(frameon=False, title=title)
    if path is not None:
        figure.savefig(path, dpi=200)
    return figure


def _quantiles(values: list[float | None]) -> list[float]:
    """Return the 10 %, 50 % and 90 % quantiles; None counts as larger than any number."""
    numbers = [np.inf if value is None else value for value in values]
    finite = bool(np.isfinite(numbers).all())
    found = np.quantile(numbers, (0.1, 0.5, 0.9), method="linear" if finite else "higher")
    return found.tolist()


def _cell(value: Any) -> Any:
    """Return a value as it stands in a table: a number, a word, or JSON."""
    return json.dumps(value) if isinstance(value, dict | list | bool) else value


# The file


def _load(path: Path) -> Content:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # also bytes that are no text
        raise ArgumentError(str(path), "a TOML file", f"a mistake: {error}") from None


def _plain(content: Any) -> Content:
    """Return sections in JSON types, with infinite times as "inf"."""
    try:
        text = json.dumps(content, default=lambda x: x.tolist())
    except (AttributeError, TypeError, ValueError, RecursionError) as error:
        raise ArgumentError("study", "numbers, words, lists and tables", str(error)) from None
    return json.loads(text, parse_constant={"Infinity": "inf"}.get)


def _flat(axes: Content, above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield axes by their full keys: TOML reads `model.similarity = […]` as a table in a table."""
    for key, value in axes.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def _runs(section: Content) -> dict[str, Content]:
    """Return what runs on each problem, by name; `solve` alone if the section is empty."""
    runs: dict[str, Content] = {}
    for i, entry in enumerate(section.get("strategies", [])):
        where = f"run.strategies[{i}]"
        run = {"strategy": entry} if isinstance(entry, str) else _table(where, entry)
        name = run.pop("name", None)
        word = run.get("strategy")
        if not isinstance(word, str) or word not in STRATEGIES:
            raise ArgumentError(where, f"one of {', '.join(STRATEGIES)}", repr(word))
        _check_keys(where, run, ("strategy", *settings_of(STRATEGIES[word])))
        texts = [f"{key}={_cell(value)}" for key, value in run.items() if key != "strategy"]
        name = name or f"{word} ({', '.join(texts)})".removesuffix(" ()")
        if name in runs:
            raise ArgumentError(f"{where}.name", "a name that no other run has", repr(name))
        runs[name] = run
    wanted = section.get("solve", not runs)
    if wanted is not False:
        settings = {} if wanted is True else _table("run.solve", wanted)
        _check_keys("run.solve", settings, _SOLVE)
        runs["plan"] = {"solve": settings}
    if not runs:
        raise ArgumentError("run", "given strategies, or solve = true", "neither")
    return runs


def _table(name: str, value: Any) -> Content:
    if not isinstance(value, dict):
        raise ArgumentError(name, "a table", repr(value))
    return dict(value)


def _check_keys(name: str, table: Content, known: Iterable[str]) -> None:
    for key in table:
        if key not in known:
            raise ArgumentError(f"{name}.{key}", f"one of {', '.join(known)}", "an unknown key")
