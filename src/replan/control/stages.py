"""few_stages: the trainings in a few constant stages that lose the least."""

from __future__ import annotations

from typing import Any

import numpy as np

from replan.check import Floats
from replan.control.discretised import Controls, DiscretisedObjective, Gradient
from replan.control.relaxed_controls import RelaxedControls
from replan.curves import Trajectory, evaluate
from replan.errors import ArgumentError
from replan.problem import Problem
from replan.protocol import Protocol

_STEPS = 200  # of the objective, at least
_ITERATIONS = 100  # of a minimisation, at most
_PRECISION = 1e-6  # of the loss at its start: smaller gains end it
_DIVERGED = 1e6  # times that loss
_ROOM = 1e-4  # by which limits may be missed
_NONE = 1e-9  # what no share counts for, lest no available task has one
_SMALLEST = 1e-5  # share of a task: the minimiser knows bounds to a few digits
_GOALS, _COOLING = 5, 0.2  # smooth ones, one after another, where the goal is not smooth


def few_stages(problem: Problem, protocol: Protocol, most: int) -> list[Trajectory]:
    """Return the best trainings found in 1, 2, … and at most `most` stages near a protocol."""
    # A switch within a step mixes both stages there: on many steps that is nearly the same.
    objective = DiscretisedObjective(problem, problem.steps * -(-_STEPS // problem.steps))
    nearest = protocol.stages(most)
    best, found = np.inf, [nearest[0]]
    for k in range(min(most, problem.steps // problem.step_limits.dwell)):
        starts = nearest[k : k + 1]
        if k:  # the best of fewer stages, with the longest in two halves
            longest = int(np.argmax(found[-1].lengths))
            starts.append(found[-1].split([found[-1].edges[longest : longest + 2].mean()]))
        for start in starts:
            value, stages = _minimised(objective, _Stages(problem, start, objective.steps))
            if value < best:
                best, found[k:] = value, [stages]
        found[k:] = found[k:] or [found[-1]]
        if best == np.inf:
            raise ArgumentError("problem", "one whose limits constant shares can keep", "others")
    runs = [evaluate(problem, _of_available(problem, stages)) for stages in found]
    return [min(runs[: k + 1], key=lambda run: run.loss) for k in range(len(runs))]


def _of_available(problem: Problem, stages: Protocol) -> Protocol:
    """Return stages that are cut where tasks arrive or depart, with shares of those available."""
    cut = stages.split(problem.availability.changes)
    shares = problem.availability.renormalise(cut.shares, cut.edges)
    shares = np.where(shares < _SMALLEST, 0.0, shares)
    shares /= shares.sum(axis=1, keepdims=True)
    return Protocol(shares, edges=cut.edges, **cut.knobs)


class _Stages:
    """Protocols of K stages as vectors: the stages' parts of the time, then their free controls.

    Shares of tasks that are not available are redistributed proportionally.
    """

    def __init__(self, problem: Problem, start: Protocol, steps: int) -> None:
        self._problem, self._count, self._steps = problem, start.steps, steps
        fixed = Controls(start.shares, problem.knob_rows(start))
        self._each = RelaxedControls(problem, fixed, free_tasks=bool(problem.control.tasks))
        edges = np.linspace(0.0, problem.duration, steps + 1)
        self._available = problem.availability.on(edges)
        self.start = np.append(start.lengths / start.duration, self._each.join(fixed))
        self.least = np.zeros(self.start.size)
        self.least[: self._count] = problem.step_limits.dwell / problem.steps
        rows = self._each.domain.rows  # of shares: each sums to 1, as the parts do
        self.sums = np.zeros((1 + rows, self.start.size))
        self.sums[0, : self._count] = 1.0
        for row in range(rows):
            self.sums[1 + row, self._count + row * start.tasks :][: start.tasks] = 1.0

    def _covered(self, z: Floats) -> tuple[Floats, Floats]:
        """Return the ends (K,) of the stages in steps, and how much of each step they cover."""
        edges, ends = np.arange(self._steps + 1.0), np.cumsum(z[: self._count])
        ends *= self._steps / ends[-1]
        begins = np.append(0.0, ends[:-1])
        return ends, np.diff(np.clip(edges[:, None] - begins, 0.0, ends - begins), axis=0)

    def _kept(self, z: Floats) -> Floats:
        """Return the shares (steps, T) of available tasks as they are, never all 0."""
        raw = self._covered(z)[1] @ self._each.split(z[self._count :]).shares
        return (raw + _NONE) * self._available

    def split(self, z: Floats) -> Controls:
        """Return the controls of a vector on the steps of the objective."""
        kept, knobs = self._kept(z), self._each.split(z[self._count :]).knobs
        return Controls(kept / kept.sum(axis=1, keepdims=True), self._covered(z)[1] @ knobs)

    def slopes(self, z: Floats, gradient: Gradient) -> Floats:
        """Return the gradient by the vector, whose parts sum to 1."""
        (ends, covered), (shares, knobs) = self._covered(z), self._each.split(z[self._count :])
        kept, by_shares = self._kept(z), gradient.by_shares
        total = kept.sum(axis=1, keepdims=True)
        by_shares = by_shares - np.sum(kept * by_shares, axis=1, keepdims=True) / total
        by_shares *= self._available / total
        steps = np.minimum(ends[:-1].astype(np.int64), self._steps - 1)
        by_ends = -np.sum(by_shares[steps] * np.diff(shares, axis=0), axis=1)
        by_ends -= np.sum(gradient.by_knobs[steps] * np.diff(knobs, axis=0), axis=1)
        by_parts = np.append(np.cumsum(by_ends[::-1])[::-1], 0.0) * self._steps
        each = gradient._replace(
            by_shares=covered.T @ by_shares, by_knobs=covered.T @ gradient.by_knobs
        )
        return np.append(by_parts, self._each.slopes(z[self._count :], each))

    def room(self, z: Floats) -> Floats:
        """Return how far mean shares, knobs and replay are within their limits."""
        controls, free = self.split(z), self._problem.control.tasks is True
        space = RelaxedControls(self._problem, controls, free_tasks=free)
        domain, shares = space.domain, controls.shares
        means = domain.weights @ space.join(controls)[domain.size - domain.weights.shape[1] :]
        replays = [
            cap - np.sum((shares * domain.old)[first:last]) / (last - first)
            for (first, last), cap in zip(domain.spans, domain.caps, strict=True)
        ]
        shares = shares.mean(axis=0)
        room = shares - domain.low, domain.high - shares, means - domain.least, domain.most - means
        return np.concatenate([*room, replays])

    def protocol(self, z: Floats) -> Protocol:
        """Return the protocol of a vector."""
        shares, rows = self._each.split(z[self._count :])
        shares = np.maximum(shares, 0.0) + _NONE
        knobs: dict[str, Any] = self._problem.model.layout.by_name(rows)
        return Protocol(
            shares / shares.sum(axis=1, keepdims=True),
            edges=np.append(0.0, self._covered(z)[0] * self._problem.duration / self._steps),
            **{name: knobs[name] for name in self._problem.settings},
        )


def _minimised(objective: DiscretisedObjective, space: _Stages) -> tuple[float, Protocol]:
    """Return the value and the protocol of a local minimum."""
    from scipy.optimize import minimize  # would double the time it takes to import replan

    z, problem = space.start, objective.problem
    limited = problem.step_limits.binding or problem.limits.mean
    constraints: list[dict[str, Any]] = [
        {"type": "eq", "fun": lambda z: space.sums @ z - 1.0, "jac": lambda z: space.sums}
    ]
    constraints += [{"type": "ineq", "fun": space.room}] if limited else []
    size = abs(objective.value(space.split(z))) or 1.0
    smoothing = objective.smoothing(space.split(z))
    for _ in range(1 if smoothing is None else _GOALS):

        def function(z: Floats, smoothing: Any = smoothing) -> tuple[float, Floats]:
            gradient = objective.gradient(space.split(z), smoothing)
            value = min(gradient.surrogate.value / size, _DIVERGED)
            return value, space.slopes(z, gradient) / size

        z = minimize(
            function,
            z,
            jac=True,
            method="SLSQP",
            bounds=[(low, 1.0) for low in space.least],
            constraints=constraints,
            options={"maxiter": _ITERATIONS, "ftol": _PRECISION},
        ).x
        if smoothing is not None:
            mixture = objective.gradient(space.split(z), smoothing).surrogate.mixture
            smoothing = smoothing.sharpened(mixture, _COOLING)
    kept = not limited or space.room(z).min() > -_ROOM
    return objective.value(space.split(z)) if kept else np.inf, space.protocol(z)
