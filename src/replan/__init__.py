"""replan: plan how to train on several tasks without forgetting."""

from replan import strategies
from replan._common import files
from replan.comparison import Comparison, compare
from replan.control import Plan, solve
from replan.dynamics import Dynamics, IntegrationError, Overlaps, TeacherStudent
from replan.paper.timescale import measure_readout_timescale, readout_timescale
from replan.problem import Control, Limits, Problem
from replan.protocol import Protocol
from replan.simulation import Simulation, simulate
from replan.sweeps import sweep
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
