"""Search: what `solve` has found so far, and what all solvers share."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any, Literal, NamedTuple

import numpy as np

from replan.check import Floats
from replan.control.objective import Controls, DiscretisedObjective
from replan.control.relaxed_controls import RelaxedControls
from replan.control.solver import Descent
from replan.core.interrupt import interrupted
from replan.core.projection import project
from replan.curves import evaluate
from replan.errors import ArgumentError, IntegrationError
from replan.models.integrator import RTOL
from replan.models.knobs import knob_label
from replan.problem import Problem
from replan.problem.control import Range
from replan.problem.discrete import allows, nearest
from replan.progress import Meter, Progress
from replan.protocol import Protocol
from replan.strategies import STRATEGIES, Strategy, UnfitError, interleaved

_COARSE = 32  # steps on which many starts are compared
_TYPICAL = 0.25  # the quantile of all starts that stands for what is reached without a search
_ROUNDING = 1e-17  # losses are differences of numbers near 1: their slopes are not more exact


class Found(NamedTuple):
    """Controls with their value and, for relaxed ones, Pontryagin's residual.

    Examples:
        >>> controls = replan.control.Controls(np.array([[0.5, 0.5]]), np.ones((1, 2)))
        >>> replan.control.Found(controls, value=0.1).residual
        inf
    """

    controls: Controls
    value: float
    residual: float = np.inf


class Start(NamedTuple):
    """A protocol to begin from, and its controls on the fine grid, as a plan would have them."""

    protocol: Protocol
    found: Found
    strategy: bool


class Search:
    """What `solve` has found so far; a solver improves on it.

    problem; free_tasks, free_knobs: whether these may change. one_task: whether plans have one task
    per step, and are not mixtures; a solver may set it before it begins. fine, coarse: the
    objective on the problem's steps and on few. starts: where to begin, after `begin`. values:
    those reached from the starts. best: the best plan. relaxed: the relaxed plan, where there is
    one. scope: "global" if every protocol was tried. workers: how many descents may run at a time.

    Examples:
        >>> model = replan.TeacherStudent.similar(0.3)
        >>> problem = replan.Problem(model, model.pretrain(seed=1), duration=20.0, steps=50)
        >>> class Best(replan.control.Solver):  # the best of all strategies, with one task per step
        ...     method = "best"
        ...     def run(self, search):
        ...         search.begin(starts=0, seed=0)
        ...         print(f"{search.best.value:.5f}, {search.free_tasks=}")
        ...         return "converged"
        >>> plan = replan.solve(problem, Best())
        0.00087, search.free_tasks=True
    """

    def __init__(
        self,
        problem: Problem,
        start: Protocol | Sequence[Protocol] | None,
        max_gradients: int,
        meter: Meter,
        workers: int = 1,
    ) -> None:
        self.problem, self.meter = problem, meter
        self.workers = 1 if len(problem.members) > 1 else workers  # members use all cores
        listed: Any = start if isinstance(start, list | tuple) else [start] * (start is not None)
        if start is not None and len(listed) == 0:
            raise ArgumentError("start", "at least one protocol", "none")
        self.given = [self._accepted(one) for one in listed]
        self.free_tasks = bool(problem.control.tasks) and problem.model.tasks > 1
        self.one_task = self.free_tasks and problem.control.tasks != "constant"
        if not self.free_tasks:
            self._check_same_tasks()
        low, high = problem.knob_ranges
        self.free_knobs = bool(np.any(low < high))
        self.fine = DiscretisedObjective(problem, problem.steps)
        # Given tasks may change at every step, which a coarse grid would blur.
        few = self.free_tasks and problem.steps > _COARSE
        self.coarse = self.fine
        if few:
            steps = fewer_steps(problem, _COARSE)
            self.coarse = DiscretisedObjective(problem, steps, 1e-5, self.fine.counts)
        self.counts = self.fine.counts
        self.counts.max_gradients = max_gradients
        self.values: list[float] = []
        self.starts: list[Start] = []
        self.relaxed: Found | None = None
        self.scope: Literal["local", "global"] = "local"
        self._best: Found | None = None
        self._references: Floats = np.zeros(0)

    def _check_same_tasks(self) -> None:
        """Refuse starts that would set different tasks."""
        grids = [on_grid(self.problem, one, self.problem.steps).shares for one in self.given]
        if any(not np.allclose(shares, grids[0], atol=1e-9) for shares in grids):
            raise ValueError(
                "`start` expects protocols with the same shares where tasks are not controlled"
            )

    # Beginning

    def begin(self, starts: int = 0, seed: int = 0, *, alone: bool = False) -> None:
        """Take the given starts, all strategies that keep to the controls, and random ones.

        With given starts and no random ones, these alone; with `alone`, the first or interleaved.
        """
        first = self.given[0] if self.given else interleaved(self.problem)
        for protocol, strategy in [(first, False)] if alone else self._protocols(starts, seed):
            found = self.offer(self.rounded(on_grid(self.problem, protocol, self.problem.steps)))
            self.starts.append(Start(protocol, found, strategy))
            self.meter.advance(0, note=f"start {len(self.starts)}")
        if self._best is None:
            evaluate(self.problem, self.starts[0].protocol, throw=False)  # or a wrong model
            raise IntegrationError(self._all_diverge())
        values = [self.fine.value(controls) for controls in self._plain()]
        if self.free_tasks:  # else all starts are strategies that have searched for their rates
            values += [start.found.value for start in self.starts]
        self._references = np.array([value for value in values if np.isfinite(value)])

    def _all_diverge(self) -> str:
        """Return that no start has a value, and why the plainest one has none."""
        plainest = evaluate(self.problem, interleaved(self.problem), throw=False)
        return f"every start diverges: {plainest.advice or 'try a shorter `duration`'}"

    def _protocols(self, count: int, seed: int) -> Iterator[tuple[Protocol, bool]]:
        """Yield all starts, and whether each is a strategy."""
        problem = self.problem
        yield from ((protocol, False) for protocol in self.given)
        if self.given and count == 0:
            return
        if self.free_tasks:
            for strategy in STRATEGIES.values():
                if strategy.turned(problem) <= self._free.keys():
                    yield from self._made(strategy)
            rng, steps = np.random.default_rng(seed), self.coarse.steps
            for _ in range(count):
                different = 1 if problem.control.tasks == "constant" else steps
                draws = rng.dirichlet(np.ones(problem.model.tasks), different)
                rows = np.broadcast_to(draws, (steps, problem.model.tasks))
                rows = problem.availability.renormalise(
                    rows, np.linspace(0.0, problem.duration, steps + 1)
                )
                yield Protocol(rows, problem.duration, **self._random_knobs(rng)), False
            return
        given = self.given[0] if self.given else interleaved(problem)
        if not self.given:
            yield given, True
        for strategy in STRATEGIES.values():
            if strategy.turns and strategy.turned(problem) <= self._free.keys():
                yield from self._made(strategy, protocol=given)
        others = [name for name in self._free if not problem.model.layout.knobs[name].rate]
        for name, part in product(others, (0.0, 0.5, 1.0)):
            low, high = self._free[name]
            yield given.with_knobs(**{name: low + part * (high - low)}), False

    @property
    def _free(self) -> dict[str, tuple[float, float]]:
        """The ranges of the knobs that may change, by name."""
        knobs = self.problem.control.knobs
        return {name: (knob.low, knob.high) for name, knob in knobs.items() if knob.free}

    def _random_knobs(self, rng: np.random.Generator) -> dict[str, Any]:
        """Return knobs for a random start: rates as they are, others at random within ranges."""
        values: dict[str, Any] = dict(self.problem.settings)
        for name, (low, high) in self._free.items():
            if not self.problem.model.layout.knobs[name].rate:
                free = self.problem.control.knobs[name]
                draws = 1 if free.constant else self.coarse.steps
                values[name] = np.broadcast_to(rng.uniform(low, high, draws), self.coarse.steps)
        return values

    def _made(self, strategy: Strategy, **settings: Protocol) -> Iterator[tuple[Protocol, bool]]:
        """Yield the start that a strategy makes; one of the user's that fails is left out."""
        try:
            made = strategy(self.problem, **settings, **self._watched(strategy))
            yield self._accepted(made), True
        except (IntegrationError, UnfitError):  # too large a learning rate: others may work
            return
        except Exception as error:
            if interrupted(error) or not strategy.foreign:
                raise
            warnings.warn(
                f"the strategy {strategy.name} is left out: {type(error).__name__}: {error}",
                stacklevel=6,
            )

    def _watched(self, strategy: Strategy) -> dict[str, Any]:
        """Return settings by which a strategy that searches a grid reports its progress."""
        if not strategy.turns:
            return {}

        def tell(progress: Progress) -> None:
            self.meter.advance(0, note=f"{strategy.name}: {progress.done} of {progress.total}")

        return {"progress": tell}

    def _accepted(self, start: Protocol) -> Protocol:
        """Return a given start; refuse one with values of knobs that the problem does not allow."""
        self.problem.accept(start, "start")
        for name, values in start.knobs.items():
            value = self.problem.knobs[name]
            free = self.problem.control.knobs.get(name, Range(value, value))
            low, high = free.low, free.high
            room = 1e-9 * max(abs(low), abs(high))
            if values.min() < low - room or values.max() > high + room:
                words = "learning rates" if name == "lr" else f"values of {knob_label(name)}"
                raise ArgumentError(
                    "start", f"{words} from {low:g} to {high:g}", f"{start.knob_text(name)}"
                )
        return start

    def _plain(self) -> Iterator[Controls]:
        """Yield equal shares and each task alone, while it is there, with constant knobs.

        These are the problem's own, and each free one also at the ends and in the middle of its
        range. Where tasks are not free, their shares are the given ones.
        """
        steps, tasks = self.problem.steps, self.problem.model.tasks
        rows = [np.full(tasks, 1 / tasks), *np.eye(tasks)]
        edges, presence = self.problem.edges, self.problem.availability
        shares = [presence.renormalise(np.tile(row, (steps, 1)), edges) for row in rows]
        if not self.free_tasks:
            shares = [self.starts[0].found.controls.shares]
        values = self.problem.knobs
        choices = [values]
        for name, (low, high) in self._free.items():
            choices += [
                values | {name: value}
                for value in (low, (low + high) / 2, high)
                if value != values[name]
            ]
        for each, choice in product(shares, choices):
            yield Controls(each, self.problem.model.layout.rows(choice, steps))

    # Searching

    @property
    def any(self) -> bool:
        """Whether there is any plan yet."""
        return self._best is not None

    @property
    def best(self) -> Found:
        """The best plan so far."""
        if self._best is None:
            raise ValueError(
                "`run` of a solver expects to call `search.begin`, which finds the first plan, "
                "before anything else"
            )
        return self._best

    def enough(self, tolerance: float) -> float:
        """Return how much may be left to gain: `tolerance` × what the controls can change.

        That is how far the best plan lies below a typical start (a quarter of all worse starts are
        better), and at most below where training begins, should starts diverge: a constant added to
        the loss changes nothing. A gain smaller than the accuracy of the integrator, as a fraction
        of what training changes, counts as none.
        """
        best = self.best.value
        trained = abs(self.fine.untrained - best)
        worse = self._references[self._references > best] - best
        typical = min(np.quantile(worse, _TYPICAL) if worse.size else np.inf, trained or np.inf)
        floor = max(RTOL * trained, 1e-15 * abs(best), _ROUNDING)
        return max(tolerance * float(typical), floor) if np.isfinite(typical) else floor

    def resolve(self, tolerance: float) -> bool:
        """Make the fine grid's integrator accurate enough for the best plan.

        Return whether it was not: then the values and what is left to gain were inaccurate.
        """
        if not self.fine.resolve(self.best.controls, self.enough(tolerance) / 2):
            return False
        self._best = self.best._replace(value=self.fine.value(self.best.controls))
        return True

    def rounded(self, controls: Controls, patience: float = 0.0) -> Controls:
        """Return controls within the limits, with one task per step unless these are mixed."""
        controls = self.tied(controls)
        if not self.one_task:
            return controls
        return controls.with_tasks(nearest(controls.shares, self.problem.step_limits, patience))

    def tied(self, controls: Controls) -> Controls:
        """Return controls with constant and shared parts as such, and means within their limits."""
        mixed = self.free_tasks and not self.one_task
        always = self.problem.availability.always
        budgets = mixed and (self.problem.step_limits.binding or not always)
        if not (self.problem.control.ties or self.problem.limits.mean or budgets):
            return controls
        space = RelaxedControls(self.problem, controls, free_tasks=mixed, free_knobs=True)
        return space.split(np.asarray(project(space.join(controls), space.domain)))

    def offer(self, controls: Controls) -> Found:
        """Keep controls if they are the best so far; return them with their value."""
        if self.one_task and not (
            np.all(controls.shares.max(axis=1) == 1.0)
            and allows(self.problem.step_limits, controls.sequence)
        ):
            raise ValueError(
                "`controls` expects one task per step within the problem's limits, as "
                "`search.rounded` gives"
            )
        found = Found(controls, self.fine.value(controls))
        if found.value < (np.inf if self._best is None else self._best.value):
            self._best = found
        return found

    def offer_rounded(self, controls: Controls) -> None:
        """Offer controls on any grid, rounded to the plan's steps and tasks."""
        found = as_protocol(self.problem, controls)
        self.offer(self.rounded(on_grid(self.problem, found, self.problem.steps)))

    def descend(self, descent: Descent, most: int) -> None:
        """Take a descent to its end, or at most `most` steps, and offer what it found, rounded."""
        try:
            for _ in range(most):
                if descent.terminate():
                    return
                descent.step()
                note = f"best {min(self.best.value, descent.value):.6g}"
                self.meter.advance(self.counts.gradients - self.meter.done, note=note)
        finally:  # an interrupt, or the limit on gradients, loses nothing
            self.offer_rounded(descent.controls)


def fewer_steps(problem: Problem, about: int) -> int:
    """Return about so many steps, up to twice as many where tasks then come and go at their edges.

    Tasks that come within a step are there too early or too late, which is another problem.
    """
    presence = problem.availability
    times = np.concatenate([presence.arrivals, presence.departures])
    parts = times[(times > 0) & (times < problem.duration)] / problem.duration
    for steps in range(about, min(2 * about, problem.steps)):
        if np.all(np.abs(steps * parts - np.round(steps * parts)) <= 1e-6):
            return steps
    return about


def on_grid(problem: Problem, protocol: Protocol, steps: int) -> Controls:
    """Return the mean shares and knobs of a protocol on equal steps, of tasks that are there."""
    edges = np.linspace(0.0, protocol.duration, steps + 1)
    knobs = problem.knob_rows(protocol)
    if protocol.steps == steps and np.allclose(protocol.edges, edges, rtol=1e-12):
        return Controls(protocol.shares, knobs)

    def means(rows: Floats) -> Floats:
        sums = np.vstack([np.zeros(rows.shape[1]), np.cumsum(rows.T * protocol.lengths, axis=1).T])
        at = np.stack([np.interp(edges, protocol.edges, column) for column in sums.T], axis=1)
        found = np.diff(at, axis=0) / np.diff(edges)[:, None]
        return np.where(np.ptp(rows, axis=0) == 0, rows[0], found)  # without rounding errors

    shares = problem.availability.renormalise(means(protocol.shares), edges)
    return Controls(shares / shares.sum(axis=1, keepdims=True), means(knobs))


def as_protocol(problem: Problem, controls: Controls, *, one_task: bool = False) -> Protocol:
    """Return controls on equal steps as a protocol.

    A knob with a value for each task has one per step where that is enough: where all are equal
    and, with `one_task`, where every step trains on one task.
    """
    shares = controls.shares if one_task else None
    knobs = problem.model.layout.by_name(controls.knobs, shares)
    own = {name: knobs[name] for name in problem.settings}
    return Protocol(controls.shares, problem.duration, **own)
