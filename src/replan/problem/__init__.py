"""Problem: what to train, from where, for how long, and what may be controlled."""

from replan.problem._control import Control
from replan.problem._ensemble import Ensemble
from replan.problem._example import example
from replan.problem._limits import Limits
from replan.problem._problem import Problem

__all__ = ["Control", "Ensemble", "Limits", "Problem", "example"]
