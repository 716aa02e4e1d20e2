"""RelaxedDescent: a descent of continuous controls, with smooth goals where the goal is not."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from replan.check import Floats
from replan.control.discretised import Controls, DiscretisedObjective, Gradient
from replan.control.quasi_newton import QuasiNewton
from replan.control.relaxed_controls import RelaxedControls
from replan.control.search import Descent
from replan.control.smoothing import Smoothing
from replan.control.stays import StayLengths

_PATIENCE = 20  # steps that must between them gain a part of the threshold
_SLOW = 0.002
_COOLING = 0.3  # factor on the temperature of the next smooth goal
_SLACK_FALL = 0.5  # a smooth goal that lowers the slack to less than this keeps its temperature
_SMOOTH_GOALS = 12  # at most
_SMOOTH_GAIN = 0.3  # of the slack: with less left to gain, the next smooth goal follows


class RelaxedDescent(Descent):
    """A descent within a space of continuous controls.

    It ends where less than `threshold` is left to gain to first order, or where many steps in a row
    gain too little. A goal that is not smooth is replaced by smooth ones that come closer and
    closer to it; `value` and `residual` are those of the goal itself. `pairs`: a model of the
    objective's curvature to begin with.
    """

    def __init__(
        self,
        objective: DiscretisedObjective,
        space: RelaxedControls | StayLengths,
        start: Controls,
        threshold: float = 0.0,
        pairs: Iterable[tuple[Floats, Floats]] = (),
    ) -> None:
        self._objective, self.space, self.threshold = objective, space, threshold
        self._smoothing, self._goals = objective.smoothing(start), 0
        self._last_slack = np.inf  # of the smooth goal before
        self._begin(self.space.join(start))
        for move, change in pairs:
            self._minimiser.remember(move, change)

    @property
    def pairs(self) -> list[tuple[Floats, Floats]]:
        """The model of the objective's curvature: moves, and how the gradient changed with them."""
        return self._minimiser.pairs

    def _begin(self, x: Floats) -> None:
        """Begin to minimise the goal, with its present smoothing."""
        self._values: list[float] = []
        self._minimiser = QuasiNewton(self._function, self.space.domain, x)
        self._update()

    def _function(self, x: Floats) -> tuple[float, Floats]:
        controls = self.space.split(x)
        gradient = self._objective.gradient(controls, self._smoothing)
        self._evaluated: tuple[Floats, Controls, Gradient] = x, controls, gradient
        return gradient.surrogate.value, self.space.slopes(x, gradient)

    def _update(self) -> None:
        x, controls, gradient = self._evaluated
        if x is self._minimiser.x:  # else no step was worth it
            self.controls, self.value = controls, gradient.value
            self._surrogate = gradient.surrogate
        self._values = [*self._values[-_PATIENCE:], self._minimiser.value]

    def step(self) -> None:
        """Take one step of the minimiser, or to a goal that is less smooth."""
        if self._smoothing is None or self.value == np.inf or not self._goal_reached:
            self._minimiser.step()
            return self._update()
        return self._sharpen(self._smoothing)

    def _sharpen(self, smoothing: Smoothing) -> None:
        """Go on with the next smooth goal: cooler only where the last one gained too little."""
        slack, pairs = self._surrogate.slack, self._minimiser.pairs
        factor = 1.0 if slack <= _SLACK_FALL * self._last_slack else _COOLING
        self._smoothing = smoothing.sharpened(self._surrogate.mixture, factor)
        self._last_slack = slack
        self._goals += 1
        self._begin(self._minimiser.x)
        self._minimiser.pairs = pairs  # nearly as good a model of the next goal

    def terminate(self) -> bool:
        """Whether no direction makes progress any longer, or too little is left to gain."""
        last = self._smoothing is None or self._goals == _SMOOTH_GOALS
        return self.residual <= self.threshold or (last and self._stalled)

    @property
    def _stalled(self) -> bool:
        """Whether steps gain too little."""
        slow = len(self._values) > _PATIENCE and (
            self._values[0] - self._values[-1] <= _SLOW * self.threshold
        )
        return self._minimiser.stalled or slow

    @property
    def _goal_reached(self) -> bool:
        """Whether the minimum of a smooth goal is known as well as it is worth."""
        gain = self.space.residual(self._minimiser.x, self._minimiser.gradient)
        more = self._goals < _SMOOTH_GOALS
        return more and (self._stalled or gain <= _SMOOTH_GAIN * self._surrogate.slack)

    @property
    def residual(self) -> float:
        """The first-order gain still possible; see `RelaxedControls.residual` and `Surrogate`."""
        gain = self.space.residual(self._minimiser.x, self._minimiser.gradient)
        return gain + self._surrogate.slack
