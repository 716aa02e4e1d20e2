"""The map: what shares, their timing and the rate are worth when real networks learn real images.

Not a figure of the paper. A cell is a data set, two pairs of classes, a similarity, the samples of
the new task and the memory of the old one. In every cell each contender is at its own best, found
on planned realisations, its rates chosen once more on further ones, and all are compared on unseen
ones and on test images: where a step of SGD takes a batch of both tasks, and where it takes a
single sample.
"""

from typing import Any

import numpy as np

import replan
from reproduction.base import Claim, Run, Tables, below, collect, grid
from reproduction.images import contenders
from reproduction.images.contenders import (
    BATCH,
    BOTH,
    CELL,
    FIXED,
    FOCUS,
    RATE,
    SCHEDULES,
    SINGLE,
    THEORY,
    TIMING,
    WHO,
)  # fmt: skip
from reproduction.images.data import fetch
from reproduction.theory.parts import continual

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
    "rates": 9,
    "min_lr": 0.02,
    "max_lr": 5.12,
    "gradients": 50,
    "hidden": 8,
    "first": 10_000,
    "first_lr": 0.1,
    "normalise": "unit",
    "test_samples": 2000,
}
QUICK = FULL | {
    "data": ["fashion-mnist"], "similarities": [0.5], "samples": [250], "memories": ["50"],
    "planned": 2, "validated": 5, "tested": 10, "rates": 5, "min_lr": 0.04, "max_lr": 1.28,
    "gradients": 10, "first": 2000, "test_samples": 300,
}  # fmt: skip

_RULES = (FIXED, FOCUS, THEORY)
_PLANS = ((TIMING, "constant"), (RATE, "planned"), (BOTH, "planned"))
KEYS = [
    *((name, schedule, BATCH) for schedule in SCHEDULES for name in _RULES),
    *((*plan, BATCH) for plan in _PLANS),
    *((name, "decayed", SINGLE) for name in _RULES),
    (BOTH, "planned", SINGLE),
]
_WORTH = 0.02  # of the loss: what a lever must bring to be worth a plan; set before any run
_BROKEN = 3.0  # times the median loss of all realisations: one that ends above it broke
_LEAST = 8  # cells without which no claim is decided


def theory_case(similarity: float, seed: int, steps: int) -> dict[str, Any]:
    """Return the shares (steps, 2) of the theory's plan, which may mix the tasks."""
    plan = replan.solve(continual(similarity, seed, steps))
    return {"shares": plan.relaxed.shares.tolist()}


def compute(
    run: Run, *, data: list[str], classes: list[str], similarities: list[float],
    samples: list[int], memories: list[str], **search: Any,
) -> Tables:  # fmt: skip
    """Return the tables `contenders`, and `runs` with their losses on unseen realisations."""
    for name in data:
        fetch(name)
    points = grid(similarity=similarities, seed=range(len(search["shares"])))
    plans = run(theory_case, [point | {"steps": search["steps"]} for point in points])
    theory: dict[str, list[Any]] = {str(similarity): [] for similarity in similarities}
    for point, plan in zip(points, plans, strict=True):
        theory[str(point["similarity"])].append(plan["shares"])
    axes = data, classes, similarities, samples, memories
    cells = grid(**dict(zip(CELL, axes, strict=True)))
    return collect(run, contenders.case, cells, contenders=KEYS, theory=theory, search=search)


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
    ("The theory's plan, transferred, beats the best fixed share.",
     _EACH, (THEORY, "decayed"), _DECAYED, BATCH, 0.0),
    ("Focus-then-replay beats the best fixed share.",
     _EACH, (FOCUS, "decayed"), _DECAYED, BATCH, 0.0),
    ("With single samples, focus-then-replay beats the best fixed share.",
     _EACH, (FOCUS, "decayed"), _DECAYED, SINGLE, 0.0),
    ("With single samples, the theory's plan beats the best fixed share.",
     _EACH, (THEORY, "decayed"), _DECAYED, SINGLE, 0.0),
    ("With single samples, a plan of both, its tasks in turn, beats the best fixed share.",
     f"{_BY}, the fixed share at its best decayed rate", (BOTH, "planned"), _DECAYED, SINGLE,
     _WORTH),
]  # fmt: skip


def claims(tables: Tables) -> list[Claim]:
    """Check which levers are worth a plan, on unseen realisations, cell by cell."""
    runs = tables["runs"].fillna({"loss": np.inf}).groupby(CELL, sort=False)  # inf: diverged
    cells = [x.pivot(index="realisation", columns=WHO, values="loss") for _, x in runs]
    judged = []
    for statement, criterion, one, other, step, part in _CLAIMS:
        pairs = [(losses[(*one, step)], losses[(*other, step)]) for losses in cells]
        criterion += ", 95 % interval of paired differences on unseen realisations"
        held = [_below(own, (1 - part) * others) for own, others in pairs]
        gains = [gain(*pair).mean() for pair in pairs]
        counts = [int((~whole(*pair)).sum()) for pair in pairs]
        numbers = {f"{one[0]} below {other[0]}": gains, "realisations that broke": counts}
        judged.append(Claim(statement, criterion, held, numbers, "cell", least=_LEAST))
    return judged


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
