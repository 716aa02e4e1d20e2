"""solve(problem) → Plan: several starts, a coarse grid first, then relax, round and polish."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from replan import check
from replan.check import Floats
from replan.control.exhaustive import Exhaustive
from replan.control.flips import Flips
from replan.control.objective import Controls, LimitError, Objective
from replan.control.plan import Certificate, Plan, Status
from replan.control.relax import Relax
from replan.control.sweep import Sweep
from replan.dynamics import IntegrationError
from replan.interrupt import interrupted
from replan.problem import Problem
from replan.protocol import Protocol
from replan.strategies import STRATEGIES, interleaved
from replan.trajectory import evaluate

METHODS = ("relax", "flips", "sweep", "exhaustive")

Watch = Callable[[float, int], None]

_COARSE = 32  # steps on which many starts are compared
_RESIDUAL = 3e-4  # of the value: what a relaxed plan may leave on the table to first order


def solve(
    problem: Problem,
    *,
    method: str = "relax",
    start: Protocol | None = None,
    starts: int = 6,
    seed: int = 0,
    max_gradients: int = 5000,
    watch: Watch | None = None,
) -> Plan:
    """Return the best protocol found for a problem, with a certificate.

    **Main arguments**

    - `problem`: what to minimise, and what may be controlled.

    **Other arguments**

    - `method`: "relax" (the relaxed problem from several starts, rounded and polished), "flips"
      (the discrete polish alone), "sweep" (the paper's forward-backward sweep, damped) or
      "exhaustive" (every protocol; coarse grids only).
    - `start`: a protocol to begin from as well; where tasks are not controlled, the tasks.
    - `starts`: random starts besides the strategies. `seed`: of those.
    - `max_gradients`: how many gradients may be computed.
    - `watch`: called with the best value so far and the gradients used, now and then.

    Ctrl-C ends the search: the best plan so far is returned with the status "stopped".
    """
    check.one_of("method", method, METHODS)
    starts = check.integer("starts", starts)
    seed = check.integer("seed", seed)
    max_gradients = check.integer("max_gradients", max_gradients, at_least=1)
    search = _Search(problem, start, starts, seed, max_gradients, watch)
    begin = time.perf_counter()
    try:
        status = getattr(search, method)()
    except LimitError:
        status = "limit"
    except (KeyboardInterrupt, SystemError) as error:
        if not interrupted(error):
            raise
        status = "stopped"
    statistics = {
        "method": method,
        "seed": seed,
        "starts": len(search.values),
        "gradients": sum(grid.gradients for grid in {search.fine, search.coarse}),
        "roll_outs": sum(grid.roll_outs for grid in {search.fine, search.coarse}),
        "seconds": time.perf_counter() - begin,
    }
    return search.plan(status, statistics)


class _Relaxed(NamedTuple):
    controls: Controls
    value: float
    residual: float


class _Search:
    """What a solve has found so far; each method improves on it and returns a status."""

    def __init__(
        self,
        problem: Problem,
        start: Protocol | None,
        starts: int,
        seed: int,
        max_gradients: int,
        watch: Watch | None,
    ) -> None:
        self.problem, self.watch = problem, watch
        self.free_tasks = problem.control.tasks and problem.model.tasks > 1
        self.free_lr = (
            problem.control.lr is not None and problem.control.lr[0] < problem.control.lr[1]
        )
        self.fine = Objective(problem, problem.steps, max_gradients)
        # Given tasks may change at every step, which a coarse grid would blur.
        few = self.free_tasks and problem.steps > _COARSE
        self.coarse = Objective(problem, _COARSE, max_gradients) if few else self.fine
        self.values: list[float] = []
        self.relaxed = _Relaxed(Controls(np.empty(0), np.empty(0)), np.inf, np.inf)
        self.scope: Any = "local"
        self.protocols = self._starts(start, starts, np.random.default_rng(seed))
        self.best, self.value = on_grid(self.protocols[0], problem.steps), np.inf
        for protocol in self.protocols:
            self._offer(self._rounded(on_grid(protocol, problem.steps)))
        if self.value == np.inf:
            raise IntegrationError(
                f"every start diverges at learning rate {problem.lr:g}: try a smaller `lr`"
            )

    def _starts(
        self, start: Protocol | None, count: int, rng: np.random.Generator
    ) -> list[Protocol]:
        """Return the given start, all strategies that keep to the controls, and random ones."""
        problem = self.problem
        if not self.free_tasks:
            given = interleaved(problem) if start is None else problem.accept(start)
            names = [name for name in STRATEGIES if name.endswith("-lr")] if self.free_lr else []
            return [given] + [STRATEGIES[name](problem, protocol=given) for name in names]
        protocols = [] if start is None else [problem.accept(start)]
        for name, strategy in STRATEGIES.items():
            if self.free_lr or not name.endswith("-lr"):
                try:
                    protocols.append(strategy(problem))
                except IntegrationError:  # its learning rate is too large: others may do
                    continue
        tasks = problem.model.tasks
        for _ in range(count):
            rows = rng.dirichlet(np.ones(tasks), size=self.coarse.steps)
            protocols.append(Protocol(rows, problem.duration, problem.lr))
        return protocols

    def _rounded(self, controls: Controls) -> Controls:
        if not self.free_tasks:
            return controls
        from replan.rounding import sum_up

        return controls.with_tasks(sum_up(controls.shares, self.fine.lengths))

    def _offer(self, controls: Controls) -> None:
        value = self.fine.value(controls)
        if value < self.value:
            self.best, self.value = controls, value

    def _descend(self, solver: Any, most: int, residual: float = 0.0) -> None:
        """Step a solver until it stalls, or leaves less than `residual` of its value to gain."""
        for _ in range(most):
            if solver.stalled or (residual and solver.residual <= residual * abs(solver.value)):
                return
            solver.step()
            if self.watch is not None:
                used = sum(grid.gradients for grid in {self.fine, self.coarse})
                self.watch(min(self.value, solver.value), used)

    # The methods

    def relax(self) -> Status:
        """Relax from all starts on a coarse grid and from the best on the fine one; then polish."""
        free = {"free_tasks": self.free_tasks, "free_lr": self.free_lr}
        if not any(free.values()) or self.value < 1e-14:  # nothing to choose, or nothing to gain
            return "converged"
        found: list[tuple[float, Controls]] = []
        for protocol in self.protocols:
            solver = Relax(self.coarse, on_grid(protocol, self.coarse.steps), **free)
            self._descend(solver, 60, residual=1e-2)
            found.append((solver.value, solver.controls))
            self.values.append(solver.value)
        _, controls = min(found, key=lambda pair: pair[0])
        best = Protocol(controls.shares, self.problem.duration, controls.lr)
        self._relax_fine(on_grid(best, self.problem.steps))
        self._polish(_fill_lr(self.relaxed.controls))
        if self.value < self.relaxed.value:  # the plan is one of the relaxed problem too
            self._relax_fine(self.best)
        good = self.relaxed.residual <= 10 * _RESIDUAL * abs(self.relaxed.value)
        return "converged" if good else "stalled"

    def _relax_fine(self, start: Controls) -> None:
        solver = Relax(self.fine, start, free_tasks=self.free_tasks, free_lr=self.free_lr)
        self._descend(solver, 300, residual=_RESIDUAL)
        self.relaxed = _Relaxed(solver.controls, solver.value, solver.residual)

    def _polish(self, controls: Controls) -> None:
        """Round relaxed controls, then improve tasks and learning rates in turn."""
        if not self.free_tasks:
            return self._offer(controls)
        self._offer(self._rounded(controls))
        for _ in range(3):
            before = self.value
            tasks = Flips(self.fine, self.best)
            self._descend(tasks, 30)
            self._offer(tasks.controls)
            if not self.free_lr:
                return None
            rates = Relax(self.fine, self.best, free_tasks=False, free_lr=True)
            self._descend(rates, 40, residual=_RESIDUAL)
            self._offer(rates.controls)
            if before - self.value < 1e-5 * self.value:
                return None
        return None

    def flips(self) -> Status:
        """Polish every start."""
        for protocol in self.protocols:
            solver = Flips(self.fine, self._rounded(on_grid(protocol, self.problem.steps)))
            self._descend(solver, 100)
            self.values.append(solver.value)
            self._offer(solver.controls)
        return "converged"

    def sweep(self) -> Status:
        """Run the paper's sweep from the first start."""
        if not self.free_tasks or self.free_lr:
            raise ValueError("`method` takes 'sweep' where the tasks alone are controlled")
        solver = Sweep(self.fine, on_grid(self.protocols[0], self.problem.steps))
        self._descend(solver, 500)
        self._offer(self._rounded(solver.controls))
        return "converged" if solver.met else "stalled"

    def exhaustive(self) -> Status:
        """Try every protocol."""
        if not self.free_tasks or self.free_lr:
            raise ValueError("`method` takes 'exhaustive' where the tasks alone are controlled")
        solver = Exhaustive(self.fine, self.best)
        self._descend(solver, solver.tasks**4)
        self._offer(solver.controls)
        self.scope = "global"
        return "converged"

    # The result

    def plan(self, status: Status, statistics: dict[str, Any]) -> Plan:
        """Return the best plan, evaluated on a fine integrator."""
        problem, best = self.problem, self.best
        self.fine.max_gradients = self.fine.gradients + 1
        final = self.fine.gradient(best)
        protocol = self._protocol(best)
        trajectory = evaluate(problem, protocol)
        relaxed, residual = protocol, _residual(best, final.by_shares)
        relaxed_value = trajectory.loss
        if np.isfinite(self.relaxed.value):
            relaxed = Protocol(
                self.relaxed.controls.shares, problem.duration, self.relaxed.controls.lr
            )
            relaxed_value, residual = evaluate(problem, relaxed).loss, self.relaxed.residual
        values = np.array(self.values or [trajectory.loss])
        certificate = Certificate(
            value=trajectory.loss,
            relaxed_value=relaxed_value,
            integrality_gap=trajectory.loss - relaxed_value,
            pmp_residual=residual,
            discretisation_error=abs(final.value - trajectory.loss),
            switches=int(np.sum(np.any(np.diff(protocol.shares, axis=0) != 0, axis=1))),
            multistart_spread=float(np.ptp(values) / max(values.min(), 1e-300)),
            scope=self.scope,
        )
        hamiltonians = final.by_shares / self.fine.lengths[:, None]
        return Plan(
            problem, protocol, trajectory, relaxed, hamiltonians, final.adjoints, certificate,
            status, statistics,
        )  # fmt: skip

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


def _fill_lr(controls: Controls) -> Controls:
    """Give tasks without a share at a step the learning rate of their nearest steps with one."""
    lr = controls.lr.copy()
    steps = np.arange(len(lr))
    for t in range(lr.shape[1]):
        used = controls.shares[:, t] > 1e-3
        if used.any():
            lr[:, t] = np.interp(steps, steps[used], lr[used, t])
    return Controls(controls.shares, lr)


def _residual(controls: Controls, by_shares: Floats) -> float:
    """Pontryagin's residual of controls: Σ over steps of Σ_t s_t Φ_t − min_t Φ_t."""
    return float(np.sum(np.sum(controls.shares * by_shares, axis=1) - by_shares.min(axis=1)))
