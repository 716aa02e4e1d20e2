"""What a study computes: starts, then a run on each problem, then simulations of the runs.

Each is a case of a sweep, so that its finished ones are kept: a start that many problems share is
made once, and another strategy, solver or simulation adds only its own cases.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np

from replan import check, files
from replan.check import Floats
from replan.control import METHODS, Plan, solve
from replan.core.interrupt import interrupted
from replan.models import IntegrationError, find
from replan.problem import Ensemble, Problem
from replan.problem.ensemble_file import kinds
from replan.protocol import Protocol
from replan.simulation import Simulation, simulate
from replan.strategies import STRATEGIES
from replan.strategies._arguments import arguments
from replan.trajectory import Trajectory, evaluate

Content = dict[str, Any]

# What a row of the table says about a plan, besides what it says about every run
CERTIFICATE = (
    "relaxed_value",
    "integrality_gap",
    "pmp_residual",
    "discretisation_error",
    "switches",
    "multistart_spread",
    "scope",
)


def _told(compute: Callable[..., Content]) -> Callable[..., Content]:
    """Have a failure told in the result: it is the end of a case, not of the study.

    What is wrong with the machine rather than with the case is no result.
    """

    @wraps(compute)
    def attempt(**case: Any) -> Content:
        _check_known(**case)
        try:
            return compute(**case)
        except (IntegrationError, ValueError) as error:
            why = str(error)
        except (MemoryError, OSError):
            raise
        except Exception as error:  # in code of the user's
            if interrupted(error):
                raise
            why = f"{type(error).__name__}: {error}"
        return {"status": "failed", "advice": " ".join(why.split())}

    return attempt


def _check_known(
    begin: Content | None = None,
    problem: Content | None = None,
    run: Content | None = None,
    **_: Any,
) -> None:
    """Refuse names that this process does not know, such as those of a notebook in a worker."""
    for kind in kinds(problem or begin or {}):
        find(kind)
    if run is not None:
        key = "strategy" if "strategy" in run else "method"
        check.one_of(key, run[key], STRATEGIES if key == "strategy" else METHODS)


@_told
def make_start(begin: Content, code: str) -> Content:
    """Return the section that holds a start, which may take long to make, as a state.

    begin: the sections of a problem file that it depends on. That of an ensemble holds the starts
    of all members.
    """
    problem = Problem.from_dict(begin | {"training": {"duration": 1.0}})
    if isinstance(problem, Ensemble):
        return {"status": "ok", "begin": {"ensemble": problem.to_dict()["ensemble"]}}
    return {"status": "ok", "begin": {"start": problem.model.start_to_dict(problem.start)}}


@_told
def run_on(problem: Content, begin: Content, run: Content, code: str) -> Content:
    """Return what a row says about a run on a problem; for a plan also the text of its file.

    begin: the section that holds its start. run: { strategy = …, settings } or { method = …,
    settings }. code: of the user's that this calls, a digest by which an edit is noticed.
    """
    made = Problem.from_dict(problem | begin)
    if "strategy" in run:
        return _row(evaluate(made, _protocol(made, run), throw=False))
    settings = {key: x for key, x in run.items() if key not in ("method", "max_gradients")}
    limit = {key: run[key] for key in ("max_gradients",) if key in run}
    plan = solve(made, METHODS[run["method"]](**settings), **limit)
    saved = plan.to_dict() | {"settings": {"file": problem} | run}
    return _plan_row(plan) | {"file": files.json_bytes(saved).decode()}


@_told
def simulate_on(
    problem: Content,
    begin: Content,
    run: Content,
    protocol: Content | None,
    sgd: Content,
    code: str,
) -> Content:
    """Return what a row says about SGD with the protocol of a run, made anew for a strategy."""
    made = Problem.from_dict(problem | begin)
    if protocol is None:
        return _simulated(made, _protocol(made, run), sgd)
    return _simulated(made, Protocol.from_dict(protocol), sgd)


def _protocol(problem: Problem, run: Content) -> Protocol:
    """Return the protocol of a strategy."""
    recipe = STRATEGIES[run["strategy"]]
    settings = {key: x for key, x in run.items() if key != "strategy"}
    return recipe(problem, **arguments(recipe, settings, problem.model.tasks))


def _simulated(problem: Problem, protocol: Protocol, settings: Content) -> Content:
    """Return what a row says about SGD; the cases run side by side, so the runs of one do not."""
    run = simulate(problem, protocol, **settings, threads=1)
    finished = run.curves.finished
    found = _described(protocol) | {
        "status": "ok" if len(finished) else "diverged",
        "advice": "; ".join(run.curves.left_out),
        "runs": len(finished),
    }
    if not len(finished):
        return found
    values = _objectives(run)
    error = values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else None
    return found | {
        "value": values.mean(),
        "losses": finished[:, -1].mean(axis=0),
        "error": error,
    }


def _objectives(run: Simulation) -> Floats:
    """Return the objective of every finished run; averages are over the times recorded."""
    losses = run.curves.finished
    middles = (losses[:, 1:] + losses[:, :-1]) / 2
    lengths, counts = np.diff(run.times), run.problem.counts_along(run.times)
    along = np.einsum("i,il,nil->n", lengths, counts, middles) / lengths.sum()
    return run.problem.objective(losses[:, -1], along)


def _row(run: Trajectory) -> Content:
    found = _described(run.protocol) | {"status": run.status, "advice": run.advice}
    if run.status != "ok":
        return found
    return found | {
        "value": run.loss,
        "losses": run.final_losses,
        "error": run.error if np.isfinite(run.error) else None,
    }


def _plan_row(plan: Plan) -> Content:
    known = {name: getattr(plan.certificate, name) for name in CERTIFICATE}
    return (
        _row(plan.trajectory)
        | known
        | {
            "value": plan.loss,
            "status": plan.status,
            "advice": plan.advice,
            "gradients": plan.statistics["gradients"],
        }
    )


def _described(protocol: Protocol) -> Content:
    found = {"shares": protocol.mean_shares}
    for knob in protocol.knobs:
        values = (protocol.shares * protocol.by_task(knob)).sum(axis=1)
        found |= {f"{knob}_first": values[0], f"{knob}_last": values[-1]}
    return found
