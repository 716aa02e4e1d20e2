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

from replan._common import check, plotting
from replan._common.statistics import Interval, mean_interval
from replan.control import solve
from replan.paper import _contenders as contenders
from replan.paper._contenders import (
    BATCH,
    BOTH,
    FIXED,
    FOCUS,
    HALF,
    RATE,
    SINGLE,
    THEORY,
    TIMING,
)
from replan.paper._images import below
from replan.paper._parts import LOOKS, Run, Tables, continual, grid, protocol_rows
from replan.paper.claims import Claim
from replan.problem import Problem

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
    "data": ["fashion-mnist"], "similarities": [0.5], "samples": [250, 1000], "memories": ["50"],
    "planned": 3, "validated": 10, "tested": 20, "rates": 5, "min_lr": 0.04, "max_lr": 1.28,
    "gradients": 20,
    "test_samples": 500,
}  # fmt: skip

CELL = ["data", "classes", "similarity", "samples", "memory"]
WHO = ["contender", "schedule", "step"]
_SEARCH = (
    "planned", "validated", "tested", "steps", "shares", "rates", "min_lr", "max_lr", "gradients"
)  # fmt: skip
_NETWORK = ("hidden", "first", "first_lr")
_WORTH = 0.02  # of the loss: what a lever must bring to be worth a plan; set before any run
_BROKEN = 3.0  # times the median loss of all realisations: one that ends above it broke
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


# Tables


def theory_case(problem: dict[str, Any]) -> dict[str, Any]:
    """Return the shares (steps, 2) of the theory's plan, which may mix the tasks."""
    return {"shares": solve(Problem.from_dict(problem)).relaxed.shares.tolist()}


def compute(
    run: Run,
    *,
    data: list[str],
    classes: list[str],
    similarities: list[float],
    samples: list[int],
    memories: list[str],
    **settings: Any,
) -> Tables:
    """Return the tables `contenders`, `runs`, `protocols` and `plans`."""
    _check(samples, memories, settings)
    theory = _theory(run, similarities, len(settings["shares"]), settings["steps"])
    cells: list[dict[str, Any]] = [
        dict(zip(CELL, values, strict=True))
        for values in product(data, classes, similarities, samples, memories)
    ]
    cases = [
        {
            "data": cell["data"],
            "tasks": _tasks(cell, settings),
            "samples": cell["samples"],
            "memory": cell["memory"],
            "network": {name: settings[name] for name in _NETWORK},
            "search": {name: settings[name] for name in _SEARCH},
            "theory": theory[cell["similarity"]],
        }
        for cell in cells
    ]
    return _tables(cells, run(contenders.case, cases), settings)


def _check(samples: list[int], memories: list[str], settings: dict[str, Any]) -> None:
    for memory in memories:
        if memory != "all" and not (memory.isdecimal() and int(memory) > 0):
            raise ValueError(
                '`memories` expects numbers of images, as words, or "all", '
                f"got {check.show(memory)}"
            )
    for size in samples:
        check.integer("samples", size, at_least=settings["steps"])
    for share in settings["shares"]:
        check.number("shares", share, at_least=0, at_most=1)
    check.integer("rates", settings["rates"], at_least=2)
    check.number("min_lr", settings["min_lr"], above=0)
    check.number("max_lr", settings["max_lr"], above=settings["min_lr"])
    for name in ("planned", "validated", "tested", "gradients"):
        check.integer(name, settings[name], at_least=1)


def _theory(
    run: Run, similarities: list[float], seeds: int, steps: int
) -> dict[float, list[list[list[float]]]]:
    """Return the shares of the theory's plans by similarity, one for each initialisation."""
    points = grid(similarities, seeds)
    found = run(theory_case, [{"problem": continual(**point, steps=steps)} for point in points])
    plans: dict[float, list[Any]] = {similarity: [] for similarity in similarities}
    for point, result in zip(points, found, strict=True):
        plans[point["similarity"]].append(result["shares"])
    return plans


def _tasks(cell: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of `mixed_tasks` for a cell."""
    words = cell["classes"].split()
    if len(words) != 4 or not all(word.isdecimal() for word in words):
        raise ValueError(
            f'`classes` expects four of them, such as "0 5 2 7", got {check.show(cell["classes"])}'
        )
    labels = [int(word) for word in words]
    return {
        "similarity": cell["similarity"], "upstream": labels[:2], "auxiliary": labels[2:],
        "normalise": settings["normalise"], "test_samples": settings["test_samples"],
    }  # fmt: skip


def _tables(
    cells: list[dict[str, Any]], results: list[dict[str, Any]], settings: dict[str, Any]
) -> Tables:
    runs, rows, protocols, plans = [], [], [], []
    for cell, result in zip(cells, results, strict=True):
        for one in result["contenders"]:
            who = cell | {name: one[name] for name in WHO}
            losses = np.array(one.pop("losses"), float)
            losses[np.isnan(losses)] = np.inf  # these diverged
            runs.append(pd.DataFrame({"realisation": one["realisations"], "loss": losses} | who))
            if one["protocol"] is not None:
                protocols.append(protocol_rows(one["protocol"]).assign(**who))
            rows.append(who | _summary(one, losses, settings))
        plans += [cell | plan for plan in result["plans"]]
    found = {
        "contenders": pd.DataFrame(rows),
        "runs": pd.concat(runs, ignore_index=True),
        "protocols": pd.concat(protocols, ignore_index=True),
        "plans": pd.DataFrame(plans),
    }
    return found | {"contenders": _with_differences(found)}


def _summary(one: dict[str, Any], losses: Any, settings: dict[str, Any]) -> dict[str, Any]:
    """Return a contender's row: what it is, how it does on all kinds of realisations."""
    mean = mean_interval(losses)
    broken, numbers = _broken(losses), np.array(one["realisations"])
    inside = settings["min_lr"] * 1.001 < one["lr"] < settings["max_lr"] * 0.999
    return {
        "lr": one["factor"] * one["lr"],
        "at_end": not inside,  # of the rates that were tried
        "share_1": one["share"],
        "trials": one["trials"],
        "planned": np.inf if one["planned"] is None else one["planned"],
        "factor": one["factor"],
        "validated": np.inf if one["validated"] is None else one["validated"],
        "loss": float(mean.mean),
        "half_width": float(mean.half_width),
        "stability": np.inf if one["stability"] is None else one["stability"],
        "diverged": len(one["diverged"]),
        "dead": len(one["dead"]),
        "broken": int(broken.sum()),
        "which": " ".join(map(str, sorted({*one["diverged"], *one["dead"], *numbers[broken]}))),
    }


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
            here["difference"] = [float(x.mean) for x in found]
            here["from"], here["to"] = [float(x.low) for x in found], [float(x.high) for x in found]
            here["reference"] = float(best[~_broken(best)].mean())
            parts.append(here)
    return pd.concat(parts, ignore_index=True)


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
    return str(own.loc[own["validated"].idxmin(), "schedule"])


# The picture


def draw(tables: Tables) -> plotting.Picture:
    """Draw how far each contender is below the fixed share at its best, against the samples."""
    table = tables["contenders"]
    rows = list(table[[*CELL[:3], "step"]].drop_duplicates().itertuples(index=False, name=None))
    memories = sorted(table["memory"].unique(), key=_images)
    size = (1.6 + 2.0 * max(3, len(memories)), 1.2 + 1.9 * len(rows))
    with plotting.figure(width=size[0], height=size[1]) as figure:
        axes = figure.subplots(len(rows), len(memories), squeeze=False, sharex=True, sharey="row")
        for (i, row), (j, memory) in product(enumerate(rows), enumerate(memories)):
            panel = axes[i, j]
            for key, look in _STYLES.items():
                _draw_line(panel, tables, row, memory, key, look)
            panel.axhline(0, color="0.6", linewidth=0.8, zorder=0)
            panel.set_xscale("log", base=2)
            sizes = sorted(table["samples"].unique())
            panel.set_xticks(sizes, [_short(x) for x in sizes])
            panel.minorticks_off()
            title = f"memory {memory}" if memory == "all" else f"memory {int(memory):,}"
            panel.set_title(title if i == 0 else "", fontsize=9)
        for i, (data, classes, similarity, step) in enumerate(rows):
            several = f", {classes}" * (table["classes"].nunique() > 1)
            words = f"{data}{several}\nγ = {similarity:g}, {_STEPS[step]}"
            axes[i, 0].set_ylabel(words, fontsize=8)
        figure.supxlabel("samples of the new task", fontsize=9)
        figure.supylabel("loss below the best fixed share's, %", fontsize=9)
        handles, labels = axes[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=2, fontsize=8)
    return figure


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
    places, middles, lows, highs = [], [], [], []
    hollow: list[bool] = []
    for size in sorted(tables["contenders"]["samples"].unique()):
        here = _rows(tables, (*first, size, memory), step)
        schedule = _schedule(here) if key[1] == "same" else key[1]
        found = here[(here["contender"] == key[0]) & (here["schedule"] == schedule)]
        for _, one in found.iterrows():
            part = -100 / one["reference"]
            places.append(size)
            middles.append(part * one["difference"])
            lows.append(part * one["to"])
            highs.append(part * one["from"])
            hollow.append(one["broken"] > 0)
    panel.plot(places, middles, markersize=4, label=_WORDS[key[0]], **look)
    panel.vlines(places, lows, highs, color=look["color"], linewidth=1.0)
    inner = {"linestyle": "", "marker": look["marker"], "color": "white", "markersize": 2}
    panel.plot(np.array(places)[hollow], np.array(middles)[hollow], zorder=5, **inner)


def _images(memory: str) -> float:
    return np.inf if memory == "all" else float(memory)


def _short(count: int) -> str:
    return f"{count / 1000:g}k" if count >= 1000 else f"{count}"


# Claims


def claims(tables: Tables) -> list[Claim]:
    """Check which levers are worth a plan, on unseen realisations, cell by cell."""
    found = list(_cells(tables))
    cells, losses = [cell for cell, _ in found], [runs for _, runs in found]

    def pairs(one: tuple[str, str], other: tuple[str, str], step: str = BATCH) -> list[Any]:
        return [(runs[(*one, step)], runs[(*other, step)]) for runs in losses]

    steady = pairs((TIMING, "constant"), (FIXED, "constant"))
    decayed = FIXED, "decayed"
    percent = f"{_WORTH:.0%}".replace("%", " %")
    return [
        _compared(
            "Timing pays: shares over time beat the best fixed share, each at its best constant "
            "rate.",
            f"by at least {percent}",
            "timing below fixed share",
            steady,
            _WORTH,
        ),
        _compared(
            "Timing pays with a planned curve of the rate, too.",
            f"shares over time at least {percent} below constant ones",
            "both below rate alone",
            pairs((BOTH, "planned"), (RATE, "planned")),
            _WORTH,
        ),
        _focus(losses),
        _compared(
            "The rate matters more than timing.",
            "constant shares with a curve of the rate are below shares over time at a constant one",
            "rate below timing",
            pairs((RATE, "planned"), (TIMING, "constant")),
        ),
        _compared(
            "Planning both beats a fixed share with the best decayed rate.",
            f"by at least {percent}",
            "both below fixed share, decayed rate",
            pairs((BOTH, "planned"), decayed),
            _WORTH,
        ),
        _compared(
            "The theory's plan, transferred, beats the best fixed share.",
            "each at its best decayed rate",
            "theory's plan below fixed share",
            pairs((THEORY, "decayed"), decayed),
        ),
        _compared(
            "Focus-then-replay beats the best fixed share.",
            "each at its best decayed rate",
            "focus-then-replay below fixed share",
            pairs((FOCUS, "decayed"), decayed),
        ),
        _falls("samples of the new task", "samples", cells, steady),
        _falls("memory of the old task", "memory", cells, steady),
        _compared(
            "With single samples, focus-then-replay beats the best fixed share.",
            "each at its best decayed rate",
            "focus-then-replay below fixed share",
            pairs((FOCUS, "decayed"), decayed, SINGLE),
        ),
        _compared(
            "With single samples, the theory's plan beats the best fixed share.",
            "each at its best decayed rate",
            "theory's plan below fixed share",
            pairs((THEORY, "decayed"), decayed, SINGLE),
        ),
        _compared(
            "With single samples, a plan of both, its tasks in turn, beats the best fixed share.",
            f"by at least {percent}, the fixed share at its best decayed rate",
            "both below fixed share, decayed rate",
            pairs((BOTH, "planned"), decayed, SINGLE),
            _WORTH,
        ),
    ]


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
    order = sorted({cell[at] for cell in cells}, key=_images if column == "memory" else None)
    gains = {cell: _gain(*pair) for cell, pair in zip(cells, pairs, strict=True)}
    held: list[bool | None] = []
    falls = []
    for cell, gain in gains.items():
        if cell[at] == order[-1]:
            continue
        after = gains[(*cell[:at], order[order.index(cell[at]) + 1], *cell[at + 1 :])]
        fall = float(gain.mean - after.mean)
        width = float(np.hypot(gain.half_width, after.half_width))
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
    return ~(losses <= _BROKEN * np.median(losses))


def _whole(one: Any, other: Any) -> Any:
    return ~(_broken(one) | _broken(other))


def _gain(one: Any, other: Any) -> Interval:
    """Return how far losses are below others, in parts of these, where neither broke."""
    whole = _whole(one, other)
    return mean_interval(((other - one) / other[whole].mean())[whole])
