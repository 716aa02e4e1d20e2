"""One cell of the map of networks: contenders at their best, found on some realisations.

Each is tuned or planned on the planned realisations. The best of a few factors of its rates is
then chosen on further ones, so that none lives at the edge of its stability, and all are tested on
unseen realisations and test images. Task 1 is the old one, task 2 the new one. A step of SGD takes
a batch of both tasks, with their shares as weights, or a single sample of one.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from itertools import product
from typing import Any

import numpy as np

import replan
from replan.control import Search, Solver
from replan.models import Schedule
from replan.strategies import focus_then_replay, interleaved, no_replay, power_law_lr
from reproduction.images.network import Floats, ImageNetwork
from reproduction.images.tasks import make_tasks

FIXED, FOCUS, THEORY, LATE = "fixed share", "focus-then-replay", "theory's plan", "late replay"
TIMING, RATE, BOTH = PLANS = "timing", "rate", "both"
SCHEDULES = {"constant": 0.0, "decayed": 1.0}  # rate × (1 − time / duration)^exponent
BATCH, SINGLE = "batch", "single"  # what a step of SGD takes
CELL = ["data", "classes", "similarity", "samples", "memory"]
WHO = ["contender", "schedule", "step"]
_HALVINGS = 2  # of the distances between the points of the grid, around the best one
_FACTORS = (1.0, 0.8, 0.64, 0.5)  # of the rates, tried on validated realisations

Key = tuple[str, str, str]  # the values of WHO


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


def case(
    data: str, classes: str, similarity: float, samples: int, memory: str,
    contenders: list[list[str]], theory: dict[str, list[Any]], search: dict[str, Any],
) -> dict[str, Any]:  # fmt: skip
    """Return the rows of a cell's contenders and of their losses.

    classes: four labels, such as "0 5 2 7". memory: images kept of the old task, or "all".
    contenders: their keys. theory: by similarity, shares (steps, 2) for each of its plans. Losses
    are None where training diverged.
    """
    labels = [int(label) for label in classes.split()]
    settings = {key: search[key] for key in ("normalise", "test_samples")}
    settings |= {"similarity": similarity, "upstream": labels[:2], "auxiliary": labels[2:]}
    tasks = make_tasks(data, json.dumps(settings))
    ends = np.cumsum([0, search["planned"], search["validated"], search["tested"]]).tolist()
    problems = []
    for i, images in enumerate(("held_out", "held_out", "test")):
        model = ImageNetwork(
            tasks, hidden=search["hidden"], samples=samples, images=images,
            memory=None if memory == "all" else int(memory),
            realisations=range(ends[i], ends[i + 1]),
        )  # fmt: skip
        start = model.pretrained(search["first"], search["first_lr"])
        problems.append(replan.Problem(model, start, float(samples), steps=search["steps"]))
    planned, validated, tested = problems
    keys: list[Key] = [(name, schedule, step) for name, schedule, step in contenders]
    plans: dict[str, replan.Plan] = {}
    best: dict[Key, Tuned] = {}
    for key in keys:  # plans come after what they begin from
        if key[0] in PLANS:
            plans = plans or _plans(planned, best, search)
            best[key] = _of_plan(planned, plans[key[0]], key[2], search)
        else:
            best[key] = _tuned(planned, key, search, theory.get(str(similarity), []))
    rows: dict[str, list[dict[str, Any]]] = {"contenders": [], "runs": []}
    for key, tuned in best.items():
        who = dict(zip(WHO, key, strict=True))
        factor = _best_factor(validated, tuned.protocol)
        protocol = _times(tuned.protocol, factor)
        losses = losses_each(tested, protocol)
        row = {
            "lr": factor * tuned.lr,
            "at_end": not search["min_lr"] < 0.999 * tuned.lr < 0.998 * search["max_lr"],
            "share_1": float(protocol.mean_shares[0]),
            "alone": float(protocol.focus_length(1) / protocol.duration),
            "trials": tuned.trials,
            "planned": _finite(_loss(planned, tuned.protocol)),
            "factor": factor,
            "validated": _finite(_loss(validated, protocol)),
            "loss": _finite(losses.mean()),
        }
        rows["contenders"].append(who | row)
        rows["runs"] += [
            who | {"realisation": number, "loss": _finite(loss)}
            for number, loss in zip(tested.model.realisations, losses, strict=True)
        ]
    return rows


def losses_each(problem: replan.Problem, protocol: replan.Protocol) -> Floats:
    """Return the objective (R,) of each realisation, infinite where it diverged."""
    rates = protocol.shares * protocol.by_task("lr")
    losses = problem.model.final_losses(problem.state, rates, protocol.lengths)
    return np.asarray(losses @ problem.objective.weights)


def _loss(problem: replan.Problem, protocol: replan.Protocol) -> float:
    return float(losses_each(problem, protocol).mean())


# Families with few numbers to choose


def _tuned(problem: replan.Problem, key: Key, search: dict[str, Any], theory: list[Any]) -> Tuned:
    """Return a contender with a share (or the like) and a rate to choose, at its best.

    All have the same rates and equally many variants to try.
    """
    name, schedule, step = key
    exponent = SCHEDULES[schedule]
    meeting = cache(partial(_meeting_time, problem, exponent))
    variants = {THEORY: list(range(len(theory))), LATE: search.get("parts")}

    def family(variant: float, lr: float) -> replan.Protocol:
        mixed = [variant, 1 - variant]
        if name == THEORY:
            shares = replan.Protocol(theory[int(variant)], problem.duration)
        elif name == LATE:
            focus = variant * problem.duration
            shares = focus_then_replay(problem, focus=focus, shares=[0.5, 0.5])
        elif name == FOCUS:
            shares = focus_then_replay(problem, focus=meeting(lr), shares=mixed)
        else:
            shares = interleaved(problem, shares=mixed)
        made = power_law_lr(problem, initial=lr, exponent=exponent, protocol=shares)
        return made if step == BATCH else _single(made)

    choices = variants.get(name) or search["shares"]
    return _tune(problem, family, choices, search, near=name != THEORY)


def _tune(
    problem: replan.Problem, family: Callable[[float, float], replan.Protocol],
    variants: list[float], search: dict[str, Any], *, near: bool,
) -> Tuned:  # fmt: skip
    """Return the best of a grid of variants and rates, and of points ever closer to the best one.

    family: makes a protocol of a variant and a rate. near: whether there are variants between those
    of the grid, too.
    """
    rates = np.geomspace(search["min_lr"], search["max_lr"], search["rates"]).tolist()
    tried = {point: _loss(problem, family(*point)) for point in product(variants, rates)}
    width = float(np.mean(np.diff(sorted(variants)))) if near and len(variants) > 1 else 0.0
    factor = rates[1] / rates[0]
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
        raise ValueError(f"`min_lr` must be a rate that does not diverge, got {rates[0]}")
    return Tuned(family(*best), best[1], len(tried))


def _meeting_time(problem: replan.Problem, exponent: float, lr: float) -> float:
    """Return when the new task's loss, trained alone at these rates, has met the old one's.

    Between the edges of the protocol's steps, losses are taken to be straight lines.
    """
    alone = power_law_lr(problem, initial=lr, exponent=exponent, protocol=no_replay(problem))
    schedule = Schedule.single_steps(alone.shares, alone.by_task("lr"), alone.lengths)
    losses = problem.model.losses(problem.model.roll_out(problem.state, schedule))
    gap = losses[:, 1] - losses[:, 0]
    met = np.flatnonzero(gap <= 0)
    if len(losses) < len(alone.edges) or met.size == 0:
        return problem.duration
    if met[0] == 0:
        return 0.0
    last = met[0] - 1
    part = gap[last] / (gap[last] - gap[met[0]])
    return float(alone.edges[last] + part * (alone.edges[met[0]] - alone.edges[last]))


# Direct optima


def _plans(
    problem: replan.Problem, tuned: dict[Key, Tuned], search: dict[str, Any]
) -> dict[str, replan.Plan]:
    """Return the optima through training, which begin from the best of all simpler contenders.

    The step of SGD depends on share × rate alone: with free shares, one rate curve for all tasks is
    all the freedom that there is.
    """

    def plan(tasks: bool | str, constant: bool, starts: list[replan.Protocol]) -> replan.Plan:
        rate = replan.Range(0.0, search["max_lr"], constant=constant, shared=True)
        return replan.solve(
            problem.changed(control=replan.Control(tasks, lr=rate)), Mixed(), initial=starts,
            max_gradients=search["gradients"],
        )  # fmt: skip

    def begin(*schedules: str, names: tuple[str, ...] = (FIXED, FOCUS, THEORY)) -> list[Any]:
        return [tuned[name, schedule, BATCH].protocol for schedule in schedules for name in names]

    timing = plan(True, True, begin("constant"))
    curve = plan("constant", False, begin("constant", "decayed", names=(FIXED,)))
    both = plan(True, False, [timing.protocol, curve.protocol, *begin("decayed")])
    return {TIMING: timing, RATE: curve, BOTH: both}


def _of_plan(
    problem: replan.Problem, plan: replan.Plan, step: str, search: dict[str, Any]
) -> Tuned:
    """Return a plan of batches as it is, or with its tasks in turn, one sample in a step.

    Its rates are then multiplied by the best factor, up to the highest rate that all may have:
    gradients cannot handle single samples.
    """
    highest = float(plan.protocol.by_task("lr").max())
    if step == BATCH:
        work = plan.statistics["roll_outs"] + plan.statistics["gradients"]
        return Tuned(plan.protocol, highest, work)
    in_turn = _single(plan.protocol)
    return _tune(problem, lambda _, lr: _times(in_turn, lr / highest), [0.0], search, near=False)


def _single(protocol: replan.Protocol) -> replan.Protocol:
    """Return a protocol with a task for every step of SGD, which follows the shares."""
    tasks = protocol.sample(1)
    steps = protocol.step_at(np.arange(len(tasks)) + 0.5)
    rates = protocol.by_task("lr")[steps]
    return replan.Protocol.from_sequence(tasks, protocol.tasks, len(tasks), lr=rates)


def _times(protocol: replan.Protocol, factor: float) -> replan.Protocol:
    return protocol.with_knobs(lr=factor * protocol.by_task("lr"))


def _best_factor(problem: replan.Problem, protocol: replan.Protocol) -> float:
    """Return the factor of the rates with the least loss; ever smaller ones, while that falls."""
    best, least = _FACTORS[0], _loss(problem, protocol)
    for factor in _FACTORS[1:]:
        loss = _loss(problem, _times(protocol, factor))
        if loss > least:
            break
        best, least = factor, loss
    return best


def _finite(x: Any) -> float | None:
    return float(x) if np.isfinite(x) else None
