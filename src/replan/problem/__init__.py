"""Problem: what to train, from where, for how long, and what may be controlled."""

from replan.problem.control import Control
from replan.problem.ensemble import Ensemble
from replan.problem.example_file import example
from replan.problem.limits import Limits
from replan.problem.problem import Problem

__all__ = ["Control", "Ensemble", "Limits", "Problem", "example"]
