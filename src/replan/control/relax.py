"""The relaxed problem: shares in the simplex, learning rates in a box."""

from __future__ import annotations

import numpy as np

from replan.check import Floats
from replan.control.objective import Controls, Objective
from replan.control.quasi_newton import QuasiNewton


class Relax:
    """A descent of the relaxed problem; `free_tasks` and `free_lr` say what it may change."""

    def __init__(
        self, objective: Objective, start: Controls, *, free_tasks: bool, free_lr: bool
    ) -> None:
        self.objective, self.start = objective, start
        self.free_tasks, self.free_lr = free_tasks, free_lr
        self._range = objective.problem.control.lr or (0.0, 1.0)
        self._descent = QuasiNewton(self._function, self._project, self._join(start))

    @property
    def controls(self) -> Controls:
        """The best controls so far."""
        return self._split(self._descent.x)

    @property
    def value(self) -> float:
        """Their value."""
        return self._descent.value

    def step(self) -> None:
        """Take one step of the descent."""
        self._descent.step()

    @property
    def stalled(self) -> bool:
        """Whether no direction makes progress any more."""
        return self._descent.stalled

    @property
    def residual(self) -> float:
        """First-order progress still possible: what the best controls gain if nothing curves.

        For the shares this is Pontryagin's residual ∫ Σ_t s_t Φ_t − min_t Φ_t.
        """
        towards = self._best_corner() - self._descent.x
        return float(-self._descent.gradient @ towards)

    def _best_corner(self) -> Floats:
        gradient = self._split_raw(self._descent.gradient)
        corner = Controls(
            np.eye(self.start.shares.shape[1])[np.argmin(gradient.shares, axis=1)],
            np.where(gradient.lr > 0, 0.0, np.where(gradient.lr < 0, 1.0, self._unit_lr())),
        )
        parts = [corner.shares] * self.free_tasks + [corner.lr] * self.free_lr
        return np.concatenate([part.ravel() for part in parts])

    def _unit_lr(self) -> Floats:
        return self._split_raw(self._descent.x).lr

    # Vectors hold the free shares, then the free learning rates in units of their range.

    def _split_raw(self, x: Floats) -> Controls:
        shape = self.start.shares.shape
        parts = list(x.reshape(-1, *shape))
        shares = parts.pop(0) if self.free_tasks else np.zeros(shape)
        return Controls(shares, parts.pop(0) if self.free_lr else np.zeros(shape))

    def _split(self, x: Floats) -> Controls:
        raw, (low, high) = self._split_raw(x), self._range
        return Controls(
            raw.shares if self.free_tasks else self.start.shares,
            low + (high - low) * raw.lr if self.free_lr else self.start.lr,
        )

    def _join(self, controls: Controls) -> Floats:
        low, high = self._range
        parts = [controls.shares] * self.free_tasks
        parts += [(controls.lr - low) / (high - low)] * self.free_lr
        return np.concatenate([part.ravel() for part in parts])

    def _function(self, x: Floats) -> tuple[float, Floats]:
        found = self.objective.gradient(self._split(x))
        low, high = self._range
        parts = [found.by_shares] * self.free_tasks + [(high - low) * found.by_lr] * self.free_lr
        return found.value, np.concatenate([part.ravel() for part in parts])

    def _project(self, x: Floats) -> Floats:
        from replan.rounding import project_rows

        raw = self._split_raw(x)
        parts = [project_rows(raw.shares)] * self.free_tasks + [
            np.clip(raw.lr, 0, 1)
        ] * self.free_lr
        return np.concatenate([part.ravel() for part in parts])
