"""study(file, out) → Study: compute what is not yet computed, and write it to a folder."""

from __future__ import annotations

import hashlib
import json
import re
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any

from replan import files
from replan._common.sources import reachable_sources
from replan.control import METHODS
from replan.models import find
from replan.models.registry import model_modules
from replan.problem.ensemble_file import kinds
from replan.progress import Watch
from replan.strategies import STRATEGIES
from replan.studies._axes import BEGIN
from replan.studies._cases import Content, make_start, run_on, simulate_on
from replan.studies._design import Design
from replan.studies._study import Study
from replan.sweeps import Sweep

PLANS = "plans"  # the folder of plans
_WRITTEN = ("study.json", "table.csv", "table.parquet", "picture.png", "picture.pdf")
_LONGEST = 100  # characters of the name of a plan's file


def study(
    study: files.FilePath | Mapping[str, Any],
    out: files.FilePath,
    *,
    workers: int | None = None,
    executor: Any = None,
    progress: Watch = False,
) -> Study:
    """Run strategies, solvers and simulations on every problem that a study file describes.

    **Main arguments**

    - `study`: a problem file with lists or ranges in place of values, and a section `[sweep]`
      (docs/sweeps.md), or its sections as dicts.
    - `out`: the folder for the table, the plans and a picture, made if need be. What is finished is
      kept in `out`/cache: a study that was stopped, or to which something was added, continues.

    **Other arguments**

    - `workers`, `executor`, `progress`: as in `sweep`; processes, by default one per core.

    A run that fails is a row of the table without a value; it does not end the study.

    Examples:
        >>> sections = {
        ...     "model": {"hidden": 2, "similarity": [0.3, 0.6]},
        ...     "start": {"fresh": {}},
        ...     "training": {"duration": 5.0, "steps": 10},
        ...     "sweep": {"strategies": ["interleaved"]},
        ... }
        >>> found = replan.study(sections, out="results", workers=1)  # or the path of a study file
        >>> len(found.to_frame())
        2
    """
    design = Design.read(study, progress)
    made = compute(design, out, workers=workers, executor=executor, progress=progress)
    write(design, made, out)
    return made


def compute(
    design: Design,
    out: files.FilePath,
    *,
    workers: int | None = None,
    executor: Any = None,
    progress: Watch = False,
) -> Study:
    """Return the results of a design; refuse, before any work, a folder that cannot take them."""
    folder = files.folder("out", out)
    for name in _WRITTEN:
        files.output("out", folder / name)
    plans = files.folder("out", folder / PLANS) if design.plans else folder
    code = _code(design)
    cache = folder / "cache"
    with Sweep(cache, workers=workers, executor=executor, progress=progress) as sweep:
        starts = _starts(design, sweep, code)
        results = _results(design, sweep, code, starts)
        simulated = _simulated(design, sweep, code, starts, results)
    names = _plan_names(design)
    rows = []
    for (i, run), name, result, simulation in zip(
        design.cases, names, results, simulated, strict=True
    ):
        row = {"what": run.what, "name": run.name} | result
        if "file" in row:
            _keep(plans / name, row.pop("file"))
            row["plan"] = f"{PLANS}/{name}"
        rows.append(design.cells(i) | row)
        if simulation:
            rows.append(design.cells(i) | {"what": "simulation", "name": run.name} | simulation)
    return Study(design.axes, rows)


def write(
    design: Design, made: Study, out: files.FilePath, *, x: str | None = None, y: str | None = None
) -> list[Path]:
    """Write the settings, the table and, if there is anything to draw, the picture of a study."""
    from replan._common import plotting

    folder = Path(out)
    paths = [folder / "study.json", folder / "table.csv"]
    files.write_json(paths[0], design.to_dict() | made.counts)
    frame = made.to_frame()
    files.write_frame(paths[1], frame.astype(object).where(frame.notna(), None))
    with suppress(ImportError):  # no pyarrow, or one that is too old
        packed = BytesIO()
        frame.to_parquet(packed, engine="pyarrow")
        paths.append(folder / "table.parquet")
        files.write(paths[-1], packed.getvalue())
    pictures = [folder / "picture.png", folder / "picture.pdf"]
    if frame["value"].isna().all():
        for path in pictures:  # of an earlier study in this folder
            path.unlink(missing_ok=True)
        return paths
    picture = made.plot(x=x, y=y)
    for path in pictures:
        plotting.save(picture, path)
    return paths + pictures


# The sweeps


def _starts(design: Design, sweep: Sweep, code: str) -> list[Content]:
    """Return the start of every problem, or why there is none; each is made once."""
    cases = [
        {"begin": {key: problem[key] for key in BEGIN if key in problem}, "code": code}
        for problem in design.problems
    ]
    texts = [json.dumps(case, sort_keys=True) for case in cases]
    different = dict(zip(texts, cases, strict=True))
    made = dict(zip(different, sweep(make_start, list(different.values())), strict=True))
    return [made[text] for text in texts]


def _results(design: Design, sweep: Sweep, code: str, starts: Sequence[Content]) -> list[Content]:
    """Return what each run gave, or why its problem has no start."""
    cases = [
        {"problem": problem, "begin": starts[i]["begin"], "run": run.spec, "code": code}
        if "begin" in starts[i]
        else None
        for i, problem, run in ((i, design.problems[i], run) for i, run in design.cases)
    ]
    return _each(sweep, run_on, cases, [starts[i] for i, _ in design.cases])


def _simulated(
    design: Design,
    sweep: Sweep,
    code: str,
    starts: Sequence[Content],
    results: Sequence[Content],
) -> list[Content]:
    """Return what simulations of the runs gave; nothing where none are asked for."""
    if design.simulate is None:
        return [{}] * len(design.cases)
    cases: list[Content | None] = []
    for (i, run), result in zip(design.cases, results, strict=True):
        if "value" not in result:
            cases.append(None)
            continue
        plan = json.loads(result["file"]) if "file" in result else None
        protocol = plan and {key: plan[key] for key in ("duration", "edges", "shares", "knobs")}
        case = {"problem": design.problems[i], "begin": starts[i]["begin"], "run": run.spec}
        cases.append(case | {"protocol": protocol, "sgd": design.simulate, "code": code})
    left_out = {"status": "not run", "advice": "what it simulates has no value"}
    return _each(sweep, simulate_on, cases, [left_out] * len(cases))


def _each(
    sweep: Sweep,
    function: Callable[..., Content],
    cases: Sequence[Content | None],
    otherwise: Sequence[Content],
) -> list[Content]:
    """Return the results of cases; where there is no case, what is given otherwise."""
    found = iter(sweep(function, [case for case in cases if case is not None]))
    return [
        other if case is None else next(found) for case, other in zip(cases, otherwise, strict=True)
    ]


def _code(design: Design) -> str:
    """Return a digest of the user's code that cases call: models, strategies and solvers.

    That of REPLAN_IMPORT every sweep sees by itself.
    """
    modules = model_modules()
    known = set().union(*(kinds(problem) for problem in design.problems))
    things: list[Any] = [find(kind) for kind in sorted(known)]
    for run in design.runs:
        things.append(STRATEGIES[run.word].recipe if run.what == "strategy" else METHODS[run.word])
    found = [reachable_sources(thing) for thing in things if thing.__module__ not in modules]
    unseen = sorted({what for sources in found for what in sources.unseen})
    if unseen:
        warnings.warn(
            f"`out` cannot see all that its results depend on: {', '.join(unseen)}", stacklevel=4
        )
    return " ".join(sorted({sources.digest for sources in found}))


# The plans


def _plan_names(design: Design) -> list[str]:
    """Return the name of a file for every case: its values, or a digest of them where need be."""
    texts = [
        ",".join([*(f"{key}={x}" for key, x in design.cells(i).items()), run.name])
        for i, run in design.cases
    ]
    names = [re.sub(r"[^\w.,=+-]+", "_", text).strip("_") for text in texts]
    alike = Counter(name.lower() for name in names)
    for k, name in enumerate(names):
        if len(name) > _LONGEST or alike[name.lower()] > 1:
            names[k] = f"{name[:_LONGEST]}-{hashlib.sha256(texts[k].encode()).hexdigest()[:8]}"
    return [f"{name}.json" for name in names]


def _keep(path: Path, text: str) -> None:
    """Write a plan, unless it is there."""
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        files.write(path, text.encode())
