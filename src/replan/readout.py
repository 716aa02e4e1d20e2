"""How fast the readout suppresses the wrong hidden unit (paper, appendix B)."""

from __future__ import annotations

import math

import numpy as np

from replan import check
from replan.dynamics import IntegrationError, Overlaps, TeacherStudent
from replan.problem import Problem
from replan.strategies import one_task
from replan.trajectory import evaluate

_NUDGE = 1e-4  # of the head off its fixed point: small, so that the decay is linear
_FREEZE = 1e-13  # the first layer's learning rate relative to the heads'


def readout_timescale(similarity: float, lr: float = 1.0) -> float:
    """Return α_conv = 3π / (η (π − 6 asin(γ/2))), the paper's formula for 0 ≤ γ < 1.

    It holds for two hidden units that *stay* on the two teachers while one head is trained.
    """
    gamma, eta = _checked(similarity, lr)
    return 3 * math.pi / (eta * (math.pi - 6 * math.asin(gamma / 2)))


def measure_readout_timescale(
    similarity: float, lr: float = 1.0, *, train_features: bool = False
) -> float:
    """Return the time-scale on which a slightly wrong head decays, measured on the full dynamics.

    Both hidden units start on their teachers and task 1 is trained. With `train_features=False`
    the first layer stands still, as the formula assumes; with `True` it learns along, as in real
    training, and the slowest mode is another one: head and features err together.
    """
    gamma, eta = _checked(similarity, lr)
    slow = 1.0 if train_features else _FREEZE
    model = TeacherStudent.similar(gamma, head_lr=1 / slow)
    S = model.teacher_overlaps
    start = Overlaps(Q=S, M=S, V=np.eye(2) + _NUDGE * np.array([[-1.0, 1.0], [0.0, 0.0]]))
    duration, last = 4 * readout_timescale(gamma, eta), math.inf
    for _ in range(16):
        problem = Problem(model, start, duration=duration, lr=slow * eta, steps=64)
        run = evaluate(problem, one_task(problem, task=0))
        distance = np.linalg.norm(run.overlaps.V[:, 0] - [1.0, 0.0], axis=1)
        slope = np.polyfit(run.times[32:], np.log(distance[32:]), 1)[0]
        if abs(last * slope + 1) < 1e-4:  # the same as in half the time: only one mode is left
            return float(-1 / slope)
        duration, last = 2 * duration, -1 / slope
    raise IntegrationError(f"no single time-scale was left after time {duration / 2:g}")


def _checked(similarity: float, lr: float) -> tuple[float, float]:
    gamma = check.number("similarity", similarity, at_least=0)
    if gamma >= 1:
        raise ValueError(f"`similarity` takes a number from 0 to below 1, got {similarity!r}")
    return gamma, check.number("lr", lr, above=0)
