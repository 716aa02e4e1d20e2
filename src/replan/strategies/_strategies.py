"""Strategies: recipes that make a protocol from a problem without optimising it.

Each is called with a problem alone, or with settings of its own too. Tasks count from 0. Those that
are away leave their shares to the others, in proportion; to all others alike if these have none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import pairwise, product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from replan import check
from replan.check import Bools, Floats, Ints, Task
from replan.errors import ArgumentError, IntegrationError
from replan.problem import Control, Limits, Problem
from replan.progress import Meter, Watch
from replan.protocol import Protocol
from replan.strategies._strategy import Strategy, UnfitError, main_rate, strategy
from replan.trajectory import Trajectory, evaluate

_SEARCH_STEPS = 2**15  # most RK4 steps for one point of a grid: a rate that needs more is too large


# Which task


@strategy
def one_task(problem: Problem, *, task: Task = 0) -> Protocol:
    """Train on one task alone, by default the first; it must be there throughout.

    Examples:
        >>> model = replan.TeacherStudent.similar(0.3)
        >>> problem = replan.Problem(model, model.pretrain(seed=1), duration=20.0, steps=50)
        >>> replan.strategies.one_task(problem).mean_shares
        array([1., 0.])
    """
    chosen = _task(problem, "task", task)
    presence = problem.availability
    if presence.arrivals[chosen] > 0 or presence.departures[chosen] < problem.duration:
        raise UnfitError(
            f"`task` expects one that is there throughout, got {problem.model.task_names[chosen]}"
        )
    return _sequence(problem, np.full(problem.steps, chosen))


@strategy
def no_replay(problem: Problem, *, new_task: Task | None = None) -> Protocol:
    """Train on the new task alone: by default, of those there, the one that arrived last.

    Of several that arrived together, the last of them is new.

    Examples:
        >>> model = replan.TeacherStudent.similar(0.3)
        >>> problem = replan.Problem(model, model.pretrain(seed=1), duration=20.0, steps=50)
        >>> replan.strategies.no_replay(problem).mean_shares
        array([0., 1.])
    """
    if new_task is not None:
        return one_task(problem, task=_task(problem, "new_task", new_task))
    return _sequence(problem, problem.availability.newest(problem.edges))


@strategy
def interleaved(problem: Problem, *, shares: ArrayLike | None = None) -> Protocol:
    """Mix the tasks sample by sample in fixed shares (T,), by default equal ones.

    Examples:
        >>> model = replan.TeacherStudent.similar(0.3)
        >>> problem = replan.Problem(model, model.pretrain(seed=1), duration=20.0, steps=50)
        >>> replan.strategies.interleaved(problem, shares=[0.2, 0.8]).mean_shares
        array([0.2, 0.8])
    """
    return _among(problem, np.tile(_shares(problem, shares), (problem.steps, 1)))


@strategy
def alternating(problem: Problem, *, order: Sequence[Task] | None = None) -> Protocol:
    """Change the task every step, cycling through `order` (by default all tasks).

    Examples:
        >>> model = replan.TeacherStudent.similar(0.3)
        >>> problem = replan.Problem(model, model.pretrain(seed=1), duration=20.0, steps=50)
        >>> replan.strategies.alternating(problem).sequence[:6]
        array([0, 1, 0, 1, 0, 1])
    """
    cycle = _order(problem, order)
    rows, at = np.zeros((problem.steps, problem.model.tasks)), 0
    for row, there in zip(rows, problem.step_limits.available, strict=True):
        turns = [cycle[(at + i) % len(cycle)] for i in range(len(cycle))]
        passed = next((i for i, task in enumerate(turns) if there[task]), None)
        if passed is not None:
            row[turns[passed]] = 1.0
            at += passed + 1
    return _among(problem, rows)


@strategy
def random_order(problem: Problem, *, shares: ArrayLike | None = None, seed: int = 0) -> Protocol:
    """Draw every step's task at random with the given shares (T,), by default equal ones.

    Examples:
        >>> model = replan.TeacherStudent.similar(0.3)
        >>> problem = replan.Problem(model, model.pretrain(seed=1), duration=20.0, steps=50)
        >>> replan.strategies.random_order(problem, shares=[0.2, 0.8], seed=1).sequence[:6]
        array([1, 1, 0, 1, 1, 1])
    """
    rng = np.random.default_rng(check.integer("seed", seed))
    sums = np.cumsum(interleaved(problem, shares=shares).shares, axis=1)
    draws = rng.random(problem.steps)
    return _sequence(problem, np.sum(draws[:, None] >= sums / sums[:, -1:], axis=1))


@strategy
def sequential(problem: Problem, *, order: Sequence[Task] | None = None) -> Protocol:
    """Train on one task after another in blocks of equal length (by default all tasks).

    Where tasks arrive, those that do so together divide the time until the next arrival among them.

    Examples:
        >>> model = replan.TeacherStudent.similar(0.3)
        >>> problem = replan.Problem(model, model.pretrain(seed=1), duration=20.0, steps=50)
        >>> print(replan.strategies.sequential(problem))
        Protocol: 20 units in 50 steps, task 1 50.0%, task 2 50.0%, learning rate 1
                 0 to 10       task 1
                10 to 20       task 2
    """
    if order is not None:
        blocks = _order(problem, order)
        return _segments(problem, [(problem.duration / len(blocks), task) for task in blocks])
    segments = []
    for begin, end in pairwise(_arrivals(problem)):
        new = np.flatnonzero(problem.availability.arrivals == begin).tolist()
        segments += [((end - begin) / len(new), task) for task in new]
    return _segments(problem, segments)


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
    uses on real data.) It applies at every arrival anew, to the newest task and the others there.

    Examples:
        >>> model = replan.TeacherStudent.similar(0.3)
        >>> problem = replan.Problem(model, model.pretrain(seed=1), duration=20.0, steps=50)
        >>> print(replan.strategies.focus_then_replay(problem, focus=2.0))
        Protocol: 20 units in 50 steps, task 1 45.0%, task 2 55.0%, learning rate 1
                 0 to 2        task 2
                 2 to 20       0.5 task 1 + 0.5 task 2
    """
    arrivals = np.searchsorted(problem.edges, _arrivals(problem)[:-1])
    new = problem.availability.newest(problem.edges)[arrivals].tolist()
    if new_task is not None:
        if len(new) > 1:
            raise ArgumentError(
                "new_task",
                "None where tasks arrive: each is new when it does",
                check.show(new_task),
            )
        new = [_task(problem, "new_task", new_task)]
    if problem.model.loss_names != problem.model.task_names:
        raise UnfitError(
            "`problem` expects a model with a loss for each task, without which focus-then-replay "
            f"does not know how long to focus, got the losses {', '.join(problem.model.loss_names)}"
        )
    revision = tuple(_shares(problem, shares).tolist())
    if focus is None:
        return _focused(problem, new, _meeting_times(problem, tuple(new), revision), revision)
    focus = check.number("focus", focus, at_least=0, at_most=problem.duration)
    return _focused(problem, new, [focus] * len(new), revision)


@strategy
def shuffled(
    problem: Problem, *, protocol: Protocol | None = None, after: float = 0.0, seed: int = 0
) -> Protocol:
    """Put the steps of a protocol (by default `focus_then_replay`) in random order.

    Every step keeps its shares, knobs and length. Steps stay within the time in which the same
    tasks are there. Steps that begin before `after` stay
    where they are: an optimum with its focus phase kept is the paper's pseudo-optimal strategy
    (Fig. 3), here "optimal, revision shuffled".

    Examples:
        >>> model = replan.TeacherStudent.similar(0.3)
        >>> problem = replan.Problem(model, model.pretrain(seed=1), duration=20.0, steps=50)
        >>> focus = replan.strategies.focus_then_replay(problem, focus=2.0)
        >>> mixed = replan.strategies.shuffled(problem, protocol=focus, seed=1)
        >>> bool(np.allclose(mixed.mean_shares, focus.mean_shares))
        True
    """
    base = focus_then_replay(problem) if protocol is None else problem.accept(protocol)
    changes = problem.availability.changes
    base = base.split(changes)
    after = check.number("after", after, at_least=0, at_most=base.duration)
    first = int(np.searchsorted(base.edges[:-1], after * (1 - 1e-12)))
    rng = np.random.default_rng(check.integer("seed", seed))
    order = np.arange(base.steps)
    stretch = np.searchsorted(changes, (base.edges[1:] + base.edges[:-1]) / 2)
    for i in range(len(changes) + 1):
        moved = np.flatnonzero((stretch == i) & (order >= first))
        order[moved] = moved[rng.permutation(moved.size)]
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

    Examples:
        >>> model = replan.TeacherStudent.similar(0.3)
        >>> problem = replan.Problem(model, model.pretrain(seed=1), duration=20.0, steps=50)
        >>> replan.strategies.constant_lr(problem, lr=0.5).lr[:3]
        array([0.5, 0.5, 0.5])
    """
    if lr is None:
        return grid_search(
            problem, constant_lr, progress=progress, lr=_lr_grid(problem), protocol=protocol
        ).protocol
    free = problem.control.knobs.get(_rate(problem))
    low, high = (free.low, free.high) if free else (0.0, None)
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

    Examples:
        >>> model = replan.TeacherStudent.similar(0.3)
        >>> problem = replan.Problem(model, model.pretrain(seed=1), duration=20.0, steps=50)
        >>> replan.strategies.exponential_lr(problem, initial=2.0, scale=5.0).lr[[0, -1]].round(2)
        array([1.92, 0.04])
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

    Examples:
        >>> model = replan.TeacherStudent.similar(0.3)
        >>> problem = replan.Problem(model, model.pretrain(seed=1), duration=20.0, steps=50)
        >>> replan.strategies.power_law_lr(problem, initial=2.0, exponent=1.0).lr[[0, -1]].round(2)
        array([1.98, 0.02])
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
    """The best protocol of a grid search, its settings and objective, and all that was tried.

    Examples:
        >>> model = replan.TeacherStudent.similar(0.3)
        >>> problem = replan.Problem(model, model.pretrain(seed=1), duration=20.0, steps=50)
        >>> from replan.strategies import constant_lr, grid_search
        >>> best = grid_search(problem, constant_lr, lr=[0.5, 1.0, 2.0])
        >>> best.settings["lr"], len(best.tried)
        (2.0, 3)
    """

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

    Examples:
        >>> model = replan.TeacherStudent.similar(0.3)
        >>> problem = replan.Problem(model, model.pretrain(seed=1), duration=20.0, steps=50)
        >>> best = replan.strategies.grid_search(
        ...     problem, replan.strategies.exponential_lr, initial=[1, 2], scale=[5, 10]
        ... )
        >>> best.settings["initial"], best.settings["scale"]
        (2, 10)
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
            raise ArgumentError(name, "at least one value to try", "none")
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


def _among(problem: Problem, shares: Floats) -> Protocol:
    """Return shares (steps, T) as a protocol; tasks that are away leave theirs to the others."""
    rows = problem.availability.renormalise(shares, problem.edges)
    return Protocol(rows, problem.duration, **problem.settings)


def _sequence(problem: Problem, tasks: Sequence[int] | Ints) -> Protocol:
    return Protocol.from_sequence(tasks, problem.model.tasks, problem.duration, **problem.settings)


def _segments(
    problem: Problem, segments: Sequence[tuple[float, int | Sequence[float]]]
) -> Protocol:
    """Return segments on the problem's grid; their own ends are edges too.

    Tasks that are away leave their shares to the others.
    """
    whole = Protocol.from_segments(segments, problem.model.tasks, **problem.settings)
    edges = np.append(whole.edges[:-1], problem.duration)  # lengths add up only to rounding
    cut = Protocol(whole.shares, edges=edges, **whole.knobs).split(problem.edges)
    shares = problem.availability.renormalise(cut.shares, cut.edges)
    return Protocol(shares, edges=cut.edges, **cut.knobs)


def _with_lr(
    problem: Problem, protocol: Protocol | None, schedule: Callable[[Floats], Floats]
) -> Protocol:
    """Return the protocol with the schedule's rate at the middle of every step.

    Where the problem gives the rate a range, the schedule is clipped to it.
    """
    base = interleaved(problem) if protocol is None else problem.accept(protocol)
    rate = _rate(problem)
    values = schedule((base.edges[1:] + base.edges[:-1]) / 2)
    if rate in problem.control.knobs:
        values = np.clip(values, problem.control.knobs[rate].low, problem.control.knobs[rate].high)
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
    free = problem.control.knobs.get(rate)
    low, high = (free.low, free.high) if free else (0.0, 0.0)
    if high > 0:
        return np.geomspace(max(low, high / 64), high, 13)
    return (problem.knobs[rate] or 1.0) * np.geomspace(1 / 4, 16, 13)


def _arrivals(problem: Problem) -> list[float]:
    """Return the times at which tasks arrive, 0 among them, and the end."""
    return np.unique([0.0, *problem.availability.arrivals, problem.duration]).tolist()


def _focused(
    problem: Problem, new: Sequence[int], lengths: Sequence[float], revision: Sequence[float]
) -> Protocol:
    """Return the new task of every arrival alone for its length, at most until the next one.

    Then the shares of the revision, which is all that arrivals without a length have.
    """
    segments: list[tuple[float, int | Sequence[float]]] = []
    rest = [0.0] * (len(new) - len(lengths))
    intervals = pairwise(_arrivals(problem))
    for (begin, end), task, length in zip(intervals, new, [*lengths, *rest], strict=True):
        focus = min(length, end - begin)
        segments += [(focus, task), (end - begin - focus, revision)]
    return _segments(problem, [(length, what) for length, what in segments if length > 0])


@lru_cache(maxsize=8)
def _meeting_times(
    problem: Problem, new: tuple[int, ...], revision: tuple[float, ...]
) -> tuple[float, ...]:
    """How long after each arrival the loss of the new task meets the largest of the others there.

    It is trained alone from its arrival on; where they do not meet, until the next one.
    """
    from scipy.optimize import brentq  # would double the time it takes to import replan

    lengths: list[float] = []
    start = problem.start
    for task, (begin, end) in zip(new, pairwise(_arrivals(problem)), strict=True):

        def trained(length: float, start: Any = start, span: Any = (begin, end)) -> Trajectory:
            protocol = _focused(problem, new, [*lengths, length], revision)
            return _evaluate_part(problem, protocol, start, *span)

        alone = trained(end - begin)
        others = problem.step_limits.available[np.searchsorted(problem.edges, begin)].copy()
        others[task] = False

        def gap(losses: Floats, task: int = task, others: Bools = others) -> Floats:
            return losses[..., task] - losses[..., others].max(axis=-1, initial=-np.inf)

        met = np.flatnonzero(gap(alone.losses) <= 0)
        length = end - begin
        if met.size and met[0] == 0:
            length = 0.0
        elif met.size:
            length = brentq(
                lambda time, alone=alone, gap=gap: gap(alone.losses_at([time]))[0],
                *alone.times[met[0] - 1 : met[0] + 1], xtol=1e-10,
            )  # fmt: skip
        if end < problem.duration:
            after = alone if length == end - begin else trained(length)
            start = problem.model.unpack(after.states[-1])
        lengths.append(float(length))
    return tuple(lengths)


def _evaluate_part(
    problem: Problem, protocol: Protocol, start: Any, begin: float, end: float
) -> Trajectory:
    """Return the learning curves of a protocol between two edges, from where they start then."""
    if (begin, end) == (0.0, problem.duration):
        return evaluate(problem, protocol)
    whole = protocol.split(problem.edges)
    first, last = (int(np.argmin(np.abs(whole.edges - time))) for time in (begin, end))
    edges = whole.edges[first : last + 1] - whole.edges[first]
    steps = round(problem.steps * (end - begin) / problem.duration)
    part = problem.changed(
        start=start, duration=edges[-1], steps=steps,
        control=Control(), limits=Limits(), arrivals=None, departures=None,
    )  # fmt: skip
    return evaluate(part, whole.select(np.arange(first, last), edges))


def _task(problem: Problem, name: str, task: int) -> int:
    return check.task(name, task, problem.model.tasks)


def _order(problem: Problem, order: Sequence[int] | None) -> list[int]:
    tasks = problem.model.tasks
    chosen = check.task_list("order", range(tasks) if order is None else order, tasks).tolist()
    if not chosen:
        raise ArgumentError("order", "at least one task", "none")
    return chosen


def _shares(problem: Problem, shares: ArrayLike | None) -> Floats:
    tasks = problem.model.tasks
    return check.simplex_rows(
        "shares", np.full(tasks, 1 / tasks) if shares is None else shares, (tasks,)
    )
