"""The map: what shares, their timing and the rate are worth when real networks learn real images.

Not a figure of the paper. A cell is a data set, two pairs of classes, a similarity, the samples of
the new task (task 2) and the memory of the old one. In every cell each contender is at its own
best, tuned or planned on planned realisations. The best of a few factors of its rates is chosen on
further ones, so that none lives at the edge of its stability, and all are compared on unseen ones
and on test images. A step of SGD takes a batch of both tasks, with their shares as weights, or a
single sample of one.
"""

import json
from functools import cache, partial
from itertools import product
from typing import Any

import numpy as np

import replan
from replan.control import Search, Solver
from replan.models import Schedule
from replan.strategies import focus_then_replay, interleaved, no_replay, power_law_lr
from reproduction.base import Claim, Run, Tables, below, collect, grid
from reproduction.images.data import fetch
from reproduction.images.network import Floats, ImageNetwork
from reproduction.images.tasks import make_tasks

FULL: dict[str, Any] = {
    "data": ["fashion-mnist", "cifar10"],
    "classes": ["0 5 2 7"],
    "similarities": [0.2, 0.5, 0.8],
    "samples": [250, 500, 1000, 2000, 4000, 8000, 16000],
    "memories": ["50", "200", "1000", "all"],
    "planned": 10,
    "validated": 40,
    "tested": 100,
    "steps": 10,
    "shares": [0.1, 0.3, 0.5],
    "rates": 17,
    "min_lr": 0.02,
    "max_lr": 5.12,
    "gradients": 50,
    "hidden": 8,
    "first": 10_000,
    "first_lr": 0.1,
    "test_samples": 2000,
}
QUICK = FULL | {
    "data": ["fashion-mnist"], "similarities": [0.5], "samples": [250], "memories": ["50"],
    "planned": 2, "validated": 5, "tested": 10, "rates": 5, "min_lr": 0.04, "max_lr": 1.28,
    "gradients": 10, "first": 2000, "test_samples": 300,
}  # fmt: skip

FIXED, FOCUS, LATE = "fixed share", "focus-then-replay", "late replay"
TIMING, RATE, BOTH = PLANS = "timing", "rate", "both"
SCHEDULES = {"constant": 0.0, "decayed": 1.0}  # rate × (1 − time / duration)^exponent
BATCH, SINGLE = "batch", "single"  # what a step of SGD takes
CELL = ["data", "classes", "similarity", "samples", "memory"]
WHO = ["contender", "schedule", "step"]
Key = tuple[str, str, str]  # the values of WHO

_RULES = (FIXED, FOCUS)
KEYS: list[Key] = [
    *((name, schedule, BATCH) for schedule in SCHEDULES for name in _RULES),
    (TIMING, "constant", BATCH), (RATE, "planned", BATCH), (BOTH, "planned", BATCH),
    *((name, "decayed", SINGLE) for name in _RULES),
]  # fmt: skip
_FACTORS = (1.0, 0.8, 0.64, 0.5)  # of the rates, tried on validated realisations
_WORTH = 0.02  # of the loss: what a lever must bring to be worth a plan; set before any run
_BROKEN = 3.0  # times the median loss of all realisations: one that ends above it broke
_LEAST = 8  # cells without which no claim is decided


def compute(
    run: Run, *, data: list[str], classes: list[str], similarities: list[float],
    samples: list[int], memories: list[str], **search: Any,
) -> Tables:  # fmt: skip
    """Return the tables `contenders`, and `runs` with their losses on unseen realisations."""
    for name in data:
        fetch(name)
    axes = data, classes, similarities, samples, memories
    cells = grid(**dict(zip(CELL, axes, strict=True)))
    return collect(run, case, cells, contenders=KEYS, search=search)


def case(
    data: str, classes: str, similarity: float, samples: int, memory: str,
    contenders: list[Key], search: dict[str, Any],
) -> dict[str, Any]:  # fmt: skip
    """Return the rows of a cell's contenders and of their losses.

    classes: four labels, such as "0 5 2 7". memory: images kept of the old task, or "all".
    contenders: their keys. Losses are None where training diverged.
    """
    labels = [int(label) for label in classes.split()]
    settings = {"similarity": similarity, "upstream": labels[:2], "auxiliary": labels[2:]}
    settings["test_samples"] = search["test_samples"]
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
    best: dict[Key, replan.Protocol] = {}
    for name, schedule, step in contenders:
        if name in PLANS:  # after the rules, which plans begin from
            best[name, schedule, step] = _planned(planned, name, best, search)
        else:
            best[name, schedule, step] = _tuned(planned, name, schedule, step, search)
    rows: dict[str, list[dict[str, Any]]] = {"contenders": [], "runs": []}
    for key, tuned in best.items():
        who = dict(zip(WHO, key, strict=True))
        factor = min(_FACTORS, key=lambda x: _loss(validated, _times(tuned, x)))
        protocol = _times(tuned, factor)
        losses = losses_each(tested, protocol)
        row = {
            "lr": float(protocol.by_task("lr").max()),
            "share_1": float(protocol.mean_shares[0]),
            "alone": float(protocol.focus_length(1) / protocol.duration),
            "planned": _finite(_loss(planned, tuned)),
            "factor": factor,
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


def _times(protocol: replan.Protocol, factor: float) -> replan.Protocol:
    return protocol.with_knobs(lr=factor * protocol.by_task("lr"))


def _finite(x: Any) -> float | None:
    return float(x) if np.isfinite(x) else None


def _tuned(
    problem: replan.Problem, name: str, schedule: str, step: str, search: dict[str, Any]
) -> replan.Protocol:
    """Return the best protocol of a rule, over a grid of its shares (or the like) and rates."""
    exponent = SCHEDULES[schedule]
    meeting = cache(partial(_meeting_time, problem, exponent))

    def make(variant: float, lr: float) -> replan.Protocol:
        if name == LATE:
            focus = variant * problem.duration
            shares = focus_then_replay(problem, focus=focus, shares=[0.5, 0.5])
        elif name == FOCUS:
            shares = focus_then_replay(problem, focus=meeting(lr), shares=[variant, 1 - variant])
        else:
            shares = interleaved(problem, shares=[variant, 1 - variant])
        made = power_law_lr(problem, initial=lr, exponent=exponent, protocol=shares)
        return made if step == BATCH else _single(made)

    variants = search["parts" if name == LATE else "shares"]
    rates = np.geomspace(search["min_lr"], search["max_lr"], search["rates"]).tolist()
    protocols = (make(*choice) for choice in product(variants, rates))
    return min(protocols, key=partial(_loss, problem))


def _meeting_time(problem: replan.Problem, exponent: float, lr: float) -> float:
    """Return when the new task's loss, trained alone at these rates, has met the old one's.

    Between the edges of the protocol's steps, losses are taken to be straight lines.
    """
    alone = power_law_lr(problem, initial=lr, exponent=exponent, protocol=no_replay(problem))
    schedule = Schedule.single_steps(alone.shares, alone.by_task("lr"), alone.lengths)
    losses = problem.model.losses(problem.model.roll_out(problem.state, schedule))
    gap = losses[:, 1] - losses[:, 0]
    if len(losses) < len(alone.edges) or gap.min() > 0:
        return problem.duration
    met = int(np.argmax(gap <= 0))
    around = [met, max(met - 1, 0)]
    return float(np.interp(0.0, gap[around], alone.edges[around]))


def _single(protocol: replan.Protocol) -> replan.Protocol:
    """Return a protocol with a task for every step of SGD, which follows the shares."""
    tasks = protocol.sample(1)
    steps = protocol.step_at(np.arange(len(tasks)) + 0.5)
    rates = protocol.by_task("lr")[steps]
    return replan.Protocol.from_sequence(tasks, protocol.tasks, len(tasks), lr=rates)


def _planned(
    problem: replan.Problem, name: str, best: dict[Key, replan.Protocol], search: dict[str, Any]
) -> replan.Protocol:
    """Return an optimum through training, which begins from the best of all simpler contenders.

    The step of SGD depends on share × rate alone: with free shares, one rate curve for all tasks is
    all the freedom that there is.
    """
    tasks = "constant" if name == RATE else True
    rate = replan.Range(0.0, search["max_lr"], constant=name == TIMING, shared=True)
    simpler = {
        TIMING: [key for key in best if key[1:] == ("constant", BATCH)],
        RATE: [(FIXED, schedule, BATCH) for schedule in SCHEDULES],
        BOTH: [key for key in best if key[2] == BATCH and (key[0] in PLANS or key[1] == "decayed")],
    }
    return replan.solve(
        problem.changed(control=replan.Control(tasks, lr=rate)), Mixed(),
        initial=[best[key] for key in simpler[name]], max_gradients=search["gradients"],
    ).protocol  # fmt: skip


class Mixed(Solver):
    """Relax from the given starts, without rounding: a step trains on many samples."""

    method = "relax, mixed"

    def run(self, search: Search) -> Any:
        """Search for a protocol that may mix tasks within a step."""
        search.one_task = False
        return replan.Relax(starts=0).run(search)


# Claims: a statement, its criterion, the two keys that are compared, by which part they differ
_BY = f"by at least {_WORTH:.0%}".replace("%", " %")
_EACH, _DECAYED = "each at its best decayed rate", (FIXED, "decayed")
_CLAIMS: list[tuple[str, str, tuple[str, str], tuple[str, str], str, float]] = [
    ("Timing pays: shares over time beat the best fixed share, each at its best constant rate.",
     _BY, (TIMING, "constant"), (FIXED, "constant"), BATCH, _WORTH),
    ("Timing pays with a planned curve of the rate, too.",
     f"shares over time below constant ones {_BY}", (BOTH, "planned"), (RATE, "planned"), BATCH,
     _WORTH),
    ("The rate matters more than timing.",
     "constant shares with a curve of the rate are below shares over time at a constant one",
     (RATE, "planned"), (TIMING, "constant"), BATCH, 0.0),
    ("Planning both beats a fixed share with the best decayed rate.",
     _BY, (BOTH, "planned"), _DECAYED, BATCH, _WORTH),
    ("Focus-then-replay beats the best fixed share.",
     _EACH, (FOCUS, "decayed"), _DECAYED, BATCH, 0.0),
    ("With single samples, focus-then-replay beats the best fixed share.",
     _EACH, (FOCUS, "decayed"), _DECAYED, SINGLE, 0.0),
]  # fmt: skip


def claims(tables: Tables) -> list[Claim]:
    """Check which levers are worth a plan, on unseen realisations, cell by cell."""
    cells, judged = [losses for *_, losses in cells_of(tables)], []
    for statement, criterion, one, other, step, part in _CLAIMS:
        pairs = [(losses[(*one, step)], losses[(*other, step)]) for losses in cells]
        criterion += ", 95 % interval of paired differences on unseen realisations"
        held = [_below(own, (1 - part) * others) for own, others in pairs]
        gains = [gain(*pair).mean() for pair in pairs]
        counts = [int((~whole(*pair)).sum()) for pair in pairs]
        numbers = {f"{one[0]} below {other[0]}": gains, "realisations that broke": counts}
        judged.append(Claim(statement, criterion, held, numbers, "cell", least=_LEAST))
    return judged


def cells_of(tables: Tables) -> list[Any]:
    """Return every cell and its losses, realisations × contenders, infinite where they diverged."""
    runs = tables["runs"].fillna({"loss": np.inf}).groupby(CELL, sort=False)
    return [(*cell, x.pivot(index="realisation", columns=WHO, values="loss")) for cell, x in runs]


def _below(one: Any, other: Any) -> bool | None:
    """Return whether losses are smaller, where neither broke.

    None if that is open, or if more realisations broke with the first than with the second.
    """
    if _broken(one).sum() > _broken(other).sum():
        return None
    return below((one - other)[whole(one, other)])


def _broken(losses: Any) -> Any:
    """Return which realisations diverged, or ended far above the others: most units are dead."""
    return ~(losses <= _BROKEN * np.median(losses))


def whole(one: Any, other: Any) -> Any:
    """Return which realisations broke with neither of two contenders."""
    return ~(_broken(one) | _broken(other))


def gain(one: Any, other: Any) -> Any:
    """Return how far losses are below others, in parts of these' mean, where neither broke."""
    unbroken = whole(one, other)
    return (other - one)[unbroken] / other[unbroken].mean()
