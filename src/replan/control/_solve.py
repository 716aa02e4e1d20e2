"""solve(problem) → Plan: the best protocol for a problem, and how good it is."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, get_args

from replan import check
from replan.control.certificate import certified
from replan.control.exhaustive import Exhaustive
from replan.control.flips import Flips
from replan.control.forward_backward import ForwardBackward
from replan.control.objective import LimitError, check_differentiable
from replan.control.plan import Plan, Status
from replan.control.relax import Relax
from replan.control.search import Search
from replan.control.solver import Solver
from replan.core.interrupt import interrupted
from replan.core.threads import free_cores
from replan.errors import ArgumentError, SolveError
from replan.problem import Problem
from replan.progress import Meter, Watch
from replan.protocol import Protocol

METHODS: dict[str, type[Solver]] = {
    solver.method: solver for solver in (Relax, Flips, ForwardBackward, Exhaustive)
}
"""The solvers by their words on the command line.

Examples:
    >>> sorted(replan.control.METHODS)
    ['exhaustive', 'flips', 'relax', 'sweep']
"""


def solve(
    problem: Problem,
    solver: Solver | None = None,
    *,
    start: Protocol | Sequence[Protocol] | None = None,
    starts: int | None = None,
    seed: int | None = None,
    tolerance: float | None = None,
    max_gradients: int = 5000,
    workers: int | None = None,
    throw: bool = False,
    progress: Watch = False,
) -> Plan:
    """Return the best protocol found for a problem, with a certificate.

    **Main arguments**

    - `problem`: what to minimise, and what may be controlled.
    - `solver`: `Relax()` (the relaxed problem from several starts, rounded and polished), `Flips()`
      (the discrete polish alone), `ForwardBackward()` (the paper's sweep) or `Exhaustive()` (every
      protocol; coarse grids only); by default `Relax()`.

    **Other arguments**

    - `start`: a further protocol to begin from, or several; where tasks are not controlled, the
      first sets them. A search that is not cut short ends with a relaxed plan that is not worse
      than any of them; where the goal is "worst", not by more than the tolerance.
    - `starts`, `seed`, `tolerance`: those of `Relax`, where no solver is given.
    - `max_gradients`: how many gradients may be computed.
    - `workers`: how many starts are searched from at a time, in threads, by default one per core;
      the plan does not depend on it.
    - `throw`: raise a `SolveError`, which holds the plan, unless the status is "converged".
    - `progress`: True shows a bar; a function is called with a `Progress` now and then.

    Ctrl-C ends the search: the best plan so far is returned with the status "stopped".

    Examples:
        >>> model = replan.TeacherStudent.similar(0.3)
        >>> problem = replan.Problem(model, model.pretrain(seed=1), duration=20.0, steps=50)
        >>> plan = replan.solve(problem)
        >>> plan.status, f"{plan.loss:.4f}"
        ('converged', '0.0009')
        >>> plan.loss < replan.evaluate(problem, replan.strategies.interleaved(problem)).loss
        True
    """
    check.instance("problem", problem, Problem, "a Problem")
    check.boolean("throw", throw)
    solver = _solver(solver, {"starts": starts, "seed": seed, "tolerance": tolerance})
    max_gradients = check.integer("max_gradients", max_gradients, at_least=1)
    workers = free_cores() if workers is None else check.integer("workers", workers, at_least=1)
    check_solvable(problem)
    begin = time.perf_counter()
    with Meter(progress, "gradients") as meter:
        search = Search(problem, start, max_gradients, meter, workers)
        try:
            status: Status = solver.run(search)
        except LimitError:
            status = "limit"
        except BaseException as error:
            if not interrupted(error):
                raise
            if not search.any:
                raise KeyboardInterrupt from None
            status = "stopped"
    if status not in get_args(Status):
        raise ArgumentError(
            f"run of {type(solver).__name__}",
            f"to return one of {', '.join(get_args(Status))}",
            check.show(status),
        )
    statistics = {
        "method": solver.method,
        "seed": getattr(solver, "seed", 0),
        "seconds": time.perf_counter() - begin,
    }
    plan = certified(search, solver, status, statistics)
    if throw and plan.status != "converged":
        raise SolveError(plan)
    return plan


def check_solvable(problem: Problem) -> None:
    """Refuse a problem with nothing to control, or whose model has no gradients."""
    if not problem.control.tasks and not problem.control.knobs:
        raise ArgumentError(
            "problem",
            "a control of tasks, of the learning rate or another knob, or of several",
            "none",
        )
    check_differentiable(problem)


def _solver(solver: Solver | None, settings: dict[str, Any]) -> Solver:
    """Return the solver, or `Relax` with the given settings."""
    given = {name: value for name, value in settings.items() if value is not None}
    if solver is None:
        return Relax(**given)
    check.instance("solver", solver, Solver, "a solver such as Relax() or Exhaustive()")
    for name in given:
        raise ValueError(
            f"`{name}` goes into the solver where one is given, such as Relax({name}=…), got both"
        )
    return solver
