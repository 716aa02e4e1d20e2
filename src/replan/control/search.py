"""Solver: a way to search for a plan; Search: the best plan so far, and what solvers share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import numpy as np

from replan.check import Floats
from replan.control.discretised import Controls, DiscretisedObjective
from replan.control.grids import as_protocol, fewer_steps, on_grid
from replan.control.plan import Status
from replan.control.relaxed_controls import RelaxedControls
from replan.control.starts import accepted, reference_controls, start_protocols
from replan.core.projection import project
from replan.curves import evaluate
from replan.errors import ArgumentError, IntegrationError
from replan.problem import Problem
from replan.problem.discrete import allows, nearest
from replan.progress import Meter
from replan.protocol import Protocol
from replan.registry import Registry
from replan.strategies import interleaved

if TYPE_CHECKING:
    from replan.control.relaxed_descent import RelaxedDescent

_COARSE = 32  # steps of the coarse grid, enough to tell good starts from bad ones
_TYPICAL = 0.25  # the quantile of worse starts that stands for what is reached without a search
_ROUNDING = 1e-15  # of each step's slope: losses are differences of numbers near 1
TOLERANCE = 1e-3  # a gain of a thousandth of the loss is of no use to anybody
_SELDOM = 3  # times: a best value found less often is worth twice the patience
_SAME_VALUE = 2.0  # times the threshold: values that differ by less count as the same


class Effort(NamedTuple):
    """When a search has started often enough.

    again: how often the best value is to be found. patience: starts in a row without a better one.
    basins: how many different optima of one stage the next goes on from. all: RK4 steps of all
    protocols together, up to which every one of them is tried.
    """

    again: int
    patience: int
    basins: int
    all: int


EFFORTS = {"normal": Effort(6, 12, 3, 100_000), "high": Effort(15, 60, 8, 5_000_000)}


class Solver(ABC):
    """A way to search for a plan: its settings, and what it does with a `Search`.

    method: its name in results and, once registered, on the command line. advice: by status, what
    to try next, where this solver knows better than the general advice.

    Examples:
        >>> class Best(replan.control.Solver):  # the best of all strategies, one task per step
        ...     method = "best"
        ...     def run(self, search):
        ...         search.seed()
        ...         return "converged"
        >>> plan = replan.solve(problem, Best())
        >>> plan.status, plan.protocol.is_discrete
        ('converged', True)
    """

    registry: ClassVar[Registry[type[Solver]]] = Registry("method")
    method: ClassVar[str]
    advice: ClassVar[dict[Status, str]] = {}

    @abstractmethod
    def run(self, search: Search) -> Status:
        """Call `search.seed`, improve on its plan by `search.submit`, and return how it ended."""


class Descent(ABC):
    """An improvement of controls step by step, which begins with its constructor.

    controls, value: the best so far, at any time.
    """

    controls: Controls
    value: float

    @abstractmethod
    def step(self) -> None:
        """Take one step."""

    @abstractmethod
    def terminate(self) -> bool:
        """Return whether to stop."""


class Candidate(NamedTuple):
    """Controls with their value and, for relaxed ones, Pontryagin's residual."""

    controls: Controls
    value: float
    residual: float = np.inf


class Start(NamedTuple):
    """A protocol to start from, and as a candidate plan on the problem's steps."""

    protocol: Protocol
    candidate: Candidate
    is_strategy: bool


class Search:
    """The best plan so far, which a solver improves.

    problem: to be solved. initial: the protocols given to `solve`. free_tasks, free_knobs: whether
    these may change. one_task: whether plans train on one task per step. fine, coarse: the
    objective on the problem's steps and on few; rough: on the problem's steps, less accurate.
    effort: when to stop starting. starts: after `seed`. best: the best plan, with
    `controls` and `value`. relaxed: the relaxed plan, if a solver sets it. values: those reached
    from the starts, for the spread. scope: "global" if a solver has tried every protocol.

    Examples:
        >>> class Reversed(replan.control.Solver):  # the best strategy, or its tasks backwards
        ...     method = "reversed"
        ...     def run(self, search):
        ...         search.seed()
        ...         tasks = search.best.controls.sequence[::-1]
        ...         search.submit(search.best.controls.with_tasks(tasks))
        ...         return "stalled"
        >>> replan.solve(problem, Reversed()).status
        'stalled'
    """

    def __init__(
        self,
        problem: Problem,
        initial: Protocol | Sequence[Protocol] | None,
        max_gradients: int,
        meter: Meter,
        effort: Effort = EFFORTS["normal"],
    ) -> None:
        if not problem.control.tasks and not problem.control.knobs:
            raise ArgumentError("problem", "one with tasks or knobs to control", "one with neither")
        self.problem, self._meter, self.effort = problem, meter, effort
        self.free_tasks = bool(problem.control.tasks) and problem.model.tasks > 1
        self.free_knobs = any(knob.free for knob in problem.control.knobs.values())
        self.one_task = self.free_tasks and problem.control.tasks != "constant"
        self.initial = self._accepted(initial)
        self.fine = self.coarse = DiscretisedObjective(problem, problem.steps)
        self.counts = self.fine.counts
        self.rough = self.fine
        # Tasks that are not free may change at every step, which a coarse grid would blur.
        if self.free_tasks:
            steps = fewer_steps(problem, _COARSE) if problem.steps > _COARSE else problem.steps
            self.coarse = DiscretisedObjective(problem, steps, 1e-5, self.counts)
            self.rough = self.coarse.refined(problem.steps)
        self.counts.max_gradients = max_gradients
        self.values: list[float] = []
        self.starts: list[Start] = []
        self.relaxed: Candidate | None = None
        self.scope: Literal["local", "global"] = "local"
        self._best: Candidate | None = None
        self._references: Floats = np.zeros(0)

    def _accepted(self, initial: Any) -> list[Protocol]:
        """Return the user's protocols as a list; refuse those that do not fit."""
        if initial is None:
            return []
        listed = initial if isinstance(initial, list | tuple) else [initial]
        protocols = [accepted(self.problem, protocol) for protocol in listed]
        if not protocols:
            raise ArgumentError("initial", "at least one protocol", "none")
        grids = [on_grid(self.problem, x, self.problem.steps).shares for x in protocols]
        same = all(np.allclose(shares, grids[0], atol=1e-9) for shares in grids)
        if not self.free_tasks and not same:
            raise ArgumentError(
                "initial", "protocols with the same shares, as tasks are not controlled", "others"
            )
        return protocols

    @property
    def first_protocol(self) -> Protocol:
        """The user's first protocol, or equal shares."""
        return self.initial[0] if self.initial else interleaved(self.problem)

    # The best plan

    def seed(
        self, random_starts: int = 0, random_seed: int = 0, *, only: Protocol | None = None
    ) -> None:
        """Evaluate the starts: the user's protocols, strategies that fit, and random ones.

        With protocols of the user and no random starts, these alone; with `only`, that one.
        """
        protocols = [(only, False)] if only else start_protocols(self, random_starts, random_seed)
        for protocol, is_strategy in protocols:
            candidate = self.submit(self.round(on_grid(self.problem, protocol, self.problem.steps)))
            self.starts.append(Start(protocol, candidate, is_strategy))
            self.report(f"start {len(self.starts)}")
        if self._best is None:
            evaluate(self.problem, self.starts[0].protocol, throw=False)  # or a wrong model
            plainest = evaluate(self.problem, interleaved(self.problem), throw=False)
            raise IntegrationError(
                f"every start diverges: {plainest.advice or 'try a shorter `duration`'}"
            )
        values = [self.fine.value(controls) for controls in reference_controls(self)]
        if self.free_tasks:  # else all starts are strategies that have searched for their rates
            values += [start.candidate.value for start in self.starts]
        self._references = np.array([value for value in values if np.isfinite(value)])

    @property
    def has_plan(self) -> bool:
        """Whether there is a plan yet."""
        return self._best is not None

    @property
    def best(self) -> Candidate:
        """The best plan so far."""
        if self._best is None:
            raise ArgumentError(
                "solver", "one whose `run` begins with `search.seed()`", "one without a plan yet"
            )
        return self._best

    def submit(self, controls: Controls) -> Candidate:
        """Keep controls on the problem's steps if they are the best so far; return their value."""
        if self.one_task and not (
            np.all(controls.shares.max(axis=1) == 1.0)
            and allows(self.problem.step_limits, controls.sequence)
        ):
            raise ArgumentError(
                "controls",
                "one task per step within the problem's limits, as `search.round` gives",
                "others",
            )
        candidate = Candidate(controls, self.fine.value(controls))
        if candidate.value < (np.inf if self._best is None else self._best.value):
            self._best = candidate
        return candidate

    def round(self, controls: Controls, patience: float = 0.0) -> Controls:
        """Return controls within the limits, with one task per step unless plans are mixtures.

        patience: the larger, the fewer switches.
        """
        if not self.one_task:
            return self.project(controls)
        tasks = nearest(controls.shares, self.problem.step_limits, patience)
        knobs = controls.knobs.copy()
        for name, columns in self.problem.model.layout.columns.items():
            free = self.problem.control.knobs.get(name)
            if free is not None and free.shared:  # as the task of the step has it
                knobs[:, columns] = np.take_along_axis(knobs[:, columns], tasks[:, None], axis=1)
        return self.project(Controls(controls.shares, knobs).with_tasks(tasks))

    def project(self, controls: Controls) -> Controls:
        """Return controls with constant and shared parts as such, and means within their limits."""
        mixed = self.free_tasks and not self.one_task
        always = self.problem.availability.always
        budgets = mixed and (self.problem.step_limits.binding or not always)
        if not (self.problem.control.ties or self.problem.limits.mean or budgets):
            return controls
        space = RelaxedControls(self.problem, controls, free_tasks=mixed)
        return space.split(np.asarray(project(space.join(controls), space.domain)))

    def descend(self, descent: Descent, max_steps: int) -> None:
        """Take a descent on any grid to its end, and submit its controls, rounded."""
        try:
            for _ in range(max_steps):
                if descent.terminate():
                    return
                descent.step()
                self.report(f"best {min(self.best.value, descent.value):.6g}")
        finally:  # an interrupt, or the limit on gradients, loses nothing
            self.submit_rounded(descent.controls)

    def relax(self, descent: RelaxedDescent, max_steps: int) -> None:
        """Take a relaxed descent on the problem's steps to its end, and keep it if it is best."""
        try:
            self.descend(descent, max_steps)
        finally:  # an interrupt, or the limit on gradients, loses nothing
            if self.relaxed is None or descent.value <= self.relaxed.value:
                self.relaxed = Candidate(descent.controls, descent.value, descent.residual)

    def submit_rounded(self, controls: Controls) -> None:
        """Submit controls on any grid, rounded to the problem's steps and limits."""
        protocol = as_protocol(self.problem, controls)
        self.submit(self.round(on_grid(self.problem, protocol, self.problem.steps)))

    def report(self, note: str, gradients: int | None = None) -> None:
        """Report progress: a note, and how many gradients have been computed by now."""
        gradients = self.counts.gradients if gradients is None else gradients
        self._meter.advance(gradients - self._meter.done, note=note)

    # When to stop

    def threshold(self, tolerance: float, reached: float = np.inf) -> float:
        """Return the gain at which a search may stop; `reached`: a better value than the plan's.

        That is `tolerance` × the best plan's own value, or × what the controls can change where
        that is less: how far the plan lies below a typical start (a quarter of all worse starts are
        better), and at most below where training begins. Rounding errors do not count.
        """
        best = min(self.best.value, reached)
        trained = abs(self.fine.untrained - best)
        worse = self._references[self._references > best] - best
        typical = np.quantile(worse, _TYPICAL) if worse.size else np.inf
        floor = _ROUNDING * self.problem.steps * max(1.0, abs(self.fine.untrained))
        return max(tolerance * float(min(abs(best), typical, trained or np.inf)), floor)

    @property
    def gap(self) -> float:
        """How far the plan, with one task per step, lies from the relaxed one."""
        return abs(self.best.value - self.relaxed.value) if self.relaxed and self.one_task else 0.0

    def same_value(self, tolerance: float) -> float:
        """Return the difference below which values count as the same."""
        return _SAME_VALUE * self.threshold(max(tolerance, TOLERANCE))

    def wants_more(self, values: list[float]) -> bool:
        """Whether the best of the values, in the order found, is not known well enough yet."""
        same = np.array(values) <= min(values) + self.same_value(TOLERANCE)
        found, since = int(same.sum()), len(values) - int(np.argmax(same))
        patience = self.effort.patience * (2 if found < _SELDOM else 1)
        return found < self.effort.again and since <= patience

    def resolve(self, tolerance: float) -> bool:
        """Make the fine grid's integrator accurate enough for the best plan.

        Return whether it was too coarse: then values and residuals so far were inaccurate.
        """
        if not self.fine.resolve(self.best.controls, self.threshold(tolerance) / 2):
            return False
        self._best = self.best._replace(value=self.fine.value(self.best.controls))
        self.relaxed = None
        return True
