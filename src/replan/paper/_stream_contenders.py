"""One stream of tasks: every contender on it, with its learning curves.

All train at the same learning rate. All but the plan with few switches may mix tasks within a
step, so that none gains or loses by the length of steps alone.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from replan import strategies
from replan.control import Flips, Plan, Relax, solve
from replan.paper._parts import minimiser
from replan.problem import Limits, Problem
from replan.protocol import Protocol
from replan.trajectory import Trajectory, evaluate

PLAN, FEW = "plan", "plan, few switches"
FOCUS, FIXED = "focus-then-replay", "fixed share, tuned"
INTERLEAVED, NO_REPLAY = "interleaved", "no replay"
STRATEGIES = (FOCUS, FIXED, INTERLEAVED, NO_REPLAY)
CONTENDERS = (PLAN, FEW, *STRATEGIES)

_SHARES = 11  # of the grid on which the fixed share is tuned, before it is refined
_ROUGH = 1e-4  # relative accuracy of losses while it is
_TOLERANCE = 1e-3  # of plans: a tighter one changes losses in the fourth digit
_FAILURES = 100  # moves in a row without a gain that end the search for few switches


def stream(
    tasks: int, seed: int, *, interval: float, steps: int, similarity: float
) -> dict[str, Any]:
    """Return a stream of drifting tasks as the content of a problem file.

    Task 1 has been learned for 1,000 units. Task 2 arrives at 0 and every further one an `interval`
    of `steps` steps later, which also follows the last. With two tasks it is the paper's problem.
    """
    arrivals = [0.0, *(interval * i for i in range(tasks - 1))]
    return {
        "model": {
            "hidden": tasks, "tasks": tasks, "similarity": similarity, "teachers": "drift",
        },
        "start": {"pretrain": {"task": 1, "duration": 1000.0, "lr": 1.0, "seed": seed}},
        "training": {
            "duration": interval * (tasks - 1), "steps": steps * (tasks - 1), "lr": 1.0,
            "arrivals": arrivals,
        },
    }  # fmt: skip


def case(problem: dict[str, Any], switches: int | None) -> dict[str, Any]:
    """Return the losses, forgetting, curves and protocols of all contenders on one problem.

    `switches`: how many the plan with few switches may have; None leaves it out.
    """
    posed = Problem.from_dict(problem)
    share = tuned_share(posed)
    fixed = fixed_share(posed, share)
    plan = solve(posed, Relax(starts=1, tolerance=_TOLERANCE), start=fixed)
    protocols = {
        PLAN: plan.relaxed,
        FOCUS: strategies.focus_then_replay(posed),
        FIXED: fixed,
        INTERLEAVED: strategies.interleaved(posed),
        NO_REPLAY: strategies.no_replay(posed),
    }
    if switches is not None:
        protocols[FEW] = _few_switches(posed, plan, switches).protocol
    runs = {name: evaluate(posed, protocols[name]) for name in CONTENDERS if name in protocols}
    times = np.linspace(0.0, posed.duration, 2 * posed.steps + 1)
    return {
        "time": times.tolist(),
        "losses": {name: run.loss for name, run in runs.items()},
        "forgetting": {name: _forgetting(run) for name, run in runs.items()},
        "curves": {name: run.losses_at(times).tolist() for name, run in runs.items()},
        "protocols": {name: run.protocol.to_dict() for name, run in runs.items()},
        "plan": {
            "share": share,
            "one_task_loss": plan.loss,
            "residual": plan.certificate.pmp_residual / plan.loss,
            "gradients": plan.statistics["gradients"],
            "status": plan.status,
        },
    }


def fixed_share(problem: Problem, share: float) -> Protocol:
    """Return the newest task with a share of replay, which all older tasks divide equally."""
    there, newest = problem.step_limits.there, problem.availability.newest(problem.edges)
    old = there.copy()
    old[np.arange(problem.steps), newest] = False
    shares = share * old / np.maximum(old.sum(axis=1, keepdims=True), 1)
    shares[np.arange(problem.steps), newest] = 1 - shares.sum(axis=1)
    return Protocol(shares, problem.duration, knobs=problem.settings)


def tuned_share(problem: Problem) -> float:
    """Return the fixed share of replay with the least loss."""

    def loss(share: float) -> float:
        return evaluate(problem, fixed_share(problem, share), rtol=_ROUGH).loss

    return minimiser(loss, 0.0, 1.0, _SHARES)


def _few_switches(problem: Problem, plan: Plan, switches: int) -> Plan:
    """Return the plan with one task at a time and few switches between them, from the plan."""
    limited = replace(problem, limits=Limits(max_switches=switches))
    flips = Flips(starts=0, tolerance=0.1 * _TOLERANCE, failures=_FAILURES)
    return solve(limited, flips, start=plan.relaxed)


def _forgetting(run: Trajectory) -> float | None:
    """Return the mean over the tasks; None where all of them are there from the beginning."""
    return None if run.transfer is None else float(run.transfer.means["forgetting"])
