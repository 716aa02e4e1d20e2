"""Every protocol with one task a step, on coarse grids: the truth for other methods."""

from __future__ import annotations

from itertools import product

import numpy as np

from replan.check import Floats
from replan.control.objective import Controls, Objective

_MOST = 2**22


class Exhaustive:
    """A search of all task sequences; those that begin alike share the work of their beginning."""

    def __init__(self, objective: Objective, start: Controls) -> None:
        self.objective, self.lr = objective, start.lr
        self.tasks = start.shares.shape[1]
        if self.tasks**objective.steps > _MOST:
            raise ValueError(
                f"`method` takes 'exhaustive' for at most {_MOST} protocols, got "
                f"{self.tasks}^{objective.steps}: use fewer `steps`"
            )
        self.controls, self.value = start, objective.value(start)
        self._heads = list(product(range(self.tasks), repeat=min(4, objective.steps)))
        self._rows = np.eye(self.tasks)

    @property
    def stalled(self) -> bool:
        """Whether all protocols were tried."""
        return not self._heads

    def step(self) -> None:
        """Try all protocols with one more beginning."""
        head = self._heads.pop()
        path = [self.objective.problem.state]
        for i, task in enumerate(head):
            path.append(self._move(path[-1], i, task))
        self._search(list(head), path)

    def _move(self, state: Floats, step: int, task: int) -> Floats:
        one = slice(step, step + 1)
        rest = self.objective.problem.model.roll_out(
            state,
            self._rows[task : task + 1],
            self.lr[one],
            self.objective.lengths[one],
            self.objective.substeps[one],
        )
        self.objective.roll_outs += 1
        return rest[-1] if len(rest) == 2 else np.full_like(state, np.nan)

    def _search(self, sequence: list[int], path: list[Floats]) -> None:
        if len(sequence) == self.objective.steps:
            value = self.objective.value_of(np.array(path))
            if value < self.value:
                self.controls = Controls(self._rows[sequence], self.lr)
                self.value = value
            return
        for task in range(self.tasks):
            after = self._move(path[-1], len(sequence), task)
            self._search([*sequence, task], [*path, after])
