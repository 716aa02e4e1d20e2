"""A model and a strategy as a user may bring them; tests have a copy imported by its path."""

import numpy as np

from replan import ArgumentError, Model, register, strategies


@register
class Decay(Model):
    """The loss of a task decays at `speed` × lr while it is trained."""

    kind = "decay"

    def __init__(self, speed, tasks=2, mode="slow"):
        if not isinstance(speed, float):
            raise ArgumentError("speed", "a number", repr(speed))
        self.speed, self.tasks, self.mode = speed, tasks, mode

    def losses(self, states):
        return states

    def roll_out(self, start, pieces):
        factors = np.exp(-self.speed * pieces.lengths[:, None] * pieces.shares * pieces.knobs)
        return np.vstack([start, start * np.cumprod(factors, axis=0)])

    def to_dict(self):
        return {"speed": self.speed, "tasks": self.tasks, "mode": self.mode}


@register
def half_way(problem):
    """Train on the tasks one after the other, but not at a speed of 3."""
    if problem.model.speed == 3.0:
        raise ZeroDivisionError("three is too much")
    return strategies.sequential(problem)
