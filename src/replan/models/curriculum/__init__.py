"""The curriculum model: which difficulty of inputs to train on, and when."""

from replan.models.curriculum._model import Curriculum

__all__ = ["Curriculum"]
