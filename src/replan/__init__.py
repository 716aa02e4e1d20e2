"""replan: plan how to train on several tasks without forgetting."""

from replan import files, strategies
from replan.comparison import Comparison, compare
from replan.control import Plan, solve
from replan.dynamics import Dynamics, IntegrationError, Overlaps, TeacherStudent
from replan.limits import Limits
from replan.problem import Control, Problem
from replan.protocol import Protocol
from replan.readout import measure_readout_timescale, readout_timescale
from replan.simulate import Simulation, simulate
from replan.sweep import sweep
from replan.trajectory import Trajectory, evaluate

__version__ = files.VERSION

__all__ = [
    "Comparison",
    "Control",
    "Dynamics",
    "IntegrationError",
    "Limits",
    "Overlaps",
    "Plan",
    "Problem",
    "Protocol",
    "Simulation",
    "TeacherStudent",
    "Trajectory",
    "__version__",
    "compare",
    "evaluate",
    "measure_readout_timescale",
    "readout_timescale",
    "simulate",
    "solve",
    "strategies",
    "sweep",
]
