import pytest

from replan.dynamics import _registry

DECAY = '''
import numpy as np

from replan.dynamics import Dynamics, from_keys, register
from replan.strategies import strategy


@register
class Decay(Dynamics):
    """x_t decays at `speed` × lr while task t is trained, to nothing below 0: a loss for each."""

    kind = "decay"

    def __init__(self, speed, tasks=2, mode="slow"):
        if not isinstance(speed, float):
            raise ValueError(f"`speed` expects a number, got {speed!r}")
        self.speed, self.tasks, self.mode = speed, tasks, mode

    def losses(self, states):
        return states

    def roll_out(self, start, pieces):
        factors = np.exp(-self.speed * pieces.lengths[:, None] * pieces.shares * pieces.lr)
        states = np.vstack([start, start * np.cumprod(factors, axis=0)])
        return states[: 1 if self.speed < 0 else None]

    @classmethod
    def from_dict(cls, content):
        return from_keys(cls, content, "model")

    def to_dict(self):
        return {"speed": self.speed, "tasks": self.tasks, "mode": self.mode}


@strategy
def half_way(problem, *, task=1):
    if problem.model.speed == 3.0:
        raise ZeroDivisionError("three is too much")
    return problem_halves(problem)


def problem_halves(problem):
    from replan import strategies

    return strategies.sequential(problem)
'''


@pytest.fixture
def decay(write, tmp_path, monkeypatch):
    """A model and a strategy of the user's, in a file that REPLAN_IMPORT names."""
    from replan.strategies import STRATEGIES

    registries = [STRATEGIES, _registry._KINDS]
    before = [dict(registry) for registry in registries]
    write("decay.py", DECAY)
    monkeypatch.setenv("REPLAN_IMPORT", str(tmp_path / "decay.py"))
    yield tmp_path / "decay.py"
    for registry, content in zip(registries, before, strict=True):
        registry.clear()
        registry.update(content)
