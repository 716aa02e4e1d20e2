"""Exhaustive: every protocol with one task per step, the ground truth for other solvers."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby, product
from math import prod
from typing import ClassVar

import numpy as np

from replan.check import Floats
from replan.control.discretised import Controls, DiscretisedObjective
from replan.control.plan import Status
from replan.control.search import Descent, Search, Solver
from replan.errors import ArgumentError
from replan.problem.discrete import allows

_MOST = 2**22  # protocols, about an hour of work
_PREFIX = 4  # steps that the protocols tried in one step of the descent have in common


@dataclass(frozen=True)
class Exhaustive(Solver):
    """Try every protocol with one task per step; for coarse grids, where only tasks are free.

    Examples:
        >>> model = replan.TeacherStudent.similar(0.3)
        >>> problem = replan.Problem(model, model.pretrain(seed=1), duration=20.0, steps=8)
        >>> plan = replan.solve(problem, replan.Exhaustive())
        >>> plan.certificate.scope, plan.protocol.sequence
        ('global', array([1, 1, 1, 1, 0, 1, 0, 1]))
    """

    method: ClassVar[str] = "exhaustive"

    def run(self, search: Search) -> Status:
        """Try every protocol."""
        check_only_tasks(self, search)
        search.seed()
        enumeration = Enumeration(search.fine, search.best.controls)
        search.descend(enumeration, len(enumeration.prefixes))
        search.scope = "global"
        return "converged"


def check_only_tasks(solver: Solver, search: Search) -> None:
    """Refuse a problem with more to choose than a task for every step."""
    if not search.one_task or search.free_knobs:
        raise ArgumentError(
            "solver",
            "one such as Relax() that controls knobs and constant shares too",
            f"{type(solver).__name__}(), which chooses the tasks of steps",
        )


class Enumeration(Descent):
    """A search of all task sequences; those with a common prefix share its work.

    prefixes: those still to be tried.
    """

    def __init__(self, objective: DiscretisedObjective, start: Controls) -> None:
        self._objective, self._limits = objective, objective.problem.step_limits
        self._choices = [np.flatnonzero(row).tolist() for row in self._limits.available]
        counts = [len(tasks) for tasks in self._choices]
        if prod(counts) > _MOST:
            powers = [f"{count}^{len(list(group))}" for count, group in groupby(counts)]
            raise ArgumentError(
                "steps", f"few enough for {_MOST} protocols", f"{' × '.join(powers)} protocols"
            )
        self.controls, self.value = start, objective.value(start)
        self.prefixes = list(product(*self._choices[:_PREFIX]))
        self._constant = [
            start.with_tasks(np.full(objective.steps, task))
            for task in range(start.shares.shape[1])
        ]

    def terminate(self) -> bool:
        """Whether all protocols were tried."""
        return not self.prefixes

    def step(self) -> None:
        """Try all protocols with the next prefix."""
        choices = [[task] for task in self.prefixes.pop()] + self._choices[_PREFIX:]
        self._search(choices, [], [self._objective.problem.state[None]])

    def _search(self, choices: list[list[int]], sequence: list[int], path: list[Floats]) -> None:
        """Try all protocols that go on from a sequence, with the states on its path."""
        step, state = len(sequence), path[-1][-1]
        if step == self._objective.steps:
            value = self._objective.value_of(np.concatenate(path))
            if value < self.value and allows(self._limits, np.array(sequence)):
                self.controls = self.controls.with_tasks(np.array(sequence))
                self.value = value
            return
        for task in choices[step]:
            states = np.full((self._objective.pieces, state.size), np.nan)  # where it diverges
            if np.all(np.isfinite(state)):
                reached = self._objective.roll_out(self._constant[task], step, step + 1, state)[1:]
                states[: len(reached)] = reached
            self._search(choices, [*sequence, task], [*path, states])
