"""The relaxed problem: shares in the simplex, knobs in their ranges, both within their budgets."""

from __future__ import annotations

import numpy as np

from replan.check import Floats
from replan.control.objective import Controls, DiscretisedObjective, Gradient
from replan.control.quasi_newton import QuasiNewton
from replan.control.relaxed_controls import RelaxedControls
from replan.control.smoothing import Smoothing
from replan.control.solver import Descent

_PATIENCE = 20  # steps in a row that must gain something between them
_COOLER = 0.3  # the temperature from one smooth goal to the next
_FALLEN = 0.5  # of what smoothing left open: a goal that leaves less is followed by one as warm
_ROUNDS = 12  # most of these
_ROUGH = 0.3  # of what smoothing leaves open: with less left to gain, the next smooth goal follows


class RelaxedDescent(Descent):
    """A descent of the relaxed problem; `free_tasks` and `free_knobs` say what it may change.

    It ends where less than `enough` is left to gain to first order, or where many steps in a row
    gain less than that. In place of a goal that is not smooth it takes smooth ones that come closer
    and closer to it; `value` and `residual` are those of the goal itself. `after`: a descent of the
    same controls on fewer steps, which ended about where this one starts; what it has learnt of the
    objective's curvature is kept.
    """

    def __init__(
        self,
        objective: DiscretisedObjective,
        start: Controls,
        *,
        free_tasks: bool,
        free_knobs: bool,
        enough: float = 0.0,
        after: RelaxedDescent | None = None,
    ) -> None:
        self.objective, self.enough = objective, enough
        self._space = RelaxedControls(
            objective.problem, start, free_tasks=free_tasks, free_knobs=free_knobs
        )
        self._soft, self._rounds = objective.smoothing(start), 0
        self._slack = np.inf  # what the last smooth goal left open
        self._begin(self._space.join(start))
        if after is not None:
            self._learn(after)

    def _begin(self, x: Floats) -> None:
        """Begin to minimise the objective, as smooth as it is now."""
        self._values: list[float] = []
        self._descent = QuasiNewton(self._function, self._space.domain, x)
        self._take()

    def _learn(self, after: RelaxedDescent) -> None:
        for move, change in after._descent.pairs:
            self._descent.remember(
                after._space.carried(move, self._space),
                after._space.carried(change, self._space, sums=True),
            )

    def _take(self) -> None:
        x, controls, found = self._last
        if x is self._descent.x:  # else no step was worth it
            self.controls, self.value, self._found = controls, found.value, found
        self._values = [*self._values[-_PATIENCE:], self._descent.value]

    def step(self) -> None:
        """Take one step of the descent, or to a goal that is less smooth."""
        if self._soft is None or self._found.value == np.inf or not self._close:
            self._descent.step()
            return self._take()
        return self._sharpen(self._soft)

    def _sharpen(self, soft: Smoothing) -> None:
        """Go on with the next smooth goal: cooler only where the last one gained too little."""
        slack, pairs = self._found.slack, self._descent.pairs
        factor = 1.0 if slack <= _FALLEN * self._slack else _COOLER
        self._soft, self._slack = soft.sharpened(self._found.mixture, factor), slack
        self._rounds += 1
        self._begin(self._descent.x)
        self._descent.pairs = pairs  # nearly as good a model of the next one

    def terminate(self) -> bool:
        """Whether no direction makes progress any longer, or too little is left to gain."""
        over = self._soft is None or self._rounds == _ROUNDS
        return self.residual <= self.enough or (over and self._ended)

    @property
    def _ended(self) -> bool:
        """Whether steps gain too little."""
        slow = len(self._values) > _PATIENCE and (
            self._values[0] - self._values[-1] <= 0.1 * self.enough
        )
        return self._descent.stalled or slow

    @property
    def _close(self) -> bool:
        """Whether the minimum of a smooth goal is known as well as it is worth."""
        left = self._space.residual(self._descent.x, self._descent.gradient)
        rounds = self._rounds < _ROUNDS
        return rounds and (self._ended or left <= _ROUGH * self._found.slack)

    @property
    def residual(self) -> float:
        """First-order gain still possible: see `RelaxedControls.residual` and `Gradient`."""
        left = self._space.residual(self._descent.x, self._descent.gradient)
        return left + self._found.slack

    def _function(self, x: Floats) -> tuple[float, Floats]:
        controls = self._space.split(x)
        found = self.objective.gradient(controls, self._soft)
        self._last: tuple[Floats, Controls, Gradient] = x, controls, found
        return found.smooth, self._space.slopes(found)
