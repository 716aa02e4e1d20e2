"""solve(problem) → Plan, and the solvers it can be given."""

from typing import TYPE_CHECKING, Any

from replan.control.plan import Certificate, Plan

if TYPE_CHECKING:
    from replan.control._levers import Levers, levers
    from replan.control._regret import Regret, regret
    from replan.control._solve import solve
    from replan.control.exhaustive import Exhaustive
    from replan.control.flips import Flips
    from replan.control.forward_backward import ForwardBackward
    from replan.control.objective import Controls, Objective
    from replan.control.relax import Relax
    from replan.control.search import Found, Search
    from replan.control.solver import Descent, Solver

    METHODS: dict[str, type[Solver]]

__all__ = [
    "METHODS",
    "Certificate",
    "Controls",
    "Descent",
    "Exhaustive",
    "Flips",
    "ForwardBackward",
    "Found",
    "Levers",
    "Objective",
    "Plan",
    "Regret",
    "Relax",
    "Search",
    "Solver",
    "levers",
    "regret",
    "solve",
]

# These load numba, and are therefore imported when they are first used.
_LAZY = {
    "METHODS": "_solve",
    "Controls": "_objective",
    "Descent": "_solver",
    "Exhaustive": "exhaustive",
    "Flips": "flips",
    "ForwardBackward": "forward_backward",
    "Found": "_search",
    "Levers": "_levers",
    "Objective": "_objective",
    "Regret": "_regret",
    "Relax": "relax",
    "Search": "_search",
    "Solver": "_solver",
    "levers": "_levers",
    "regret": "_regret",
    "solve": "_solve",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
