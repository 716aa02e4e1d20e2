"""Every protocol with one task per step, on coarse grids: the ground truth for other solvers."""

from __future__ import annotations

from itertools import groupby, product
from math import prod

import numpy as np

from replan.check import Floats
from replan.control.objective import Controls, DiscretisedObjective
from replan.control.solver import Descent
from replan.errors import ArgumentError
from replan.problem.discrete import allows

_MOST = 2**22


class Enumeration(Descent):
    """A search of all task sequences; those with a common beginning share its work.

    heads: the beginnings that are left.
    """

    def __init__(self, objective: DiscretisedObjective, start: Controls) -> None:
        self.objective, self.limits = objective, objective.problem.step_limits
        self._choices = [np.flatnonzero(row).tolist() for row in self.limits.available]
        counts = [len(choice) for choice in self._choices]
        if prod(counts) > _MOST:
            powers = [f"{count}^{len(list(group))}" for count, group in groupby(counts)]
            raise ArgumentError(
                "Exhaustive",
                f"at most {_MOST} protocols",
                f"{' × '.join(powers)}: use fewer `steps`",
            )
        self.controls, self.value = start, objective.value(start)
        self.heads = list(product(*self._choices[:4]))
        self._whole = [
            start.with_tasks(np.full(objective.steps, task))
            for task in range(start.shares.shape[1])
        ]

    def terminate(self) -> bool:
        """Whether all protocols were tried."""
        return not self.heads

    def step(self) -> None:
        """Try all protocols with the next beginning."""
        head = self.heads.pop()
        path = [self.objective.problem.state[None]]
        for i, task in enumerate(head):
            path.append(self._move(path[-1][-1], i, task))
        self._search(list(head), path)

    def _move(self, state: Floats, step: int, task: int) -> Floats:
        """Return the states after one more step, NaN where it diverges."""
        if not np.all(np.isfinite(state)):
            return np.full((self.objective.pieces, state.size), np.nan)
        rest = self.objective.roll_out(self._whole[task], step, step + 1, state)[1:]
        missing = np.full((self.objective.pieces - len(rest), state.size), np.nan)
        return np.concatenate([rest, missing])

    def _search(self, sequence: list[int], path: list[Floats]) -> None:
        if len(sequence) == self.objective.steps:
            value = self.objective.value_of(np.concatenate(path))
            if value < self.value and allows(self.limits, np.array(sequence)):
                self.controls = self.controls.with_tasks(np.array(sequence))
                self.value = value
            return
        for task in self._choices[len(sequence)]:
            after = self._move(path[-1][-1], len(sequence), task)
            self._search([*sequence, task], [*path, after])
