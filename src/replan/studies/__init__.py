"""study(file) → Study: strategies, solvers and simulations on every problem that a file spans."""

from replan.studies._run import study
from replan.studies._study import Study

__all__ = ["Study", "study"]
