"""The search behind `solve`: many starts on a coarse grid, then relax, round and polish."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from replan._common.check import Floats
from replan.control._discrete import nearest
from replan.control._objective import Controls, Objective
from replan.control._solver import Solver
from replan.control.exhaustive import Exhaustive
from replan.control.flips import Flips
from replan.control.forward_backward import Sweep
from replan.control.plan import Certificate, Plan, Status
from replan.control.relax import Relax, budgets, least
from replan.dynamics import IntegrationError
from replan.problem import Problem
from replan.protocol import Protocol
from replan.strategies import STRATEGIES, focus_then_revise, interleaved
from replan.trajectory import evaluate

_COARSE = 32  # steps on which many starts are compared
_ALIKE = 0.15  # largest difference between starts that count as one, of shares or the lr's range
_DESCENTS = 3  # strategies, the best ones, from which the relaxed problem is solved
_TOLERANCE = 5e-4  # of the value: what a relaxed plan may leave on the table to first order
_ROUGH = 1e-2  # the same on the coarse grid
_PATIENCES = 6  # ways to round the relaxed plan with fewer and fewer switches
_SAME = 1e-3  # relative difference of values on the coarse grid that does not tell optima apart


class _Found(NamedTuple):
    controls: Controls
    value: float
    residual: float = np.inf


class _Start(NamedTuple):
    protocol: Protocol
    found: _Found  # on the fine grid, with one task a step where tasks are free
    strategy: bool


class Search:
    """What a solve has found so far; each method improves on it and returns a status."""

    def __init__(
        self,
        problem: Problem,
        seed: int,
        max_gradients: int,
        watch: Callable[[float, int], None] | None,
    ) -> None:
        self.problem, self.watch = problem, watch
        self.rng = np.random.default_rng(seed)
        self.free_tasks = problem.control.tasks and problem.model.tasks > 1
        lr = problem.control.lr
        self.free_lr = lr is not None and lr[0] < lr[1]
        self.fine = Objective(problem, problem.steps, max_gradients)
        # Given tasks may change at every step, which a coarse grid would blur.
        few = self.free_tasks and problem.steps > _COARSE
        self.coarse = Objective(problem, _COARSE, max_gradients, 1e-3) if few else self.fine
        self.values: list[float] = []  # that the starts came to
        self.starts: list[_Start] = []
        self.best: _Found | None = None
        self.relaxed: _Found | None = None
        self.scope: Any = "local"

    def begin(self, start: Protocol | None, count: int) -> None:
        """Take the given start, all strategies that keep to the controls, and random ones."""
        for protocol, strategy in self._protocols(start, count):
            found = self._offer(self._rounded(on_grid(protocol, self.problem.steps)))
            self.starts.append(_Start(protocol, found, strategy))
        if self.best is None:
            raise IntegrationError(
                f"every start diverges at learning rate {self.problem.lr:g}: try a smaller `lr`"
            )

    def _protocols(self, start: Protocol | None, count: int) -> Iterator[tuple[Protocol, bool]]:
        """Yield all starts, and whether each is a strategy."""
        problem = self.problem
        if start is not None:
            yield self._accept(start), False
        if not self.free_tasks:
            given = interleaved(problem) if start is None else start
            if start is None:
                yield given, True
            for name in [name for name in STRATEGIES if name.endswith("-lr")] * self.free_lr:
                yield STRATEGIES[name](problem, protocol=given), True
            return
        settings: dict[str, dict[str, Any]] = {name: {} for name in STRATEGIES}
        for name, strategy in STRATEGIES.items():
            if self.free_lr or not name.endswith("-lr"):
                try:
                    protocol = strategy(problem, **settings[name])
                except IntegrationError:  # its learning rate is too large: others may do
                    continue
                if strategy is focus_then_revise:  # which `shuffled` would work out again
                    settings["shuffled"] = {"protocol": protocol}
                yield protocol, True
        for _ in range(count):
            rows = self.rng.dirichlet(np.ones(problem.model.tasks), size=self.coarse.steps)
            yield Protocol(rows, problem.duration, problem.lr), False

    def _accept(self, start: Protocol) -> Protocol:
        """Return a given start; refuse one with learning rates that the problem does not allow."""
        low, high = self.problem.control.lr or (self.problem.lr, self.problem.lr)
        self.problem.accept(start, "start")
        if start.lr.min() < low * (1 - 1e-9) or start.lr.max() > high * (1 + 1e-9):
            raise ValueError(
                f"`start` expects learning rates from {low:g} to {high:g}, got {start.lr_text()}"
            )
        return start

    def _rounded(self, controls: Controls, patience: float = 0.0) -> Controls:
        if not self.free_tasks:
            return controls
        return controls.with_tasks(nearest(controls.shares, self.problem.step_limits, patience))

    def _offer(self, controls: Controls) -> _Found:
        found = _Found(controls, self.fine.value(controls))
        if found.value < (np.inf if self.best is None else self.best.value):
            self.best = found
        return found

    def _best(self) -> _Found:
        assert self.best is not None
        return self.best

    def _descend(self, solver: Solver, most: int) -> None:
        for _ in range(most):
            if solver.terminate():
                return
            solver.step()
            if self.watch is not None:
                self.watch(min(self._best().value, solver.value), self._used("gradients"))

    def _used(self, what: str) -> int:
        return sum(getattr(grid, what) for grid in {self.fine, self.coarse})

    # The methods

    def relax(self) -> Status:
        """Relax from all starts on a coarse grid and from the best on the fine one; then polish."""
        if not (self.free_tasks or self.free_lr) or abs(self._best().value) < 1e-14:
            return "converged"  # nothing to choose, or nothing to gain
        solvers = []
        for controls in self._chosen_starts():
            solver = self._relax(self.coarse, controls, _ROUGH)
            self._descend(solver, 60)
            self.values.append(solver.value)
            solvers.append(solver)
        if self.coarse is not self.fine:
            self.fine.max_gradients -= self.coarse.gradients
        least_value = min(self.values)
        bound = least_value + _SAME * abs(least_value)
        same = [solver.controls for solver in solvers if solver.value <= bound]
        self._relax_fine(_refined(min(same, key=_roughness), self.problem.steps))
        assert self.relaxed is not None
        self._polish(_fill_lr(self.relaxed.controls))
        if self._best().value < self.relaxed.value:  # the plan is a relaxed one too, and better
            self._relax_fine(self._best().controls, _TOLERANCE / 10)
        good = self.relaxed.residual <= 10 * _TOLERANCE * abs(self.relaxed.value)
        return "converged" if good else "stalled"

    def _chosen_starts(self) -> list[Controls]:
        """Return given and random starts and the best strategies on the coarse grid.

        Starts that are nearly the same there count once.
        """
        low, high = self.problem.control.lr or (0.0, 0.0)
        width = max(high - low, 1e-300) if self.free_lr else np.inf
        chosen: list[Controls] = []
        strategies = 0
        for start in sorted(self.starts, key=lambda start: (start.strategy, start.found.value)):
            controls = on_grid(start.protocol, self.coarse.steps)
            new = all(
                np.abs(other.shares - controls.shares).max() > _ALIKE
                or np.abs(other.lr - controls.lr).max() > _ALIKE * width
                for other in chosen
            )
            if new and strategies < _DESCENTS:
                chosen.append(controls)
                strategies += start.strategy
        return chosen

    def _relax(self, grid: Objective, start: Controls, tolerance: float) -> Relax:
        return Relax(
            grid, start, free_tasks=self.free_tasks, free_lr=self.free_lr, tolerance=tolerance
        )

    def _relax_fine(self, start: Controls, tolerance: float = _TOLERANCE) -> None:
        solver = self._relax(self.fine, start, tolerance)
        self._descend(solver, 300)
        self.relaxed = _Found(solver.controls, solver.value, solver.residual)

    def _polish(self, controls: Controls) -> None:
        """Round relaxed controls, then improve tasks and learning rates in turn."""
        rounded = self._offer(self._rounded(controls))
        if not self.free_tasks:
            return
        self._flip(rounded.controls)
        if self.problem.step_limits.on_stays or self.coarse is self.fine:
            # with few switches or few steps the best protocol may be far from the relaxed one
            begins = [start.found.controls for start in self.starts]
            begins += [self._rounded(controls, 2.0**i) for i in range(_PATIENCES)]
            for controls in {begin.shares.tobytes(): begin for begin in begins}.values():
                self._flip(controls, tolerance=1e-6, failures=100)
        for _ in range(5 * self.free_lr):
            before = self._best().value
            rates = Relax(
                self.fine, self._best().controls,
                free_tasks=False, free_lr=True, tolerance=_TOLERANCE,
            )  # fmt: skip
            self._descend(rates, 40)
            self._offer(rates.controls)
            self._flip(self._best().controls)
            if before - self._best().value <= 1e-5 * abs(before):
                return

    def _flip(self, start: Controls, **settings: Any) -> Flips:
        solver = Flips(self.fine, start, **settings)
        try:
            self._descend(solver, 100)
        finally:  # an interrupt, or the limit of gradients, loses nothing
            self._offer(solver.controls)
        return solver

    def flips(self) -> Status:
        """Polish every start."""
        self.values = [self._flip(start.found.controls).value for start in self.starts]
        return "converged"

    def sweep(self) -> Status:
        """Run the paper's sweep from the first start."""
        start = on_grid(self.starts[0].protocol, self.problem.steps)
        solver = Sweep(self.fine, start, free_tasks=self.free_tasks, free_lr=self.free_lr)
        self._descend(solver, 500)
        self._offer(self._rounded(solver.controls))
        return "converged" if solver.met else "stalled"

    def exhaustive(self) -> Status:
        """Try every protocol."""
        if not self.free_tasks or self.free_lr:
            raise ValueError("`method` expects 'exhaustive' where the tasks alone are controlled")
        solver = Exhaustive(self.fine, self._best().controls)
        try:
            self._descend(solver, solver.tasks**4)
        finally:
            self._offer(solver.controls)
        self.scope = "global"
        return "converged"

    # The result

    def plan(self, status: Status, settings: dict[str, Any], seconds: float) -> Plan:
        """Return the best plan, evaluated on a fine integrator."""
        problem, best = self.problem, self._best().controls
        statistics = settings | {
            "starts": len(self.values),
            "gradients": self._used("gradients"),
            "roll_outs": self._used("roll_outs"),
            "seconds": seconds,
        }
        self.fine.max_gradients = self.fine.gradients + 1
        final = self.fine.gradient(best)
        protocol = self._protocol(best)
        trajectory = evaluate(problem, protocol)
        relaxed, relaxed_value, residual = protocol, None, self._residual(best, final.by_shares)
        if self.relaxed is not None:
            controls, _, residual = self.relaxed
            relaxed = Protocol(controls.shares, problem.duration, controls.lr)
            # the plan is a relaxed one too, should rounding errors make it the better of the two
            relaxed_value = min(evaluate(problem, relaxed, rtol=1e-7).loss, trajectory.loss)
        values = np.array(self.values or [trajectory.loss])
        certificate = Certificate(
            value=trajectory.loss,
            relaxed_value=relaxed_value,
            integrality_gap=None if relaxed_value is None else trajectory.loss - relaxed_value,
            pmp_residual=residual,
            discretisation_error=abs(final.value - trajectory.loss),
            switches=int(np.sum(np.any(np.diff(protocol.shares, axis=0) != 0, axis=1))),
            multistart_spread=float(np.ptp(values) / max(abs(values.min()), 1e-300)),
            scope=self.scope,
        )
        edges = slice(None, None, self.fine.pieces)
        return Plan(
            problem, protocol, trajectory, relaxed,
            final.by_shares / self.fine.lengths[:, None], final.adjoints[edges],
            certificate, status, statistics,
        )  # fmt: skip

    def _residual(self, controls: Controls, by_shares: Floats) -> float:
        """Pontryagin's residual of the shares, where they are free."""
        if not self.free_tasks:
            return 0.0
        domain = budgets(self.problem, len(by_shares))
        return float(np.sum(controls.shares * by_shares)) - least(by_shares, domain)

    def _protocol(self, controls: Controls) -> Protocol:
        """Return controls as a protocol, with one learning rate a step where one is enough."""
        lr = controls.lr
        if np.all(controls.shares.max(axis=1) == 1.0) or np.all(np.ptp(lr, axis=1) == 0):
            lr = np.sum(controls.shares * lr, axis=1)
        return Protocol(controls.shares, self.problem.duration, lr)


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
        return np.diff(at, axis=0) / np.diff(edges)[:, None]

    shares = means(protocol.shares)
    return Controls(shares / shares.sum(axis=1, keepdims=True), means(protocol.lr_by_task))


def _roughness(controls: Controls) -> float:
    """How much shares change from step to step: from smooth ones the fine grid converges faster."""
    return float(np.abs(np.diff(controls.shares, axis=0)).sum())


def _refined(controls: Controls, steps: int) -> Controls:
    """Return controls interpolated to more steps."""
    if len(controls.shares) == steps:
        return controls
    old = (np.arange(len(controls.shares)) + 0.5) / len(controls.shares)
    new = (np.arange(steps) + 0.5) / steps
    return Controls(
        *(np.stack([np.interp(new, old, column) for column in rows.T], axis=1) for rows in controls)
    )


def _fill_lr(controls: Controls) -> Controls:
    """Give tasks without a share at a step the learning rate of their nearest steps with one."""
    lr = controls.lr.copy()
    steps = np.arange(len(lr))
    for t in range(lr.shape[1]):
        used = controls.shares[:, t] > 1e-3
        if used.any():
            lr[:, t] = np.interp(steps, steps[used], lr[used, t])
    return Controls(controls.shares, lr)
