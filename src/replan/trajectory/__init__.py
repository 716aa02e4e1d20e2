"""Trajectory: the exact learning curves of a protocol on a problem; `evaluate` computes them."""

from replan.trajectory._evaluate import evaluate
from replan.trajectory._trajectory import Trajectory

__all__ = ["Trajectory", "evaluate"]
