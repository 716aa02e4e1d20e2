"""solve(problem) → Plan, and the solvers that it can be given.

All examples of this package use the same problem:

    >>> model = replan.TeacherStudent.similar(0.3)
    >>> problem = replan.Problem(model, model.pretrain(seed=1), duration=20.0, steps=50)
"""

from replan.control._levers import Levers as Levers
from replan.control._levers import levers
from replan.control._solve import METHODS as METHODS
from replan.control._solve import solve
from replan.control.exhaustive import Exhaustive
from replan.control.flips import Flips
from replan.control.forward_backward import ForwardBackward
from replan.control.plan import Plan
from replan.control.relax import Relax
from replan.control.search import Search, Solver

__all__ = [
    "Exhaustive",
    "Flips",
    "ForwardBackward",
    "Plan",
    "Relax",
    "Search",
    "Solver",
    "levers",
    "solve",
]
