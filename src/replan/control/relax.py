"""Relax: the relaxed problem from several starts, rounded and polished; the main path."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from replan import check
from replan.check import Floats
from replan.control.discretised import Controls, DiscretisedObjective, Gradient
from replan.control.flips import FlipDescent
from replan.control.grids import fewer_steps, on_grid, refined
from replan.control.multistart import descend_from
from replan.control.plan import Status
from replan.control.quasi_newton import QuasiNewton
from replan.control.relaxed_controls import RelaxedControls
from replan.control.search import Candidate, Descent, Search, Solver
from replan.control.smoothing import Smoothing
from replan.problem import Problem

TOLERANCE = 1e-4  # a gain of a ten-thousandth of what controls can change is of no use to anybody

# What the stages leave to be gained, in units of the threshold that the tolerance means.
_COARSE_GAIN = 20.0  # on the coarse grid, whose optimum is only near that of the fine one
_SAME_BASIN = 2.0  # values on the coarse grid that differ by less are the same optimum
_FLIP_GAIN = 0.2  # of a round of flips from the rounded plan: flips are cheaper than gradients
_FLIP_GAIN_FROM_STARTS = 2e-3  # with few steps or switches, small gains lead to other optima
_ALTERNATION_GAIN = 0.02  # of knobs and tasks in turn
_PLAN_GAIN = 0.1  # of the descent from a plan that is better than the relaxed one
_CONVERGED = 10.0  # with less than this left, the status is "converged": the last descents stall

# Steps of descents, beyond which another start or grid gains more.
_COARSE_STEPS, _MIDDLE_STEPS, _FINE_STEPS, _KNOB_STEPS, _FLIP_ROUNDS = 60, 100, 300, 40, 100

_ALIKE = 0.15  # starts that differ by less, in shares or fractions of knobs' ranges, count as one
_STRATEGIES = 3  # from which the relaxed problem is solved: the best ones
_MIDDLE_GRID = 4  # times the steps of the coarse grid: from there on, there is a grid between
_ATTEMPTS = 3  # at an integrator that is accurate enough for the plan
_PATIENCES = 6  # ways to round the relaxed plan, with fewer and fewer switches
_FAILURES_FROM_STARTS = 100  # moves in a row without a gain that end a round from other starts
_ALTERNATIONS = 5  # of knobs and tasks


@dataclass(frozen=True)
class Relax(Solver):
    """Solve the relaxed problem, in which tasks are mixed within steps; round it; polish it.

    - `starts`: random starts besides the three best strategies. With 0 and protocols given to
      `solve`, these alone.
    - `seed`: of the random starts.
    - `tolerance`: how much may be left to gain to first order, as a fraction of what the controls
      can change: how far a typical start lies above the best plan.

    Examples:
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
        """Go through the stages; each improves on the plan so far."""
        search.seed(self.starts, self.seed)
        if not (search.free_tasks or search.free_knobs):
            return "converged"  # nothing to choose
        coarse = self._relax_on_middle_grid(search, self._relax_on_coarse_grid(search))
        relaxed = refined(coarse.controls, search.problem.steps)
        for attempt in range(_ATTEMPTS):
            relaxed = self._relax_on_fine_grid(search, relaxed, after=None if attempt else coarse)
            search.submit(search.round(relaxed))
            self._polish_tasks(search, relaxed)
            self._polish_tasks_and_knobs(search)
            if not search.resolve(self.tolerance):  # else once more, with smaller steps
                break
        return self._relax_from_plan(search)

    # The stages

    def _relax_on_coarse_grid(self, search: Search) -> RelaxedDescent:
        """Relax from all promising starts; return the smoothest of the best descents."""
        threshold = _COARSE_GAIN * search.threshold(self.tolerance)

        def begin(grid: DiscretisedObjective, start: Controls) -> RelaxedDescent:
            return RelaxedDescent(grid, start, threshold, free_tasks=search.free_tasks)

        descents = descend_from(_promising(search), search, begin, _COARSE_STEPS)
        search.values += [descent.value for descent in descents]
        bound = min(search.values) + _SAME_BASIN * search.threshold(self.tolerance)
        best = [descent for descent in descents if descent.value <= bound]
        # Shares that change little between steps converge faster on finer grids.
        changes = [np.abs(np.diff(descent.controls.shares, axis=0)).sum() for descent in best]
        smoothest = best[int(np.argmin(changes))]
        search.submit_rounded(smoothest.controls)
        return smoothest

    def _relax_on_middle_grid(self, search: Search, coarse: RelaxedDescent) -> RelaxedDescent:
        """Continue on a grid between the two, where a gradient costs less than on the fine one."""
        few, many = search.coarse.steps, search.problem.steps
        if many < _MIDDLE_GRID * few:
            return coarse
        grid = search.coarse.refined(fewer_steps(search.problem, round((few * many) ** 0.5)))
        start = refined(coarse.controls, grid.steps)
        threshold = _COARSE_GAIN**0.5 * search.threshold(self.tolerance)
        descent = RelaxedDescent(grid, start, threshold, coarse, free_tasks=search.free_tasks)
        search.descend(descent, _MIDDLE_STEPS)
        return descent

    def _relax_on_fine_grid(
        self,
        search: Search,
        start: Controls,
        *,
        gain: float = 1.0,
        after: RelaxedDescent | None = None,
    ) -> Controls:
        """Relax on the problem's steps; return the relaxed plan, with all knobs filled in."""
        threshold = gain * search.threshold(self.tolerance)
        grid, free_tasks = search.fine, search.free_tasks
        descent = RelaxedDescent(grid, start, threshold, after, free_tasks=free_tasks)
        search.descend(descent, _FINE_STEPS)
        for protocol in search.initial:  # may be mixtures, which no rounded plan stands for
            controls = search.project(on_grid(search.problem, protocol, search.problem.steps))
            if grid.value(controls) < descent.value:
                descent = RelaxedDescent(grid, controls, threshold, free_tasks=free_tasks)
                search.descend(descent, _FINE_STEPS)
        search.relaxed = Candidate(descent.controls, descent.value, descent.residual)
        return _fill_knobs(search.problem, descent.controls)

    def _polish_tasks(self, search: Search, relaxed: Controls) -> None:
        """Change tasks step by step, from the rounded plan; on small problems, from all starts."""
        if not search.one_task:
            return
        self._flip(search, search.round(relaxed))
        if search.problem.step_limits.on_stays or search.coarse is search.fine:
            # With few switches or few steps the best protocol may be far from the relaxed one.
            begins = [start.candidate.controls for start in search.starts]
            begins += [search.round(relaxed, 2.0**i) for i in range(_PATIENCES)]
            for controls in {begin.shares.tobytes(): begin for begin in begins}.values():
                self._flip(search, controls, _FLIP_GAIN_FROM_STARTS, _FAILURES_FROM_STARTS)

    def _polish_tasks_and_knobs(self, search: Search) -> None:
        """Improve knobs and tasks alternately."""
        if not (search.free_knobs and search.one_task):
            return
        for _ in range(_ALTERNATIONS):
            before, controls = search.best.value, search.best.controls
            threshold = search.threshold(self.tolerance)
            knobs = RelaxedDescent(search.fine, controls, threshold, free_tasks=False)
            search.descend(knobs, _KNOB_STEPS)
            self._flip(search, search.best.controls)
            if before - search.best.value <= _ALTERNATION_GAIN * threshold:
                return

    def _flip(
        self, search: Search, start: Controls, gain: float = _FLIP_GAIN, failures: int = 25
    ) -> None:
        threshold = gain * search.threshold(self.tolerance)
        search.descend(FlipDescent(search.fine, start, threshold, failures), _FLIP_ROUNDS)

    def _relax_from_plan(self, search: Search) -> Status:
        """Relax once more where the plan, which is a relaxed one too, is the better of the two.

        Likewise from the relaxed one, where the plan has shown that less may be left to gain.
        """
        assert search.relaxed is not None
        enough = _CONVERGED * search.threshold(self.tolerance)
        if search.best.value < search.relaxed.value:
            self._relax_on_fine_grid(search, search.best.controls, gain=_PLAN_GAIN)
        elif search.relaxed.residual > enough:
            self._relax_on_fine_grid(search, search.relaxed.controls)
        enough = _CONVERGED * search.threshold(self.tolerance)
        return "converged" if search.relaxed.residual <= enough else "stalled"


def _promising(search: Search) -> list[Controls]:
    """Return initial and random starts and the best strategies, on the coarse grid.

    Starts that are nearly the same there count once.
    """
    low, high = search.problem.knob_ranges
    width = np.where(low < high, high - low, np.inf)
    chosen: list[Controls] = []
    strategies = 0
    for start in sorted(search.starts, key=lambda x: (x.is_strategy, x.candidate.value)):
        controls = search.project(on_grid(search.problem, start.protocol, search.coarse.steps))
        new = all(
            np.abs(other.shares - controls.shares).max() > _ALIKE
            or np.any(np.abs(other.knobs - controls.knobs) > _ALIKE * width)
            for other in chosen
        )
        if new and strategies < _STRATEGIES:
            chosen.append(controls)
            strategies += start.is_strategy
    return chosen


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


# The descent

_PATIENCE = 20  # steps that must between them gain a tenth of the threshold
_COOLING = 0.3  # factor on the temperature of the next smooth goal
_SLACK_FALL = 0.5  # a smooth goal that lowers the slack to less than this keeps its temperature
_SMOOTH_GOALS = 12  # at most
_SMOOTH_GAIN = 0.3  # of the slack: with less left to gain, the next smooth goal follows


class RelaxedDescent(Descent):
    """A descent of the relaxed problem: of free knobs and, with `free_tasks`, of shares.

    It ends where less than `threshold` is left to gain to first order, or where many steps in a row
    gain too little. A goal that is not smooth is replaced by smooth ones that come closer and
    closer to it; `value` and `residual` are those of the goal itself. `after`: a descent of the
    same controls on fewer steps that ended about where this one starts; its model of the
    objective's curvature is kept.
    """

    def __init__(
        self,
        objective: DiscretisedObjective,
        start: Controls,
        threshold: float = 0.0,
        after: RelaxedDescent | None = None,
        *,
        free_tasks: bool,
    ) -> None:
        self._objective, self._threshold = objective, threshold
        self._space = RelaxedControls(objective.problem, start, free_tasks=free_tasks)
        self._smoothing, self._goals = objective.smoothing(start), 0
        self._last_slack = np.inf  # of the smooth goal before
        self._begin(self._space.join(start))
        if after is not None:
            for move, change in after._minimiser.pairs:
                self._minimiser.remember(
                    after._space.carried(move, self._space),
                    after._space.carried(change, self._space, sums=True),
                )

    def _begin(self, x: Floats) -> None:
        """Begin to minimise the goal, with its present smoothing."""
        self._values: list[float] = []
        self._minimiser = QuasiNewton(self._function, self._space.domain, x)
        self._update()

    def _function(self, x: Floats) -> tuple[float, Floats]:
        controls = self._space.split(x)
        gradient = self._objective.gradient(controls, self._smoothing)
        self._evaluated: tuple[Floats, Controls, Gradient] = x, controls, gradient
        return gradient.surrogate.value, self._space.slopes(gradient)

    def _update(self) -> None:
        x, controls, gradient = self._evaluated
        if x is self._minimiser.x:  # else no step was worth it
            self.controls, self.value = controls, gradient.value
            self._surrogate = gradient.surrogate
        self._values = [*self._values[-_PATIENCE:], self._minimiser.value]

    def step(self) -> None:
        """Take one step of the minimiser, or to a goal that is less smooth."""
        if self._smoothing is None or self.value == np.inf or not self._goal_reached:
            self._minimiser.step()
            return self._update()
        return self._sharpen(self._smoothing)

    def _sharpen(self, smoothing: Smoothing) -> None:
        """Go on with the next smooth goal: cooler only where the last one gained too little."""
        slack, pairs = self._surrogate.slack, self._minimiser.pairs
        factor = 1.0 if slack <= _SLACK_FALL * self._last_slack else _COOLING
        self._smoothing = smoothing.sharpened(self._surrogate.mixture, factor)
        self._last_slack = slack
        self._goals += 1
        self._begin(self._minimiser.x)
        self._minimiser.pairs = pairs  # nearly as good a model of the next goal

    def terminate(self) -> bool:
        """Whether no direction makes progress any longer, or too little is left to gain."""
        last = self._smoothing is None or self._goals == _SMOOTH_GOALS
        return self.residual <= self._threshold or (last and self._stalled)

    @property
    def _stalled(self) -> bool:
        """Whether steps gain too little."""
        slow = len(self._values) > _PATIENCE and (
            self._values[0] - self._values[-1] <= 0.1 * self._threshold
        )
        return self._minimiser.stalled or slow

    @property
    def _goal_reached(self) -> bool:
        """Whether the minimum of a smooth goal is known as well as it is worth."""
        gain = self._space.residual(self._minimiser.x, self._minimiser.gradient)
        more = self._goals < _SMOOTH_GOALS
        return more and (self._stalled or gain <= _SMOOTH_GAIN * self._surrogate.slack)

    @property
    def residual(self) -> float:
        """The first-order gain still possible; see `RelaxedControls.residual` and `Surrogate`."""
        gain = self._space.residual(self._minimiser.x, self._minimiser.gradient)
        return gain + self._surrogate.slack
