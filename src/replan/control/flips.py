"""Flips: the discrete polish alone, from every start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from replan import check
from replan.control.flip_descent import FlipDescent
from replan.control.plan import Status
from replan.control.search import Search
from replan.control.solver import Solver


@dataclass(frozen=True)
class Flips(Solver):
    """Change the task of single steps, one after another, as long as the objective falls.

    - `starts`, `seed`: random starts besides all strategies, as in `Relax`.
    - `tolerance`: the search ends with a round that gains less than this fraction of what the
      controls can change.
    - `failures`: how many moves in a row without a gain end a round.

    Examples:
        >>> model = replan.TeacherStudent.similar(0.3)
        >>> problem = replan.Problem(model, model.pretrain(seed=1), duration=20.0, steps=50)
        >>> replan.solve(problem, replan.Flips(starts=0)).status
        'inaccurate'
    """

    starts: int = 2
    seed: int = 0
    tolerance: float = 5e-7
    failures: int = 25
    method: ClassVar[str] = "flips"

    def __post_init__(self) -> None:
        check.integer("starts", self.starts)
        check.integer("seed", self.seed)
        check.number("tolerance", self.tolerance, above=0, at_most=1)
        check.integer("failures", self.failures, at_least=1)

    def run(self, search: Search) -> Status:
        """Polish every start."""
        if not search.one_task or search.free_knobs:
            raise ValueError(
                "`Flips` expects a problem in which only the tasks are controlled, over time"
            )
        search.begin(self.starts, self.seed)
        for start in search.starts:
            enough = search.enough(self.tolerance)
            begin = start.found.controls
            descent = FlipDescent(search.fine, begin, enough=enough, failures=self.failures)
            search.descend(descent, 100)
            search.values.append(descent.value)
        return "converged"
