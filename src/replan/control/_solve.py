"""solve(problem) → Plan: the best protocol for a problem, and how good it is."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import get_args

from replan import check
from replan.control.certificate import certified
from replan.control.discretised import LimitError
from replan.control.exhaustive import Exhaustive
from replan.control.flips import Flips
from replan.control.forward_backward import ForwardBackward
from replan.control.plan import Plan, Status
from replan.control.relax import Relax
from replan.control.search import Search
from replan.control.solver import Solver, check_solvable
from replan.core.interrupt import interrupted
from replan.errors import SolveError
from replan.problem import Problem
from replan.progress import Meter, Watch
from replan.protocol import Protocol

METHODS: dict[str, type[Solver]] = {
    solver.method: solver for solver in (Relax, Flips, ForwardBackward, Exhaustive)
}
"""The solvers by their names on the command line; own solvers can be added.

Examples:
    >>> sorted(replan.control.METHODS)
    ['exhaustive', 'flips', 'forward-backward', 'relax']
"""


def solve(
    problem: Problem,
    solver: Solver | None = None,
    *,
    initial: Protocol | Sequence[Protocol] | None = None,
    max_gradients: int = 5000,
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

    - `initial`: a protocol to start from besides others, or several; where tasks are not
      controlled, the first sets them. A search that is not cut short ends with a relaxed plan no
      worse than any of them; where the goal is "worst", to within the tolerance.
    - `max_gradients`: how many gradients may be computed.
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
    solver = Relax() if solver is None else solver
    check.instance("solver", solver, Solver, "a solver such as Relax() or Exhaustive()")
    max_gradients = check.integer("max_gradients", max_gradients, at_least=1)
    check.boolean("throw", throw)
    check_solvable(problem)
    begin = time.perf_counter()
    with Meter(progress, "gradients") as meter:
        search = Search(problem, initial, max_gradients, meter)
        try:
            status = solver.run(search)
            check.one_of("status", status, get_args(Status))
        except LimitError:
            status = "limit"
        except BaseException as error:
            if not interrupted(error):
                raise
            if not search.has_plan:
                raise KeyboardInterrupt from None
            status = "stopped"
    plan = certified(search, solver, status, time.perf_counter() - begin)
    if throw and plan.status != "converged":
        raise SolveError(plan)
    return plan
