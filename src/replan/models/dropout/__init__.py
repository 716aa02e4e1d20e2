"""The dropout model: the probability to keep a hidden unit, over time."""

from replan.models.dropout._model import Dropout

__all__ = ["Dropout"]
