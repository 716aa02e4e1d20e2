"""How fast the readout suppresses the wrong hidden unit (paper, appendix B)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from replan import check
from replan.errors import IntegrationError
from replan.problem import Problem
from replan.strategies import one_task
from replan.trajectory import evaluate

# The head's initial error: small, so that it decays linearly, and not in a single mode alone.
_NUDGE = 1e-4 * np.array([[-1.0, 0.9], [0.0, 0.0]])
_CLOSEST = 1 - 1e-9  # nearer to 1, rounding errors decide
_SLOWEST = 1e-280  # learning rates beyond which time-scales overflow
_FREEZE = 1e-13  # the first layer's learning rate relative to the heads'


def readout_timescale(similarity: float, lr: float = 1.0) -> float:
    """Return α_conv = 3π / (η (π − 6 asin(γ/2))), the paper's formula for 0 ≤ γ < 1.

    It holds for two hidden units that *stay* on the two teachers while one head is trained.

    Examples:
        >>> round(replan.readout_timescale(0.5, lr=1.0), 2)
        5.8
    """
    gamma, eta = _checked(similarity, lr)
    return 3 * math.pi / (eta * (math.pi - 6 * math.asin(gamma / 2)))


def measure_readout_timescale(
    similarity: float, lr: float = 1.0, *, train_features: bool = False
) -> float:
    """Return the time-scale on which a slightly wrong head decays, measured on the full dynamics.

    Both hidden units start on their teachers and task 1 is trained. With `train_features=False`
    the first layer is frozen, as the formula assumes; with `True` it learns too, as in real
    training, and the slowest mode is another one, in which head and features err together.

    Examples:
        >>> round(replan.measure_readout_timescale(0.5), 2)
        5.8
    """
    gamma, eta = _checked(similarity, lr)
    check.boolean("train_features", train_features)
    slow = 1.0 if train_features else _FREEZE
    S = [[1.0, gamma], [gamma, 1.0]]
    content: dict[str, Any] = {
        "model": {"hidden": 2, "similarity": gamma, "head_lr": 1 / slow},
        "start": {"Q": S, "M": S, "V": (np.eye(2) + _NUDGE).tolist()},
    }
    duration = 8 * readout_timescale(gamma, eta)
    while True:
        training = {"duration": duration, "lr": slow * eta, "steps": 128}
        problem = Problem.from_dict(content | {"training": training})
        run = evaluate(problem, one_task(problem, task=0), rtol=1e-11, max_steps=2**18, throw=False)
        if run.status != "ok":
            raise IntegrationError(
                f"the time-scale at `similarity` {gamma:g} and `lr` {eta:g} is too long to measure"
            )
        distance = np.linalg.norm(run.overlaps.V[:, 0] - [1.0, 0.0], axis=1)
        late = (distance < 1e-4 * distance[0]) & (distance > 1e-6 * distance[0])
        if distance[-1] < 1e-6 * distance[0]:  # only the slowest mode is left by then
            # in parts of the duration: squares of long times overflow
            slope = np.polyfit(run.times[late] / duration, np.log(distance[late]), 1)[0]
            return float(-duration / slope)
        duration *= 2


def _checked(similarity: float, lr: float) -> tuple[float, float]:
    gamma = check.number("similarity", similarity, at_least=0, at_most=_CLOSEST)
    return gamma, check.number("lr", lr, at_least=_SLOWEST, at_most=1 / _SLOWEST)
