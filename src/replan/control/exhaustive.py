"""Exhaustive: every protocol on a coarse grid, the ground truth for other solvers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from replan.control.enumeration import Enumeration
from replan.control.plan import Status
from replan.control.search import Search
from replan.control.solver import Solver


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
        if not search.one_task or search.free_knobs:
            raise ValueError(
                "`Exhaustive` expects a problem in which only the tasks are controlled, over time"
            )
        search.begin()
        descent = Enumeration(search.fine, search.best.controls)
        search.descend(descent, len(descent.heads))
        search.scope = "global"
        return "converged"
