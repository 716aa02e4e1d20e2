"""Plan: what `solve` returns, a protocol with its learning curves and what is known about it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from replan import check, files
from replan.check import Floats
from replan.curves import Trajectory, evaluate
from replan.errors import ArgumentError, in_file
from replan.models import Model
from replan.problem import Problem
from replan.protocol import Protocol
from replan.results import Result

if TYPE_CHECKING:
    import pandas as pd

Status = Literal["converged", "stalled", "cycled", "inaccurate", "limit", "stopped"]

ADVICE: dict[Status, str] = {
    "converged": "",
    "stalled": "the search ended before Pontryagin's condition was met: try the solver Relax",
    "cycled": "the search repeats itself: try the solver Relax",
    "inaccurate": "the integrator, not the search, limits this plan: its discretisation error is "
    "larger than what is left to gain; try more `steps` or a smaller `lr`",
    "limit": "the limit on gradients was reached: try a larger `max_gradients`",
    "stopped": "stopped before the end: this is the best plan so far",
}

MISSED = "target missed: raise the weight of its task, or relax the target"
_BLOCKS = 9  # most stays that are described one by one
_LONG = 0.05  # of the training: a stay that is described even among many
_MOST_SAVED = 1_000_000  # numbers of adjoints in a file
_SAME_VALUE = 1e-6  # relative: values that differ by more are those of different models


@dataclass(frozen=True)
class Certificate:
    """What is known about how good a plan is: see `Plan`."""

    value: float
    relaxed_value: float | None
    integrality_gap: float | None
    pmp_residual: float
    discretisation_error: float
    switches: int
    multistart_spread: float
    scope: Literal["local", "global"]
    residual_over_loss: float = 0.0
    found: int = 1
    starts: int = 1
    basins: int = 1


@dataclass(frozen=True, eq=False, repr=False)
class Plan(Result):
    """An optimised protocol with its trajectory, its certificate and how it was found.

    trajectory: on a fine integrator. relaxed: the relaxed protocol, which may mix tasks within a
    step. hamiltonians: (steps, T) Φ_t of the plan, averaged over each step. adjoints:
    (steps + 1, n) gradients of the objective, or of a smooth surrogate, by the states; files do not
    hold those of very large states. advice: what to do next, if anything. statistics: method, seed,
    gradients, roll_outs, seconds. `plot` draws the
    trajectory.

    **certificate**, how good the plan is:

    - `value`: the objective, with running costs and missed targets, on a fine integrator.
    - `relaxed_value`: of the relaxed plan; None where the relaxed problem was not solved.
    - `integrality_gap`: value − relaxed_value.
    - `pmp_residual`: Pontryagin's ∫ Σ_t s_t Φ_t − min_t Φ_t of the relaxed plan, or else of the
      plan: an upper bound on the first-order gain still possible. Where the objective is the
      largest of several numbers, Φ_t are those of a mixture of them, and its distance from the
      largest is added.
    - `discretisation_error`: of value, with the integrator the optimiser used.
    - `switches`: changes of task.
    - `residual_over_loss`: pmp_residual / |value|.
    - `found`, `starts`: the best value was found, to within the tolerance, from so many of so many
      starts: strategies, random protocols, random changes of the best plan so far.
    - `basins`: how many different values they found.
    - `multistart_spread`: (worst − best) / best of them.
    - `scope`: "global" only where every protocol was tried, else "local".

    Examples:
        >>> plan = replan.solve(problem)
        >>> plan.phases[0]
        'focus on task 2 for 10'
        >>> plan.certificate.scope, plan.certificate.integrality_gap >= 0
        ('local', True)
        >>> [f"{run.loss / plan.loss:.2f}" for run in plan.stages(2)]  # what few stages cost
        ['1.80', '1.00']
        >>> plan.save("plan.json")
        >>> replan.Plan.load("plan.json").loss == plan.loss
        True
    """

    problem: Problem
    protocol: Protocol
    trajectory: Trajectory
    relaxed: Protocol
    hamiltonians: Floats
    adjoints: Floats
    certificate: Certificate
    status: Status
    advice: str
    statistics: dict[str, Any]

    @property
    def loss(self) -> float:
        """The objective."""
        return self.certificate.value

    @property
    def learning_rates(self) -> Floats:
        """The learning-rate curve of every task (steps, T), NaN at steps that do not train it."""
        return np.where(self.protocol.shares > 0, self.protocol.by_task("lr"), np.nan)

    @property
    def phases(self) -> list[str]:
        """The plan in words: long stays on one task, and what is mixed between them."""
        shares, edges = self.protocol.shares, self.protocol.edges
        names, begins = self.problem.model.task_names, self._phase_begins()
        chosen = len(begins) > 1 and self.problem.availability.on(edges)[0].sum() > 1
        words = []
        for first, last in pairwise([*begins, len(shares)]):
            rows, length = shares[first:last], edges[last] - edges[first]
            mean = np.average(rows, axis=0, weights=np.diff(edges[first : last + 1]))
            pairs = [(name, x) for name, x in zip(names, mean, strict=True) if x >= 0.005]
            parts = ", ".join(f"{name} {share:.0%}" for name, share in pairs)
            if np.any(rows != rows[0]):
                words.append(f"revision for {length:.4g} ({parts})")
                continue
            name = names[int(np.argmax(rows[0]))]
            alone = f"focus on {name}" if chosen and first == 0 else f"{name} alone"
            words.append(f"{alone if rows.max() == 1 else f'mixture ({parts})'} for {length:.4g}")
        return words

    def _phase_begins(self) -> list[int]:
        """Return the steps at which phases begin: all changes, or those around long stays.

        And those at which tasks arrive or depart; of too many phases, the opening and the end.
        """
        shares, edges = self.protocol.shares, self.protocol.edges
        changes = np.flatnonzero(np.any(np.diff(shares, axis=0) != 0, axis=1)) + 1
        if changes.size < _BLOCKS:
            return [0, *changes.tolist()]
        stays = np.append(0, changes)
        lengths = np.diff(edges[np.append(stays, len(shares))])
        long = np.flatnonzero(lengths >= _LONG * self.protocol.duration)
        there = np.searchsorted(edges, self.problem.availability.changes * (1 - 1e-9))
        ends = {0, int(changes[0]), int(changes[-1])}
        found = ends | {*stays[long].tolist(), *stays[1:][long[long < changes.size]].tolist()}
        found |= set(there.tolist())
        return sorted(found if len(found) <= _BLOCKS else ends)

    @property
    def targets(self) -> list[str]:
        """For every target, whether it was met."""
        names, met = self.problem.model.loss_names, ("not met", "met")
        return [
            f"{names[t]} ends at {loss:.4g}, target {target:.4g}: {met[loss <= target]}"
            for t, loss, target in self._targets()
        ]

    def _targets(self) -> list[tuple[int, float, float]]:
        """Return every target: which loss, where it ends, and the target."""
        losses, targets = self.trajectory.largest_losses, self.problem.objective.targets
        finite = np.flatnonzero(targets < np.inf).tolist()
        return [(t, float(losses[t]), float(targets[t])) for t in finite]

    def stages(self, most: int = 4) -> list[Trajectory]:
        """Return the best trainings found in 1, 2, … and at most `most` constant stages.

        A stage may mix the tasks; its shares, its free knobs and its length are optimised together,
        within the limits. What few stages cost is how far each `loss` lies above the plan's.
        """
        from replan.control.stages import few_stages  # which knows what a Plan is made of

        most = check.integer("most", most, at_least=1, at_most=12)
        return few_stages(self.problem, self.relaxed, most)

    def to_dict(self) -> dict[str, Any]:
        """Return everything a reader of the result needs, as JSON types."""
        return self.trajectory.to_dict() | {
            **asdict(self.certificate),
            "status": self.status,
            "advice": self.advice,
            "phases": self.phases,
            "targets_met": {str(t + 1): loss <= target for t, loss, target in self._targets()},
            "relaxed": self.relaxed.to_dict(),
            "hamiltonians": self.hamiltonians.tolist(),
            "adjoints": self.adjoints.tolist() if self.adjoints.size <= _MOST_SAVED else None,
            "statistics": self.statistics,
        }

    @classmethod
    def load(cls, path: files.FilePath, *, model: Model | None = None) -> Plan:
        """Read a plan that was saved as a .json file.

        Its learning curves are computed again with `model`, or with the registered model of its
        kind. Where neither is available, `Protocol.load` reads the protocol alone.
        """
        content = files.read_json(path)
        with in_file(path):
            try:
                protocol = Protocol.load(path)
                problem = Problem.from_dict(content["problem"], model=model)
                trajectory = evaluate(problem, protocol, rtol=content["rtol"])
                value, adjoints = content["value"], content["adjoints"]
                if not np.isclose(trajectory.loss, value, rtol=_SAME_VALUE, atol=1e-12):
                    raise ArgumentError(
                        "model",
                        f"the plan's model, with which its value is {value:.9g}",
                        f"one with which it is {trajectory.loss:.9g}",
                    )
                names = Certificate.__dataclass_fields__
                return cls(
                    problem,
                    protocol,
                    trajectory,
                    Protocol.from_dict(content["relaxed"]),
                    np.array(content["hamiltonians"]),
                    np.array(adjoints or np.zeros((0, trajectory.states.shape[1]))),
                    Certificate(**{name: content[name] for name in names if name in content}),
                    content["status"],
                    content["advice"],
                    content["statistics"],
                )
            except KeyError as error:
                raise ArgumentError("path", "a file with a plan", f"one without {error}") from None

    def to_frame(self) -> pd.DataFrame:
        """Return the protocol's frame, a row per step, with the losses at the end of each step."""
        losses = self.trajectory.losses_at(self.protocol.edges[1:])
        columns = {f"loss_{t + 1}": losses[:, t] for t in range(losses.shape[1])}
        return self.protocol.to_frame().assign(
            **columns, weighted=self.trajectory.weighted_at(self.protocol.edges[1:])
        )

    def __repr__(self) -> str:
        return f"Plan(loss={self.loss:.6g}, status={self.status!r})"
