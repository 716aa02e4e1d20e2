"""Strategies: recipes that make a protocol from a problem without optimising it.

Each is called with a problem alone, or with its settings too. Tasks count from 0. Shares of
unavailable tasks are redistributed proportionally, or equally where the available ones have none.
All examples of this module use the problem of this one:

Examples:
    >>> model = replan.TeacherStudent.similar(0.3)
    >>> problem = replan.Problem(model, model.pretrain(seed=1), duration=20.0, steps=50)
    >>> protocol = replan.strategies.focus_then_replay(problem)
    >>> print(protocol)
    Protocol: 20 units in 51 steps, task 1 26.3%, task 2 73.7%, learning rate 1
             0 to 9.464    task 2
         9.464 to 20       0.5 task 1 + 0.5 task 2
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache, update_wrapper
from itertools import pairwise, product
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints, overload

import numpy as np
from numpy.typing import ArrayLike

from replan import check
from replan.check import Floats, Ints, Task
from replan.core.threads import in_threads
from replan.curves import evaluate, rough_loss
from replan.errors import ArgumentError, IntegrationError
from replan.problem import Problem
from replan.progress import Meter, Watch
from replan.protocol import Protocol
from replan.registry import Registry
from replan.schema import task_from_one

__all__ = [
    "alternating",
    "constant_lr",
    "exponential_lr",
    "focus_then_replay",
    "interleaved",
    "no_replay",
    "one_task",
    "power_law_lr",
    "random_order",
    "sequential",
    "shuffled",
]

Recipe = Callable[..., Protocol]
_T = TypeVar("_T")

_EVERY, _BEST = 3, 2  # values of a grid tried first; points from which the search goes on

STRATEGIES: Registry[Strategy] = Registry("name")


class UnfitError(ArgumentError):
    """A strategy that does not apply to the problem."""


class Strategy:
    """A recipe that makes a protocol for a problem; call it with a problem and its settings.

    name: on the command line. turns: the knobs that it sets, such as ("lr",); "rate" stands for the
    model's first learning rate. The problem sets the others. A strategy that turns a knob takes
    `protocol`, whose shares it keeps. grids: by setting, ascending values for a problem, of which a
    search takes the best where the setting is None: it tries every third, and goes on from the best
    two to their neighbours.
    """

    def __init__(
        self,
        recipe: Recipe,
        turns: tuple[str, ...] = (),
        grids: Mapping[str, Callable[[Problem], Floats]] | None = None,
    ) -> None:
        check.items("turns", turns, "names")
        needs = ["protocol"] if turns else []
        try:
            inspect.signature(recipe).bind("a problem", **dict.fromkeys(needs))
        except (TypeError, ValueError) as error:
            expected = " and ".join(["a function that takes a problem alone", *needs])
            raise ArgumentError("recipe", expected, f"{check.show(recipe)} ({error})") from None
        update_wrapper(self, recipe)
        self.recipe, self.turns, self.grids = recipe, turns, grids or {}
        self.name = recipe.__name__.replace("_", "-")

    @property
    def foreign(self) -> bool:
        """Whether it is a user's: its errors are then reported, and do not end a command."""
        return not self.recipe.__module__.startswith("replan.")

    def turned(self, problem: Problem) -> set[str]:
        """Return the names of the knobs of `problem` that it sets."""
        return {
            problem.model.layout.rate or name if name == "rate" else name for name in self.turns
        }

    def __call__(self, problem: Any, *, progress: Watch = False, **settings: Any) -> Protocol:
        """Return the protocol for a problem, checked against it; `progress` is of a grid search."""
        check.instance("problem", problem, Problem, "a Problem")
        names = [name for name in self.grids if settings.get(name) is None]
        if names:
            settings |= {name: self.grids[name](problem) for name in names}
            return grid_search(problem, self, _EVERY, progress, **settings)
        return problem.accept(self.recipe(problem, **settings), f"result of {self.name}")

    def __repr__(self) -> str:
        return f"Strategy({self.name})"


def _rate(problem: Problem) -> str:
    """Return the name of the model's learning rate; refuse a model without one."""
    rate = problem.model.layout.rate
    if rate is None:
        knobs = ", ".join(knob.name for knob in problem.model.knobs)
        raise UnfitError("problem", "one whose model has a learning rate", f"the knobs {knobs}")
    return rate


def lr_grid(problem: Problem) -> Floats:
    """Return learning rates a factor √2 apart: throughout the range, or around the problem's."""
    rate = _rate(problem)
    low, high = problem.free_range(rate)
    if rate in problem.control.knobs:
        return np.geomspace(max(low, high / 64), high, 13) if high > 0 else np.zeros(1)
    grid = (problem.knobs[rate] or 1.0) * np.geomspace(1 / 4, 16, 13)
    return grid[grid <= high]


@overload
def register(new: type[_T]) -> type[_T]: ...  # type: ignore[overload-overlap]


@overload
def register(new: Recipe) -> Strategy: ...


@overload
def register(
    *, turns: tuple[str, ...], grids: Mapping[str, Callable[[Problem], Floats]] | None = None
) -> Callable[[Recipe], Strategy]: ...


def register(new: Any = None, **options: Any) -> Any:
    """Make a model, a solver or a strategy known by its word; used as a decorator.

    - A `Model` by its `kind`, in problem files.
    - A `control.Solver` by its `method`, for `replan solve --method`.
    - A function of a problem, with settings after `*`, becomes a strategy, by its name with
      hyphens: `compare` shows it, `solve` starts from it, and `--strategy` knows it. One that sets
      knobs takes `protocol`, whose shares it keeps, and says which: `@register(turns=("lr",))`.
      With `grids={"rate": function of a problem}`, the best of these values is taken where the
      setting `rate` is None.

    A word that is taken is refused. `replan --import FILE` runs a file that registers.

    Examples:
        >>> @replan.register
        ... def halves(problem, *, part: float = 0.5):
        ...     return replan.Protocol.from_segments(
        ...         [(part * problem.duration, 1), ((1 - part) * problem.duration, 0)], tasks=2
        ...     )
        >>> list(replan.compare(problem, strategies=["halves"]).runs)
        ['halves']
    """
    if new is None:
        return lambda recipe: register(recipe, **options)
    if isinstance(new, type) and hasattr(new, "registry"):
        return new.registry.add(new)
    return STRATEGIES.add(Strategy(new, **options))


# Which task


@register
def one_task(problem: Problem, *, task: Task = 0) -> Protocol:
    """Train on one task alone, by default the first; it must be available throughout.

    Examples:
        >>> replan.strategies.one_task(problem).mean_shares
        array([1., 0.])
    """
    chosen = check.task("task", task, problem.model.tasks)
    presence = problem.availability
    if presence.arrivals[chosen] > 0 or presence.departures[chosen] < problem.duration:
        raise UnfitError("task", "available throughout", problem.model.task_names[chosen])
    return _sequence(problem, np.full(problem.steps, chosen))


@register
def no_replay(problem: Problem, *, new_task: Task | None = None) -> Protocol:
    """Train on the new task alone: by default the available one that arrived last.

    Of several that arrived together, the last counts as new.

    Examples:
        >>> replan.strategies.no_replay(problem).mean_shares
        array([0., 1.])
    """
    if new_task is not None:
        return one_task(problem, task=check.task("new_task", new_task, problem.model.tasks))
    return _sequence(problem, problem.availability.newest(problem.edges))


@register
def interleaved(problem: Problem, *, shares: ArrayLike | None = None) -> Protocol:
    """Mix the tasks sample by sample in fixed shares (T,), by default equal.

    Examples:
        >>> replan.strategies.interleaved(problem, shares=[0.2, 0.8]).mean_shares
        array([0.2, 0.8])
    """
    return _mixed(problem, np.tile(_shares(problem, shares), (problem.steps, 1)))


@register
def alternating(problem: Problem, *, order: Sequence[Task] | None = None) -> Protocol:
    """Change the task every step, cycling through `order` (by default all tasks).

    Examples:
        >>> replan.strategies.alternating(problem).sequence[:6]
        array([0, 1, 0, 1, 0, 1])
    """
    cycle = _order(problem, order)
    rows, turn = np.zeros((problem.steps, problem.model.tasks)), 0
    for row, available in zip(rows, problem.step_limits.available, strict=True):
        upcoming = [cycle[(turn + i) % len(cycle)] for i in range(len(cycle))]
        skipped = next((i for i, task in enumerate(upcoming) if available[task]), None)
        if skipped is not None:
            row[upcoming[skipped]] = 1.0
            turn += skipped + 1
    return _mixed(problem, rows)


@register
def random_order(problem: Problem, *, shares: ArrayLike | None = None, seed: int = 0) -> Protocol:
    """Draw every step's task at random with the given shares (T,), by default equal.

    Examples:
        >>> replan.strategies.random_order(problem, shares=[0.2, 0.8], seed=1).sequence[:6]
        array([1, 1, 0, 1, 1, 1])
    """
    rng = np.random.default_rng(check.integer("seed", seed))
    sums = np.cumsum(interleaved(problem, shares=shares).shares, axis=1)
    draws = rng.random(problem.steps)
    return _sequence(problem, np.sum(draws[:, None] >= sums / sums[:, -1:], axis=1))


@register
def sequential(problem: Problem, *, order: Sequence[Task] | None = None) -> Protocol:
    """Train on one task after another in blocks of equal length (by default all tasks).

    Where tasks arrive, those that arrive together divide the time until the next arrival.

    Examples:
        >>> replan.strategies.sequential(problem).sequence[[0, 24, 25, 49]]
        array([0, 0, 1, 1])
    """
    if order is not None:
        blocks = _order(problem, order)
        return _segments(problem, [(problem.duration / len(blocks), task) for task in blocks])
    segments = []
    for begin, end in pairwise(_arrivals(problem)):
        new = np.flatnonzero(problem.availability.arrivals == begin).tolist()
        segments += [((end - begin) / len(new), task) for task in new]
    return _segments(problem, segments)


@register
def focus_then_replay(
    problem: Problem,
    *,
    focus: float | None = None,
    new_task: Task | None = None,
    shares: ArrayLike | None = None,
) -> Protocol:
    """Train on the new task alone (the last), then mix the tasks in fixed (equal) shares.

    `focus` is the length of the first phase; by default it ends when the loss of the new task
    meets the largest loss of the others, or never if they do not meet. (The paper's rule on real
    data.) It starts anew at every arrival, with the newest and the other available tasks.

    Examples:
        >>> replan.strategies.focus_then_replay(problem, focus=2.0).mean_shares
        array([0.45, 0.55])
    """
    arrivals = np.searchsorted(problem.edges, _arrivals(problem)[:-1])
    new = problem.availability.newest(problem.edges)[arrivals].tolist()
    if new_task is not None:
        if len(new) > 1:
            expected = "None where tasks arrive, as each is new when it does"
            raise ArgumentError("new_task", expected, check.show(new_task))
        new = [check.task("new_task", new_task, problem.model.tasks)]
    if problem.model.loss_names != problem.model.task_names:
        expected = "one with a loss for each task, which say how long to focus"
        raise UnfitError("problem", expected, f"the losses {', '.join(problem.model.loss_names)}")
    revision = _shares(problem, shares).tolist()
    if focus is None:
        lengths = _meeting_times(problem, tuple(new), tuple(revision))
    else:
        focus = check.number("focus", focus, at_least=0, at_most=problem.duration)
        lengths = [focus] * len(new)
    return _focused(problem, new, lengths, revision)


@register
def shuffled(
    problem: Problem, *, protocol: Protocol | None = None, after: float = 0.0, seed: int = 0
) -> Protocol:
    """Put the steps of a protocol (by default `focus_then_replay`) in random order.

    Every step keeps its shares, knobs and length, and stays between the same arrivals and
    departures. Steps that begin before `after` stay in place: an optimum with its focus phase kept
    is the paper's pseudo-optimal strategy (Fig. 3), here "optimal, revision shuffled".

    Examples:
        >>> replan.strategies.shuffled(problem, protocol=protocol).mean_shares.round(3)
        array([0.263, 0.737])
    """
    base = focus_then_replay(problem) if protocol is None else problem.accept(protocol)
    changes = problem.availability.changes
    base = base.split(changes)
    after = check.number("after", after, at_least=0, at_most=base.duration)
    first = int(np.searchsorted(base.edges[:-1], after * (1 - 1e-12)))
    rng = np.random.default_rng(check.integer("seed", seed))
    order = np.arange(base.steps)
    interval = np.searchsorted(changes, (base.edges[1:] + base.edges[:-1]) / 2)
    for i in range(len(changes) + 1):
        moved = np.flatnonzero((interval == i) & (order >= first))
        order[moved] = moved[rng.permutation(moved.size)]
    edges = np.concatenate([[0.0], np.cumsum(base.lengths[order])])
    edges[-1] = base.duration
    return base.select(order, edges)


# Which learning rate


@register(turns=("rate",), grids={"lr": lr_grid})
def constant_lr(
    problem: Problem, *, lr: float | None = None, protocol: Protocol | None = None
) -> Protocol:
    """Train at another constant learning rate, by default the best of a grid.

    The shares are those of `protocol`, by default `interleaved`.

    Examples:
        >>> replan.strategies.constant_lr(problem, lr=0.5).lr[:3]
        array([0.5, 0.5, 0.5])
    """
    free = problem.control.knobs.get(_rate(problem))
    low, high = (free.low, free.high) if free else (0.0, None)
    lr = check.number("lr", lr, at_least=low, at_most=high)
    return _with_lr(problem, protocol, lambda time: np.full_like(time, lr))


@register(
    turns=("rate",),
    grids={
        "initial": lr_grid,
        "scale": lambda problem: problem.duration * np.geomspace(0.05, 3.2, 13),
    },
)
def exponential_lr(
    problem: Problem,
    *,
    initial: float | None = None,
    scale: float | None = None,
    protocol: Protocol | None = None,
) -> Protocol:
    """Anneal the learning rate as initial × exp(−α / scale).

    Missing settings are found by a grid search. The shares are those of `protocol`, by default
    `interleaved`. (Paper, Fig. 9)

    Examples:
        >>> replan.strategies.exponential_lr(problem, initial=2.0, scale=5.0).lr[[0, -1]].round(2)
        array([1.92, 0.04])
    """
    initial = check.number("initial", initial, at_least=0)
    scale = check.number("scale", scale, above=0)
    return _with_lr(problem, protocol, lambda time: initial * np.exp(-time / scale))


@register(
    turns=("rate",),
    grids={"initial": lr_grid, "exponent": lambda problem: np.geomspace(0.125, 8.0, 13)},
)
def power_law_lr(
    problem: Problem,
    *,
    initial: float | None = None,
    exponent: float | None = None,
    protocol: Protocol | None = None,
) -> Protocol:
    """Anneal the learning rate as initial × (1 − α / duration)^exponent.

    Missing settings are found by a grid search. The shares are those of `protocol`, by default
    `interleaved`. (Paper, Fig. 9)

    Examples:
        >>> replan.strategies.power_law_lr(problem, initial=2.0, exponent=1.0).lr[[0, -1]].round(2)
        array([1.98, 0.02])
    """
    initial = check.number("initial", initial, at_least=0)
    exponent = check.number("exponent", exponent, at_least=0)
    end = problem.duration
    return _with_lr(problem, protocol, lambda time: initial * (1 - time / end) ** exponent)


def grid_search(
    problem: Problem, strategy: Strategy, every: int = 1, progress: Watch = False, /, **grid: Any
) -> Protocol:
    """Return a strategy's best protocol over all combinations of settings.

    A list or an array holds the values to try; any other setting is passed on. Only every n-th
    value is tried at first; from the best two points the search goes on to neighbours, diagonal
    ones too, while they are better. Losses are rough ones, computed in threads; those that cannot
    be computed count as infinite.
    """
    lists = [list(x) if isinstance(x, list | tuple | np.ndarray) else [x] for x in grid.values()]
    for name, values in zip(grid, lists, strict=True):
        if not values:
            raise ArgumentError(name, "at least one value to try", "none")
    sizes = [len(values) for values in lists]
    protocols: dict[tuple[int, ...], Protocol] = {}
    losses: dict[tuple[int, ...], float] = {}
    with Meter(progress, "grid points") as meter:

        def best(points: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
            points = list(points)
            new = [point for point in points if point not in losses]
            meter.advance(0, expect=len(new))
            for point in new:
                values = [values[i] for values, i in zip(lists, point, strict=True)]
                protocols[point] = strategy(problem, **dict(zip(grid, values, strict=True)))

            def loss(i: int) -> float:
                meter.advance()
                return rough_loss(problem, protocols[new[i]])

            losses.update(zip(new, in_threads(loss, len(new)), strict=True))
            return min(points, key=losses.__getitem__)

        def beside(point: tuple[int, ...]) -> Iterable[tuple[int, ...]]:
            axes = zip(point, sizes, strict=True)
            return product(*(range(max(i - 1, 0), min(i + 2, size)) for i, size in axes))

        best(product(*(sorted({*range(0, size, every), size - 1}) for size in sizes)))
        for point in sorted(losses, key=losses.__getitem__)[:_BEST]:
            while (better := best([point, *beside(point)])) != point:
                point = better
        point = best(losses)
    if losses[point] == np.inf:
        raise IntegrationError("every setting of the grid diverges: try smaller learning rates")
    return protocols[point]


# Parts


def _mixed(problem: Problem, shares: Floats) -> Protocol:
    """Return shares (steps, T) as a protocol, those of unavailable tasks redistributed."""
    rows = problem.availability.renormalise(shares, problem.edges)
    return Protocol(rows, problem.duration, **problem.settings)


def _sequence(problem: Problem, tasks: Sequence[int] | Ints) -> Protocol:
    return Protocol.from_sequence(tasks, problem.model.tasks, problem.duration, **problem.settings)


def _segments(
    problem: Problem, segments: Sequence[tuple[float, int | Sequence[float]]]
) -> Protocol:
    """Return segments on the problem's grid, with their ends as further edges.

    Shares of unavailable tasks are redistributed.
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


def _arrivals(problem: Problem) -> list[float]:
    """Return the times at which tasks arrive, 0 among them, and the end."""
    return np.unique([0.0, *problem.availability.arrivals, problem.duration]).tolist()


def _focused(
    problem: Problem, new: Sequence[int], lengths: Sequence[float], revision: Sequence[float]
) -> Protocol:
    """Return the protocol that trains each new task alone for its length, then all in `revision`.

    new: the task of each arrival. lengths: of the first arrivals; the others have no focus phase.
    A focus phase ends at the next arrival at the latest.
    """
    segments: list[tuple[float, int | Sequence[float]]] = []
    rest = [0.0] * (len(new) - len(lengths))
    intervals = pairwise(_arrivals(problem))
    for (begin, end), task, length in zip(intervals, new, [*lengths, *rest], strict=True):
        focus = min(length, end - begin)
        segments += [(focus, task), (end - begin - focus, revision)]
    return _segments(problem, [(length, what) for length, what in segments if length > 0])


@lru_cache(maxsize=1)  # several strategies build on it
def _meeting_times(
    problem: Problem, new: tuple[int, ...], revision: tuple[float, ...]
) -> list[float]:
    """Return how long after each arrival the new task's loss meets the largest of the others.

    The new task is trained alone from its arrival on; where they do not meet, until the next one.
    """
    lengths: list[float] = []
    rounding = 1e-9 * problem.duration
    for task, (begin, end) in zip(new, pairwise(_arrivals(problem)), strict=True):
        alone = evaluate(problem, _focused(problem, new, [*lengths, end - begin], revision))
        others = problem.step_limits.available[np.searchsorted(problem.edges, begin)].copy()
        others[task] = False
        inside = (alone.times > begin + rounding) & (alone.times < end - rounding)
        times = np.array([begin, *alone.times[inside], end])
        for _ in range(6):  # look between the two times around the meeting, ever closer
            losses = alone.losses_at(times)
            gaps = losses[:, task] - losses[:, others].max(axis=1, initial=-np.inf)
            met = np.flatnonzero(gaps <= 0)
            last = int(met[0]) if met.size else times.size - 1
            around = slice(max(last - 1, 0), last + 1)
            (low, high), (above, below) = times[around][[0, -1]], gaps[around][[0, -1]]
            times = np.linspace(low, high, 17)
        meeting = high + (high - low) * below / (above - below) if above > 0 >= below else high
        lengths.append(float(meeting - begin))
    return lengths


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


# Settings on the command line and in files: JSON values, with tasks from 1


def settings_of(strategy: Strategy) -> list[str]:
    """Return the names of a strategy's settings."""
    names = inspect.signature(strategy).parameters
    return [name for name in names if name not in ("problem", "protocol")]


def arguments(strategy: Strategy, settings: Mapping[str, Any], tasks: int) -> dict[str, Any]:
    """Return settings, each of its annotated type; tasks (`Task`) are then counted from 0."""
    try:
        hints = get_type_hints(strategy.recipe, include_extras=True)
    except (NameError, TypeError):  # of names that only a type checker sees; of no function
        hints = {}
    return {name: _as(hints.get(name), name, value, tasks) for name, value in settings.items()}


def _as(hint: Any, name: str, value: Any, tasks: int) -> Any:
    """Return a JSON value if it is of an annotated type, among those that JSON can hold."""
    types = [x for x in get_args(hint) if x is not NoneType]
    if get_origin(hint) in (Union, UnionType) and len(types) == 1:
        return None if value is None else _as(types[0], name, value, tasks)
    if hint == Task:
        return task_from_one(name, check.integer(name, value, at_least=1), tasks)
    if get_origin(hint) in (list, Sequence):
        return [_as(types[0], name, x, tasks) for x in check.items(name, value, "values")]
    if hint is int and type(value) is not int:
        raise ArgumentError(name, "an integer", check.show(value))
    checks: dict[Any, Callable[..., Any]] = {
        float: check.number,
        bool: check.boolean,
        str: check.word,
    }
    return checks[hint](name, value) if hint in checks else value
