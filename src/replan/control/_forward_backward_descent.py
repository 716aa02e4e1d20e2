"""The paper's forward-backward sweep: Pontryagin's condition, iterated, with damping."""

from __future__ import annotations

import numpy as np

from replan._common.check import Floats
from replan.control._objective import Controls, Gradient, Objective
from replan.control._solver import Descent


class ForwardBackwardDescent(Descent):
    """Forward, backward, then towards the controls with the smallest Hamiltonian at every step.

    Undamped (`damping` = 1, as printed) the sweep falls into cycles. It stops where the controls
    return to earlier ones (`cycled`), where they agree with those chosen (`met`), or where the
    first of them diverge; later ones that do are moved halfway back. The best iterate is kept.
    Limits do not enter.
    """

    def __init__(
        self,
        objective: Objective,
        start: Controls,
        *,
        free_tasks: bool,
        free_lr: bool,
        damping: float,
    ) -> None:
        self.objective, self.damping = objective, damping
        self.free_tasks, self.free_lr = free_tasks, free_lr
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
        key = np.round(np.concatenate(now), 6).tobytes()
        self._sweeps += 1
        # controls that hardly move any longer settle; those that come back do not
        self.cycled = not self.met and self._seen.get(key, self._sweeps) < self._sweeps - 1
        self._seen[key] = self._sweeps
        self._current = _mixed(now, aim, self.damping)

    def _least(self, found: Gradient) -> Controls:
        """Return the controls that make the Hamiltonian smallest at every step."""
        hamiltonians, lr = found.by_shares, self._current.lr
        if self.free_lr:
            hamiltonians, lr = self._least_over_lr(found)
        chosen = np.argmin(hamiltonians, axis=1)
        shares = np.eye(lr.shape[1])[chosen] if self.free_tasks else self._current.shares
        return Controls(shares, lr)

    def _least_over_lr(self, found: Gradient) -> tuple[Floats, Floats]:
        """Return the smallest Hamiltonian of each task over its learning rates, and where it is.

        Each is the change that one step makes to the objective through the adjoint after it. For
        SGD it is a parabola a η² + b η + c (up to the order of the step), known from three rates;
        its minimum is at −b/2a within the range where a > 0, else at one of the ends. (Paper's
        optimal η, its sign and range corrected.)
        """
        problem, pieces = self.objective.problem, self.objective.pieces
        assert problem.control.lr is not None
        low, high = problem.control.lr
        rates = np.array([low, (low + high) / 2, high])
        steps, tasks = self._current.shares.shape
        changes = np.empty((len(rates), steps, tasks))
        for j, rate in enumerate(rates):
            for t in range(tasks):
                alone = Controls(np.eye(tasks)[np.full(steps, t)], np.full((steps, tasks), rate))
                for i in range(steps):
                    state, after = found.states[i * pieces], found.adjoints[(i + 1) * pieces]
                    ends = self.objective.roll_out(alone, i, i + 1, state)
                    if len(ends) <= pieces:
                        changes[j, i, t] = np.inf
                        continue
                    changes[j, i, t] = after @ (ends[-1] - state)
                    if pieces > 1:  # running costs at the middle of the step
                        middle = problem.model.losses(ends[1]) @ np.asarray(problem.running)
                        changes[j, i, t] += 4 / (6 * steps) * middle
        first, middle, last = changes  # at 0, ½ and 1 of the range
        with np.errstate(divide="ignore", invalid="ignore"):
            a, b = 2 * (first + last - 2 * middle), 4 * middle - 3 * first - last
            best = np.where(a > 0, np.clip(-b / (2 * a), 0.0, 1.0), last < first)
            least = first + b * best + a * best**2
            known = np.isfinite(last)  # where the highest rate diverges, the better of the others
            best = np.where(known, best, 0.5 * (middle < first))
            least = np.where(known, least, np.minimum(first, middle))
        return least, low + (high - low) * best


def _mixed(now: Controls, aim: Controls, part: float) -> Controls:
    """Return controls moved part of the way towards others."""
    return Controls(*((1 - part) * a + part * b for a, b in zip(now, aim, strict=True)))
