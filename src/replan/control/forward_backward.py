"""ForwardBackward: the paper's sweep, a baseline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from replan import check
from replan.control.forward_backward_descent import ForwardBackwardDescent
from replan.control.plan import Status
from replan.control.search import Search, on_grid
from replan.control.solver import Solver
from replan.errors import ArgumentError


@dataclass(frozen=True)
class ForwardBackward(Solver):
    """Sweep forwards and backwards, and move towards the smallest Hamiltonian at every step.

    - `damping`: how far to move; 1 is the paper's sweep as printed, which falls into cycles.
    - `sweeps`: the largest number of sweeps.

    It begins from the start given to `solve`, or else from equal shares.

    Examples:
        >>> model = replan.TeacherStudent.similar(0.3)
        >>> problem = replan.Problem(model, model.pretrain(seed=1), duration=20.0, steps=50)
        >>> replan.solve(problem, replan.ForwardBackward(damping=0.1)).status
        'cycled'
        >>> replan.solve(problem, replan.ForwardBackward(damping=1.0)).status  # as printed
        'cycled'
    """

    damping: float = 0.1
    sweeps: int = 500
    method: ClassVar[str] = "sweep"
    advice: ClassVar[dict[Status, str]] = {
        "stalled": "the sweep did not settle: try more `sweeps`, or the solver Relax",
        "cycled": "the sweep repeats itself: try a smaller `damping`, or the solver Relax",
    }

    def __post_init__(self) -> None:
        check.number("damping", self.damping, above=0, at_most=1)
        check.integer("sweeps", self.sweeps, at_least=1)

    def run(self, search: Search) -> Status:
        """Sweep until the controls settle, cycle or diverge."""
        if search.problem.control.ties:
            raise ArgumentError(
                "ForwardBackward",
                "controls that are free at every step and for every task",
                "constant or shared ones: use Relax()",
            )
        search.begin(alone=True)
        start = on_grid(search.problem, search.starts[0].protocol, search.problem.steps)
        descent = ForwardBackwardDescent(
            search.fine, start,
            free_tasks=search.free_tasks, damping=self.damping,
        )  # fmt: skip
        search.descend(descent, self.sweeps)
        if descent.met:
            return "converged"
        return "cycled" if descent.cycled else "stalled"
