"""Problem: what to train, from where, for how long, and what may be controlled."""

from replan.problem.control import Control, Range
from replan.problem.limits import Limits
from replan.problem.objective import Objective
from replan.problem.problem import Problem

__all__ = ["Control", "Limits", "Objective", "Problem", "Range"]
