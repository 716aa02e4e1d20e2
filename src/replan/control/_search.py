"""Search: what `solve` has found so far, and what all solvers share."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from itertools import product
from typing import Any, Literal, NamedTuple

import numpy as np

from replan._common import memory
from replan._common.check import Floats
from replan._common.interrupt import interrupted
from replan._common.progress import Meter, Progress
from replan.control._discrete import allows, nearest
from replan.control._objective import Controls, Objective
from replan.control._solver import Descent
from replan.dynamics import IntegrationError
from replan.dynamics._integrate import RTOL
from replan.problem import Problem
from replan.protocol import Protocol
from replan.strategies import STRATEGIES, Strategy, interleaved
from replan.trajectory import evaluate

_COARSE = 32  # steps on which many starts are compared
_TYPICAL = 0.25  # the quantile of all starts that stands for what is reached without a search
_STATES = 12  # copies of the states at all steps: roll-outs, adjoints, learning curves
_PAIRS = 150  # copies of the free controls: the memory of the quasi-Newton method and its model
_MOVES = 80  # numbers for each change of a task that is listed


class Found(NamedTuple):
    """Controls with their value and, for relaxed ones, Pontryagin's residual."""

    controls: Controls
    value: float
    residual: float = np.inf


class Start(NamedTuple):
    """A protocol to begin from, and its controls on the fine grid, one task per step if free."""

    protocol: Protocol
    found: Found
    strategy: bool


class Search:
    """What `solve` has found so far; a solver improves on it.

    problem; free_tasks, free_lr: what may change. fine, coarse: the objective on the problem's
    steps and on few. starts: where to begin, after `begin`. values: those reached from the starts.
    best: the best plan. relaxed: the relaxed plan, where there is one. scope: "global" if every
    protocol was tried.
    """

    def __init__(
        self, problem: Problem, start: Protocol | None, max_gradients: int, meter: Meter
    ) -> None:
        self.problem, self.given, self.meter = problem, start, meter
        self.free_tasks = problem.control.tasks and problem.model.tasks > 1
        lr = problem.control.lr
        self.free_lr = lr is not None and lr[0] < lr[1]
        self._check_memory()
        self.fine = Objective(problem, problem.steps)
        # Given tasks may change at every step, which a coarse grid would blur.
        few = self.free_tasks and problem.steps > _COARSE
        self.coarse = Objective(problem, _COARSE, 1e-5, self.fine.counts) if few else self.fine
        self.counts = self.fine.counts
        self.counts.max_gradients = max_gradients
        self.values: list[float] = []
        self.starts: list[Start] = []
        self.relaxed: Found | None = None
        self.scope: Literal["local", "global"] = "local"
        self._best: Found | None = None
        self._references: Floats = np.zeros(0)

    def _check_memory(self) -> None:
        """Refuse a problem for which there is no room."""
        steps, tasks, size = self.problem.steps, self.problem.model.tasks, self.problem.state.size
        free = tasks * (self.free_tasks + self.free_lr)
        memory.require(
            f"`solve` with `steps` = {steps} and a state of {size} numbers",
            steps * (_STATES * size + _PAIRS * free + _MOVES * tasks * self.free_tasks),
        )

    # Beginning

    def begin(self, starts: int = 0, seed: int = 0, *, alone: bool = False) -> None:
        """Take the given start, all strategies that keep to the controls, and random ones.

        With a given start and no random ones, that start alone; with `alone`, that or interleaved.
        """
        first = interleaved(self.problem) if self.given is None else self._accepted(self.given)
        for protocol, strategy in [(first, False)] if alone else self._protocols(starts, seed):
            found = self.offer(self.rounded(on_grid(protocol, self.problem.steps)))
            self.starts.append(Start(protocol, found, strategy))
            self.meter.advance(0, note=f"start {len(self.starts)}")
        if self._best is None:
            evaluate(self.problem, self.starts[0].protocol, throw=False)  # or a wrong model
            raise IntegrationError(
                f"every start diverges at learning rate {self.problem.lr:g}: try a smaller `lr`"
            )
        values = [self.fine.value(controls) for controls in self._plain()]
        if self.free_tasks:  # else all starts are strategies that have searched for their rates
            values += [start.found.value for start in self.starts]
        self._references = np.array([value for value in values if np.isfinite(value)])

    def _protocols(self, count: int, seed: int) -> Iterator[tuple[Protocol, bool]]:
        """Yield all starts, and whether each is a strategy."""
        problem = self.problem
        if self.given is not None:
            yield self._accepted(self.given), False
            if count == 0:
                return
        if self.free_tasks:
            for strategy in STRATEGIES.values():
                if self.free_lr or not strategy.turns:
                    yield from self._made(strategy)
            rng = np.random.default_rng(seed)
            for _ in range(count):
                rows = rng.dirichlet(np.ones(problem.model.tasks), size=self.coarse.steps)
                yield Protocol(rows, problem.duration, problem.lr), False
            return
        given = interleaved(problem) if self.given is None else self.given
        if self.given is None:
            yield given, True
        for strategy in STRATEGIES.values():
            if self.free_lr and strategy.turns:
                yield from self._made(strategy, protocol=given)

    def _made(self, strategy: Strategy, **settings: Protocol) -> Iterator[tuple[Protocol, bool]]:
        """Yield the start that a strategy makes; one of the user's that fails is left out."""
        try:
            made = strategy(self.problem, **settings, **self._watched(strategy))
            yield self._accepted(made), True
        except IntegrationError:  # its learning rate is too large: others may work
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
        """Return a given start; refuse one with learning rates that the problem does not allow."""
        low, high = self.problem.control.lr or (self.problem.lr, self.problem.lr)
        self.problem.accept(start, "start")
        if start.lr.min() < low * (1 - 1e-9) or start.lr.max() > high * (1 + 1e-9):
            raise ValueError(
                f"`start` expects learning rates from {low:g} to {high:g}, got {start.lr_text()}"
            )
        return start

    def _plain(self) -> Iterator[Controls]:
        """Yield equal shares and each task alone, at the problem's rate and those of its range.

        Where tasks are not free, their shares are the given ones.
        """
        steps, tasks = self.problem.steps, self.problem.model.tasks
        rows = [np.full(tasks, 1 / tasks), *np.eye(tasks)]
        shares = [np.tile(row, (steps, 1)) for row in rows]
        if not self.free_tasks:
            shares = [self.starts[0].found.controls.shares]
        rates = {self.problem.lr}
        if self.free_lr and self.problem.control.lr is not None:
            low, high = self.problem.control.lr
            rates |= {low, (low + high) / 2, high}
        for each, rate in product(shares, sorted(rates)):
            yield Controls(each, np.full((steps, tasks), rate))

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
        floor = max(RTOL * trained, 1e-15 * abs(best))
        return max(tolerance * float(typical), floor) if np.isfinite(typical) else floor

    def resolve(self, tolerance: float) -> bool:
        """Make the fine grid's integrator accurate enough for the best plan.

        Return whether it was not: then the values and what is left to gain were inaccurate.
        """
        if not self.fine.resolve(self.best.controls, error=self.enough(tolerance) / 2):
            return False
        self._best = self.best._replace(value=self.fine.value(self.best.controls))
        return True

    def rounded(self, controls: Controls, patience: float = 0.0) -> Controls:
        """Return controls with one task per step within the limits, if tasks are free."""
        if not self.free_tasks:
            return controls
        return controls.with_tasks(nearest(controls.shares, self.problem.step_limits, patience))

    def offer(self, controls: Controls) -> Found:
        """Keep controls if they are the best so far; return them with their value."""
        if self.free_tasks and not (
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
            shares, lr = descent.controls
            found = on_grid(Protocol(shares, self.problem.duration, lr), self.problem.steps)
            self.offer(self.rounded(found))


def on_grid(protocol: Protocol, steps: int) -> Controls:
    """Return the mean shares and learning rates of a protocol on equal steps."""
    edges = np.linspace(0.0, protocol.duration, steps + 1)
    if protocol.steps == steps and np.allclose(protocol.edges, edges, rtol=1e-12):
        return Controls(protocol.shares, protocol.lr_by_task)

    def means(rates: Floats) -> Floats:
        sums = np.vstack(
            [np.zeros(rates.shape[1]), np.cumsum(rates.T * protocol.lengths, axis=1).T]
        )
        at = np.stack([np.interp(edges, protocol.edges, column) for column in sums.T], axis=1)
        found = np.diff(at, axis=0) / np.diff(edges)[:, None]
        return np.where(np.ptp(rates, axis=0) == 0, rates[0], found)  # without rounding errors

    shares = means(protocol.shares)
    return Controls(shares / shares.sum(axis=1, keepdims=True), means(protocol.lr_by_task))
