"""evaluate(problem, protocol) → Trajectory: the exact learning curves of a training protocol."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from replan import check
from replan.check import Floats
from replan.core.schedule import Schedule
from replan.errors import IntegrationError
from replan.models.integrator import MAX_STEPS, RTOL, Integration, Status, integrate
from replan.models.stacked import in_threads, listed
from replan.problem import Problem
from replan.problem.averages import averages
from replan.protocol import Protocol
from replan.trajectory._trajectory import Trajectory


def evaluate(
    problem: Problem,
    protocol: Protocol,
    *,
    rtol: float = RTOL,
    max_steps: int = MAX_STEPS,
    throw: bool = True,
) -> Trajectory:
    """Return the exact learning curves of `protocol` on `problem`.

    **Main arguments**

    - `problem`, `protocol`: with the same number of tasks and the same duration.

    **Other arguments**

    - `rtol`: the relative accuracy of the losses; RK4 steps are halved until it is reached.
    - `max_steps`: how many RK4 steps the finest run may take.
    - `throw`: raise an `IntegrationError` where the curves cannot be computed (if a learning rate
      is too large); with `throw=False`, return what there is, with a status that says so.

    Examples:
        >>> model = replan.TeacherStudent.similar(0.3)
        >>> problem = replan.Problem(model, model.pretrain(seed=1), duration=20.0, steps=50)
        >>> run = replan.evaluate(problem, replan.strategies.interleaved(problem))
        >>> f"{run.loss:.4f}", run.error < 1e-9, run.status
        ('0.0076', True, 'ok')
    """
    check.instance("problem", problem, Problem, "a Problem")
    check.boolean("throw", throw)
    protocol = problem.accept(protocol)
    steps = protocol.split(problem.edges)
    # Averages need the middles of the steps; to know their errors as well, the quarters.
    parts = 4 if problem.objective.averages_count else 2
    pieces = Schedule.single_steps(steps.shares, problem.knob_rows(steps), steps.lengths).subdivide(
        parts
    )
    accuracy = {"rtol": rtol, "max_steps": max_steps}
    runs = _integrated(problem, pieces, **accuracy)
    found = [
        _trajectory(member, protocol, steps.edges, run, parts, rtol)
        for member, run in zip(problem.members, runs, strict=True)
    ]
    whole = found[0] if found[0].problem is problem else _joined(problem, found)
    if throw and whole.status != "ok":
        raise IntegrationError(whole.advice)
    return whole


def _integrated(problem: Problem, schedule: Schedule, **accuracy: Any) -> list[Integration]:
    """Return the runs of all members, those of several in threads."""
    members = problem.members

    def run(m: int) -> Integration:
        return integrate(members[m].model, members[m].state, schedule, **accuracy)

    return [run(0), *in_threads(lambda m: run(m + 1), len(members) - 1)]  # the first one compiles


def _trajectory(
    problem: Problem, protocol: Protocol, edges: Floats, run: Integration, parts: int,
    rtol: float,
) -> Trajectory:  # fmt: skip
    """Return the trajectory of one member from its run, whose pieces are parts of the steps."""
    last = (len(run.states) - 1) // parts + 1
    whole = parts * (last - 1)
    edges, losses = edges[:last], run.losses[: whole + 1]
    average_losses, average_errors = averages(losses, np.diff(edges), np.ones((last - 1, 1)))
    goal_loss, goal_error = _goal(problem, edges, losses, run.errors[whole])
    return Trajectory(
        problem,
        protocol,
        times=edges,
        states=run.states[: whole + 1 : parts],
        losses=losses[::parts],
        errors=run.errors[: whole + 1 : parts],
        substeps=run.substeps[:whole].reshape(-1, parts).sum(axis=1),
        average_losses=average_losses,
        average_errors=average_errors,
        goal_loss=goal_loss,
        goal_error=goal_error,
        rtol=rtol,
        status=run.status,
        advice=run.advice,
    )


def _goal(problem: Problem, edges: Floats, losses: Floats, errors: Floats) -> tuple[float, float]:
    """Return what the goal makes of losses (m, L) at parts of the steps, and its error.

    errors: (L,) of the last of them.
    """
    goal = problem.objective
    if not goal.throughout:
        return float(goal.at_end(losses[-1])), goal.goal_error(errors)
    found = averages(losses, np.diff(edges), goal.goal_along(edges))
    return float(found[0].sum()), float(found[1].sum())


def _joined(problem: Problem, members: Sequence[Trajectory]) -> Trajectory:
    """Return the trajectory of an ensemble from those of its members."""
    rows = min(one.times.size for one in members)
    weights, first = problem.risk.weights, members[0]

    def mean(name: str, most: int | None = None) -> Floats:
        rows = np.stack([getattr(one, name)[:most] for one in members])
        return np.asarray(np.tensordot(weights, rows, axes=1))

    bad = [m for m, one in enumerate(members) if one.status != "ok"]
    status: Status = "ok"
    advice = ""
    if bad:
        names = [problem.names[m] for m in bad]
        status, advice = members[bad[0]].status, f"{listed(names)}: {members[bad[0]].advice}"
    return Trajectory(
        problem,
        first.protocol,
        times=first.times[:rows],
        states=np.concatenate([one.states[:rows] for one in members], axis=1),
        losses=mean("losses", rows),
        errors=mean("errors", rows),
        substeps=np.max([one.substeps[: rows - 1] for one in members], axis=0),
        average_losses=mean("average_losses"),
        average_errors=mean("average_errors"),
        goal_loss=float(weights @ [one.goal_loss for one in members]),
        goal_error=float(weights @ [one.goal_error for one in members]),
        rtol=first.rtol,
        status=status,
        advice=advice,
        members=tuple(members),
    )
