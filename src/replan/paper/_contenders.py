"""One cell of the map of networks: contenders at their best, found on some realisations.

Each is tuned or planned on the planned realisations and held-out images, and then tested on unseen
realisations and test images. Task 1 is the old one, task 2 the new one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import product
from typing import Any

import numpy as np

from replan._common import files
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
_HALVINGS = 2  # of the distances between the points of the grid, around the best one

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
    """Return how every contender does in one cell, by its name and the schedule of its rate.

    memory: images kept of the old task, or "all". theory: shares (steps, 2), for each of its plans.
    """
    made = mixed_tasks(images_of(data), **tasks)
    problem = _problem(made, samples, memory, network, search)
    tuned = {
        (name, schedule): found
        for schedule in SCHEDULES
        for name, found in _tuned(problem, schedule, search, theory).items()
    }
    plans = _planned(problem, tuned, search)
    protocols = {key: found.protocol for key, found in tuned.items()}
    protocols |= {key: plan.protocol for key, plan in plans.items()}
    tested = test(
        problem, {", ".join(key): protocol for key, protocol in protocols.items()},
        realisations=search["tested"], stability=min(search["planned"], search["tested"]),
    )  # fmt: skip
    trials = {key: found.trials for key, found in tuned.items()}
    trials |= {
        key: plan.statistics["roll_outs"] + plan.statistics["gradients"]
        for key, plan in plans.items()
    }
    lr = {key: found.lr for key, found in tuned.items()}
    lr |= {key: float(plan.protocol.by_task("lr").max()) for key, plan in plans.items()}
    return {
        "contenders": [
            _row(key, tested) | {"lr": lr[key], "trials": trials[key]} for key in protocols
        ],
        "plans": [
            {
                "contender": contender,
                "loss": plan.loss,
                "residual": plan.certificate.pmp_residual,
                "gradients": plan.statistics["gradients"],
                "status": plan.status,
            }
            for (contender, _), plan in plans.items()
        ],
    }


def _problem(
    tasks: ImageTasks, samples: int, memory: str, network: dict[str, Any], search: dict[str, Any]
) -> Problem:
    """Return the training on one pass over the new task's samples, the old task well trained.

    Where there are fewer different samples, or images to remember, than asked for, all are used.
    """
    old, new = (min(map(len, pools)) for pools in tasks.pools)
    model = ImageNetwork(
        tasks, hidden=network["hidden"], samples=min(samples, new),
        memory=None if memory == "all" else min(int(memory), old),
        realisations=search["planned"], threads=1,
    )  # fmt: skip
    start = model.pretrain(network["first"], lr=network["first_lr"])
    return Problem(
        model, start, duration=float(samples), steps=search["steps"], lr=search["min_lr"],
        control=Control(tasks=False),
    )  # fmt: skip


# Families with few numbers to choose


def _tuned(
    problem: Problem, schedule: str, search: dict[str, Any], theory: list[Any]
) -> dict[str, Tuned]:
    """Return the contenders that have a share and a rate to choose, each at its best.

    All have the same rates to try and as many variants, but 50 %, which is part of fixed shares.
    """
    exponent = SCHEDULES[schedule]
    rated = partial(_rated, problem, exponent)
    meeting = cache(partial(_meeting, problem, exponent))

    def fixed(share: float, lr: float) -> Protocol:
        return rated(lr, interleaved(problem, shares=[share, 1 - share]))

    def focus(share: float, lr: float) -> Protocol:
        mixed = [share, 1 - share]
        return rated(lr, focus_then_replay(problem, focus=meeting(lr), shares=mixed))

    def transferred(which: float, lr: float) -> Protocol:
        shares = Protocol(theory[int(which)], problem.duration, knobs=problem.settings)
        return rated(lr, shares)

    shares, seeds = search["shares"], [float(i) for i in range(len(theory))]
    best = {
        FIXED: _tune(problem, fixed, shares, search, near=True),
        FOCUS: _tune(problem, focus, shares, search, near=True),
        THEORY: _tune(problem, transferred, seeds, search, near=False),
    }
    return {HALF: _tune(problem, fixed, [0.5], search, near=False)} | best


def _tune(
    problem: Problem, family: Family, variants: list[float], search: dict[str, Any], *, near: bool
) -> Tuned:
    """Return the best of a grid of variants and rates, and of points ever closer to the best one.

    near: whether there are variants between those of the grid, too.
    """
    tried: dict[tuple[float, float], float] = {}
    rates = np.geomspace(search["min_lr"], search["max_lr"], search["rates"])
    for point in product(variants, rates.tolist()):
        tried[point] = _loss(problem, family(*point))
    width = float(np.mean(np.diff(sorted(variants)))) if near and len(variants) > 1 else 0.0
    factor = float(rates[1] / rates[0])
    for _ in range(_HALVINGS):
        width, factor = width / 2, float(np.sqrt(factor))
        for change, ratio in ((0.0, factor), (width, 1.0)):
            variant, lr = min(tried, key=lambda point: tried[point])
            for point in ((variant + change, lr * ratio), (variant - change, lr / ratio)):
                fits = 0 <= point[0] <= max(1, *variants) and point[1] <= search["max_lr"]
                if fits and point not in tried:
                    tried[point] = _loss(problem, family(*point))
    best = min(tried, key=lambda point: tried[point])
    if not np.isfinite(tried[best]):
        raise IntegrationError("every rate that was tried diverges: try a smaller `min_lr`")
    return Tuned(family(*best), best[1], len(tried))


def _loss(problem: Problem, protocol: Protocol) -> float:
    """Return the objective on the planned realisations, infinite if one of them diverges."""
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


def _planned(
    problem: Problem, tuned: dict[tuple[str, str], Tuned], search: dict[str, Any]
) -> dict[tuple[str, str], Plan]:
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
        return [tuned[name, schedule].protocol for schedule in schedules for name in names]

    timing = plan(Control(True, constant=["lr"], **rate), begin("constant"))
    curve = plan(Control("constant", **rate), begin("constant", "decayed", names=(FIXED,)))
    simpler = [timing.protocol, curve.protocol, *begin("decayed")]
    both = plan(Control(True, **rate), simpler)
    return {(TIMING, "constant"): timing, (RATE, "planned"): curve, (BOTH, "planned"): both}


# Rows of tables


def _row(key: tuple[str, str], tested: Tested) -> dict[str, Any]:
    """Return what is known of a contender; infinite numbers are None."""
    name = ", ".join(key)
    broken, protocol = tested.broken(name), tested.protocols[name]
    numbers = np.array([tested.planned_value(name).mean, tested.stability[name]])
    planned, stability = files.nullable(numbers)
    return {
        "contender": key[0],
        "schedule": key[1],
        "planned": planned,
        "stability": stability,
        "share": float(protocol.mean_shares[0]),
        "diverged": broken["diverged"],
        "dead": broken["dead"],
        "losses": files.nullable(tested.weighted(name)),
        "realisations": tested.runs,
        "protocol": protocol.to_dict(),
    }
