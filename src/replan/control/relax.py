"""Relax: the relaxed problem from several starts, rounded and polished; the main path."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeVar

import numpy as np

from replan import check
from replan.check import Floats
from replan.control.discretised import Controls, DiscretisedObjective
from replan.control.exhaustive import are_few, try_all
from replan.control.flips import FlipDescent
from replan.control.grids import fewer_steps, on_grid, refined
from replan.control.multistart import descend_from
from replan.control.plan import Status
from replan.control.relaxed_controls import RelaxedControls
from replan.control.relaxed_descent import RelaxedDescent
from replan.control.search import TOLERANCE, Search, Solver
from replan.control.starts import perturbed, random_protocol
from replan.control.stays import StayLengths
from replan.problem import Problem

T = TypeVar("T")

# What the stages leave to be gained, in units of the threshold that the tolerance means.
_COARSE_GAIN = 10.0  # on the coarse grid, whose optimum is only near that of the fine one
_FLIP_GAIN = 0.02  # of a round of flips: flips are cheaper than gradients
_ALTERNATION_GAIN = 0.02  # of knobs and tasks in turn

# Steps of descents, beyond which another start or grid gains more.
_COARSE_STEPS, _MIDDLE_STEPS, _FINE_STEPS, _KNOB_STEPS, _FLIP_ROUNDS = 60, 100, 300, 40, 100
_LAST_STEPS = 1500  # of the last descent, which nothing follows

_RANDOM_STARTS = 2  # to begin with
_ALIKE = 0.15  # starts that differ by less, in shares or fractions of knobs' ranges, count as one
_STRATEGIES = 3  # from which the relaxed problem is solved: the best ones
_PROMISING = 0.05  # of the best value: descents so near to it are worth more steps
_BATCH = 4  # starts that are tried together, half of them random, half from near the best
_NEAR = 0.02  # of the best value: optima of the coarse grid that may win on the fine one
_MIDDLE_GRID = 4  # times the steps of the coarse grid: from there on, there is a grid between
_ATTEMPTS = 3  # at an integrator that is accurate enough for the plan
_PATIENCES = 6  # ways to round the relaxed plan, with fewer and fewer switches
_ALTERNATIONS = 5  # of knobs and tasks
_FAILURES = 25  # moves in a row without a gain that end a round of flips; with few steps, more


@dataclass(frozen=True)
class Relax(Solver):
    """Solve the relaxed problem, in which tasks are mixed within steps; round it; polish it.

    - `starts`: random starts besides the three best strategies. By default as many as it takes to
      find the best value again and again; `effort`, of `solve`, says how often. With 0, nothing
      is left to chance, and where protocols are given to `solve` it starts from these alone.
    - `seed`: of the random starts.
    - `tolerance`: how much may be left to gain to first order, as a fraction of the plan's own
      value, or of what the controls can change where that is less. A tighter tolerance goes on from
      the plan that a looser one ends with.

    Examples:
        >>> plan = replan.solve(problem, replan.Relax(starts=0, tolerance=1e-2))
        >>> plan.status
        'converged'
    """

    starts: int | None = None
    seed: int = 0
    tolerance: float = TOLERANCE
    method: ClassVar[str] = "relax"
    advice: ClassVar[dict[Status, str]] = {
        "stalled": "the search ended before Pontryagin's condition was met: try more `starts`, a "
        "larger `tolerance` or a smaller learning rate; for a model of your own, check its vjp",
    }

    def __post_init__(self) -> None:
        if self.starts is not None:
            check.integer("starts", self.starts)
        check.integer("seed", self.seed)
        check.number("tolerance", self.tolerance, above=0, at_most=1)

    def run(self, search: Search) -> Status:
        """Go through the stages; each improves on the plan so far."""
        search.seed(_RANDOM_STARTS if self.starts is None else self.starts, self.seed)
        if not (search.free_tasks or search.free_knobs):
            return "converged"  # nothing to choose
        rng = np.random.default_rng(self.seed)
        only_tasks = search.one_task and not search.free_knobs
        work = search.effort.all // (search.fine.substeps * search.fine.pieces)
        if only_tasks and are_few(search.problem.step_limits, work):
            try_all(search)
        relaxed: list[RelaxedDescent] = []
        for basin in self._relax_on_coarse_grid(search, rng):
            if not relaxed or search.gap > search.threshold(TOLERANCE):
                middle = self._relax_on_middle_grid(search, basin)
                relaxed.append(self._relax_on_fine_grid(search, middle))
                if search.scope == "local":
                    self._polish(search, relaxed[-1].controls)
        if search.scope == "local" and self.starts != 0:
            self._polish_elsewhere(search, rng)
        best = min(relaxed, key=lambda x: x.value)
        if search.one_task and any(knob.shared for knob in search.problem.control.knobs.values()):
            search.relaxed, best = None, _relaxed(search, best.controls, tied=True)
        for tolerance in self._tolerances:
            best = self._tighten(search, best, tolerance)
        met = best.residual <= search.threshold(self.tolerance)
        return "converged" if met or search.scope == "global" else "stalled"

    @property
    def _tolerances(self) -> list[float]:
        """The tolerances that are met one after another, each a tenth of the one before.

        So a search with a tighter tolerance repeats one with a looser, and goes on from there.
        """
        tolerances = [self.tolerance]
        while 10 * tolerances[0] <= TOLERANCE * (1 + 1e-9):
            tolerances.insert(0, 10 * tolerances[0])
        return tolerances

    # The relaxed problem

    def _relax_on_coarse_grid(
        self, search: Search, rng: np.random.Generator
    ) -> list[RelaxedDescent]:
        """Relax from all promising starts, and from more until the best value is found again.

        Returns the best descent, and those of other optima with nearly as good a value.
        """
        descents = self._descend(search, _promising(search))
        while self.starts is None and search.wants_more([x.value for x in descents]):
            best = min(descents, key=lambda x: x.value)
            batch = [
                on_grid(search.problem, random_protocol(search, rng), search.coarse.steps)
                if i % 2
                else perturbed(search, best.controls, rng)
                for i in range(_BATCH)
            ]
            starts = [search.project(controls) for controls in batch]
            descents += self._descend(search, starts, best.value)
        search.values = [descent.value for descent in descents]
        return self._basins(search, descents)

    def _descend(
        self, search: Search, starts: Sequence[Controls], best: float = np.inf
    ) -> list[RelaxedDescent]:
        """Relax from all starts on the coarse grid, further from those near the best value."""

        def begin(grid: DiscretisedObjective, start: Controls) -> RelaxedDescent:
            threshold = _COARSE_GAIN * search.threshold(TOLERANCE, best)
            return RelaxedDescent(grid, _space(search, start), start, threshold)

        def go_on(grid: DiscretisedObjective, descent: RelaxedDescent) -> RelaxedDescent:
            return RelaxedDescent(grid, descent.space, descent.controls, threshold, descent.pairs)

        descents = descend_from(starts, search, begin, _COARSE_STEPS)
        best = min(best, *(descent.value for descent in descents))
        threshold = _COARSE_GAIN * search.threshold(TOLERANCE, best)
        more = []
        for descent in descents:
            descent.threshold = threshold
            if descent.value <= best + _PROMISING * abs(best) and not descent.terminate():
                more.append(descent)
        descents = [descent for descent in descents if descent not in more]
        search.submit_rounded(min(descents + more, key=lambda x: x.value).controls)
        return descents + (descend_from(more, search, go_on, _FINE_STEPS) if more else [])

    def _basins(self, search: Search, descents: list[RelaxedDescent]) -> list[RelaxedDescent]:
        """Return the smoothest of the best descents, and others that may win in the end."""
        best, same = min(search.values), search.same_value(TOLERANCE)
        near = [x for x in descents if x.value <= best + max(same, _NEAR * abs(best))]
        # Shares that change little between steps converge faster on finer grids.
        near.sort(
            key=lambda x: (x.value > best + same, np.abs(np.diff(x.controls.shares, axis=0)).sum())
        )
        return _different(search, near, lambda x: x.controls)[: search.effort.basins]

    def _relax_on_middle_grid(self, search: Search, coarse: RelaxedDescent) -> RelaxedDescent:
        """Continue on a grid between the two, where a gradient costs less than on the fine one."""
        few, many = search.coarse.steps, search.problem.steps
        if many < _MIDDLE_GRID * few:
            return coarse
        grid = search.coarse.refined(fewer_steps(search.problem, round((few * many) ** 0.5)))
        start = refined(coarse.controls, grid.steps)
        threshold = _COARSE_GAIN**0.5 * search.threshold(TOLERANCE)
        space = _space(search, start)
        descent = RelaxedDescent(grid, space, start, threshold, _carried(coarse, space))
        search.descend(descent, _MIDDLE_STEPS)
        return descent

    def _relax_on_fine_grid(self, search: Search, coarse: RelaxedDescent) -> RelaxedDescent:
        """Relax on the problem's steps, from where a descent on fewer steps ended."""
        descent = _relaxed(search, refined(coarse.controls, search.problem.steps), coarse)
        search.relax(descent, _FINE_STEPS)
        return descent

    def _tighten(self, search: Search, relaxed: RelaxedDescent, tolerance: float) -> RelaxedDescent:
        """Go on until a tolerance is met, with an integrator that is accurate enough for it."""
        for attempt in range(_ATTEMPTS):
            grids = [on_grid(search.problem, x, search.problem.steps) for x in search.initial]
            # The plan is a relaxed one too, and given mixtures may be better than all found.
            for controls in (search.best.controls, *map(search.project, grids)):
                if search.fine.value(controls) < relaxed.value:
                    relaxed = _relaxed(search, controls, tied=True)
            relaxed.threshold = search.threshold(tolerance)
            search.relax(relaxed, _LAST_STEPS)
            if search.one_task and tolerance < TOLERANCE:
                for controls in (search.round(relaxed.controls), search.best.controls):
                    self._improve(search, controls, search.threshold(tolerance))
            if attempt == _ATTEMPTS - 1 or not search.resolve(tolerance):
                break
            # values so far were inaccurate
            relaxed = _relaxed(search, relaxed.controls, relaxed, tied=True)
        return relaxed

    # One task per step

    def _polish(self, search: Search, relaxed: Controls) -> None:
        """Round a relaxed plan, in several ways where switches are few, and improve it."""
        if not search.one_task:
            search.submit(search.round(relaxed))
            return
        relaxed = _fill_knobs(search.problem, relaxed)
        rounded = [search.round(relaxed)]
        if search.problem.step_limits.on_stays:
            # With few switches the best protocol may be far from the relaxed one.
            rounded += [search.round(relaxed, 2.0**i) for i in range(_PATIENCES)]
            rounded += [start.candidate.controls for start in search.starts]
            different = {controls.shares.tobytes(): controls for controls in rounded}.values()
            rounded = [self._move_switches(search, controls) for controls in different]
            rounded = sorted(rounded, key=search.fine.value)[: search.effort.basins]
        for controls in rounded:
            self._improve(search, controls, search.threshold(TOLERANCE))

    def _polish_elsewhere(self, search: Search, rng: np.random.Generator) -> None:
        """Change the plan at random and improve it again, until it is found again and again."""
        assert search.relaxed is not None
        relaxed = _fill_knobs(search.problem, search.relaxed.controls)
        few = search.problem.step_limits.on_stays
        begins = [start.candidate.controls for start in search.starts]
        if search.coarse.steps < search.problem.steps:
            begins = []  # with many steps, mixtures lead there
        values = [search.best.value]
        while search.gap > search.threshold(TOLERANCE) and search.wants_more(values):
            if begins:
                controls = begins.pop()
            else:
                near = search.best.controls if few or len(values) % 2 else relaxed
                controls = search.round(perturbed(search, near, rng))
            if few:
                controls = self._move_switches(search, controls)
            values.append(self._improve(search, controls, search.threshold(TOLERANCE)))
        if len(values) > 1:
            search.values = values

    def _improve(self, search: Search, controls: Controls, threshold: float) -> float:
        """Improve tasks and knobs alternately, from one task per step; return the value."""
        for _ in range(_ALTERNATIONS):
            failures = _FAILURES if search.coarse.steps < search.problem.steps else 4 * _FAILURES
            flips = FlipDescent(search.fine, controls, _FLIP_GAIN * threshold, failures)
            search.descend(flips, _FLIP_ROUNDS)
            if not search.free_knobs:
                return flips.value
            space = RelaxedControls(search.problem, flips.controls, free_tasks=False)
            knobs = RelaxedDescent(search.fine, space, flips.controls, threshold)
            search.descend(knobs, _KNOB_STEPS)
            if flips.value - knobs.value <= _ALTERNATION_GAIN * threshold:
                break
            controls = knobs.controls
        return knobs.value

    def _move_switches(self, search: Search, start: Controls) -> Controls:
        """Improve the switching times, and the knobs, of one task per step."""
        space = StayLengths(search.problem, start)
        descent = RelaxedDescent(search.rough, space, start, search.threshold(TOLERANCE))
        search.descend(descent, _KNOB_STEPS)
        return min((search.round(descent.controls), start), key=search.fine.value)


def _space(search: Search, start: Controls, *, tied: bool = False) -> RelaxedControls:
    """Return the relaxed controls; `tied` if knobs that the tasks share are to be the same.

    With one task per step they are anyhow: mixtures show the way to such plans better untied.
    """
    apart = search.one_task and not tied
    return RelaxedControls(search.problem, start, free_tasks=search.free_tasks, apart=apart)


def _relaxed(
    search: Search, start: Controls, after: RelaxedDescent | None = None, *, tied: bool = False
) -> RelaxedDescent:
    """Return a descent on the problem's steps, with the model of curvature of an earlier one."""
    space = _space(search, start, tied=tied)
    pairs = [] if after is None else _carried(after, space)
    return RelaxedDescent(search.fine, space, start, search.threshold(TOLERANCE), pairs)


def _carried(after: RelaxedDescent, space: RelaxedControls) -> list[tuple[Floats, Floats]]:
    """Return the model of curvature of a descent on fewer steps, in the space of another."""
    assert isinstance(after.space, RelaxedControls)
    return [
        (after.space.carried(move, space), after.space.carried(change, space, sums=True))
        for move, change in after.pairs
    ]


def _promising(search: Search) -> list[Controls]:
    """Return initial and random starts and the best strategies, on the coarse grid.

    Starts that are nearly the same there count once.
    """
    steps, strategies = search.coarse.steps, 0
    starts = [
        (search.project(on_grid(search.problem, start.protocol, steps)), start.is_strategy)
        for start in sorted(search.starts, key=lambda x: (x.is_strategy, x.candidate.value))
    ]
    chosen = []
    for controls, is_strategy in _different(search, starts, lambda x: x[0]):
        strategies += is_strategy
        if strategies <= _STRATEGIES or not is_strategy:
            chosen.append(controls)
    return chosen


def _different(search: Search, items: Sequence[T], controls: Callable[[T], Controls]) -> list[T]:
    """Return items without those whose controls are nearly the same as those of an earlier one."""
    low, high = search.problem.knob_ranges
    width = np.where(low < high, high - low, np.inf)
    chosen: list[T] = []
    for item in items:
        new = controls(item)
        if all(
            np.abs(old.shares - new.shares).max() > _ALIKE
            or np.any(np.abs(old.knobs - new.knobs) > _ALIKE * width)
            for old in map(controls, chosen)
        ):
            chosen.append(item)
    return chosen


def _fill_knobs(problem: Problem, controls: Controls) -> Controls:
    """Give tasks without a share at a step the knobs of their nearest steps with one."""
    knobs = controls.knobs.copy()
    steps = np.arange(len(knobs))
    for name, columns in problem.model.layout.columns.items():
        if columns.stop - columns.start == 1 or name not in problem.control.knobs:
            continue
        for t in range(problem.model.tasks):
            used = controls.shares[:, t] > 1e-3
            if used.any():
                column = columns.start + t
                knobs[:, column] = np.interp(steps, steps[used], knobs[used, column])
    return Controls(controls.shares, knobs)
