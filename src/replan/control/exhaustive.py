"""Exhaustive: every protocol with one task per step, the ground truth for other solvers."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from replan.check import Floats, Ints
from replan.control.discretised import Controls, DiscretisedObjective
from replan.control.plan import Status
from replan.control.search import Descent, Search, Solver
from replan.errors import ArgumentError
from replan.problem.discrete import allows
from replan.problem.step_limits import StepLimits

_MOST = 2**24  # steps of all protocols together, those with a common beginning counted once
_TOGETHER = 2**14  # protocols that are continued together


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
        if not are_few(search.problem.step_limits, _MOST):
            few = f"so few that all protocols together have at most {_MOST} steps"
            raise ArgumentError("steps", few, f"{search.problem.steps}")
        try_all(search)
        return "converged"


def check_only_tasks(solver: Solver, search: Search) -> None:
    """Refuse a problem with more to choose than a task for every step."""
    if not search.one_task or search.free_knobs:
        raise ArgumentError(
            "solver",
            "one such as Relax() that controls knobs and constant shares too",
            f"{type(solver).__name__}(), which chooses the tasks of steps",
        )


def are_few(limits: StepLimits, most: int) -> bool:
    """Whether all protocols have at most so many steps, common beginnings counted once.

    Limits on shares and replay are not looked at.
    """
    total, ends = 0, Counter({(-1, 0, 0): 1})  # by task, switches, length of the stay
    for row in limits.available:
        longer: Counter[tuple[int, int, int]] = Counter()
        for (last, switches, stay), count in ends.items():
            for task in np.flatnonzero(row).tolist():
                changed = last not in (-1, task)
                if not changed or (switches < limits.switches and stay >= limits.dwell):
                    length = 1 if changed else min(stay + 1, limits.dwell)
                    longer[task, switches + changed, length] += count
        ends = longer
        total += ends.total()
        if total > most:
            return False
    return True


def try_all(search: Search) -> None:
    """Try every protocol, which makes the best plan the best of all."""
    search.descend(Enumeration(search.fine, search.best.controls), _MOST)
    search.scope = "global"


class _Paths(NamedTuple):
    """The beginnings of m protocols.

    tasks: (m, steps so far). states: (m, n) at their ends. along: (M, m) the members' average
    losses so far. switches, stays: (m,) counts of switches, lengths of the last stays.
    """

    tasks: Ints
    states: Floats
    along: Floats
    switches: Ints
    stays: Ints


class Enumeration(Descent):
    """A search of all task sequences; those with a common beginning share its work."""

    def __init__(self, objective: DiscretisedObjective, start: Controls) -> None:
        self._objective, self._limits = objective, objective.problem.step_limits
        self.controls, self.value = start, objective.value(start)
        states = objective.problem.state[None]
        tasks, zeros = np.zeros((1, 0), np.int64), np.zeros(1, np.int64)
        self._open = [_Paths(tasks, states, objective.begin_along(states), zeros, zeros)]

    def terminate(self) -> bool:
        """Whether all protocols were tried."""
        return not self._open

    def step(self) -> None:
        """Continue some protocols by a step, or compare them at their ends."""
        paths = self._open.pop()
        if paths.tasks.shape[1] == self._objective.steps:
            return self._compare(paths)
        longer = self._continued(paths)
        for first in range(0, len(longer.tasks), _TOGETHER):
            some = slice(first, first + _TOGETHER)
            self._open.append(
                _Paths(
                    longer.tasks[some],
                    longer.states[some],
                    longer.along[:, some],
                    longer.switches[some],
                    longer.stays[some],
                )
            )
        return None

    def _continued(self, paths: _Paths) -> _Paths:
        """Return all protocols that go on from the paths by one step."""
        step, limits = paths.tasks.shape[1], self._limits
        last = paths.tasks[:, -1] if step else np.full(1, -1)
        may_change = (paths.switches < limits.switches) & (paths.stays >= limits.dwell)
        choices = np.flatnonzero(limits.available[step])
        allowed = may_change[:, None] | (last[:, None] == choices) | (last[:, None] < 0)
        parents, which = np.nonzero(allowed)
        tasks, last = choices[which], last[parents]
        changed = (tasks != last) & (last >= 0)
        states, along = self._objective.advance(
            self.controls, step, tasks, paths.states[parents], paths.along[:, parents]
        )
        return _Paths(
            np.column_stack([paths.tasks[parents], tasks]),
            states,
            along,
            paths.switches[parents] + changed,
            np.where(changed, 1, paths.stays[parents] + 1),
        )

    def _compare(self, paths: _Paths) -> None:
        """Keep the best of whole protocols that is within the limits."""
        values = self._objective.values_at(paths.states, paths.along)
        for i in np.argsort(values):
            if values[i] >= self.value:
                return
            if allows(self._limits, paths.tasks[i]):
                self.controls = self.controls.with_tasks(paths.tasks[i])
                self.value = float(values[i])
                return
