"""Solver: an object that says how to search; Descent: what most solvers are made of."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

from replan.control.discretised import Controls, check_differentiable
from replan.control.plan import Status
from replan.errors import ArgumentError
from replan.problem import Problem

if TYPE_CHECKING:
    from replan.control.search import Search


class Solver(ABC):
    """A way to search for a plan: its settings, and what it does with a `Search`.

    method: its name on the command line and in results. advice: by status, what to try next, where
    this solver knows better than the general advice.

    Examples:
        >>> model = replan.TeacherStudent.similar(0.3)
        >>> problem = replan.Problem(model, model.pretrain(seed=1), duration=20.0, steps=50)
        >>> class Best(replan.control.Solver):  # the best of all strategies, one task per step
        ...     method = "best"
        ...     def run(self, search):
        ...         search.seed()
        ...         return "converged"
        >>> plan = replan.solve(problem, Best())
        >>> plan.status, plan.protocol.is_discrete
        ('converged', True)
    """

    method: ClassVar[str]
    advice: ClassVar[dict[Status, str]] = {}

    @abstractmethod
    def run(self, search: Search) -> Status:
        """Call `search.seed`, improve on its plan by `search.submit`, and return how it ended."""


class Descent(ABC):
    """An improvement of controls step by step, which begins with its constructor.

    controls, value: the best so far, at any time.
    """

    controls: Controls
    value: float

    @abstractmethod
    def step(self) -> None:
        """Take one step."""

    @abstractmethod
    def terminate(self) -> bool:
        """Whether no further step is worth it."""


def check_solvable(problem: Problem) -> None:
    """Refuse a problem with nothing to control, or whose model has no gradients."""
    if not problem.control.tasks and not problem.control.knobs:
        raise ArgumentError("problem", "one with tasks or knobs to control", "one with neither")
    check_differentiable(problem)
