"""The paper's forward-backward sweep: Pontryagin's condition, iterated, with damping."""

from __future__ import annotations

import numpy as np

from replan.control.objective import Controls, Objective


class Sweep:
    """Forward, backward, then towards the task with the smallest Hamiltonian at every step.

    Undamped (`damping` = 1, as printed) the sweep falls into cycles. It stops where the controls
    come back (`cycled`), or where they agree with the chosen tasks (`met`). The best iterate stays.
    """

    def __init__(self, objective: Objective, start: Controls, damping: float = 0.1) -> None:
        self.objective, self.damping = objective, damping
        self.controls, self.value = start, np.inf
        self.met = self.cycled = False
        self._current = start
        self._seen: set[bytes] = set()

    @property
    def stalled(self) -> bool:
        """Whether it is over."""
        return self.met or self.cycled

    def step(self) -> None:
        """Make one sweep."""
        found = self.objective.gradient(self._current)
        if found.value < self.value:
            self.controls, self.value = self._current, found.value
        chosen = np.argmin(found.by_shares, axis=1)
        target = self._current.with_tasks(chosen)
        self.met = bool(np.allclose(target.shares, self._current.shares, atol=1e-9))
        key = np.round(self._current.shares, 6).tobytes()
        self.cycled = not self.met and key in self._seen
        self._seen.add(key)
        mixed = (1 - self.damping) * self._current.shares + self.damping * target.shares
        self._current = Controls(mixed, self._current.lr)
