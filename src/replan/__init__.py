"""replan: plan how to train on several tasks without forgetting.

A name is imported when it is first used: `import replan` costs next to nothing, and JAX is loaded
only for models that need it.
"""

TYPE_CHECKING = False  # as in typing, which is slow to import, and Ctrl-C is not yet handled here

if TYPE_CHECKING:
    from replan import control as control
    from replan import models as models
    from replan import replay as replay
    from replan import strategies as strategies
    from replan.comparison import compare
    from replan.control import Exhaustive, Flips, ForwardBackward, Plan, Relax, levers, solve
    from replan.curves import Curves, Trajectory, evaluate
    from replan.errors import ArgumentError, IntegrationError, SolveError
    from replan.models import AutoModel, Model, Overlaps, TeacherStudent
    from replan.pilots import Fit, Pilots, advise, fit
    from replan.problem import Control, Limits, Objective, Problem, Range
    from replan.protocol import Protocol
    from replan.simulation import Simulation, simulate
    from replan.strategies import register
    from replan.studies import study
    from replan.sweeps import sweep

    __version__: str

_HOMES = {
    name: home
    for home, names in {
        "comparison": ["compare"],
        "control": ["Exhaustive", "Flips", "ForwardBackward", "Plan", "Relax", "levers", "solve"],
        "curves": ["Curves", "Trajectory", "evaluate"],
        "errors": ["ArgumentError", "IntegrationError", "SolveError"],
        "models": ["AutoModel", "Model", "Overlaps", "TeacherStudent"],
        "pilots": ["Fit", "Pilots", "advise", "fit"],
        "problem": ["Control", "Limits", "Objective", "Problem", "Range"],
        "protocol": ["Protocol"],
        "simulation": ["Simulation", "simulate"],
        "strategies": ["register"],
        "studies": ["study"],
        "sweeps": ["sweep"],
    }.items()
    for name in names
}
_MODULES = ("control", "models", "replay", "strategies")
__all__ = [
    "ArgumentError",
    "AutoModel",
    "Control",
    "Curves",
    "Exhaustive",
    "Fit",
    "Flips",
    "ForwardBackward",
    "IntegrationError",
    "Limits",
    "Model",
    "Objective",
    "Overlaps",
    "Pilots",
    "Plan",
    "Problem",
    "Protocol",
    "Range",
    "Relax",
    "Simulation",
    "SolveError",
    "TeacherStudent",
    "Trajectory",
    "advise",
    "compare",
    "control",
    "evaluate",
    "fit",
    "levers",
    "models",
    "register",
    "replay",
    "simulate",
    "solve",
    "strategies",
    "study",
    "sweep",
]

if not TYPE_CHECKING:  # a type checker would take any name at all to be in the module

    def __getattr__(name):
        from importlib import import_module

        if name == "__version__":
            value = import_module("replan.files").version()
        elif name in _HOMES:
            value = getattr(import_module(f"replan.{_HOMES[name]}"), name)
        elif name in _MODULES:
            value = import_module(f"replan.{name}")
        else:
            raise AttributeError(f"module 'replan' has no attribute {name!r}")
        globals()[name] = value
        return value

    def __dir__():
        return __all__
