"""ForwardBackward: the paper's sweep, Pontryagin's condition iterated with damping; a baseline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from replan import check
from replan.check import Floats
from replan.control.discretised import Controls, DiscretisedObjective, Gradient
from replan.control.grids import on_grid
from replan.control.plan import Status
from replan.control.search import Descent, Search, Solver
from replan.errors import ArgumentError

_DIGITS = 6  # to which controls are compared: those that agree have settled, or come back


@dataclass(frozen=True)
class ForwardBackward(Solver):
    """Sweep forwards and backwards, and move towards the smallest Hamiltonian at every step.

    - `damping`: how far to move; 1 is the paper's sweep as printed, which falls into cycles.
    - `sweeps`: the largest number of sweeps.

    It begins from the first protocol given to `solve`, or from equal shares.

    Examples:
        >>> replan.solve(problem, replan.ForwardBackward(damping=1.0)).status  # as printed
        'cycled'
    """

    damping: float = 0.1
    sweeps: int = 500
    method: ClassVar[str] = "forward-backward"
    advice: ClassVar[dict[Status, str]] = {
        "stalled": "the sweep did not settle: try more `sweeps`, or the solver Relax",
        "cycled": "the sweep repeats itself: try a smaller `damping`, or the solver Relax",
    }

    def __post_init__(self) -> None:
        check.number("damping", self.damping, above=0, at_most=1)
        check.integer("sweeps", self.sweeps, at_least=1)

    def run(self, search: Search) -> Status:
        """Sweep until the controls settle, cycle or diverge."""
        if search.problem.control.ties:
            raise ArgumentError(
                "solver",
                "one such as Relax() that keeps controls constant or shared",
                "ForwardBackward(), which chooses each at every step and for every task",
            )
        search.seed(only=search.first_protocol)
        start = on_grid(search.problem, search.first_protocol, search.problem.steps)
        sweep = Sweep(search.fine, start, search.free_tasks, self.damping)
        search.descend(sweep, self.sweeps)
        return "converged" if sweep.met else "cycled" if sweep.cycled else "stalled"


class Sweep(Descent):
    """Forward, backward, then towards the controls with the smallest Hamiltonian at every step.

    It stops where the controls return to earlier ones (`cycled`), where they agree with those
    aimed at (`met`), or where the first of them diverge; later ones that do are moved halfway back.
    The best iterate is kept. Only available tasks are chosen; other limits do not enter.
    """

    def __init__(
        self, objective: DiscretisedObjective, start: Controls, free_tasks: bool, damping: float
    ) -> None:
        self._objective, self._damping, self._free_tasks = objective, damping, free_tasks
        self.controls, self.value = start, np.inf
        self.met = self.cycled = self._diverged = False
        self._current = start
        self._sweeps = 0
        self._last_sweep: dict[bytes, int] = {}  # that began from some controls

    def terminate(self) -> bool:
        """Whether the controls have settled, cycle or diverge."""
        return self.met or self.cycled or self._diverged

    def step(self) -> None:
        """Make one sweep."""
        current = self._current
        gradient = self._objective.gradient(current)
        if gradient.value == np.inf:
            self._diverged = self.value == np.inf
            self._current = _between(current, self.controls, 0.5)
            return
        if gradient.value < self.value:
            self.controls, self.value = current, gradient.value
        aim = self._aim(gradient)
        self.met = all(
            np.allclose(a, b, atol=10.0**-_DIGITS) for a, b in zip(aim, current, strict=True)
        )
        key = np.round(np.concatenate(current, axis=1), _DIGITS).tobytes()
        self._sweeps += 1
        # Controls that hardly move are about to settle; those that come back later are not.
        self.cycled = not self.met and self._last_sweep.get(key, np.inf) < self._sweeps - 1
        self._last_sweep[key] = self._sweeps
        self._current = _between(current, aim, self._damping)

    def _aim(self, gradient: Gradient) -> Controls:
        """Return the controls with the smallest Hamiltonian at every step.

        Knobs are chosen one after another, each with the others as they are by then.
        """
        hamiltonians, aim = gradient.by_shares, self._current
        low, high = self._objective.problem.knob_ranges
        for columns in self._objective.model.layout.columns.values():
            if low[columns.start] < high[columns.start]:
                hamiltonians, aim = self._minimise_knob(gradient, aim, columns)
        if self._free_tasks:
            available = self._objective.problem.step_limits.available
            aim = aim.with_tasks(np.argmin(np.where(available, hamiltonians, np.inf), axis=1))
        return aim

    def _minimise_knob(
        self, gradient: Gradient, controls: Controls, columns: slice
    ) -> tuple[Floats, Controls]:
        """Return the smallest Hamiltonian (steps, T) over one knob, and controls with that knob.

        Each Hamiltonian is the change that one step makes to the objective through the adjoint
        after it. For the learning rate of SGD it is a parabola a η² + b η + c (up to the order of
        the step), known from three values; its minimum is at −b/2a within the range where a > 0,
        else at one of the ends. (Paper's optimal η, its sign and range corrected.) For other knobs
        the parabola is an approximation. A knob that all tasks share suits the present shares.
        """
        low, high = (ends[columns.start] for ends in self._objective.problem.knob_ranges)
        values = (low, (low + high) / 2, high)
        changes = np.stack([self._changes(gradient, controls, columns, x) for x in values])
        per_task = columns.stop - columns.start > 1
        curves = changes if per_task else np.sum(controls.shares * changes, axis=2)[..., None]
        best = _bottom(*curves)
        knobs = controls.knobs.copy()
        knobs[:, columns] = low + (high - low) * best
        return _parabola(best, *changes), Controls(controls.shares, knobs)

    def _changes(
        self, gradient: Gradient, controls: Controls, columns: slice, value: float
    ) -> Floats:
        """Return how each step on one task, with one value of a knob, changes the objective.

        The result is (steps, T), infinite where a step diverges.
        """
        objective, pieces = self._objective, self._objective.pieces
        steps, tasks = controls.shares.shape
        changes = np.full((steps, tasks), np.inf)
        knobs = controls.knobs.copy()
        knobs[:, columns] = value
        weights = objective.loss_weights
        for t in range(tasks):
            alone = Controls(np.eye(tasks)[np.full(steps, t)], knobs)
            for i in range(steps):
                state, adjoint = gradient.states[i * pieces], gradient.adjoints[(i + 1) * pieces]
                states = objective.roll_out(alone, i, i + 1, state)
                if len(states) <= pieces:
                    continue
                changes[i, t] = adjoint @ (states[-1] - state)
                if objective.averages:  # losses within the step
                    losses = objective.members.losses_each(states[1:-1])
                    within = gradient.surrogate.mixture.average(losses)
                    changes[i, t] += np.sum(within * weights[i * pieces + 1 : (i + 1) * pieces])
        return changes


def _bottom(first: Floats, middle: Floats, last: Floats) -> Floats:
    """Return where, from 0 to 1, the parabola through three values at 0, ½ and 1 is smallest.

    Where the last value is infinite, the better of the other two.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        a, b = 2 * (first + last - 2 * middle), 4 * middle - 3 * first - last
        best = np.where(a > 0, np.clip(-b / (2 * a), 0.0, 1.0), last < first)
        return np.where(np.isfinite(last), best, 0.5 * (middle < first))


def _parabola(at: Floats, first: Floats, middle: Floats, last: Floats) -> Floats:
    """Return the values of these parabolas at points from 0 to 1."""
    with np.errstate(invalid="ignore"):
        a, b = 2 * (first + last - 2 * middle), 4 * middle - 3 * first - last
        return np.where(np.isfinite(last), first + b * at + a * at**2, np.minimum(first, middle))


def _between(start: Controls, end: Controls, fraction: float) -> Controls:
    """Return controls moved a fraction of the way from one to another."""
    return Controls(*((1 - fraction) * a + fraction * b for a, b in zip(start, end, strict=True)))
