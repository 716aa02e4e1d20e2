"""The paper's forward-backward sweep: Pontryagin's condition, iterated, with damping."""

from __future__ import annotations

import numpy as np

from replan.check import Floats
from replan.control.objective import Controls, DiscretisedObjective, Gradient
from replan.control.solver import Descent


class ForwardBackwardDescent(Descent):
    """Forward, backward, then towards the controls with the smallest Hamiltonian at every step.

    Undamped (`damping` = 1, as printed) the sweep falls into cycles. It stops where the controls
    return to earlier ones (`cycled`), where they agree with those chosen (`met`), or where the
    first of them diverge; later ones that do are moved halfway back. The best iterate is kept.
    Tasks are chosen of those that are there; limits do not enter.
    """

    def __init__(
        self,
        objective: DiscretisedObjective,
        start: Controls,
        *,
        free_tasks: bool,
        damping: float,
    ) -> None:
        self.objective, self.damping, self.free_tasks = objective, damping, free_tasks
        self.controls, self.value = start, np.inf
        self.met = self.cycled = self.diverged = False
        self._current = start
        self._sweeps = 0
        self._seen: dict[bytes, int] = {}  # controls, and the last sweep that began from them

    def terminate(self) -> bool:
        """Whether the controls have settled, cycle or diverge."""
        return self.met or self.cycled or self.diverged

    def step(self) -> None:
        """Make one sweep."""
        now = self._current
        found = self.objective.gradient(now)
        if found.value == np.inf:
            self.diverged = self.value == np.inf
            self._current = _mixed(now, self.controls, 0.5)
            return
        if found.value < self.value:
            self.controls, self.value = now, found.value
        aim = self._least(found)
        self.met = all(np.allclose(a, b, atol=1e-6) for a, b in zip(aim, now, strict=True))
        key = np.round(np.concatenate(now, axis=1), 6).tobytes()
        self._sweeps += 1
        # controls that hardly move any longer settle; those that come back do not
        self.cycled = not self.met and self._seen.get(key, self._sweeps) < self._sweeps - 1
        self._seen[key] = self._sweeps
        self._current = _mixed(now, aim, self.damping)

    def _least(self, found: Gradient) -> Controls:
        """Return the controls that make the Hamiltonian smallest at every step.

        Knobs are chosen one after another, each with the others as they are by then.
        """
        hamiltonians, aim = found.by_shares, self._current
        low, high = self.objective.problem.knob_ranges
        for columns in self.objective.model.layout.columns.values():
            if low[columns.start] < high[columns.start]:
                hamiltonians, aim = self._least_over(found, aim, columns)
        if self.free_tasks:
            there = self.objective.problem.step_limits.available
            aim = aim.with_tasks(np.argmin(np.where(there, hamiltonians, np.inf), axis=1))
        return aim

    def _least_over(
        self, found: Gradient, controls: Controls, columns: slice
    ) -> tuple[Floats, Controls]:
        """Return the smallest Hamiltonian (steps, T) over one knob, and controls with that knob.

        Each Hamiltonian is the change that one step makes to the objective through the adjoint
        after it. For the learning rate of SGD it is a parabola a η² + b η + c (up to the order of
        the step), known from three values; its minimum is at −b/2a within the range where a > 0,
        else at one of the ends. (Paper's optimal η, its sign and range corrected.) For other knobs
        the parabola is an approximation. A knob that all tasks share suits the shares in force.
        """
        low, high = (ends[columns.start] for ends in self.objective.problem.knob_ranges)
        values = np.array([low, (low + high) / 2, high])
        changes = np.stack([self._changes(found, controls, columns, value) for value in values])
        one = columns.stop - columns.start == 1
        parts = np.sum(controls.shares * changes, axis=2)[..., None] if one else changes
        best = _bottom(*parts)
        knobs = controls.knobs.copy()
        knobs[:, columns] = low + (high - low) * best
        return _at(best, *changes), Controls(controls.shares, knobs)

    def _changes(self, found: Gradient, controls: Controls, columns: slice, value: float) -> Floats:
        """Return what each step does to the objective (steps, T) with one task and one value."""
        pieces, members = self.objective.pieces, self.objective.members
        steps, tasks = controls.shares.shape
        changes = np.empty((steps, tasks))
        knobs = controls.knobs.copy()
        knobs[:, columns] = value
        for t in range(tasks):
            alone = Controls(np.eye(tasks)[np.full(steps, t)], knobs)
            for i in range(steps):
                state, after = found.states[i * pieces], found.adjoints[(i + 1) * pieces]
                ends = self.objective.roll_out(alone, i, i + 1, state)
                if len(ends) <= pieces:
                    changes[i, t] = np.inf
                    continue
                changes[i, t] = after @ (ends[-1] - state)
                if pieces > 1:  # running costs at the middle of the step
                    middle = found.mixture.of(members.losses_each(ends[1]))
                    changes[i, t] += middle @ self.objective.along[2 * i + 1]
        return changes


def _bottom(first: Floats, middle: Floats, last: Floats) -> Floats:
    """Return where, from 0 to 1, the parabola through three values at 0, ½ and 1 is smallest.

    Where the last one is infinite, the better of the other two.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        a, b = 2 * (first + last - 2 * middle), 4 * middle - 3 * first - last
        best = np.where(a > 0, np.clip(-b / (2 * a), 0.0, 1.0), last < first)
        return np.where(np.isfinite(last), best, 0.5 * (middle < first))


def _at(part: Floats, first: Floats, middle: Floats, last: Floats) -> Floats:
    """Return the values of the parabola at a part of the range."""
    with np.errstate(invalid="ignore"):
        a, b = 2 * (first + last - 2 * middle), 4 * middle - 3 * first - last
        return np.where(
            np.isfinite(last), first + b * part + a * part**2, np.minimum(first, middle)
        )


def _mixed(now: Controls, aim: Controls, part: float) -> Controls:
    """Return controls moved part of the way towards others."""
    return Controls(*((1 - part) * a + part * b for a, b in zip(now, aim, strict=True)))
