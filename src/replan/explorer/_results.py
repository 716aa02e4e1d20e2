"""What a page shows, computed from its state: curves, Hamiltonians, bands over seeds, series."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from replan._common.check import Floats
from replan._common.progress import Progress, Watch
from replan.control import Controls, Objective, Plan, levers, solve
from replan.control._levers import Levers
from replan.control._search import on_grid
from replan.control._solve import check_solvable
from replan.curves import Curves
from replan.dynamics import HasOverlaps, IntegrationError
from replan.explorer._state import State
from replan.problem import Problem
from replan.protocol import Protocol
from replan.simulation import simulate
from replan.simulation._simulation import Simulation
from replan.strategies import STRATEGIES
from replan.trajectory import Trajectory, evaluate

OWN, OPTIMUM = "yours", "optimum"  # beside the names of strategies

# What a page can ask for at most
_MOST_RK4_STEPS = 200_000  # of one curve
_MOST_GRADIENTS = 2000
_MOST_SAMPLES = 20_000_000
MOST_SEEDS = 20
_POINTS = 101  # times of a series


@dataclass(frozen=True)
class Shown:
    """The curves of a state: runs by name, and why others have none."""

    problem: Problem
    runs: dict[str, Trajectory]
    failures: dict[str, str]


def curves(state: State, before: tuple[State, Shown] | None = None) -> Shown:
    """Return the learning curves of the strategies that are shown, and of the user's own.

    before: an earlier state and its curves, which are kept where the problem is the same.
    """
    same_problem = before is not None and before[0].sections == state.sections
    known = before[1].runs if before is not None and same_problem else {}
    problem = state.problem
    runs: dict[str, Trajectory] = {}
    failures: dict[str, str] = {}
    for name in (*state.shown, OWN):
        try:
            if name in known and name != OWN:
                runs[name] = known[name]
                continue
            protocol = protocol_of(state, name)
            same = (run for run in runs.values() if run.protocol == protocol)
            runs[name] = next(same, None) or evaluated(problem, protocol)
        except (ValueError, IntegrationError) as error:
            failures[name] = str(error)
    return Shown(problem, runs, failures)


def protocol_of(state: State, name: str) -> Protocol:
    """Return the protocol of a strategy for the state's problem, or the user's own."""
    problem = state.problem
    return state.own.protocol(problem) if name == OWN else STRATEGIES[name](problem)


def evaluated(problem: Problem, protocol: Protocol) -> Trajectory:
    """Return the learning curves of a protocol, with no more work than a page may ask for."""
    return evaluate(problem, protocol, max_steps=_MOST_RK4_STEPS)


def optimum(state: State, watch: Watch, *, from_own: bool = False) -> Plan:
    """Return the best plan for the state's problem, searched from the user's own protocol too."""
    problem = state.problem
    check_solvable(problem)
    start = _within(problem, state.own.protocol(problem)) if from_own else None
    return solve(problem, start=start, max_gradients=_MOST_GRADIENTS, progress=watch)


def _within(problem: Problem, protocol: Protocol) -> Protocol:
    """Return a protocol with its knobs where `solve` may turn them, and else as in the problem."""
    ranges = {name: (x, x) for name, x in problem.knob_values.items()} | problem.control.ranges
    inside = {name: np.clip(x, *ranges[name]) for name, x in protocol.knobs.items()}
    return protocol.with_knobs(**inside)


@dataclass(frozen=True)
class Changes:
    """What a change of a protocol would do, to first order.

    edges: (steps + 1,). hamiltonians: (steps, T) Φ_t, what the objective gains per unit of time
    spent on task t in a step. gains: (steps,) Σ_t s_t Φ_t − min_t Φ_t, how fast the objective
    falls, per unit of time, where the step goes over to its best task. slopes: (steps,) by knob:
    what the objective gains per unit of time and of the knob.
    """

    edges: Floats
    hamiltonians: Floats
    gains: Floats
    slopes: dict[str, Floats]

    @property
    def best(self) -> tuple[float, int, float]:
        """The time at which a change of task helps most, that task and the gain there."""
        step = int(np.argmax(self.gains))
        middle = float(self.edges[step] + self.edges[step + 1]) / 2
        return middle, int(np.argmin(self.hamiltonians[step])), float(self.gains[step])


def changes(problem: Problem, protocol: Protocol) -> Changes:
    """Return what changes of a protocol would do, averaged over the problem's steps."""
    controls: Controls = on_grid(problem, protocol, problem.steps)
    objective = Objective(problem, problem.steps)
    found = objective.gradient(controls)
    if not np.isfinite(found.value):
        raise IntegrationError("the training diverges: try a smaller rate or more steps")
    rates = found.by_shares / objective.lengths[:, None]
    mean = np.sum(controls.shares * rates, axis=1)
    columns = problem.model.panel.columns
    slopes = {
        name: found.by_knobs[:, some].sum(axis=1) / objective.lengths
        for name, some in columns.items()
    }
    return Changes(problem.edges, rates, mean - rates.min(axis=1), slopes)


def simulated(
    problem: Problem, protocol: Protocol, dimension: int, runs: int, watch: Watch
) -> Simulation:
    """Return runs of SGD at finite size."""
    samples = problem.duration * dimension * runs
    if samples > _MOST_SAMPLES:
        raise ValueError(
            f"`dimension` expects at most {_MOST_SAMPLES:,} samples in all runs, got {samples:,.0f}"
        )
    return simulate(problem, protocol, dimension=dimension, seeds=runs, progress=watch)


def seed_key(state: State) -> str | None:
    """Return the key of the dial that is the seed of the start, if there is one."""
    keys = (key for key in state.values if key.startswith("start.") and key.endswith(".seed"))
    return next(keys, None)


def band(state: State, name: str, seeds: int, watch: Callable[[Progress], object]) -> Curves:
    """Return the curves of a strategy, or of the user's own protocol, from several starts.

    They are those of the state's seed and of the seeds after it. A strategy may make another
    protocol of each.
    """
    runs = []
    for done, one in enumerate(_seeded(state, seeds)):
        watch(Progress("seeds", done, seeds))
        runs.append(evaluated(one.problem, protocol_of(one, name)))
    losses = np.array([run.losses_at(runs[0].times) for run in runs])
    return Curves(runs[0].times, losses, names=state.problem.model.loss_names)


def _seeded(state: State, seeds: int) -> Iterator[State]:
    key = seed_key(state)
    if key is None:
        raise ValueError("`seeds` expects a start with a seed, which this problem does not have")
    if not 2 <= seeds <= MOST_SEEDS:
        raise ValueError(f"`seeds` expects 2 to {MOST_SEEDS}, got {seeds}")
    [dial] = [dial for dial in state.dials if dial.key == key]
    count = int(dial.high - dial.low) + 1
    for more in range(seeds):
        seed = int(dial.low + (state.values[key] - dial.low + more) % count)
        yield state.turn(key, seed)


def worth(state: State, watch: Watch) -> Levers:
    """Return what each lever is worth for the state's problem."""
    return levers(state.problem, progress=watch)


def series(run: Trajectory) -> tuple[Floats, dict[str, dict[str, Floats]]]:
    """Return times (m,), and what the state is made of by name, each number (m,) by its name.

    The names are those of the `[start]` section: Q with Q₁₁, Q₁₂, …; with cosines where the model
    has any.
    """
    some = np.unique(np.linspace(0, run.times.size - 1, _POINTS).astype(int))
    model = run.problem.model
    rows = [model.start_to_dict(model.unpack(run.states[i])) for i in some]
    groups: dict[str, dict[str, Floats]] = {}
    for key in rows[0]:
        values = np.array([row[key] for row in rows])
        if values.ndim == 1:
            groups.setdefault("state", {})[key] = values
        else:
            groups[key] = _entries(key, values)
    if isinstance(model, HasOverlaps):
        groups = {"cosines": _entries("cos", run.cosines[some])} | groups
    return run.times[some], groups


_INDEX = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")


def _entries(name: str, values: Any) -> dict[str, Floats]:
    """Return arrays (m, …) as numbers (m,) by their names, with indices from 1."""
    return {
        name + "".join(str(i + 1) for i in index).translate(_INDEX): values[(slice(None), *index)]
        for index in np.ndindex(values.shape[1:])
    }
