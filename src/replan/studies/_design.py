"""Design: what a study file asks for, every case of it checked before any work."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np

from replan import check, files
from replan.control._solve import check_solvable
from replan.core import memory
from replan.errors import renamed
from replan.models._absent import Absent, AbsentError
from replan.models.registry import import_named
from replan.problem import Problem
from replan.problem.file import problem_from, sections
from replan.progress import Meter, Watch
from replan.simulation._simulate import check_simulable
from replan.strategies import STRATEGIES
from replan.strategies._arguments import arguments
from replan.studies._axes import BEGIN, MOST, count, find_axes, points, put, zipped
from replan.studies._file import Run, read_sweep
from replan.studies._study import RESERVED

Content = dict[str, Any]

_BYTES = 20  # of a number in a plan's file, about


class Design:
    """What a study file asks for, every case of it checked.

    file: the sections. axes: what varies. problems: the sections of every problem, by the points of
    the axes. runs: what runs on each. simulate: the settings of simulations of them, if any.
    """

    def __init__(self, content: Content, progress: Watch = False) -> None:
        self.file = content
        problem = {name: x for name, x in content.items() if name != "sweep"}
        self.runs, self.simulate, groups = read_sweep(content.get("sweep", {}))
        axes = find_axes(problem, _sketch, RESERVED)
        self.axes = zipped(axes, groups, "sweep.zip")
        self._check_count()
        self.points = list(points(self.axes))
        self.problems = [put(problem, self._values(point)) for point in self.points]
        with Meter(progress, "problems checked", len(self.problems)) as meter:
            self._check_all(meter)

    @classmethod
    def read(cls, study: files.FilePath | Mapping[str, Any], progress: Watch = False) -> Design:
        """Return the design of a study file, or of its sections."""
        import_named()  # before the file is read, which has no part in what goes wrong there
        if isinstance(study, Mapping):
            return cls(_plain(study), progress)
        content = sections(check.path("study", study))
        try:
            return cls(_plain(content), progress)
        except ValueError as error:
            raise ValueError(f"{os.fspath(study)}: {error}") from None

    @property
    def results(self) -> int:
        """How many rows the table has."""
        return count(self.axes) * len(self.runs) * (1 if self.simulate is None else 2)

    def __str__(self) -> str:
        width = max(len(axis.name) for axis in self.axes) if self.axes else 0
        width = max(width, len("on each"))
        lines = [f"{plural(count(self.axes), 'problem')}, {plural(self.results, 'result')}"]
        for axis in self.axes:
            mates = [x.name for x in self.axes if x.group == axis.group and x is not axis]
            beside = f", with {' and '.join(mates)}" if mates else ""
            lines.append(f"  {axis.name:<{width}}  {axis}{beside}")
        lines.append(f"  {'on each':<{width}}  {', '.join(run.name for run in self.runs)}")
        if self.simulate is not None:
            runs = plural(self.simulate["seeds"], "run")
            lines.append(f"  {'SGD':<{width}}  {runs} at N = {self.simulate['dimension']} of each")
        return "\n".join(lines)

    @property
    def plans(self) -> int:
        """How many plans there will be."""
        return len(self.problems) * sum(run.what == "solver" for run in self.runs)

    @property
    def cases(self) -> list[tuple[int, Run]]:
        """Every run on every problem, which is given by its number."""
        return [(i, run) for i in range(len(self.problems)) for run in self.runs]

    def cells(self, i: int) -> Content:
        """Return the values of the axes for a problem, as they stand in a table."""
        axes = zip(self.axes, self.points[i], strict=True)
        return {axis.name: axis.cells[j] for axis, j in axes}

    def to_dict(self) -> Content:
        """Return all that determines the results, the seeds among it."""
        return {
            "settings": {"file": self.file},
            "axes": [
                {"name": axis.name, "key": ".".join(axis.path), "values": axis.values}
                for axis in self.axes
            ],
            "runs": [run.to_dict() for run in self.runs],
            "simulate": self.simulate,
            "problems": len(self.problems),
        }

    def sketch(self) -> Problem:
        """Return the first problem with a start that costs nothing."""
        return _sketch(self.problems[0])

    # Checks

    def _values(self, point: tuple[int, ...]) -> dict[tuple[str, ...], Any]:
        return {axis.path: axis.values[i] for axis, i in zip(self.axes, point, strict=True)}

    def _check_count(self) -> None:
        if self.results > MOST:
            lengths = {axis.group: f"{len(axis.values)} × {axis.name}" for axis in self.axes}
            raise ValueError(
                f"a study expects at most {MOST:,} results, got {self.results:,}: "
                f"{', '.join(lengths.values())}, with {len(self.runs)} runs on each problem"
                f"{'' if self.simulate is None else ' and their simulations'}"
            )

    def _check_all(self, meter: Meter) -> None:
        """Refuse any case with a mistake; what cases share is looked at once."""
        seen: set[str] = set()
        for i, content in enumerate(self.problems):
            meter.advance()
            begin = _text([content.get(key) for key in BEGIN])
            rest = _text({**content, "start": None})
            if seen >= {begin, rest}:
                continue
            try:
                problem = _sketch(content)
                if rest not in seen:
                    self._check_runs(problem)
            except ValueError as error:
                raise ValueError(f"{error}{self._in_case(i)}") from None
            seen |= {begin, rest}

    def _in_case(self, i: int) -> str:
        cells = (f"{name} = {x}" for name, x in self.cells(i).items())
        return f", in the case {', '.join(cells)}" if self.axes else ""

    def _check_runs(self, problem: Problem) -> None:
        """Refuse what cannot run on a problem, as far as that is seen without computing."""
        tasks, steps = problem.model.tasks, problem.steps
        if self.plans:
            with renamed({"problem": "sweep.solvers"}):
                check_solvable(problem)
            numbers = steps * (6 * tasks + problem.state.size + 4)
            memory.require(
                f"{self.plans:,} plans of {steps} steps", self.plans * numbers * _BYTES / 8
            )
        if self.simulate is not None:
            settings = {key: x for key, x in self.simulate.items() if key != "order"}
            names = {key: f"sweep.simulate.{key}" for key in settings}
            with renamed(names | {"simulate": "sweep.simulate"}):
                check_simulable(problem, **settings)
        model = problem.model
        absent = Absent({}, tasks, model.knobs, model.loss_names, model.end_knobs, model.task_names)
        unable = Problem(absent, {}, **problem.arguments)
        for run in self.runs:
            if run.what == "strategy":
                _check_strategy(run, unable)


def _sketch(content: Mapping[str, Any]) -> Problem:
    """Return a problem with a start that costs nothing; refuse any mistake in its sections."""
    return problem_from(Problem, content, sketch=True)


def _check_strategy(run: Run, problem: Problem) -> None:
    """Refuse settings of a strategy that do not fit a problem, whose model is not there.

    What needs the model comes after the settings were looked at; what is the user's own may need it
    at any time.
    """
    recipe = STRATEGIES[run.word]
    with run.naming():
        settings = arguments(recipe, run.settings, problem.model.tasks)
        if not recipe.foreign:
            with suppress(AbsentError):
                recipe(problem, **settings)


def _plain(content: Mapping[str, Any]) -> Content:
    """Return sections in JSON types; numpy's numbers and arrays become Python's."""

    def convert(value: Any) -> Any:
        if isinstance(value, np.ndarray | np.generic):
            return value.tolist()
        raise ValueError(
            f"`study` expects numbers, words, lists and tables, got {check.show(value)}"
        )

    try:
        plain: Content = json.loads(json.dumps(content, default=convert))
    except (TypeError, RecursionError) as error:  # keys that are no words, a list of itself
        raise ValueError(f"`study` expects sections as in a file, got {error}") from None
    return plain


def _text(content: Any) -> str:
    return json.dumps(content, sort_keys=True)


def plural(number: int, word: str) -> str:
    """Return a number of things, in words."""
    return f"{number:,} {word}{'' if number == 1 else 's'}"
