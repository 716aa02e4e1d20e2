"""One cell of the map of networks: contenders at their best, found on some realisations.

Each is tuned or planned on the planned realisations. The best of a few factors of its rates is
then chosen on further ones, so that none lives at the edge of its stability, and all are tested on
unseen realisations and test images. Task 1 is the old one, task 2 the new one.

A step of SGD takes a batch of both tasks, with their shares as weights, or a single sample of one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import product
from typing import Any

import numpy as np

from replan._common import files
from replan._common.check import Floats
from replan.control import Plan, Relax, solve
from replan.dynamics import IntegrationError, Pieces
from replan.networks import ImageNetwork, ImageTasks, Tested, mixed_tasks, test
from replan.paper._images import images_of
from replan.problem import Control, Problem
from replan.protocol import Protocol
from replan.strategies import focus_then_replay, interleaved, no_replay, power_law_lr
from replan.trajectory import evaluate

HALF, FIXED, FOCUS, THEORY = "50 %", "fixed share", "focus-then-replay", "theory's plan"
TIMING, RATE, BOTH = "timing", "rate", "both"
SCHEDULES = {"constant": 0.0, "decayed": 1.0}  # rate × (1 − time / duration)^exponent
BATCH, SINGLE = "batch", "single"  # what a step of SGD takes
_HALVINGS = 2  # of the distances between the points of the grid, around the best one
_FACTORS = (1.0, 0.8, 0.64, 0.5)  # of the rates, tried on validated realisations

Key = tuple[str, str, str]  # a contender, the schedule of its rate, and what a step takes

# Makes a protocol, given a variant (a share of the old task, or which theory's plan) and a rate
Family = Callable[[float, float], Protocol]


@dataclass(frozen=True)
class Tuned:
    """The best protocol of a family, its rate (the first, where it decays), and all trials."""

    protocol: Protocol
    lr: float
    trials: int


def case(
    data: str,
    tasks: dict[str, Any],
    samples: int,
    memory: str,
    network: dict[str, Any],
    search: dict[str, Any],
    theory: list[Any],
) -> dict[str, Any]:
    """Return how every contender does in one cell, by its name, its schedule and its steps.

    memory: images kept of the old task, or "all". theory: shares (steps, 2), for each of its plans.
    """
    made = mixed_tasks(images_of(data), **tasks)
    planned, validated = search["planned"], search["validated"]
    problem = _problem(made, samples, memory, network, search, range(planned))
    tuned: dict[Key, Tuned] = {
        (name, schedule, BATCH): found
        for schedule in SCHEDULES
        for name, found in _tuned(problem, schedule, search, theory).items()
    }
    plans = _planned(problem, tuned, search)
    for key, plan in plans.items():
        trials = plan.statistics["roll_outs"] + plan.statistics["gradients"]
        rates = plan.protocol.by_task("lr")
        tuned[key] = Tuned(plan.protocol, float(rates.max()), trials)
    tuned |= _singles(problem, plans, search, theory)
    others = range(planned, planned + validated)
    further = _problem(made, samples, memory, network, search, others)
    factors = {key: _best_factor(further, found.protocol) for key, found in tuned.items()}
    chosen = {key: _times(found.protocol, factors[key]) for key, found in tuned.items()}
    tested = test(
        further, {", ".join(key): protocol for key, protocol in chosen.items()},
        realisations=search["tested"], stability=min(planned, search["tested"]),
    )  # fmt: skip
    return {
        "contenders": [
            _row(key, tested)
            | {
                "lr": found.lr,
                "trials": found.trials,
                "factor": factors[key],
                "planned": files.nullable(np.array(_loss(problem, found.protocol))),
            }
            for key, found in tuned.items()
        ],
        "plans": [
            {
                "contender": contender,
                "loss": plan.loss,
                "residual": plan.certificate.pmp_residual,
                "gradients": plan.statistics["gradients"],
                "status": plan.status,
            }
            for (contender, *_), plan in plans.items()
        ],
    }


def _problem(
    tasks: ImageTasks,
    samples: int,
    memory: str,
    network: dict[str, Any],
    search: dict[str, Any],
    realisations: range,
) -> Problem:
    """Return the training on one pass over the new task's samples, the old task well trained.

    Where there are fewer different samples, or images to remember, than asked for, all are used.
    """
    old, new = (min(map(len, pools)) for pools in tasks.pools)
    model = ImageNetwork(
        tasks, hidden=network["hidden"], samples=min(samples, new),
        memory=None if memory == "all" else min(int(memory), old),
        realisations=realisations, threads=1,
    )  # fmt: skip
    start = model.pretrain(network["first"], lr=network["first_lr"])
    return Problem(
        model, start, duration=float(samples), steps=search["steps"], lr=search["min_lr"],
        control=Control(tasks=False),
    )  # fmt: skip


# Families with few numbers to choose


def _tuned(
    problem: Problem, schedule: str, search: dict[str, Any], theory: list[Any], step: str = BATCH
) -> dict[str, Tuned]:
    """Return the contenders that have a share and a rate to choose, each at its best.

    All have the same rates to try and as many variants, but 50 %, which is part of fixed shares.
    """
    exponent = SCHEDULES[schedule]
    meeting = cache(partial(_meeting, problem, exponent))

    def rated(lr: float, protocol: Protocol) -> Protocol:
        made = _rated(problem, exponent, lr, protocol)
        return made if step == BATCH else _single(made)

    def fixed(share: float, lr: float) -> Protocol:
        return rated(lr, interleaved(problem, shares=[share, 1 - share]))

    def focus(share: float, lr: float) -> Protocol:
        mixed = [share, 1 - share]
        return rated(lr, focus_then_replay(problem, focus=meeting(lr), shares=mixed))

    def transferred(which: float, lr: float) -> Protocol:
        shares = Protocol(theory[int(which)], problem.duration, knobs=problem.settings)
        return rated(lr, shares)

    rates = np.geomspace(search["min_lr"], search["max_lr"], search["rates"])
    shares, seeds = search["shares"], [float(i) for i in range(len(theory))]
    best = {
        FIXED: _tune(problem, fixed, shares, rates, near=True),
        FOCUS: _tune(problem, focus, shares, rates, near=True),
        THEORY: _tune(problem, transferred, seeds, rates, near=False),
    }
    return {HALF: _tune(problem, fixed, [0.5], rates, near=False)} | best


def _tune(
    problem: Problem, family: Family, variants: list[float], rates: Floats, *, near: bool
) -> Tuned:
    """Return the best of a grid of variants and rates, and of points ever closer to the best one.

    near: whether there are variants between those of the grid, too.
    """
    tried: dict[tuple[float, float], float] = {}
    for point in product(variants, rates.tolist()):
        tried[point] = _loss(problem, family(*point))
    width = float(np.mean(np.diff(sorted(variants)))) if near and len(variants) > 1 else 0.0
    factor = float(rates[1] / rates[0])
    for _ in range(_HALVINGS):
        width, factor = width / 2, float(np.sqrt(factor))
        for change, ratio in ((0.0, factor), (width, 1.0)):
            variant, lr = min(tried, key=lambda point: tried[point])
            for point in ((variant + change, lr * ratio), (variant - change, lr / ratio)):
                fits = 0 <= point[0] <= max(1, *variants) and point[1] <= rates[-1]
                if fits and point not in tried:
                    tried[point] = _loss(problem, family(*point))
    best = min(tried, key=lambda point: tried[point])
    if not np.isfinite(tried[best]):
        raise IntegrationError("every rate that was tried diverges: try a smaller `min_lr`")
    return Tuned(family(*best), best[1], len(tried))


def _loss(problem: Problem, protocol: Protocol) -> float:
    """Return the objective on the problem's realisations, infinite if one of them diverges."""
    pieces = Pieces.whole(protocol.shares, problem.knob_rows(protocol), protocol.lengths)
    losses = problem.model.train_each(problem.state, pieces).losses  # type: ignore[attr-defined]
    return float((losses @ problem.weights).mean())


def _rated(problem: Problem, exponent: float, lr: float, protocol: Protocol) -> Protocol:
    """Return a protocol with the rate lr × (1 − time / duration)^exponent."""
    return power_law_lr(problem, initial=lr, exponent=exponent, protocol=protocol)


def _meeting(problem: Problem, exponent: float, lr: float) -> float:
    """Return when the new task's loss, trained alone at these rates, has met the old one's.

    Between the edges of the protocol's steps, losses are taken to be straight lines.
    """
    alone = evaluate(problem, _rated(problem, exponent, lr, no_replay(problem)), throw=False)
    gap = alone.losses[:, 1] - alone.losses[:, 0]
    met = np.flatnonzero(gap <= 0)
    if alone.status != "ok" or met.size == 0:
        return problem.duration
    if met[0] == 0:
        return 0.0
    last = met[0] - 1
    part = gap[last] / (gap[last] - gap[met[0]])
    return float(alone.times[last] + part * (alone.times[met[0]] - alone.times[last]))


# Direct optima


def _planned(problem: Problem, tuned: dict[Key, Tuned], search: dict[str, Any]) -> dict[Key, Plan]:
    """Return the optima through training, which begin from the best of all simpler contenders.

    The step of SGD depends on share × rate alone: with free shares, one rate curve for all tasks
    is all the freedom that there is.
    """
    rate: dict[str, Any] = {"lr": (0.0, search["max_lr"]), "shared": ["lr"]}

    def plan(control: Control, starts: list[Protocol]) -> Plan:
        return solve(
            replace(problem, control=control), Relax(0), start=starts,
            max_gradients=search["gradients"],
        )  # fmt: skip

    def begin(*schedules: str, names: tuple[str, ...] = (FIXED, FOCUS, THEORY)) -> list[Protocol]:
        return [tuned[name, schedule, BATCH].protocol for schedule in schedules for name in names]

    timing = plan(Control(True, constant=["lr"], **rate), begin("constant"))
    curve = plan(Control("constant", **rate), begin("constant", "decayed", names=(FIXED,)))
    simpler = [timing.protocol, curve.protocol, *begin("decayed")]
    both = plan(Control(True, **rate), simpler)
    return {
        (TIMING, "constant", BATCH): timing,
        (RATE, "planned", BATCH): curve,
        (BOTH, "planned", BATCH): both,
    }


# One sample in a step


def _singles(
    problem: Problem, plans: dict[Key, Plan], search: dict[str, Any], theory: list[Any]
) -> dict[Key, Tuned]:
    """Return contenders whose steps take one sample each, of one task, at their best.

    The plans are those of batches, with their tasks in turn and their rates multiplied by the best
    factor, up to the highest rate that all may have: gradients cannot handle single samples.
    """
    tuned = _tuned(problem, "decayed", search, theory, SINGLE)
    found = {(name, "decayed", SINGLE): one for name, one in tuned.items()}
    rates = np.geomspace(search["min_lr"], search["max_lr"], search["rates"])
    for (name, schedule, _), plan in plans.items():
        highest = float(plan.protocol.by_task("lr").max())

        def family(_: float, lr: float, plan: Plan = plan, highest: float = highest) -> Protocol:
            return _times(_single(plan.protocol), lr / highest)

        found[name, schedule, SINGLE] = _tune(problem, family, [0.0], rates, near=False)
    return found


def _single(protocol: Protocol) -> Protocol:
    """Return a protocol with a task for every step of SGD, which follows the shares."""
    tasks = protocol.sample(1)
    steps = protocol.step_at(np.arange(len(tasks)) + 0.5)
    rates = protocol.by_task("lr")[steps]
    return Protocol.from_sequence(tasks, protocol.tasks, len(tasks), rates)


# Rates that do not break


def _times(protocol: Protocol, factor: float) -> Protocol:
    """Return a protocol with its rates multiplied by a factor."""
    return protocol.with_knobs(lr=factor * protocol.by_task("lr"))


def _best_factor(problem: Problem, protocol: Protocol) -> float:
    """Return the factor of the rates with the least loss; ever smaller ones, while that falls."""
    best, least = _FACTORS[0], _loss(problem, protocol)
    for factor in _FACTORS[1:]:
        loss = _loss(problem, _times(protocol, factor))
        if loss > least:
            break
        best, least = factor, loss
    return best


# Rows of tables


def _row(key: Key, tested: Tested) -> dict[str, Any]:
    """Return what is known of a contender; infinite numbers are None."""
    name = ", ".join(key)
    broken, protocol = tested.broken(name), tested.protocols[name]
    numbers = np.array([tested.planned_value(name).mean, tested.stability[name]])
    validated, stability = files.nullable(numbers)
    return {
        "contender": key[0],
        "schedule": key[1],
        "step": key[2],
        "validated": validated,
        "stability": stability,
        "share": float(protocol.mean_shares[0]),
        "diverged": broken["diverged"],
        "dead": broken["dead"],
        "losses": files.nullable(tested.weighted(name)),
        "realisations": tested.runs,
        "protocol": protocol.to_dict() if key[2] == BATCH else None,  # else a row for every sample
    }
