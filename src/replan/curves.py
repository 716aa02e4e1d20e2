"""Learning curves: evaluate(problem, protocol) → Trajectory; Curves of many runs; Transfer.

Notation: times (m,), states (m, n), losses (m, L), in most models one for each of T tasks. Curves
are losses of runs × times × tasks, the form of everything that trains.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from replan import check, files
from replan.check import Floats, Ints
from replan.core.schedule import Schedule
from replan.core.threads import in_threads
from replan.errors import ArgumentError, IntegrationError
from replan.models.integrator import MAX_STEPS, RTOL, Integration, Status, integrate
from replan.problem import Problem
from replan.protocol import Protocol
from replan.results import Result

if TYPE_CHECKING:
    import pandas as pd

_ROUGH_RTOL, _ROUGH_STEPS = 1e-4, 2**15  # a learning rate that needs more steps is too large
_NAMED = 5  # members that a message names
_SAME = 1e-9  # times closer than this fraction of the duration count as one


@dataclass(frozen=True, eq=False, repr=False)
class Curves(Result):
    """The losses of several runs during training.

    times: (m,) when the losses were measured, in ascending order; the last is the end. losses:
    (runs, m, T), NaN after a run diverged and where a task was not measured. failures: why runs
    have no finite losses at the end, by number from 0; these runs are left out of means and
    quantiles. names: of the losses, by default task 1, … `plot` draws the mean of each loss, with
    bands from 10 to 90 %.

    Examples:
        >>> losses = np.array([[[0.5], [0.2]], [[0.5], [0.4]]])  # two runs, two times, one task
        >>> curves = replan.Curves(times=np.array([0.0, 1.0]), losses=losses)
        >>> print(curves.mean[-1], curves.standard_error[-1])  # at the end
        [0.3] [0.1]
        >>> curves.to_frame()
           run  time  loss_1
        0    0   0.0     0.5
        1    0   1.0     0.2
        2    1   0.0     0.5
        3    1   1.0     0.4
    """

    times: Floats
    losses: Floats
    failures: Mapping[int, str] = field(default_factory=dict)
    names: Sequence[str] = ()

    def __post_init__(self) -> None:
        times = check.array("times", self.times, ("m",))
        losses = check.array("losses", self.losses, ("runs", times.size, "tasks"), finite=False)
        if times.size == 0 or np.any(np.diff(times) < 0):
            raise ArgumentError("times", "ascending times", check.show(times.tolist()))
        check.instance("failures", self.failures, Mapping, "reasons by the number of the run")
        if unknown := [run for run in self.failures if run not in range(len(losses))]:
            raise ArgumentError(
                "failures", f"runs from 0 to {len(losses) - 1}", check.show(unknown)
            )
        failures = {
            run: self.failures.get(run, "no finite losses at the end")
            for run, end in enumerate(losses[:, -1])
            if run in self.failures or not np.all(np.isfinite(end))
        }
        names = tuple(self.names) or tuple(f"task {t + 1}" for t in range(losses.shape[2]))
        fields = {"times": times, "losses": losses, "failures": failures, "names": names}
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    @property
    def tasks(self) -> int:
        """Number of tasks T."""
        return self.losses.shape[2]

    @cached_property
    def finished(self) -> Floats:
        """The losses (n, m, T) of the runs that reached the end."""
        return np.delete(self.losses, list(self.failures), axis=0)

    @property
    def mean(self) -> Floats:
        """The mean loss (m, T) over the finished runs, NaN without any.

        Leaving out runs that diverged flatters a learning rate that is too large.
        """
        return self.finished.mean(axis=0) if len(self.finished) else self._unknown

    @property
    def standard_error(self) -> Floats:
        """The standard error (m, T) of `mean`, NaN for fewer than two finished runs."""
        runs = self.finished
        if len(runs) < 2:
            return self._unknown
        return runs.std(axis=0, ddof=1) / np.sqrt(len(runs))

    def quantiles(self, levels: ArrayLike) -> Floats:
        """Return quantiles (levels, m, T) of the losses over the finished runs."""
        wanted = check.array("levels", levels, ("n",))
        if wanted.size and (wanted.min() < 0 or wanted.max() > 1):
            raise ArgumentError("levels", "numbers from 0 to 1", check.show(wanted.tolist()))
        if len(self.finished) == 0:
            return np.full((len(wanted), *self.losses.shape[1:]), np.nan)
        return np.quantile(self.finished, wanted, axis=0)

    @property
    def _unknown(self) -> Floats:
        return np.full(self.losses.shape[1:], np.nan)

    def to_frame(self) -> pd.DataFrame:
        """Return a row for each run and time: run, time, loss_1, …."""
        import pandas as pd

        count, m, T = self.losses.shape
        columns = {"run": np.repeat(range(count), m), "time": np.tile(self.times, count)}
        rows = self.losses.reshape(-1, T)
        return pd.DataFrame(columns | {f"loss_{t + 1}": rows[:, t] for t in range(T)})

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON types, with null for NaN."""
        return {
            "times": self.times.tolist(),
            "losses": files.nullable(self.losses),
            "failures": {str(run): reason for run, reason in self.failures.items()},
        }

    def __repr__(self) -> str:
        count, m, T = self.losses.shape
        return f"Curves({count} runs, {m} times, {T} tasks)"


class Transfer(NamedTuple):
    """Forgetting, backward and forward transfer of every task (…, T), NaN where undefined.

    - forgetting: how far the final loss lies above the lowest since the task arrived. (Chaudhry et
      al. 2018, with losses in place of accuracies)
    - backward: how much lower the final loss is than at the first arrival after the task's own:
      the gain from training on later tasks and from replay. Undefined for the last to arrive.
    - forward: how much lower the loss is at the task's arrival than at the start: the gain from
      training on earlier tasks. Undefined for tasks available at the start. (Both: Lopez-Paz &
      Ranzato 2017)
    """

    forgetting: Floats
    backward: Floats
    forward: Floats

    @property
    def means(self) -> dict[str, Any]:
        """The means (…) over the tasks for which they are defined, by name."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # of no task at all
            return {name: np.nanmean(x, axis=-1) for name, x in self._asdict().items()}

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON types, with null for NaN."""
        return {name: files.nullable(x) for name, x in self._asdict().items()}


def transfer(problem: Problem, times: Floats, losses: Floats) -> Transfer | None:
    """Return the transfer in losses (…, m, L) at times (m,), from 0 to the end.

    None where all tasks are available throughout, or losses are not those of the tasks.
    """
    availability, model = problem.availability, problem.model
    if availability.always or model.loss_names != model.task_names:
        return None
    arrivals, end = availability.arrivals, problem.duration
    undefined = np.full(losses.shape[:-2], np.nan)
    columns = []
    for task, arrival in enumerate(arrivals.tolist()):
        curve, later = losses[..., task], arrivals[arrivals > arrival].min(initial=end)
        at_arrival, at_next = (_interpolated(time, times, curve) for time in (arrival, later))
        lowest = curve[..., times >= arrival - _SAME * end].min(axis=-1)
        last = curve[..., -1]
        columns.append(
            [
                last - lowest if arrival < end else undefined,
                at_next - last if later < end else undefined,
                curve[..., 0] - at_arrival if arrival > 0 else undefined,
            ]
        )
    return Transfer(*(np.stack(rows, axis=-1) for rows in zip(*columns, strict=True)))


def _interpolated(time: float, times: Floats, curve: Floats) -> Floats:
    """Return the values (…) of curves (…, m) at a time."""
    after = int(np.clip(np.searchsorted(times, time), 1, times.size - 1))
    part = (time - times[after - 1]) / (times[after] - times[after - 1])
    return np.asarray((1 - part) * curve[..., after - 1] + part * curve[..., after])


@dataclass(frozen=True, eq=False, repr=False)
class Trajectory(Result):
    """The exact learning curves of one protocol on one problem.

    times: (m,) the edges of the protocol's and the problem's steps. states: (m, …) of the model.
    losses: (m, L). errors: (m, L) bounds on the discretisation errors of the losses. substeps:
    (m − 1,) integration steps between the times. average_losses, average_errors: (L,) over the time
    covered. goal_loss: the losses combined by the problem's goal. error: a bound on the
    discretisation error of `loss`, averages included. status: "ok", "diverged" or "inaccurate";
    `advice` says when and what to try. A diverged trajectory ends before it diverges. members: the
    trajectories of an ensemble's members; the other fields are then their weighted means, and
    `states` are those of all members. `plot` draws the losses under the colour bar of the protocol,
    and every knob that varies.

    Examples:
        >>> model = replan.TeacherStudent.similar(0.3)
        >>> problem = replan.Problem(model, model.pretrain(seed=1), duration=20.0, steps=50)
        >>> run = replan.evaluate(problem, replan.strategies.interleaved(problem))
        >>> print(run.final_losses.round(3), run.losses_at([1.0, 2.0]).shape)
        [0.001 0.014] (2, 2)
        >>> run.to_frame().tail(1).round(3)
            time  loss_1  loss_2  weighted
        50  20.0   0.001   0.014     0.008
    """

    problem: Problem
    protocol: Protocol
    times: Floats
    states: Floats
    losses: Floats
    errors: Floats
    substeps: Ints
    average_losses: Floats
    average_errors: Floats
    goal_loss: float
    error: float
    rtol: float
    status: Status
    advice: str
    members: tuple[Trajectory, ...] = ()

    # The objective

    @property
    def loss(self) -> float:
        """The objective: the goal, running costs and penalties for missed targets."""
        return sum(self.parts.values())

    @property
    def parts(self) -> dict[str, float]:
        """The terms of `loss`: the goal by its name, running costs, penalties for targets."""
        objective = self.problem.objective
        if self.members:
            self._require_ok()
            each = [member.parts for member in self.members]
            mixture = self.problem.risk.mixture(self.member_losses)
            return {name: float(mixture @ [parts[name] for parts in each]) for name in each[0]}
        penalty = float(objective.penalties(self.final_losses)[0])
        running = float(self.average_losses @ objective.running)
        return {objective.goal: self.goal_loss, "running": running, "targets": penalty}

    @property
    def member_losses(self) -> Floats:
        """The objective (M,) of each member of an ensemble; else of this problem alone."""
        return np.array([member.loss for member in self.members or (self,)])

    @property
    def final_losses(self) -> Floats:
        """The final losses (L,), in most models one for each task."""
        self._require_ok()
        return self.losses[-1]

    @property
    def largest_losses(self) -> Floats:
        """The final losses (L,), each the largest over an ensemble's members."""
        self._require_ok()
        return np.max([member.losses[-1] for member in self.members or (self,)], axis=0)

    @property
    def targets_met(self) -> bool:
        """Whether every final loss, of every member, is at most its target."""
        return bool(np.all(self.largest_losses <= self.problem.objective.targets))

    def _require_ok(self) -> None:
        if self.status != "ok":
            raise IntegrationError(self.advice)

    # Over time

    def weighted_at(self, times: ArrayLike) -> Floats:
        """Return the losses combined by the goal, and an ensemble's risk, at any times (k,)."""
        wanted = check.array("times", times, ("m",))
        curves = [
            self.problem.objective.curve(wanted, member.losses_at(wanted))
            for member in self.members or (self,)
        ]
        return self.problem.risk.of(np.stack(curves))

    @cached_property
    def curves(self) -> Curves:
        """The losses as curves: a single run, or one for each member of an ensemble."""
        each = [member.losses[: self.times.size] for member in self.members or (self,)]
        return Curves(self.times, np.stack(each), names=self.problem.model.loss_names)

    @cached_property
    def transfer(self) -> Transfer | None:
        """Forgetting and transfer of every task, where tasks arrive or depart."""
        self._require_ok()
        return transfer(self.problem, self.times, self.losses)

    @property
    def unpacked(self) -> Any:
        """The states in the model's own form, with time in front."""
        return self.problem.model.unpack(self.states)

    def losses_at(self, times: ArrayLike) -> Floats:
        """Return the losses (k, L) at any times (k,), integrated rather than interpolated."""
        wanted = check.array("times", times, ("m",))
        end = self.times[-1]
        wanted[np.abs(wanted - end) <= _SAME * end] = end
        if wanted.size and (wanted.min() < 0 or wanted.max() > end):
            raise ArgumentError("times", f"times from 0 to {end:g}", check.show(wanted.tolist()))
        if self.times.size == 1:  # it diverged in its first step
            return np.repeat(self.losses, wanted.size, axis=0)
        known = np.searchsorted(self.times, wanted).clip(max=self.times.size - 1)
        before = (np.searchsorted(self.times, wanted, side="right") - 1).clip(
            0, self.times.size - 2
        )
        step = self.protocol.step_at((wanted + self.times[before]) / 2)
        pieces = Schedule(
            self.protocol.shares[step],
            self.problem.knob_rows(self.protocol)[step],
            wanted - self.times[before],
            self.substeps[before],
        )
        model = self.problem.model
        losses = model.losses(model.roll_out_each(self.states[before], pieces))
        return np.where((self.times[known] == wanted)[:, None], self.losses[known], losses)

    # Files

    def to_dict(self) -> dict[str, Any]:
        """Return everything a reader of the result needs, as JSON types."""
        ok = self.status == "ok"
        model = self.problem.model
        return {
            "value": self.loss if ok else None,
            "losses": self.final_losses.tolist() if ok else None,
            "loss_names": list(model.loss_names),
            "error": self.error if np.isfinite(self.error) else None,
            "parts": self.parts if ok else None,
            **({"members": self._members_to_dict()} if self.members else {}),
            "average_losses": self.average_losses.tolist(),
            **({"transfer": self.transfer.to_dict()} if ok and self.transfer else {}),
            "status": self.status,
            "advice": self.advice,
            **self.protocol.to_dict(),
            "times": self.times.tolist(),
            "curves": self.losses.tolist(),
            "end": model.start_to_dict(model.unpack(self.states[-1])),
            "rtol": self.rtol,
            "problem": self.problem.to_dict(),
        }

    def _members_to_dict(self) -> list[dict[str, Any]]:
        problem = self.problem
        return [
            {
                "name": name,
                "weight": weight,
                "value": member.loss if member.status == "ok" else None,
                "losses": member.final_losses.tolist() if member.status == "ok" else None,
                "status": member.status,
                "advice": member.advice,
            }
            for name, weight, member in zip(
                problem.names, problem.risk.weights.tolist(), self.members, strict=True
            )
        ]

    def to_frame(self) -> pd.DataFrame:
        """Return a row per time: time, loss_1, … and the weighted loss."""
        import pandas as pd

        header = ["time", *(f"loss_{t + 1}" for t in range(self.losses.shape[1])), "weighted"]
        rows = np.column_stack([self.times, self.losses, self.weighted_at(self.times)])
        return pd.DataFrame(rows, columns=header)

    def __repr__(self) -> str:
        loss = f"loss={self.loss:.6g}" if self.status == "ok" else f"status={self.status!r}"
        return f"Trajectory({loss}, {self.times.size} times to {self.times[-1]:g})"


def evaluate(
    problem: Problem,
    protocol: Protocol,
    *,
    rtol: float = RTOL,
    max_steps: int = MAX_STEPS,
    throw: bool = True,
) -> Trajectory:
    """Return the exact learning curves of `protocol` on `problem`.

    - `problem`, `protocol`: with the same number of tasks and the same duration.
    - `rtol`: relative accuracy of the losses; RK4 steps are halved until it is reached.
    - `max_steps`: the most RK4 steps that the finest run may take.
    - `throw`: raise an `IntegrationError` where the curves cannot be computed (a learning rate is
      too large); with `throw=False`, return the curves up to there, with a status that says so.

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
    steps, members = protocol.split(problem.edges), problem.members
    schedule = Schedule.single_steps(steps.shares, problem.knob_rows(steps), steps.lengths)
    along = problem.objective.weights_along(steps.edges)
    weights = np.stack([np.ones_like(along), along])

    def trained(m: int) -> Trajectory:
        model, state = members[m].model, members[m].state
        run = integrate(model, state, schedule, weights, rtol=rtol, max_steps=max_steps)
        return _trajectory(members[m], protocol, steps.edges, run, rtol)

    first = trained(0)  # before the others, which run in threads: JAX compiles
    trajectories = [first, *in_threads(lambda m: trained(m + 1), len(members) - 1)]
    whole = _joined(problem, trajectories) if problem.is_ensemble else first
    if throw and whole.status != "ok":
        raise IntegrationError(whole.advice)
    return whole


def rough_loss(problem: Problem, protocol: Protocol) -> float:
    """Return the objective to four digits, enough to choose one of several protocols.

    Infinity where it cannot be computed with a moderate number of steps.
    """
    run = evaluate(problem, protocol, rtol=_ROUGH_RTOL, max_steps=_ROUGH_STEPS, throw=False)
    return run.loss if run.status == "ok" else np.inf


def _trajectory(
    problem: Problem, protocol: Protocol, edges: Floats, run: Integration, rtol: float
) -> Trajectory:
    """Return the trajectory of one member, with as many steps between edges as it completed."""
    objective, edges = problem.objective, edges[: len(run.states)]
    losses, errors = run.losses[-1], run.errors[-1]
    average_losses, average_errors, goal_loss = losses, errors, float(objective.at_end(losses))
    error = np.nan
    if edges.size > 1:  # else it diverged in its first step
        along, along_errors = run.integrals / edges[-1], run.integral_errors / edges[-1]
        average_losses, average_errors = along.sum(axis=0), along_errors.sum(axis=0)
        goal_loss += float(np.sum(objective.goal_along(edges) * along))
    if run.status == "ok":  # the objective is convex in the losses
        error = float(errors @ objective.slopes(losses + errors))
        error += float(np.sum(objective.weights_along(edges) * along_errors))
    return Trajectory(
        problem,
        protocol,
        times=edges,
        states=run.states,
        losses=run.losses,
        errors=run.errors,
        substeps=run.substeps[: edges.size - 1],
        average_losses=average_losses,
        average_errors=average_errors,
        goal_loss=goal_loss,
        error=error,
        rtol=rtol,
        status=run.status,
        advice=run.advice,
    )


def _joined(problem: Problem, members: Sequence[Trajectory]) -> Trajectory:
    """Return the trajectory of an ensemble from those of its members."""
    count = min(member.times.size for member in members)
    weights, first = problem.risk.weights, members[0]

    def mean(name: str, rows: int | None = None) -> Floats:
        values = np.stack([getattr(member, name)[:rows] for member in members])
        return np.asarray(np.tensordot(weights, values, axes=1))

    bad = [m for m, member in enumerate(members) if member.status != "ok"]
    status: Status = members[bad[0]].status if bad else "ok"
    error = np.nan
    if not bad:
        errors = np.array([member.error for member in members])
        values = np.array([member.loss for member in members])
        error = float(problem.risk.mixture(values + errors) @ errors)  # the risk is convex
    names = ", ".join([problem.names[m] for m in bad[:_NAMED]] + ["…"] * (len(bad) > _NAMED))
    return Trajectory(
        problem,
        first.protocol,
        times=first.times[:count],
        states=np.concatenate([member.states[:count] for member in members], axis=1),
        losses=mean("losses", count),
        errors=mean("errors", count),
        substeps=np.max([member.substeps[: count - 1] for member in members], axis=0),
        average_losses=mean("average_losses"),
        average_errors=mean("average_errors"),
        goal_loss=float(weights @ [member.goal_loss for member in members]),
        error=error,
        rtol=first.rtol,
        status=status,
        advice=f"{names}: {members[bad[0]].advice}" if bad else "",
        members=tuple(members),
    )
