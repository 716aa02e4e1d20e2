"""certified: the plan that a search has found, with what is known about it."""

from __future__ import annotations

from typing import Any

import numpy as np

from replan.control.objective import Controls, Gradient
from replan.control.plan import ADVICE, MISSED, Certificate, Plan, Status
from replan.control.relax import TOLERANCE
from replan.control.relaxed_controls import RelaxedControls
from replan.control.search import Search, as_protocol
from replan.control.solver import Solver
from replan.curves import Trajectory, evaluate
from replan.models.integrator import RTOL
from replan.problem import Problem
from replan.protocol import Protocol

_LESS = (1e-5, 1e-3)  # accuracies that do where a learning rate is too large for a better one
_COOLER = 0.5  # the temperature from one smooth objective to the next
_ROUNDS = 30  # most of these
_CLOSE = 1e-3  # of what is left to gain: a smooth objective closer than that is the largest itself
_INACCURATE = 10.0  # times what may be left to gain: a larger discretisation error is reported


def certified(search: Search, solver: Solver, status: Status, statistics: dict[str, Any]) -> Plan:
    """Return the best plan of a search, evaluated on a fine integrator.

    - `solver`: a discretisation error far beyond its tolerance makes the plan "inaccurate"; its
      advice goes with the status.
    - `statistics`: what to add to those of the plan besides the work done.
    """
    problem, best = search.problem, search.best.controls
    statistics = statistics | {
        "starts": len(search.values),
        "gradients": search.counts.gradients,
        "roll_outs": search.counts.roll_outs,
    }
    search.counts.max_gradients = np.inf
    final, residual = _sharpest(search, best)
    protocol = as_protocol(problem, best, one_task=True)
    trajectory = _evaluated(problem, protocol, RTOL)
    relaxed, relaxed_value = protocol, None
    if search.relaxed is not None:
        controls, _, residual = search.relaxed
        relaxed = as_protocol(problem, controls)
        mixed = _evaluated(problem, relaxed, 1e-7)
        if mixed.status == "ok":
            # the plan counts as a relaxed one too, should rounding errors make it the better one
            relaxed_value = min(mixed.loss, trajectory.loss)
    values = np.array([x for x in search.values if np.isfinite(x)] or [trajectory.loss])
    certificate = Certificate(
        value=trajectory.loss,
        relaxed_value=relaxed_value,
        integrality_gap=None if relaxed_value is None else trajectory.loss - relaxed_value,
        pmp_residual=residual,
        discretisation_error=float(np.fmax(abs(final.value - trajectory.loss), trajectory.error)),
        switches=int(np.sum(np.any(np.diff(protocol.shares, axis=0) != 0, axis=1))),
        multistart_spread=float(np.ptp(values) / max(abs(values.min()), 1e-300)),
        scope=search.scope,
    )
    error = certificate.discretisation_error
    enough = search.enough(getattr(solver, "tolerance", TOLERANCE))
    if status == "converged" and (error > _INACCURATE * enough or trajectory.rtol > RTOL):
        status = "inaccurate"
    words = [(ADVICE | solver.advice)[status], "" if trajectory.targets_met else MISSED]
    edges = slice(None, None, search.fine.pieces)
    return Plan(
        problem, protocol, trajectory, relaxed,
        final.by_shares / search.fine.lengths[:, None], final.adjoints[edges],
        certificate, status, "; ".join(filter(None, words)), statistics,
    )  # fmt: skip


def _evaluated(problem: Problem, protocol: Protocol, rtol: float) -> Trajectory:
    """Return the trajectory to `rtol`, or as accurately as the integrator can compute it."""
    for accuracy in (rtol, *_LESS):
        run = evaluate(problem, protocol, rtol=accuracy, throw=False)
        if run.status != "inaccurate":
            break
    return run


def _sharpest(search: Search, controls: Controls) -> tuple[Gradient, float]:
    """Return the gradient by which least is left to gain, and how much that is.

    Where the objective is not smooth, smooth ones stand for it, and each bounds what is left: warm
    ones by too much, because they lie below it, and cold ones because at a tie they see one side.
    """
    found = search.fine.gradient(controls)
    best = found, _residual(search, controls, found)
    soft = search.fine.smoothing(controls) if np.isfinite(found.value) else None
    for _ in range(_ROUNDS):
        if soft is None or found.slack <= _CLOSE * best[1]:
            break
        soft = soft._replace(temperature=_COOLER * soft.temperature)
        found = search.fine.gradient(controls, soft)
        best = min(best, (found, _residual(search, controls, found)), key=lambda one: one[1])
    return best


def _residual(search: Search, controls: Controls, gradient: Gradient) -> float:
    """First-order gain still possible, as of a relaxed plan: see `RelaxedDescent.residual`."""
    space = RelaxedControls(
        search.problem, controls, free_tasks=search.free_tasks, free_knobs=search.free_knobs
    )
    return space.residual(space.join(controls), space.slopes(gradient)) + gradient.slack
