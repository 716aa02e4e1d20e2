"""The relaxed problem: shares in the simplex, knobs in their ranges, both within their budgets."""

from __future__ import annotations

from replan._common.check import Floats
from replan.control._objective import Controls, Objective
from replan.control._quasi_newton import QuasiNewton
from replan.control._solver import Descent
from replan.control._space import Space

_PATIENCE = 20  # steps in a row that must gain something between them


class RelaxedDescent(Descent):
    """A descent of the relaxed problem; `free_tasks` and `free_knobs` say what it may change.

    It ends where less than `enough` is left to gain to first order, or where many steps in a row
    gain less than that.
    """

    def __init__(
        self,
        objective: Objective,
        start: Controls,
        *,
        free_tasks: bool,
        free_knobs: bool,
        enough: float = 0.0,
    ) -> None:
        self.objective, self.enough = objective, enough
        self._space = Space(objective.problem, start, free_tasks=free_tasks, free_knobs=free_knobs)
        domain = self._space.domain
        self._descent = QuasiNewton(self._function, domain, self._space.join(start))
        self._values: list[float] = []
        self._take()

    def _take(self) -> None:
        self.controls, self.value = self._space.split(self._descent.x), self._descent.value
        self._values = [*self._values[-_PATIENCE:], self.value]

    def step(self) -> None:
        """Take one step of the descent."""
        self._descent.step()
        self._take()

    def terminate(self) -> bool:
        """Whether no direction makes progress any longer, or too little is left to gain."""
        slow = len(self._values) > _PATIENCE and self._values[0] - self.value <= 0.1 * self.enough
        return self._descent.stalled or slow or self.residual <= self.enough

    @property
    def residual(self) -> float:
        """First-order gain still possible; see `Space.residual`."""
        return self._space.residual(self._descent.x, self._descent.gradient)

    def _function(self, x: Floats) -> tuple[float, Floats]:
        found = self.objective.gradient(self._space.split(x))
        return found.value, self._space.slopes(found)
