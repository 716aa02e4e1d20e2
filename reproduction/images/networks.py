"""The map: what shares, their timing and the rate are worth when real networks learn real images.

Not a figure of the paper. A cell is a data set, two pairs of classes, a similarity, the samples of
the new task and the memory of the old one. In every cell each contender is at its own best, found
on planned realisations, its rates chosen once more on further ones, and all are compared on unseen
ones and on test images: where a step of SGD takes a batch of both tasks, and where it takes a
single sample.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

import replan
from reproduction.base import Claim, Run, Tables, below, collect, grid, mean_interval
from reproduction.drawing import figure, legend_above
from reproduction.images.contenders import (
    BATCH,
    BOTH,
    CELL,
    FIXED,
    FOCUS,
    HALF,
    RATE,
    SCHEDULES,
    SINGLE,
    THEORY,
    TIMING,
    WHO,
    case,
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

_RULES = (HALF, FIXED, FOCUS, THEORY)
_PLANS = ((TIMING, "constant"), (RATE, "planned"), (BOTH, "planned"))
KEYS = [
    *((name, schedule, BATCH) for schedule in SCHEDULES for name in _RULES),
    *((*plan, BATCH) for plan in _PLANS),
    *((name, "decayed", SINGLE) for name in _RULES),
    *((*plan, SINGLE) for plan in _PLANS),
]
_WORTH = 0.02  # of the loss: what a lever must bring to be worth a plan; set before any run
_BROKEN = 3.0  # times the median loss of all realisations: one that ends above it broke
_LEAST = 8  # cells, or pairs of cells, without which no claim is decided
# "same": at the schedule at which the fixed share is best, so that nothing but shares differ
_LINES = {
    (name, schedule): {"label": label, "color": color, "marker": marker, "linestyle": line}
    for name, schedule, label, color, marker, line in (
        (FIXED, "constant", "fixed share, constant rate", "0.25", "x", ":"),
        (HALF, "same", "50 %, best rate", "#0072B2", "s", "-"),
        (FOCUS, "same", "focus-then-replay, best rate", "#EE7733", "^", "--"),
        (THEORY, "same", "theory's plan, best rate", "#33BBEE", "D", "--"),
        (TIMING, "constant", "timing: shares over time, constant rate", "#CC3311", "o", "-"),
        (RATE, "planned", "rate: constant shares, a curve of the rate", "#009988", "v", "-."),
        (BOTH, "planned", "both over time", "#663333", "P", "-"),
    )
}
_STEPS = {BATCH: "batches", SINGLE: "single samples"}


def theory_case(similarity: float, seed: int, steps: int) -> dict[str, Any]:
    """Return the shares (steps, 2) of the theory's plan, which may mix the tasks."""
    plan = replan.solve(continual(similarity, seed, steps))
    return {"shares": plan.relaxed.shares.tolist()}


def compute(
    run: Run,
    *,
    data: list[str],
    classes: list[str],
    similarities: list[float],
    samples: list[int],
    memories: list[str],
    **search: Any,
) -> Tables:
    """Return the tables `contenders` and `runs`."""
    for name in data:
        fetch(name)
    points = grid(similarity=similarities, seed=range(len(search["shares"])))
    plans = run(theory_case, [point | {"steps": search["steps"]} for point in points])
    theory: dict[str, list[Any]] = {str(similarity): [] for similarity in similarities}
    for point, plan in zip(points, plans, strict=True):
        theory[str(point["similarity"])].append(plan["shares"])
    axes = data, classes, similarities, samples, memories
    cells = grid(**dict(zip(CELL, axes, strict=True)))
    return compared(collect(run, case, cells, contenders=KEYS, theory=theory, search=search))


def compared(tables: Tables) -> Tables:
    """Add to the contenders their paired differences from the fixed share at its best.

    Those of realisations that broke with neither of the two.
    """
    tables["runs"]["loss"] = tables["runs"]["loss"].astype(float).fillna(np.inf)  # diverged
    parts = []
    for cell, runs in _cells(tables):
        for step in _STEPS:
            here = _rows(tables, cell, step).copy()
            best = runs[FIXED, _schedule(here), step].to_numpy()
            own = [
                runs[(*key, step)].to_numpy()
                for key in zip(here["contender"], here["schedule"], strict=True)
            ]
            found = [mean_interval((losses - best)[_whole(losses, best)]) for losses in own]
            for i, column in enumerate(("difference", "from", "to")):
                here[column] = [float(interval[i]) for interval in found]
            here["broken"] = [int(_broken(losses).sum()) for losses in own]
            here["reference"] = float(best[~_broken(best)].mean())
            parts.append(here)
    table = pd.concat(parts, ignore_index=True)
    first = [*CELL, *WHO]
    return tables | {"contenders": table[first + [x for x in table.columns if x not in first]]}


def _cells(tables: Tables) -> Iterator[tuple[tuple[Any, ...], pd.DataFrame]]:
    """Yield every cell and its losses, realisations × (contender, schedule, step)."""
    for cell, rows in tables["runs"].groupby(CELL, sort=False):
        yield tuple(cell), rows.pivot(index="realisation", columns=WHO, values="loss")


def _rows(tables: Tables, cell: tuple[Any, ...], step: str) -> pd.DataFrame:
    table = tables["contenders"]
    where = zip([*CELL, "step"], [*cell, step], strict=True)
    return table[np.all([table[name] == x for name, x in where], axis=0)]


def _schedule(rows: pd.DataFrame) -> str:
    """Return at which schedule the fixed share is best on the validated realisations of a cell."""
    own = rows[rows["contender"] == FIXED]
    return str(own.loc[own["validated"].astype(float).idxmin(), "schedule"])


# The picture


def draw(tables: Tables) -> Any:
    """Draw how far each contender is below the fixed share at its best, against the samples.

    With 95 % intervals; points are hollow where a realisation broke.
    """
    table = tables["contenders"]
    rows = list(table[[*CELL[:3], "step"]].drop_duplicates().itertuples(index=False, name=None))
    memories = sorted(table["memory"].unique(), key=lambda x: np.inf if x == "all" else float(x))
    sizes = sorted(table["samples"].unique())
    picture = figure(1.6 + 2.0 * max(3, len(memories)), 1.2 + 1.9 * len(rows))
    axes = picture.subplots(len(rows), len(memories), squeeze=False, sharex=True, sharey="row")
    for (i, (*first, step)), (j, memory) in product(enumerate(rows), enumerate(memories)):
        cells = [_rows(tables, (*first, size, memory), step) for size in sizes]
        for (name, schedule), look in _LINES.items():
            parts = [
                here[
                    (here["contender"] == name)
                    & (here["schedule"] == (_schedule(here) if schedule == "same" else schedule))
                ]
                for here in cells
                if len(here)  # a recorded map may lack cells
            ]
            line = pd.concat(parts)
            gain, low, high = (
                -100 * line[x] / line["reference"] for x in ("difference", "to", "from")
            )
            axes[i, j].plot(line["samples"], gain, markersize=4, **look)
            axes[i, j].vlines(line["samples"], low, high, color=look["color"], linewidth=1.0)
            hollow = {"linestyle": "", "marker": look["marker"], "color": "white", "markersize": 2}
            broken = line["broken"] > 0
            axes[i, j].plot(line["samples"][broken], gain[broken], zorder=5, **hollow)
        axes[i, j].axhline(0, color="0.6", linewidth=0.8, zorder=0)
        axes[i, j].set_xscale("log", base=2)
        axes[i, j].set_xticks(sizes, [f"{x / 1000:g}k" if x >= 1000 else f"{x}" for x in sizes])
        axes[i, j].minorticks_off()
        axes[0, j].set_title(f"memory {memory}", fontsize=9)
        data, classes, similarity = first
        words = f"{data}, {classes}\nγ = {similarity:g}, {_STEPS[step]}"
        axes[i, 0].set_ylabel(words, fontsize=8)
    picture.supxlabel("samples of the new task", fontsize=9)
    picture.supylabel("loss below the best fixed share's, %", fontsize=9)
    legend_above(picture, axes[0, 0], ncols=2)
    return picture


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
    judged = []
    for statement, criterion, one, other, step, part in _CLAIMS:
        pairs = [(runs[(*one, step)], runs[(*other, step)]) for _, runs in _cells(tables)]
        criterion += ", 95 % interval of paired differences on unseen realisations"
        held = [_below(own, (1 - part) * others) for own, others in pairs]
        numbers = {
            f"{one[0]} below {other[0]}": [_gain(*pair) for pair in pairs],
            "realisations that broke": [int((~_whole(*pair)).sum()) for pair in pairs],
        }
        judged.append(Claim(statement, criterion, held, numbers, "cell", least=_LEAST))
    return judged


def _below(one: Any, other: Any) -> bool | None:
    """Return whether losses are smaller, where neither broke.

    None if that is open, or if more realisations broke with the first than with the second.
    """
    if _broken(one).sum() > _broken(other).sum():
        return None
    return below((one - other)[_whole(one, other)])


def _broken(losses: Any) -> Any:
    """Return which realisations diverged, or ended far above the others: most units are dead."""
    return ~(losses <= _BROKEN * np.median(losses))


def _whole(one: Any, other: Any) -> Any:
    return ~(_broken(one) | _broken(other))


def _gain(one: Any, other: Any) -> float:
    """Return how far losses are below others on average, in parts of these, where neither broke."""
    whole = _whole(one, other)
    return float((other - one)[whole].mean() / other[whole].mean())
