"""solve(problem) → Plan: the best protocol for a problem, and how good it is."""

from __future__ import annotations

import time
from collections.abc import Callable

from replan._common import check
from replan._common.interrupt import interrupted
from replan.control.plan import Plan
from replan.problem import Problem
from replan.protocol import Protocol

METHODS = ("relax", "flips", "sweep", "exhaustive")

Watch = Callable[[float, int], None]


def solve(
    problem: Problem,
    *,
    method: str = "relax",
    start: Protocol | None = None,
    starts: int = 2,
    seed: int = 0,
    max_gradients: int = 5000,
    watch: Watch | None = None,
) -> Plan:
    """Return the best protocol found for a problem, with a certificate.

    **Main arguments**

    - `problem`: what to minimise, and what may be controlled.

    **Other arguments**

    - `method`: "relax" (the relaxed problem from several starts, rounded and polished), "flips"
      (the discrete polish alone), "sweep" (the paper's forward-backward sweep, damped) or
      "exhaustive" (every protocol; coarse grids only).
    - `start`: a protocol to begin from as well; where tasks are not controlled, the tasks.
    - `starts`: random starts besides the three best strategies. `seed`: of those.
    - `max_gradients`: how many gradients may be computed.
    - `watch`: called with the best value so far and the gradients used, now and then.

    Ctrl-C ends the search: the best plan so far is returned with the status "stopped".
    """
    check.one_of("method", method, METHODS)
    starts = check.integer("starts", starts)
    seed = check.integer("seed", seed)
    max_gradients = check.integer("max_gradients", max_gradients, at_least=1)
    # with its compiled parts, which importing replan should not load
    from replan.control._objective import LimitError
    from replan.control._search import Search

    if not problem.control.tasks and problem.control.lr is None:
        raise ValueError(
            "`problem` expects a control of tasks, of the learning rate, or both, got neither"
        )
    search = Search(problem, seed, max_gradients, watch)
    begin = time.perf_counter()
    try:
        search.begin(start, starts)
        status = getattr(search, method)()
    except LimitError:
        status = "limit"
    except (KeyboardInterrupt, SystemError) as error:
        if not interrupted(error) or search.best is None:
            raise
        status = "stopped"
    return search.plan(status, {"method": method, "seed": seed}, time.perf_counter() - begin)
