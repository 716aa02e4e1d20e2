"""Where searches start: the user's protocols, strategies and random protocols."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from replan.control.discretised import Controls
from replan.control.grids import on_grid
from replan.errors import ArgumentError, IntegrationError
from replan.models.knobs import knob_label
from replan.problem import Problem
from replan.problem.control import Range
from replan.progress import Progress
from replan.protocol import Protocol
from replan.strategies import STRATEGIES, Strategy, UnfitError

if TYPE_CHECKING:
    from replan.control.search import Search

_STAYS = 8  # of a random protocol, at most


def accepted(problem: Problem, protocol: Protocol) -> Protocol:
    """Return a protocol to start from; refuse one with knobs that the problem does not allow."""
    problem.accept(protocol, "initial")
    for name, values in protocol.knobs.items():
        value = problem.knobs[name]
        allowed = problem.control.knobs.get(name, Range(value, value))
        room = 1e-9 * max(abs(allowed.low), abs(allowed.high))
        if values.min() < allowed.low - room or values.max() > allowed.high + room:
            raise ArgumentError(
                "initial",
                f"a protocol with {knob_label(name)} from {allowed.low:g} to {allowed.high:g}",
                f"{values.min():g} to {values.max():g}",
            )
    return protocol


def start_protocols(
    search: Search, random_starts: int, random_seed: int
) -> Iterator[tuple[Protocol, bool]]:
    """Yield the protocols to start from, and whether each is a strategy."""
    yield from ((protocol, False) for protocol in search.initial)
    if search.initial and random_starts == 0:
        return
    problem, free = search.problem, _free_knobs(search.problem)
    fixed = {} if search.free_tasks else {"protocol": search.first_protocol}
    if fixed and not search.initial:
        yield search.first_protocol, True
    for strategy in STRATEGIES.values():
        if (search.free_tasks or strategy.turns) and strategy.turned(problem) <= free.keys():
            yield from _made(search, strategy, **fixed)
    if search.free_tasks:
        rng = np.random.default_rng(random_seed)
        for _ in range(random_starts):
            yield random_protocol(search, rng), False
        return
    for name, (low, high) in free.items():
        if not problem.model.layout.knobs[name].rate:  # rates are scanned by strategies
            for value in (low, low + 0.5 * (high - low), high):
                yield search.first_protocol.with_knobs(**{name: value}), False


def _free_knobs(problem: Problem) -> dict[str, tuple[float, float]]:
    """Return the ranges of the knobs that may change, by name."""
    knobs = problem.control.knobs
    return {name: (knob.low, knob.high) for name, knob in knobs.items() if knob.free}


def random_protocol(search: Search, rng: np.random.Generator) -> Protocol:
    """Return a protocol with random shares and knobs, at every step or in a few stays.

    Rates are the problem's in half of the cases: large ones often diverge.
    """
    problem, steps, tasks = search.problem, search.coarse.steps, search.problem.model.tasks
    often = rng.random() < 0.5 and not problem.control.ties
    count = steps if often else int(rng.integers(1, min(_STAYS, steps) + 1))
    stay = np.sort(np.append(rng.integers(count, size=steps - count), np.arange(count)))
    shares = on_grid(problem, search.first_protocol, steps).shares
    if search.free_tasks:
        drawn = rng.dirichlet(np.full(tasks, 1.0 if count == steps else 0.5), count)[stay]
        edges = np.linspace(0.0, problem.duration, steps + 1)
        shares = problem.availability.renormalise(drawn, edges)
        shares /= shares.sum(axis=1, keepdims=True)
    knobs: dict[str, Any] = dict(problem.settings)
    rates = rng.random() < 0.5
    for name, (low, high) in _free_knobs(problem).items():
        if rates or not problem.model.layout.knobs[name].rate:
            knobs[name] = low + (high - low) * rng.random(count)[stay] ** 2
    return Protocol(shares, problem.duration, **knobs)


def perturbed(search: Search, controls: Controls, rng: np.random.Generator) -> Controls:
    """Return controls with other shares in some of the steps, and other free knobs in others."""
    shares, knobs = controls.shares.copy(), controls.knobs.copy()
    steps, tasks = shares.shape
    for _ in range(int(rng.integers(1, 4)) * search.free_tasks):
        first, last = _span(steps, rng)
        if rng.random() < 0.5:
            shares[first:last] = rng.dirichlet(np.full(tasks, 0.3))
        else:
            shares[first:] = np.roll(shares[first:], int(rng.integers(-3, 4)), axis=0)
    low, high = search.problem.knob_ranges
    first, last = _span(steps, rng)
    towards, part = low + (high - low) * rng.random(low.size) ** 2, rng.random() ** 2
    knobs[first:last] += part * (towards - knobs[first:last])
    return Controls(shares, knobs)


def _span(steps: int, rng: np.random.Generator) -> tuple[int, int]:
    """Return the first step and the one after the last of a part, up to a third, of all steps."""
    length = int(max(steps / 3, 1.0) ** rng.random())
    first = int(rng.integers(0, steps - length + 1))
    return first, first + length


def _made(search: Search, strategy: Strategy, **settings: Any) -> Iterator[tuple[Protocol, bool]]:
    """Yield the start that a strategy makes; a user's strategy that fails is left out."""

    def report(progress: Progress) -> None:
        search.report(f"{strategy.name}: {progress.done} of {progress.total}")

    try:
        protocol = strategy(search.problem, progress=report, **settings)
        yield accepted(search.problem, protocol), True
    except (IntegrationError, UnfitError):  # too large a learning rate: others may work
        return
    except Exception as error:
        if not strategy.foreign:
            raise
        warnings.warn(
            f"the strategy {strategy.name} is left out: {type(error).__name__}: {error}",
            stacklevel=6,  # the caller of `solve`
        )


def reference_controls(search: Search) -> Iterator[Controls]:
    """Yield baselines that need no search: equal shares and each task alone, at constant knobs.

    Knobs are the problem's, and each free one also at the ends and in the middle of its range.
    Where tasks are not free, their shares are those of the first start.
    """
    problem, steps, tasks = search.problem, search.problem.steps, search.problem.model.tasks
    shares = [search.starts[0].candidate.controls.shares]
    if search.free_tasks:
        shares = [
            problem.availability.renormalise(np.tile(row, (steps, 1)), problem.edges)
            for row in (np.full(tasks, 1 / tasks), *np.eye(tasks))
        ]
    choices = [problem.knobs]
    for name, (low, high) in _free_knobs(problem).items():
        values = [value for value in (low, (low + high) / 2, high) if value != problem.knobs[name]]
        choices += [problem.knobs | {name: value} for value in values]
    for rows, knobs in product(shares, choices):
        yield Controls(rows, problem.model.layout.rows(knobs, steps))
