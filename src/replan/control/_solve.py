"""solve(problem) → Plan: the best protocol for a problem, and how good it is."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np

from replan import check
from replan.control.discretised import Controls, Gradient, LimitError
from replan.control.exhaustive import Exhaustive
from replan.control.flips import Flips
from replan.control.forward_backward import ForwardBackward
from replan.control.grids import as_protocol
from replan.control.plan import ADVICE, MISSED, Certificate, Plan, Status
from replan.control.relax import Relax
from replan.control.relaxed_controls import RelaxedControls
from replan.control.search import EFFORTS, TOLERANCE, Search, Solver
from replan.core.threads import in_threads, interruptible_once
from replan.curves import Trajectory, evaluate
from replan.errors import SolveError
from replan.models.integrator import RTOL
from replan.problem import Problem
from replan.progress import Meter, Watch
from replan.protocol import Protocol

_RELAXED_RTOL = 1e-7  # of the relaxed plan's curves, whose knobs change at every step
_FALLBACK_RTOLS = (1e-5, 1e-3)  # where a learning rate is too large for a better accuracy
_INACCURATE = 10.0  # times what may be left to gain: a larger discretisation error is reported
# Smooth surrogates of an objective that is not smooth, each cooler than the one before.
_COOLING = 0.5
_SURROGATES = 30  # at most: the last is 1e-9 times as warm as the first
_CLOSE = 1e-3  # of the residual: with less slack, a surrogate is as good as the objective

METHODS = Solver.registry
for shipped in (Relax, Flips, ForwardBackward, Exhaustive):
    METHODS.add(shipped)


def solve(
    problem: Problem,
    solver: Solver | None = None,
    *,
    initial: Protocol | Sequence[Protocol] | None = None,
    effort: Literal["normal", "high"] = "normal",
    max_gradients: int = 20000,
    throw: bool = False,
    progress: Watch = False,
) -> Plan:
    """Return the best protocol found for a problem, with a certificate.

    **Main arguments**

    - `problem`: what to minimise, and what may be controlled.
    - `solver`: `Relax()` (the relaxed problem from several starts, rounded and polished), `Flips()`
      (the discrete polish alone), `ForwardBackward()` (the paper's sweep) or `Exhaustive()` (every
      protocol; coarse grids only); by default `Relax()`, which tries every protocol itself where
      these are few.

    **Other arguments**

    - `initial`: a protocol to start from besides others, or several; where tasks are not
      controlled, the first sets them. A search that is not cut short ends with a relaxed plan no
      worse than any of them; where the goal is "worst", to within the tolerance.
    - `effort`: "high" starts from many more places, for about two to five times as long. Either
      effort ends when the best value has been found again and again.
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
    check.one_of("effort", effort, tuple(EFFORTS))
    max_gradients = check.integer("max_gradients", max_gradients, at_least=1)
    check.boolean("throw", throw)
    begin = time.perf_counter()
    with interruptible_once() as no_more_interrupts:
        with Meter(progress, "gradients") as meter:
            search = Search(problem, initial, max_gradients, meter, EFFORTS[effort])
            try:
                status = solver.run(search)
                check.one_of("status", status, get_args(Status))
            except LimitError:
                status = "limit"
            except KeyboardInterrupt:
                if not search.has_plan:
                    raise
                status = "stopped"
            no_more_interrupts()
        plan = _certified(search, solver, status, time.perf_counter() - begin)
    if throw and plan.status != "converged":
        raise SolveError(plan)
    return plan


# The certificate


def _certified(search: Search, solver: Solver, status: Status, seconds: float) -> Plan:
    """Return the best plan of a search, evaluated on a fine integrator."""
    problem, best = search.problem, search.best.controls
    statistics = {
        "method": solver.method,
        "seed": getattr(solver, "seed", 0),
        "seconds": seconds,
        "gradients": search.counts.gradients,
        "roll_outs": search.counts.roll_outs,
    }
    search.counts.max_gradients = np.inf
    gradient, residual = _tightest(search, best)
    protocol = as_protocol(problem, best, one_task=True)
    relaxed, relaxed_value = protocol, None
    wanted = [(protocol, RTOL)]
    if search.relaxed is not None:
        relaxed, residual = as_protocol(problem, search.relaxed.controls), search.relaxed.residual
        wanted.append((relaxed, _RELAXED_RTOL))
    evaluated = in_threads(lambda i: _evaluated(problem, *wanted[i]), len(wanted))
    trajectory, mixed = evaluated[0], evaluated[-1]
    if search.relaxed is not None and mixed.status == "ok":
        # The plan is a relaxed one too, should rounding errors make it the better one.
        relaxed_value = min(mixed.loss, trajectory.loss)
    tolerance = getattr(solver, "tolerance", TOLERANCE)
    values = np.sort([x for x in search.values if np.isfinite(x)] or [trajectory.loss])
    apart = np.append(0, np.cumsum(np.diff(values) > search.same_value(tolerance)))
    error = float(np.fmax(abs(gradient.value - trajectory.loss), trajectory.error))
    certificate = Certificate(
        value=trajectory.loss,
        relaxed_value=relaxed_value,
        integrality_gap=None if relaxed_value is None else trajectory.loss - relaxed_value,
        pmp_residual=residual,
        discretisation_error=error,
        switches=int(np.sum(np.any(np.diff(protocol.shares, axis=0) != 0, axis=1))),
        residual_over_loss=residual / max(abs(trajectory.loss), 1e-300),
        found=int(np.sum(apart == 0)),
        starts=max(len(search.values), 1),
        basins=int(apart[-1]) + 1,
        multistart_spread=float(np.ptp(values) / max(abs(values[0]), 1e-300)),
        scope=search.scope,
    )
    threshold = search.threshold(tolerance)
    if status == "converged" and (error > _INACCURATE * threshold or trajectory.rtol > RTOL):
        status = "inaccurate"
    advice = [(ADVICE | solver.advice)[status], "" if trajectory.targets_met else MISSED]
    return Plan(
        problem,
        protocol,
        trajectory,
        relaxed,
        hamiltonians=gradient.by_shares / search.fine.lengths[:, None],
        adjoints=gradient.adjoints[:: search.fine.pieces],
        certificate=certificate,
        status=status,
        advice="; ".join(filter(None, advice)),
        statistics=statistics,
    )


def _evaluated(problem: Problem, protocol: Protocol, rtol: float) -> Trajectory:
    """Return the trajectory to `rtol`, or as accurately as the integrator can compute it."""
    for accuracy in (rtol, *_FALLBACK_RTOLS):
        trajectory = evaluate(problem, protocol, rtol=accuracy, throw=False)
        if trajectory.status != "inaccurate":
            break
    return trajectory


def _tightest(search: Search, controls: Controls) -> tuple[Gradient, float]:
    """Return the gradient with the smallest residual, and that residual.

    Where the objective is not smooth, each smooth surrogate bounds what is left to gain: warm ones
    by too much, because they lie below it, and cold ones because at a tie they see one side.
    """
    gradient = search.fine.gradient(controls)
    best = gradient, _residual(search, controls, gradient)
    smoothing = search.fine.smoothing(controls) if np.isfinite(gradient.value) else None
    for _ in range(_SURROGATES):
        if smoothing is None or gradient.surrogate.slack <= _CLOSE * best[1]:
            break
        smoothing = smoothing._replace(temperature=_COOLING * smoothing.temperature)
        gradient = search.fine.gradient(controls, smoothing)
        residual = _residual(search, controls, gradient)
        if residual < best[1]:
            best = gradient, residual
    return best


def _residual(search: Search, controls: Controls, gradient: Gradient) -> float:
    """Return the first-order gain still possible for a relaxed plan; see `RelaxedDescent`."""
    space = RelaxedControls(search.problem, controls, free_tasks=search.free_tasks)
    x = space.join(controls)
    return space.residual(x, space.slopes(x, gradient)) + gradient.surrogate.slack
