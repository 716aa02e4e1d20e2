"""One cell of the map of networks: contenders at their best, found on some realisations.

Each is tuned or planned on the planned realisations. The best of a few factors of its rates is
then chosen on further ones, so that none lives at the edge of its stability, and all are tested on
unseen realisations and test images. Task 1 is the old one, task 2 the new one. A step of SGD takes
a batch of both tasks, with their shares as weights, or a single sample of one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import product
from typing import Any

import numpy as np

import replan
from replan.control import Search, Solver
from replan.strategies import focus_then_replay, interleaved, power_law_lr
from reproduction.base import mean_interval
from reproduction.images.network import Floats, ImageNetwork
from reproduction.images.tasks import ImageTasks, make_tasks

HALF, FIXED, FOCUS, THEORY = "50 %", "fixed share", "focus-then-replay", "theory's plan"
TIMING, RATE, BOTH = "timing", "rate", "both"
SCHEDULES = {"constant": 0.0, "decayed": 1.0}  # rate × (1 − time / duration)^exponent
BATCH, SINGLE = "batch", "single"  # what a step of SGD takes
BROKEN = 3.0  # times the median loss of all realisations: one that ends above it broke
_HALVINGS = 2  # of the distances between the points of the grid, around the best one
_FACTORS = (1.0, 0.8, 0.64, 0.5)  # of the rates, tried on validated realisations

Key = tuple[str, str, str]  # a contender, the schedule of its rate, and what a step takes

# Makes a protocol, given a variant (a share of the old task, or which theory's plan) and a rate
Family = Callable[[float, float], replan.Protocol]


class Mixed(Solver):
    """Relax from the given starts, without rounding: a step trains on many samples."""

    method = "relax, mixed"

    def run(self, search: Search) -> Any:
        """Search for a protocol that may mix tasks within a step."""
        search.one_task = False
        return replan.Relax(starts=0).run(search)


@dataclass(frozen=True)
class Tuned:
    """The best protocol of a family, its rate (the first, where it decays), and how many trials."""

    protocol: replan.Protocol
    lr: float
    trials: int


def cell_tasks(
    data: str, classes: str, similarity: float, normalise: str, test_samples: int
) -> ImageTasks:
    """Return the tasks of a cell; classes: four labels, such as "0 5 2 7"."""
    labels = tuple(map(int, classes.split()))
    return make_tasks(
        data, similarity=similarity, upstream=labels[:2], auxiliary=labels[2:],
        normalise=normalise, test_samples=test_samples,
    )  # fmt: skip


def case(
    data: str,
    classes: str,
    similarity: float,
    samples: int,
    memory: str,
    theory: dict[str, list[Any]],
    search: dict[str, Any],
) -> dict[str, Any]:
    """Return the rows of a cell's contenders, their losses, protocols and plans.

    memory: images kept of the old task, or "all". theory: by similarity, shares (steps, 2) for each
    of its plans. Losses are None where training diverged.
    """
    tasks = cell_tasks(data, classes, similarity, search["normalise"], search["test_samples"])
    ends = np.cumsum([0, search["planned"], search["validated"], search["tested"]])
    planned, validated, tested = (
        make_problem(tasks, samples, memory, search, range(ends[i], ends[i + 1]), images)
        for i, images in enumerate(("held_out", "held_out", "test"))
    )
    plans_of_theory = theory[str(similarity)]
    tuned: dict[Key, Tuned] = {
        (name, schedule, BATCH): found
        for schedule in SCHEDULES
        for name, found in _tuned(planned, schedule, search, plans_of_theory).items()
    }
    plans = _planned(planned, tuned, search)
    for key, plan in plans.items():
        trials = plan.statistics["roll_outs"] + plan.statistics["gradients"]
        tuned[key] = Tuned(plan.protocol, float(plan.protocol.by_task("lr").max()), trials)
    tuned |= _singles(planned, plans, search, plans_of_theory)
    tables: dict[str, list[dict[str, Any]]] = {"contenders": [], "runs": [], "protocols": []}
    for key, found in tuned.items():
        who = dict(zip(("contender", "schedule", "step"), key, strict=True))
        factor = best_factor(validated, found.protocol)
        protocol = times(found.protocol, factor)
        losses = losses_each(tested, protocol)
        numbers = tested.model.realisations
        tables["runs"] += [
            who | {"realisation": number, "loss": _finite(loss)}
            for number, loss in zip(numbers, losses.tolist(), strict=True)
        ]
        if key[2] == BATCH:  # else it has a row for every sample
            columns = protocol.shares[:, 0], protocol.by_task("lr").max(axis=1)
            tables["protocols"] += [
                who | {"time": time, "share_1": share, "lr": lr}
                for time, share, lr in zip(protocol.edges.tolist(), *columns, strict=False)
            ]
        inside = search["min_lr"] * 1.001 < found.lr < search["max_lr"] * 0.999
        broken = ~(losses <= BROKEN * np.median(losses))
        mean = mean_interval(losses)
        tables["contenders"].append(
            who
            | {
                "lr": factor * found.lr,
                "at_end": not inside,  # of the rates that were tried
                "share_1": float(protocol.mean_shares[0]),
                "trials": found.trials,
                "planned": _finite(loss_of(planned, found.protocol)),
                "factor": factor,
                "validated": _finite(loss_of(validated, protocol)),
                "loss": _finite(mean.mean),
                "half_width": _finite((mean.high - mean.low) / 2),
                "diverged": int(np.isinf(losses).sum()),
                "broken": int(broken.sum()),
                "which": " ".join(str(number) for number in np.array(numbers)[broken]),
            }
        )
    return tables | {"plans": [_plan_row(key[0], plan) for key, plan in plans.items()]}


def make_problem(
    tasks: ImageTasks,
    samples: int,
    memory: str,
    search: dict[str, Any],
    realisations: range,
    images: str,
) -> replan.Problem:
    """Return the training on one pass over the new task's samples, the old task well trained.

    Where there are fewer different samples, or images to remember, than asked for, all are used.
    """
    old, new = (min(map(len, pools)) for pools in tasks.pools)
    model = ImageNetwork(
        tasks, hidden=search["hidden"], samples=min(samples, new),
        memory=None if memory == "all" else min(int(memory), old), realisations=realisations,
        images=images,
    )  # fmt: skip
    start = model.pretrained(search["first"], search["first_lr"])
    return replan.Problem(
        model, start, duration=float(samples), steps=search["steps"], lr=search["min_lr"],
        control=replan.Control(tasks=False),
    )  # fmt: skip


def losses_each(problem: replan.Problem, protocol: replan.Protocol) -> Floats:
    """Return the objective (R,) of each realisation, infinite where it diverged."""
    rates = protocol.shares * protocol.by_task("lr")
    return problem.model.final_losses(problem.state, rates, protocol.lengths) @ problem.weights


def loss_of(problem: replan.Problem, protocol: replan.Protocol) -> float:
    """Return the mean objective of the problem's realisations, infinite if one diverges."""
    return float(losses_each(problem, protocol).mean())


# Families with few numbers to choose


def _tuned(
    problem: replan.Problem,
    schedule: str,
    search: dict[str, Any],
    theory: list[Any],
    step: str = BATCH,
) -> dict[str, Tuned]:
    """Return the contenders that have a share and a rate to choose, each at its best.

    All have the same rates to try and as many variants, but 50 %, which is one of the fixed shares.
    """
    exponent = SCHEDULES[schedule]
    meeting = cache(partial(meeting_time, problem, exponent))

    def protocol(shares: replan.Protocol, lr: float) -> replan.Protocol:
        made = power_law_lr(problem, initial=lr, exponent=exponent, protocol=shares)
        return made if step == BATCH else single(made)

    def fixed(share: float, lr: float) -> replan.Protocol:
        return protocol(interleaved(problem, shares=[share, 1 - share]), lr)

    def focus(share: float, lr: float) -> replan.Protocol:
        mixed = [share, 1 - share]
        return protocol(focus_then_replay(problem, focus=meeting(lr), shares=mixed), lr)

    def transferred(which: float, lr: float) -> replan.Protocol:
        return protocol(
            replan.Protocol(theory[int(which)], problem.duration, knobs=problem.settings), lr
        )

    rates = np.geomspace(search["min_lr"], search["max_lr"], search["rates"])
    shares, seeds = search["shares"], [float(i) for i in range(len(theory))]
    return {
        HALF: tune(problem, fixed, [0.5], rates, near=False),
        FIXED: tune(problem, fixed, shares, rates, near=True),
        FOCUS: tune(problem, focus, shares, rates, near=True),
        THEORY: tune(problem, transferred, seeds, rates, near=False),
    }


def tune(
    problem: replan.Problem, family: Family, variants: list[float], rates: Floats, *, near: bool
) -> Tuned:
    """Return the best of a grid of variants and rates, and of points ever closer to the best one.

    near: whether there are variants between those of the grid, too.
    """
    tried = {point: loss_of(problem, family(*point)) for point in product(variants, rates.tolist())}
    width = float(np.mean(np.diff(sorted(variants)))) if near and len(variants) > 1 else 0.0
    factor = float(rates[1] / rates[0])
    for _ in range(_HALVINGS):
        width, factor = width / 2, float(np.sqrt(factor))
        for change, ratio in ((0.0, factor), (width, 1.0)):
            variant, lr = min(tried, key=lambda point: tried[point])
            for point in ((variant + change, lr * ratio), (variant - change, lr / ratio)):
                fits = 0 <= point[0] <= max(1, *variants) and point[1] <= rates[-1]
                if fits and point not in tried:
                    tried[point] = loss_of(problem, family(*point))
    best = min(tried, key=lambda point: tried[point])
    if not np.isfinite(tried[best]):
        raise ValueError(f"`min_lr` must be a rate that does not diverge, got {rates[0]}")
    return Tuned(family(*best), best[1], len(tried))


def meeting_time(problem: replan.Problem, exponent: float, lr: float) -> float:
    """Return when the new task's loss, trained alone at these rates, has met the old one's.

    Between the edges of the protocol's steps, losses are taken to be straight lines.
    """
    alone = interleaved(problem, shares=[0.0, 1.0])
    alone = power_law_lr(problem, initial=lr, exponent=exponent, protocol=alone)
    pieces = replan.models.Schedule.single_steps(alone.shares, alone.by_task("lr"), alone.lengths)
    states = problem.model.roll_out(problem.state, pieces)
    losses = problem.model.losses(states)
    gap = losses[:, 1] - losses[:, 0]
    met = np.flatnonzero(gap <= 0)
    if len(states) < len(alone.edges) or met.size == 0:
        return problem.duration
    if met[0] == 0:
        return 0.0
    last = met[0] - 1
    part = gap[last] / (gap[last] - gap[met[0]])
    return float(alone.edges[last] + part * (alone.edges[met[0]] - alone.edges[last]))


# Direct optima


def _planned(
    problem: replan.Problem, tuned: dict[Key, Tuned], search: dict[str, Any]
) -> dict[Key, replan.Plan]:
    """Return the optima through training, which begin from the best of all simpler contenders.

    The step of SGD depends on share × rate alone: with free shares, one rate curve for all tasks is
    all the freedom that there is.
    """
    rate: dict[str, Any] = {"lr": (0.0, search["max_lr"]), "shared": ["lr"]}

    def plan(control: replan.Control, starts: list[replan.Protocol]) -> replan.Plan:
        return replan.solve(
            replace(problem, control=control), Mixed(), start=starts,
            max_gradients=search["gradients"], throw=False,
        )  # fmt: skip

    def begin(*schedules: str, names: tuple[str, ...] = (FIXED, FOCUS, THEORY)) -> list[Any]:
        return [tuned[name, schedule, BATCH].protocol for schedule in schedules for name in names]

    timing = plan(replan.Control(True, constant=["lr"], **rate), begin("constant"))
    curve = plan(replan.Control("constant", **rate), begin("constant", "decayed", names=(FIXED,)))
    simpler = [timing.protocol, curve.protocol, *begin("decayed")]
    both = plan(replan.Control(True, **rate), simpler)
    return {
        (TIMING, "constant", BATCH): timing,
        (RATE, "planned", BATCH): curve,
        (BOTH, "planned", BATCH): both,
    }


def _plan_row(contender: str, plan: replan.Plan) -> dict[str, Any]:
    return {
        "contender": contender,
        "loss": plan.loss,
        "residual": plan.certificate.pmp_residual,
        "gradients": plan.statistics["gradients"],
        "status": plan.status,
    }


# One sample in a step


def _singles(
    problem: replan.Problem,
    plans: dict[Key, replan.Plan],
    search: dict[str, Any],
    theory: list[Any],
) -> dict[Key, Tuned]:
    """Return contenders whose steps take one sample each, of one task, at their best.

    The plans are those of batches, with their tasks in turn and their rates multiplied by the best
    factor, up to the highest rate that all may have: gradients cannot handle single samples.
    """
    tuned = _tuned(problem, "decayed", search, theory, SINGLE)
    found = {(name, "decayed", SINGLE): one for name, one in tuned.items()}
    rates = np.geomspace(search["min_lr"], search["max_lr"], search["rates"])
    for (name, schedule, _), plan in plans.items():
        in_turn, highest = single(plan.protocol), float(plan.protocol.by_task("lr").max())

        def family(_: float, lr: float, in_turn: Any = in_turn, highest: float = highest) -> Any:
            return times(in_turn, lr / highest)

        found[name, schedule, SINGLE] = tune(problem, family, [0.0], rates, near=False)
    return found


def single(protocol: replan.Protocol) -> replan.Protocol:
    """Return a protocol with a task for every step of SGD, which follows the shares."""
    tasks = protocol.sample(1)
    steps = protocol.step_at(np.arange(len(tasks)) + 0.5)
    rates = protocol.by_task("lr")[steps]
    return replan.Protocol.from_sequence(tasks, protocol.tasks, len(tasks), rates)


def times(protocol: replan.Protocol, factor: float) -> replan.Protocol:
    """Return a protocol with its rates multiplied by a factor."""
    return protocol.with_knobs(lr=factor * protocol.by_task("lr"))


def best_factor(problem: replan.Problem, protocol: replan.Protocol) -> float:
    """Return the factor of the rates with the least loss; ever smaller ones, while that falls."""
    best, least = _FACTORS[0], loss_of(problem, protocol)
    for factor in _FACTORS[1:]:
        loss = loss_of(problem, times(protocol, factor))
        if loss > least:
            break
        best, least = factor, loss
    return best


def _finite(x: Any) -> float | None:
    return float(x) if np.isfinite(x) else None
