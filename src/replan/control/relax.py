"""Relax: the relaxed problem from several starts, rounded and polished; the main path."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from replan import check
from replan.control.flip_descent import FlipDescent
from replan.control.multistart import descend_from
from replan.control.objective import Controls, DiscretisedObjective
from replan.control.plan import Status
from replan.control.relaxed_controls import interpolated
from replan.control.relaxed_descent import RelaxedDescent
from replan.control.search import Found, Search, fewer_steps, on_grid
from replan.control.solver import Solver
from replan.problem import Problem

TOLERANCE = 1e-4

_ALIKE = 0.15  # starts that differ by less, in shares or in parts of knobs' ranges, count as one
_DESCENTS = 3  # best strategies from which the relaxed problem is solved
_FAR = 4  # times the steps of the coarse grid: with more, there is a grid between the two
_ROUGH = 20.0  # times the tolerance: good enough on the coarse grid
_SAME = 2.0  # times the tolerance: values closer than this are the same on the coarse grid
_SLACK = 10.0  # times the tolerance: with less than this left to gain, it counts as converged
_ATTEMPTS = 3  # attempts at an integrator that is accurate enough for the plan
_PATIENCES = 6  # ways to round the relaxed plan, with fewer and fewer switches


@dataclass(frozen=True)
class Relax(Solver):
    """Relax, round, polish.

    - `starts`: random starts besides the three best strategies. 0 with starts given to `solve`
      means these alone.
    - `seed`: of the random starts.
    - `tolerance`: how much may be left to gain to first order, as a fraction of what the controls
      can change: of how far a typical start lies above the best plan.

    Examples:
        >>> model = replan.TeacherStudent.similar(0.3)
        >>> problem = replan.Problem(model, model.pretrain(seed=1), duration=20.0, steps=50)
        >>> plan = replan.solve(problem, replan.Relax(starts=0, tolerance=1e-3))
        >>> plan.status
        'converged'
    """

    starts: int = 2
    seed: int = 0
    tolerance: float = TOLERANCE
    method: ClassVar[str] = "relax"
    advice: ClassVar[dict[Status, str]] = {
        "stalled": "the search ended before Pontryagin's condition was met: try more `starts`, or "
        "a larger `tolerance`",
    }

    def __post_init__(self) -> None:
        check.integer("starts", self.starts)
        check.integer("seed", self.seed)
        check.number("tolerance", self.tolerance, above=0, at_most=1)

    def run(self, search: Search) -> Status:
        """Go through the stages; each improves on what has been found."""
        search.begin(self.starts, self.seed)
        if not (search.free_tasks or search.free_knobs):
            return "converged"  # nothing to choose
        after = self._relax_on_middle_grid(search, self._relax_on_coarse_grid(search))
        relaxed = _refined(after.controls, search.problem.steps)
        for attempt in range(_ATTEMPTS):
            relaxed = self._relax_on_fine_grid(search, relaxed, after=None if attempt else after)
            self._round(search, relaxed)
            self._polish_tasks(search, relaxed)
            self._polish_tasks_and_knobs(search)
            if not search.resolve(self.tolerance):  # else once more, with smaller steps
                break
        return self._relax_from_plan(search)

    # The stages

    def _relax_on_coarse_grid(self, search: Search) -> RelaxedDescent:
        """Relax from all promising starts; return the descent with the smoothest of the best."""
        enough = _ROUGH * search.enough(self.tolerance)

        def begin(grid: DiscretisedObjective, start: Controls) -> RelaxedDescent:
            return self._descent(search, grid, start, enough)

        ends = descend_from(self._promising(search), search, begin, 60)
        search.values += [end.value for end in ends]
        bound = min(search.values) + _SAME * search.enough(self.tolerance)
        same = [end for end in ends if end.value <= bound]
        best = min(same, key=lambda end: _roughness(end.controls))
        search.offer_rounded(best.controls)
        return best

    def _relax_on_middle_grid(self, search: Search, coarse: RelaxedDescent) -> RelaxedDescent:
        """Go on with a few more steps, where a gradient costs less than on many."""
        few, many = search.coarse.steps, search.problem.steps
        if many < _FAR * few:
            return coarse
        grid = search.coarse.refined(fewer_steps(search.problem, round((few * many) ** 0.5)))
        start = _refined(coarse.controls, grid.steps)
        enough = _ROUGH**0.5 * search.enough(self.tolerance)
        descent = self._descent(search, grid, start, enough, coarse)
        search.descend(descent, 100)
        return descent

    def _promising(self, search: Search) -> list[Controls]:
        """Return given and random starts and the best strategies, on the coarse grid.

        Starts that are nearly the same there count once.
        """
        low, high = search.problem.knob_ranges
        width = np.where(low < high, high - low, np.inf)
        chosen: list[Controls] = []
        strategies = 0
        for start in sorted(search.starts, key=lambda start: (start.strategy, start.found.value)):
            controls = search.tied(on_grid(search.problem, start.protocol, search.coarse.steps))
            new = all(
                np.abs(other.shares - controls.shares).max() > _ALIKE
                or np.any(np.abs(other.knobs - controls.knobs) > _ALIKE * width)
                for other in chosen
            )
            if new and strategies < _DESCENTS:
                chosen.append(controls)
                strategies += start.strategy
        return chosen

    def _relax_on_fine_grid(
        self,
        search: Search,
        start: Controls,
        *,
        part: float = 1.0,
        after: RelaxedDescent | None = None,
    ) -> Controls:
        enough = part * search.enough(self.tolerance)
        descent = self._descent(search, search.fine, start, enough, after)
        search.descend(descent, 300)
        for protocol in search.given:  # may be mixtures, which no rounded plan stands for
            given = search.tied(on_grid(search.problem, protocol, search.problem.steps))
            if search.fine.value(given) < descent.value:
                descent = self._descent(search, search.fine, given, enough)
                search.descend(descent, 300)
        search.relaxed = Found(descent.controls, descent.value, descent.residual)
        return _fill_knobs(search.problem, descent.controls)

    def _round(self, search: Search, relaxed: Controls) -> None:
        search.offer(search.rounded(relaxed))

    def _polish_tasks(self, search: Search, relaxed: Controls) -> None:
        """Change tasks step by step, from the rounded plan; on small problems, from all starts."""
        if not search.one_task:
            return
        self._flip(search, search.rounded(relaxed))
        if search.problem.step_limits.on_stays or search.coarse is search.fine:
            # with few switches or few steps the best protocol may be far from the relaxed one
            begins = [start.found.controls for start in search.starts]
            begins += [search.rounded(relaxed, 2.0**i) for i in range(_PATIENCES)]
            for controls in {begin.shares.tobytes(): begin for begin in begins}.values():
                self._flip(search, controls, part=2e-3, failures=100)

    def _polish_tasks_and_knobs(self, search: Search) -> None:
        """Improve knobs and tasks alternately."""
        for _ in range(5 * (search.free_knobs and search.one_task)):
            before = search.best.value
            enough = search.enough(self.tolerance)
            knobs = RelaxedDescent(
                search.fine, search.best.controls, free_tasks=False, free_knobs=True, enough=enough
            )
            search.descend(knobs, 40)
            self._flip(search, search.best.controls)
            if before - search.best.value <= 0.02 * enough:
                return

    def _relax_from_plan(self, search: Search) -> Status:
        """Relax once more where the plan, which is a relaxed one too, is the better of the two.

        So too from the relaxed one, where the plan has shown that less may be left to gain.
        """
        assert search.relaxed is not None
        if search.best.value < search.relaxed.value:
            self._relax_on_fine_grid(search, search.best.controls, part=0.1)
        elif not self._met(search):
            self._relax_on_fine_grid(search, search.relaxed.controls)
        return "converged" if self._met(search) else "stalled"

    def _met(self, search: Search) -> bool:
        """Whether Pontryagin's condition is met, within the tolerance."""
        assert search.relaxed is not None
        return search.relaxed.residual <= _SLACK * search.enough(self.tolerance)

    # Parts of the stages

    def _descent(
        self,
        search: Search,
        grid: DiscretisedObjective,
        start: Controls,
        enough: float,
        after: RelaxedDescent | None = None,
    ) -> RelaxedDescent:
        return RelaxedDescent(
            grid, start,
            free_tasks=search.free_tasks, free_knobs=search.free_knobs, enough=enough, after=after,
        )  # fmt: skip

    def _flip(
        self, search: Search, start: Controls, *, part: float = 0.2, failures: int = 25
    ) -> None:
        enough = part * search.enough(self.tolerance)
        descent = FlipDescent(search.fine, start, enough=enough, failures=failures)
        search.descend(descent, 100)


def _roughness(controls: Controls) -> float:
    """How much shares change from step to step: smooth ones converge faster on the fine grid."""
    return float(np.abs(np.diff(controls.shares, axis=0)).sum())


def _refined(controls: Controls, steps: int) -> Controls:
    """Return controls interpolated to more steps."""
    return Controls(*(interpolated(rows, steps) for rows in controls))


def _fill_knobs(problem: Problem, controls: Controls) -> Controls:
    """Give tasks without a share at a step the knobs of their nearest steps with one."""
    knobs = controls.knobs.copy()
    steps = np.arange(len(knobs))
    for name, columns in problem.model.layout.columns.items():
        free = problem.control.knobs.get(name)
        if columns.stop - columns.start == 1 or free is None or free.shared:
            continue
        for t in range(problem.model.tasks):
            used = controls.shares[:, t] > 1e-3
            if used.any():
                column = columns.start + t
                knobs[:, column] = np.interp(steps, steps[used], knobs[used, column])
    return Controls(controls.shares, knobs)
