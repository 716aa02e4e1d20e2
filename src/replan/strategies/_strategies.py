"""Strategies: recipes that make a protocol from a problem without optimising it.

Each is called with a problem alone, or with settings of its own too. Tasks count from 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from replan._common import check
from replan._common.check import Floats, Ints, Task
from replan._common.progress import Meter, Watch
from replan.dynamics import IntegrationError
from replan.problem import Problem
from replan.protocol import Protocol
from replan.strategies._strategy import Strategy, UnfitError, main_rate, strategy
from replan.trajectory import evaluate

_SEARCH_STEPS = 2**15  # most RK4 steps for one point of a grid: a rate that needs more is too large


# Which task


@strategy
def one_task(problem: Problem, *, task: Task = 0) -> Protocol:
    """Train on one task alone, by default the first."""
    return _steady(problem, np.eye(problem.model.tasks)[_task(problem, "task", task)])


@strategy
def no_replay(problem: Problem, *, new_task: Task | None = None) -> Protocol:
    """Train on the new task alone, by default the last."""
    return one_task(problem, task=_new_task(problem, new_task))


@strategy
def interleaved(problem: Problem, *, shares: ArrayLike | None = None) -> Protocol:
    """Mix the tasks sample by sample in fixed shares (T,), by default equal ones."""
    return _steady(problem, _shares(problem, shares))


@strategy
def alternating(problem: Problem, *, order: Sequence[Task] | None = None) -> Protocol:
    """Change the task every step, cycling through `order` (by default all tasks)."""
    cycle = _order(problem, order)
    rows = [cycle[i % len(cycle)] for i in range(problem.steps)]
    return Protocol.from_sequence(
        rows, problem.model.tasks, problem.duration, knobs=problem.settings
    )


@strategy
def random_order(problem: Problem, *, shares: ArrayLike | None = None, seed: int = 0) -> Protocol:
    """Draw every step's task at random with the given shares (T,), by default equal ones."""
    rng = np.random.default_rng(check.integer("seed", seed))
    tasks = problem.model.tasks
    rows = rng.choice(tasks, size=problem.steps, p=_shares(problem, shares))
    return _sequence(problem, rows)


@strategy
def sequential(problem: Problem, *, order: Sequence[Task] | None = None) -> Protocol:
    """Train on one task after another in blocks of equal length (by default all tasks)."""
    blocks = _order(problem, order)
    return _segments(problem, [(problem.duration / len(blocks), task) for task in blocks])


@strategy
def focus_then_replay(
    problem: Problem,
    *,
    focus: float | None = None,
    new_task: Task | None = None,
    shares: ArrayLike | None = None,
) -> Protocol:
    """Train on the new task alone (the last), then mix the tasks in fixed shares (equal ones).

    `focus` is the length of the first phase; by default it ends when the loss of the new task
    meets the largest loss of the others, or never if they do not meet. (The rule that the paper
    uses on real data.)
    """
    new = _new_task(problem, new_task)
    if problem.model.loss_names != problem.model.task_names:
        raise UnfitError(
            "`problem` expects a model with a loss for each task, without which focus-then-replay "
            f"does not know how long to focus, got the losses {', '.join(problem.model.loss_names)}"
        )
    revision = _shares(problem, shares).tolist()
    if focus is None:
        focus = _meeting_time(problem, new)
    focus = check.number("focus", focus, at_least=0, at_most=problem.duration)
    segments: list[tuple[float, int | list[float]]] = [
        (focus, new),
        (problem.duration - focus, revision),
    ]
    return _segments(problem, [(length, what) for length, what in segments if length > 0])


@strategy
def shuffled(
    problem: Problem, *, protocol: Protocol | None = None, after: float = 0.0, seed: int = 0
) -> Protocol:
    """Put the steps of a protocol (by default `focus_then_replay`) in random order.

    Every step keeps its shares, knobs and length. Steps that begin before `after` stay
    where they are: an optimum with its focus phase kept is the paper's pseudo-optimal strategy
    (Fig. 3), here "optimal, revision shuffled".
    """
    base = focus_then_replay(problem) if protocol is None else problem.accept(protocol)
    after = check.number("after", after, at_least=0, at_most=base.duration)
    first = int(np.searchsorted(base.edges[:-1], after * (1 - 1e-12)))
    rng = np.random.default_rng(check.integer("seed", seed))
    order = np.append(np.arange(first), first + rng.permutation(base.steps - first))
    edges = np.concatenate([[0.0], np.cumsum(base.lengths[order])])
    edges[-1] = base.duration
    return base.select(order, edges)


# Which learning rate


@strategy(turns=("rate",))
def constant_lr(
    problem: Problem,
    *,
    lr: float | None = None,
    protocol: Protocol | None = None,
    progress: Watch = False,
) -> Protocol:
    """Train with another constant learning rate, by default the best of a grid.

    The tasks are those of `protocol`, by default `interleaved`.
    """
    if lr is None:
        return grid_search(
            problem, constant_lr, progress=progress, lr=_lr_grid(problem), protocol=protocol
        ).protocol
    low, high = problem.control.ranges.get(_rate(problem), (0.0, None))
    lr = check.number("lr", lr, at_least=low, at_most=high)
    return _with_lr(problem, protocol, lambda time: np.full_like(time, lr))


@strategy(turns=("rate",))
def exponential_lr(
    problem: Problem,
    *,
    initial: float | None = None,
    scale: float | None = None,
    protocol: Protocol | None = None,
    progress: Watch = False,
) -> Protocol:
    """Anneal the learning rate as initial × exp(−α / scale).

    What is not given is found by a grid search. The tasks are those of `protocol`, by default
    `interleaved`. (Paper, Fig. 9)
    """
    if initial is None or scale is None:
        return grid_search(
            problem,
            exponential_lr,
            progress=progress,
            initial=_lr_grid(problem) if initial is None else [initial],
            scale=problem.duration * np.geomspace(0.05, 3.2, 13) if scale is None else [scale],
            protocol=protocol,
        ).protocol
    initial = check.number("initial", initial, at_least=0)
    scale = check.number("scale", scale, above=0)
    return _with_lr(problem, protocol, lambda time: initial * np.exp(-time / scale))


@strategy(turns=("rate",))
def power_law_lr(
    problem: Problem,
    *,
    initial: float | None = None,
    exponent: float | None = None,
    protocol: Protocol | None = None,
    progress: Watch = False,
) -> Protocol:
    """Anneal the learning rate as initial × (1 − α / duration)^exponent.

    What is not given is found by a grid search. The tasks are those of `protocol`, by default
    `interleaved`. (Paper, Fig. 9)
    """
    if initial is None or exponent is None:
        return grid_search(
            problem,
            power_law_lr,
            progress=progress,
            initial=_lr_grid(problem) if initial is None else [initial],
            exponent=np.geomspace(0.125, 8.0, 13) if exponent is None else [exponent],
            protocol=protocol,
        ).protocol
    initial = check.number("initial", initial, at_least=0)
    exponent = check.number("exponent", exponent, at_least=0)
    end = problem.duration
    return _with_lr(problem, protocol, lambda time: initial * (1 - time / end) ** exponent)


class GridSearch(NamedTuple):
    """The best protocol of a grid search, its settings and objective, and all that was tried."""

    protocol: Protocol
    settings: dict[str, Any]
    loss: float
    tried: list[tuple[dict[str, Any], float]]

    def __repr__(self) -> str:
        return f"GridSearch(loss={self.loss:.6g}, settings={self.settings})"


def grid_search(
    problem: Problem, strategy: Strategy, *, progress: Watch = False, **grid: Any
) -> GridSearch:
    """Return a strategy's best protocol over all combinations of settings.

    `grid_search(problem, exponential_lr, initial=[1, 2, 5], scale=[5, 10])`: a list or array holds
    the values to try, anything else is kept as it is. Combinations whose learning curve cannot be
    computed count as infinitely bad.
    """
    check.instance("problem", problem, Problem, "a Problem")
    check.function("strategy", strategy, "a strategy such as `constant_lr`")
    lists = [
        list(value)
        if isinstance(value, list | tuple) or (isinstance(value, np.ndarray) and value.ndim)
        else [value]
        for value in grid.values()
    ]
    for name, values in zip(grid, lists, strict=True):
        if not values:
            raise ValueError(f"`{name}` expects at least one value to try, got none")
    tried = []
    combinations = list(product(*lists))
    with Meter(progress, "grid points", len(combinations)) as meter:
        for combination in combinations:
            settings = dict(zip(grid, combination, strict=True))
            protocol = strategy(problem, **settings)
            run = evaluate(problem, protocol, rtol=1e-6, max_steps=_SEARCH_STEPS, throw=False)
            tried.append((settings, run.loss if run.status == "ok" else np.inf))
            meter.advance()
    settings, loss = min(tried, key=lambda pair: pair[1])
    if loss == np.inf:
        raise IntegrationError(
            "no setting of the grid gave a learning curve: try smaller learning rates"
        )
    return GridSearch(strategy(problem, **settings), settings, loss, tried)


# Parts


def _steady(problem: Problem, shares: Floats) -> Protocol:
    rows = np.tile(shares, (problem.steps, 1))
    return Protocol(rows, problem.duration, knobs=problem.settings)


def _sequence(problem: Problem, tasks: Sequence[int] | Ints) -> Protocol:
    return Protocol.from_sequence(
        tasks, problem.model.tasks, problem.duration, knobs=problem.settings
    )


def _segments(
    problem: Problem, segments: Sequence[tuple[float, int | Sequence[float]]]
) -> Protocol:
    """Return segments on the problem's grid; their own ends are edges too."""
    whole = Protocol.from_segments(segments, problem.model.tasks, knobs=problem.settings)
    edges = np.append(whole.edges[:-1], problem.duration)  # lengths add up only to rounding
    return Protocol(whole.shares, knobs=whole.knobs, edges=edges).split(problem.edges)


def _with_lr(
    problem: Problem, protocol: Protocol | None, schedule: Callable[[Floats], Floats]
) -> Protocol:
    """Return the protocol with the schedule's rate at the middle of every step.

    Where the problem gives the rate a range, the schedule is clipped to it.
    """
    base = interleaved(problem) if protocol is None else problem.accept(protocol)
    rate = _rate(problem)
    values = schedule((base.edges[1:] + base.edges[:-1]) / 2)
    if rate in problem.control.ranges:
        values = np.clip(values, *problem.control.ranges[rate])
    return base.with_knobs(**{rate: values})


def _rate(problem: Problem) -> str:
    """Return the name of the rate that strategies turn; refuse a model without one."""
    rate = main_rate(problem)
    if rate is None:
        knobs = ", ".join(knob.name for knob in problem.model.knobs)
        raise UnfitError(
            f"`problem` expects a model with a learning rate, got one with the knobs {knobs}"
        )
    return rate


def _lr_grid(problem: Problem) -> Floats:
    """Learning rates around the problem's, a factor √2 apart, or throughout its range."""
    rate = _rate(problem)
    low, high = problem.control.ranges.get(rate, (0.0, 0.0))
    if high > 0:
        return np.geomspace(max(low, high / 64), high, 13)
    return (problem.knob_values[rate] or 1.0) * np.geomspace(1 / 4, 16, 13)


@lru_cache(maxsize=8)
def _meeting_time(problem: Problem, new: int) -> float:
    """When the loss of the new task, trained alone, meets the largest loss of the others."""
    from scipy.optimize import brentq  # would double the time it takes to import replan

    alone = evaluate(problem, one_task(problem, task=new))

    def gap(losses: Floats) -> Floats:
        return losses[..., new] - np.delete(losses, new, axis=-1).max(axis=-1, initial=-np.inf)

    met = np.flatnonzero(gap(alone.losses) <= 0)
    if met.size == 0:
        return problem.duration
    if met[0] == 0:
        return 0.0
    before, after = alone.times[met[0] - 1], alone.times[met[0]]
    return float(brentq(lambda time: gap(alone.losses_at([time]))[0], before, after, xtol=1e-10))


def _task(problem: Problem, name: str, task: int) -> int:
    return check.task(name, task, problem.model.tasks)


def _new_task(problem: Problem, task: int | None) -> int:
    return problem.model.tasks - 1 if task is None else _task(problem, "new_task", task)


def _order(problem: Problem, order: Sequence[int] | None) -> list[int]:
    tasks = problem.model.tasks
    chosen = check.task_list("order", range(tasks) if order is None else order, tasks).tolist()
    if not chosen:
        raise ValueError("`order` expects at least one task, got none")
    return chosen


def _shares(problem: Problem, shares: ArrayLike | None) -> Floats:
    tasks = problem.model.tasks
    return check.simplex_rows(
        "shares", np.full(tasks, 1 / tasks) if shares is None else shares, (tasks,)
    )
