"""The curriculum model: which difficulty of inputs to train on, and when."""

from replan.dynamics.curriculum._model import Curriculum

__all__ = ["Curriculum"]
