"""replan: plan how to train on several tasks without forgetting.

A name is imported when it is first used: `import replan` costs next to nothing, and JAX is loaded
only for `AutoDynamics`.
"""

TYPE_CHECKING = False  # as in typing, which is slow to import, and Ctrl-C is not yet handled here

if TYPE_CHECKING:
    from replan import comparison as comparison
    from replan import control as control
    from replan import dynamics as dynamics
    from replan import paper as paper
    from replan import policies as policies
    from replan import problem as problem
    from replan import protocol as protocol
    from replan import simulation as simulation
    from replan import strategies as strategies
    from replan import studies as studies
    from replan import sweeps as sweeps
    from replan import trajectory as trajectory
    from replan import tuning as tuning
    from replan.comparison import Comparison, compare
    from replan.control import (
        Exhaustive,
        Flips,
        ForwardBackward,
        Levers,
        Plan,
        Regret,
        Relax,
        SolveError,
        levers,
        regret,
        solve,
    )
    from replan.curves import Curves
    from replan.dynamics import (
        AutoDynamics,
        Dynamics,
        IntegrationError,
        Overlaps,
        TeacherStudent,
    )
    from replan.paper.timescale import measure_readout_timescale, readout_timescale
    from replan.problem import Control, Ensemble, Limits, Problem
    from replan.protocol import Protocol
    from replan.simulation import Simulation, simulate
    from replan.studies import Study, study
    from replan.sweeps import sweep
    from replan.trajectory import Trajectory, evaluate
    from replan.tuning import Tuned, tune

    __version__: str
    """The version of the package.

    Examples:
        >>> replan.__version__.split(".")[0]
        '0'
    """

__all__ = [
    "AutoDynamics",
    "Comparison",
    "Control",
    "Curves",
    "Dynamics",
    "Ensemble",
    "Exhaustive",
    "Flips",
    "ForwardBackward",
    "IntegrationError",
    "Levers",
    "Limits",
    "Overlaps",
    "Plan",
    "Problem",
    "Protocol",
    "Regret",
    "Relax",
    "Simulation",
    "SolveError",
    "Study",
    "TeacherStudent",
    "Trajectory",
    "Tuned",
    "__version__",
    "compare",
    "evaluate",
    "levers",
    "measure_readout_timescale",
    "readout_timescale",
    "regret",
    "simulate",
    "solve",
    "strategies",
    "study",
    "sweep",
    "tune",
]

if not TYPE_CHECKING:  # a type checker would take any name at all to be in the module
    _HOMES = {
        "AutoDynamics": "replan.dynamics:AutoDynamics",
        "Comparison": "replan.comparison:Comparison",
        "Control": "replan.problem:Control",
        "Curves": "replan.curves:Curves",
        "Dynamics": "replan.dynamics:Dynamics",
        "Ensemble": "replan.problem:Ensemble",
        "Exhaustive": "replan.control:Exhaustive",
        "Flips": "replan.control:Flips",
        "ForwardBackward": "replan.control:ForwardBackward",
        "IntegrationError": "replan.dynamics:IntegrationError",
        "Levers": "replan.control:Levers",
        "Limits": "replan.problem:Limits",
        "Overlaps": "replan.dynamics:Overlaps",
        "Plan": "replan.control:Plan",
        "Problem": "replan.problem:Problem",
        "Protocol": "replan.protocol:Protocol",
        "Regret": "replan.control:Regret",
        "Relax": "replan.control:Relax",
        "Simulation": "replan.simulation:Simulation",
        "SolveError": "replan.control:SolveError",
        "Study": "replan.studies:Study",
        "TeacherStudent": "replan.dynamics:TeacherStudent",
        "Trajectory": "replan.trajectory:Trajectory",
        "Tuned": "replan.tuning:Tuned",
        "__version__": "replan._common.files:VERSION",
        "compare": "replan.comparison:compare",
        "evaluate": "replan.trajectory:evaluate",
        "levers": "replan.control:levers",
        "measure_readout_timescale": "replan.paper.timescale:measure_readout_timescale",
        "readout_timescale": "replan.paper.timescale:readout_timescale",
        "regret": "replan.control:regret",
        "simulate": "replan.simulation:simulate",
        "solve": "replan.control:solve",
        "study": "replan.studies:study",
        "sweep": "replan.sweeps:sweep",
        "tune": "replan.tuning:tune",
    } | {
        module: f"replan.{module}"
        for module in (
            "comparison", "control", "dynamics", "paper", "policies", "problem",
            "protocol", "simulation", "strategies", "studies", "sweeps", "trajectory", "tuning",
        )
    }  # fmt: skip

    def __getattr__(name):
        from pkgutil import resolve_name

        if name not in _HOMES:
            raise AttributeError(f"module 'replan' has no attribute {name!r}")
        value = globals()[name] = resolve_name(_HOMES[name])
        return value

    def __dir__():
        return __all__
