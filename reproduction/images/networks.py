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
from reproduction.base import Claim, Interval, Run, Tables, below, collect, grid, mean_interval
from reproduction.drawing import LOOKS, figure, legend_above
from reproduction.images import contenders
from reproduction.images.contenders import (
    BATCH,
    BOTH,
    BROKEN,
    FIXED,
    FOCUS,
    HALF,
    RATE,
    SINGLE,
    THEORY,
    TIMING,
)
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

CELL = ["data", "classes", "similarity", "samples", "memory"]
WHO = ["contender", "schedule", "step"]
_WORTH = 0.02  # of the loss: what a lever must bring to be worth a plan; set before any run
_LEAST = 8  # cells, or pairs of cells, without which no claim is decided
# "same": at the schedule at which the fixed share is best, so that nothing but shares differ
_STYLES: dict[tuple[str, str], dict[str, Any]] = {
    (FIXED, "constant"): {"color": "0.25", "marker": "x", "linestyle": ":"},
    (HALF, "same"): LOOKS["interleaved 1:1"],
    (FOCUS, "same"): {"color": "#EE7733", "marker": "^", "linestyle": "--"},
    (THEORY, "same"): {"color": "#33BBEE", "marker": "D", "linestyle": "--"},
    (TIMING, "constant"): LOOKS["optimal"],
    (RATE, "planned"): {"color": "#009988", "marker": "v", "linestyle": "-."},
    (BOTH, "planned"): {"color": "#663333", "marker": "P", "linestyle": "-"},
}
_WORDS = {
    FIXED: "fixed share, constant rate",
    HALF: "50 %, best rate",
    FOCUS: "focus-then-replay, best rate",
    THEORY: "theory's plan, best rate",
    TIMING: "timing: shares over time, constant rate",
    RATE: "rate: constant shares, a curve of the rate",
    BOTH: "both over time",
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
    """Return the tables `contenders`, `runs`, `protocols` and `plans`."""
    for name in data:
        fetch(name)
    points = grid(similarity=similarities, seed=range(len(search["shares"])))
    plans = run(theory_case, [point | {"steps": search["steps"]} for point in points])
    theory: dict[str, list[Any]] = {str(similarity): [] for similarity in similarities}
    for point, plan in zip(points, plans, strict=True):
        theory[str(point["similarity"])].append(plan["shares"])
    cells = grid(
        data=data, classes=classes, similarity=similarities, samples=samples, memory=memories
    )
    tables = collect(run, contenders.case, cells, theory=theory, search=search)
    tables["runs"]["loss"] = tables["runs"]["loss"].astype(float).fillna(np.inf)  # diverged
    return tables | {"contenders": _with_differences(tables)}


def _with_differences(tables: Tables) -> pd.DataFrame:
    """Return the contenders with their paired differences from the fixed share at its best.

    Those of realisations that broke with neither of the two.
    """
    parts = []
    for cell, runs in _cells(tables):
        for step in _STEPS:
            here = _rows(tables, cell, step).copy()
            best = runs[FIXED, _schedule(here), step].to_numpy()
            found = []
            for key in zip(here["contender"], here["schedule"], strict=True):
                own = runs[(*key, step)].to_numpy()
                found.append(mean_interval((own - best)[_whole(own, best)]))
            for i, column in enumerate(("difference", "from", "to")):
                here[column] = [float(interval[i]) for interval in found]
            here["reference"] = float(best[~_broken(best)].mean())
            parts.append(here)
    return pd.concat(parts, ignore_index=True)[[*CELL, *WHO, *_columns(parts[0])]]


def _columns(table: pd.DataFrame) -> list[str]:
    return [name for name in table.columns if name not in (*CELL, *WHO)]


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
    """Draw how far each contender is below the fixed share at its best, against the samples."""
    table = tables["contenders"]
    rows = list(table[[*CELL[:3], "step"]].drop_duplicates().itertuples(index=False, name=None))
    memories = sorted(table["memory"].unique(), key=_images)
    sizes = sorted(table["samples"].unique())
    picture = figure(1.6 + 2.0 * max(3, len(memories)), 1.2 + 1.9 * len(rows))
    axes = picture.subplots(len(rows), len(memories), squeeze=False, sharex=True, sharey="row")
    for (i, row), (j, memory) in product(enumerate(rows), enumerate(memories)):
        panel = axes[i, j]
        for key, look in _STYLES.items():
            _draw_line(panel, tables, row, memory, key, look)
        panel.axhline(0, color="0.6", linewidth=0.8, zorder=0)
        panel.set_xscale("log", base=2)
        panel.set_xticks(sizes, [f"{x / 1000:g}k" if x >= 1000 else f"{x}" for x in sizes])
        panel.minorticks_off()
        panel.set_title(f"memory {memory}" if i == 0 else "", fontsize=9)
    for i, (source, classes, similarity, step) in enumerate(rows):
        several = f", {classes}" * (table["classes"].nunique() > 1)
        axes[i, 0].set_ylabel(f"{source}{several}\nγ = {similarity:g}, {_STEPS[step]}", fontsize=8)
    picture.supxlabel("samples of the new task", fontsize=9)
    picture.supylabel("loss below the best fixed share's, %", fontsize=9)
    legend_above(picture, axes[0, 0], ncols=2)
    return picture


def _draw_line(
    panel: Any,
    tables: Tables,
    row: tuple[Any, ...],
    memory: str,
    key: tuple[str, str],
    look: dict[str, Any],
) -> None:
    """Draw one contender's gains with 95 % intervals; hollow where a realisation broke with it."""
    *first, step = row
    points = []  # samples, gain, its interval, whether it is hollow
    for size in sorted(tables["contenders"]["samples"].unique()):
        here = _rows(tables, (*first, size, memory), step)
        if len(here) == 0:
            continue  # a cell that was not computed
        schedule = _schedule(here) if key[1] == "same" else key[1]
        found = here[(here["contender"] == key[0]) & (here["schedule"] == schedule)]
        for _, one in found.iterrows():
            gains = [-100 * one[x] / one["reference"] for x in ("difference", "to", "from")]
            points.append([size, *gains, one["broken"] > 0])
    if points:
        places, middles, lows, highs, hollow = np.array(points, float).T
        panel.plot(places, middles, markersize=4, label=_WORDS[key[0]], **look)
        panel.vlines(places, lows, highs, color=look["color"], linewidth=1.0)
        inner = {"linestyle": "", "marker": look["marker"], "color": "white", "markersize": 2}
        panel.plot(places[hollow > 0], middles[hollow > 0], zorder=5, **inner)


def _images(memory: Any) -> float:
    return np.inf if memory == "all" else float(memory)


# Claims


def claims(tables: Tables) -> list[Claim]:
    """Check which levers are worth a plan, on unseen realisations, cell by cell."""
    found = list(_cells(tables))
    cells, losses = [cell for cell, _ in found], [runs for _, runs in found]

    def pairs(one: tuple[str, str], other: tuple[str, str], step: str = BATCH) -> list[Any]:
        return [(runs[(*one, step)], runs[(*other, step)]) for runs in losses]

    decayed, by = (FIXED, "decayed"), f"by at least {_WORTH:.0%}".replace("%", " %")
    steady = pairs((TIMING, "constant"), (FIXED, "constant"))
    each = "each at its best decayed rate"
    focus, theory = "focus-then-replay below fixed share", "theory's plan below fixed share"
    alone = "With single samples,"
    return [
        _compared(
            "Timing pays: shares over time beat the best fixed share, each at its best constant "
            "rate.",
            by, "timing below fixed share", steady, _WORTH,
        ),
        _compared(
            "Timing pays with a planned curve of the rate, too.",
            f"shares over time below constant ones {by}", "both below rate alone",
            pairs((BOTH, "planned"), (RATE, "planned")), _WORTH,
        ),
        _focus(losses),
        _compared(
            "The rate matters more than timing.",
            "constant shares with a curve of the rate are below shares over time at a constant one",
            "rate below timing", pairs((RATE, "planned"), (TIMING, "constant")),
        ),
        _compared(
            "Planning both beats a fixed share with the best decayed rate.",
            by, "both below fixed share, decayed rate", pairs((BOTH, "planned"), decayed), _WORTH,
        ),
        _compared(
            "The theory's plan, transferred, beats the best fixed share.",
            each, theory, pairs((THEORY, "decayed"), decayed),
        ),
        _compared(
            "Focus-then-replay beats the best fixed share.",
            each, focus, pairs((FOCUS, "decayed"), decayed),
        ),
        _falls("samples of the new task", "samples", cells, steady),
        _falls("memory of the old task", "memory", cells, steady),
        _compared(
            f"{alone} focus-then-replay beats the best fixed share.",
            each, focus, pairs((FOCUS, "decayed"), decayed, SINGLE),
        ),
        _compared(
            f"{alone} the theory's plan beats the best fixed share.",
            each, theory, pairs((THEORY, "decayed"), decayed, SINGLE),
        ),
        _compared(
            f"{alone} a plan of both, its tasks in turn, beats the best fixed share.",
            f"{by}, the fixed share at its best decayed rate",
            "both below fixed share, decayed rate",
            pairs((BOTH, "planned"), decayed, SINGLE), _WORTH,
        ),
    ]  # fmt: skip


def _compared(
    statement: str, criterion: str, name: str, pairs: list[tuple[Any, Any]], part: float = 0.0
) -> Claim:
    """Return the claim that the first of each pair is below (1 − part) × the second."""
    return Claim(
        statement,
        f"{criterion}, 95 % interval of paired differences on unseen realisations",
        [_below(one, (1 - part) * other) for one, other in pairs],
        {
            name: [float(_gain(*pair).mean) for pair in pairs],
            "realisations that broke": [int((~_whole(*pair)).sum()) for pair in pairs],
        },
        "cell",
        least=_LEAST,
    )


def _focus(cells: list[pd.DataFrame]) -> Claim:
    """Return the claim about focus-then-replay, where timing is better than a fixed share."""
    held, parts = [], []
    for runs in cells:
        timing, fixed, focus = (runs[name, "constant", BATCH] for name in (TIMING, FIXED, FOCUS))
        if _below(timing, fixed):
            held.append(_below(focus, (timing + fixed) / 2))
            parts.append(float((fixed.mean() - focus.mean()) / (fixed.mean() - timing.mean())))
    return Claim(
        "Focus-then-replay gets at least half of what timing is worth.",
        "at its best constant rate, where timing beats the fixed share at all; 95 % interval of "
        "paired differences on unseen realisations",
        held,
        {"part of timing's gain": parts},
        "cell",
        least=_LEAST,
    )


def _falls(words: str, column: str, cells: list[tuple[Any, ...]], pairs: list[Any]) -> Claim:
    """Return the claim that timing pays less from each value of a column to the next larger."""
    at = CELL.index(column)
    order = sorted({cell[at] for cell in cells}, key=_images)
    gains = {cell: _gain(*pair) for cell, pair in zip(cells, pairs, strict=True)}
    held: list[bool | None] = []
    falls = []
    for cell, gain in gains.items():
        if cell[at] == order[-1]:
            continue
        after = gains[(*cell[:at], order[order.index(cell[at]) + 1], *cell[at + 1 :])]
        fall = float(gain.mean - after.mean)
        width = float(np.hypot(gain.high - gain.low, after.high - after.low)) / 2
        held.append(True if fall > width else False if fall < -width else None)
        falls.append(fall)
    return Claim(
        f"Timing pays less with more {words}.",
        f"from each number of {column} to the next, 95 % intervals of what timing saves",
        held,
        {"what timing saves falls by": falls},
        "cell",
        least=_LEAST,
    )


def _below(one: Any, other: Any) -> bool | None:
    """Return whether losses are smaller, where neither broke.

    None if that is open, or if more realisations broke with the first than with the second.
    """
    if _broken(one).sum() > _broken(other).sum():
        return None
    return below((one - other)[_whole(one, other)])


def _broken(losses: Any) -> Any:
    """Return which realisations diverged, or ended far above the others: most units are dead."""
    return ~(losses <= BROKEN * np.median(losses))


def _whole(one: Any, other: Any) -> Any:
    return ~(_broken(one) | _broken(other))


def _gain(one: Any, other: Any) -> Interval:
    """Return how far losses are below others, in parts of these, where neither broke."""
    whole = _whole(one, other)
    return mean_interval(((other - one) / other[whole].mean())[whole])
