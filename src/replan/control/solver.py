"""Solvers: objects that say how to search, and the descents that they are made of."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

from replan.control.objective import Controls
from replan.control.plan import Status

if TYPE_CHECKING:
    from replan.control.search import Search


class Solver(ABC):
    """A way to search for a plan: its settings, and what it does with a search.

    method: its name on the command line and in results. advice: what to try after a status, where
    this solver knows better than the general advice.

    Examples:
        >>> model = replan.TeacherStudent.similar(0.3)
        >>> problem = replan.Problem(model, model.pretrain(seed=1), duration=20.0, steps=50)
        >>> from replan.control import Solver
        >>> class Best(Solver):  # the best of all strategies, with one task per step
        ...     method = "best"
        ...     def run(self, search):
        ...         search.begin(starts=0, seed=0)
        ...         return "converged"
        >>> plan = replan.solve(problem, Best())
        >>> plan.status, plan.protocol.is_discrete
        ('converged', True)
    """

    method: ClassVar[str]
    advice: ClassVar[dict[Status, str]] = {}

    @abstractmethod
    def run(self, search: Search) -> Status:
        """Improve on the search's best plan (`search.offer`), and return how it ended."""


class Descent(ABC):
    """An improvement of controls step by step, which begins with its constructor.

    controls, value: the best so far, at any time.

    Examples:
        >>> class Still(replan.control.Descent):  # for `search.descend` in a solver of one's own
        ...     def __init__(self, controls, value):
        ...         self.controls, self.value = controls, value
        ...     def step(self): ...
        ...     def terminate(self):
        ...         return True
        >>> Still(None, 0.5).terminate()
        True
    """

    controls: Controls
    value: float

    @abstractmethod
    def step(self) -> None:
        """Make one step."""

    @abstractmethod
    def terminate(self) -> bool:
        """Whether no further step is worth it."""
