"""How long a command will take, measured on a few steps and told where that is long."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import click

import replan

# RK4 steps for each step of the protocol, as counted on problems like the paper's.
EVALUATE = 15
COMPARE = 4000
SOLVE = 500
SOLVE_RATES = 5000  # where learning rates are free as well
LEVERS = 20_000

_LONG = 60.0  # seconds
_QUICK = 1.0  # seconds that may be spent to measure
_STABLE = 2.0  # learning rate × length up to which an RK4 step is stable, about
_FINEST = 128  # RK4 steps in a step, where a solver needs many
_CHAIN = 10_000_000  # numbers in a run of SGD that is made only to see how long it takes
_DIMENSIONS, _SEEDS = 10**15, 10**6  # more have no room, or too many samples to count
_UNITS = {"s": 1, "minutes": 60, "hours": 3600, "days": 86_400, "years": 31_557_600}


def tell_if_long(problem: replan.Problem, steps: int) -> None:
    """Say so if `steps` RK4 steps for each step of the problem take long."""
    _tell(_integration(problem, steps))


def tell_if_simulation_is_long(
    problem: replan.Problem, dimension: int, seeds: int, engine: str | None
) -> None:
    """Say so if runs of SGD, and the theory beside them, take long.

    What cannot be simulated is for `simulate` to refuse.
    """
    runs = _simulation(problem, dimension, seeds, engine)
    if runs > 0:
        together = min(max(seeds, 1), os.cpu_count() or 1)
        _tell(runs / together + _integration(problem, EVALUATE))


def _simulation(problem: replan.Problem, dimension: int, seeds: int, engine: str | None) -> float:
    """Return how many seconds runs of SGD take one after the other, 0 where that is not known."""
    import numpy as np

    model = problem.model
    if not isinstance(model, replan.dynamics.Simulable):
        return 0.0
    if not model.least_dimension <= dimension <= _DIMENSIONS or not 1 <= seeds <= _SEEDS:
        return 0.0
    try:
        engine = model.choose_engine(engine)
    except ValueError:  # which `simulate` will tell
        return 0.0
    less = max(1, model.chain_size(engine, dimension) / _CHAIN)
    tried = max(model.least_dimension, int(dimension / less))
    chain = model.begin_chain(engine, problem.state, tried, None)
    chain = chain.resume(np.random.default_rng(0))
    few = np.zeros(10, np.int64), np.tile(list(problem.knob_values.values()), (10, 1))
    each = less * _measure(lambda: chain.advance(*few)) / 10
    return each * problem.duration * dimension * seeds


def _integration(problem: replan.Problem, steps: int) -> float:
    """Return how many seconds `steps` RK4 steps for each step of the problem take, about."""
    import numpy as np

    tasks, length = problem.model.tasks, problem.duration / problem.steps
    knobs = problem.model.panel.rows(problem.knob_values, 1)

    def step(shares: Any) -> float:
        piece = replan.dynamics.Pieces.whole(shares, knobs, np.array([length]))
        return _measure(lambda: problem.model.roll_out(problem.state, piece))

    each = tasks * step(np.eye(1, tasks))  # one task first: all of them may take minutes
    if each < _QUICK:
        each = step(np.full((1, tasks), 1 / tasks))
    rates = [
        high
        for name, (_, high) in problem.control.ranges.items()
        if problem.model.panel.knobs[name].rate
    ]
    highest = max(rates, default=0.0)  # the largest rate that is tried
    finer = 1.0 if problem.model.discrete else min(max(highest * length / _STABLE, 1), _FINEST)
    return each * steps * finer * problem.steps


def _measure(call: Callable[[], object]) -> float:
    """Return how many seconds a call takes; the first one may compile."""
    seconds = []
    for _ in range(2):
        begin = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - begin)
    return min(seconds)


def _tell(seconds: float) -> None:
    if seconds > _LONG:
        unit, size = [(name, size) for name, size in _UNITS.items() if size <= seconds / 2][-1]
        text = f"{float(f'{seconds / size:.1g}'):,.0f} {unit}"
        click.echo(f"replan: this takes very roughly {text}; Ctrl-C ends it", err=True)
