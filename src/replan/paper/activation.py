"""Figs. 2, 3 and 5 with ReLU beside erf: whether "focus, then replay" survives the activation.

Not a figure of the paper, whose networks have erf units. All its settings stay as they are.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pandas as pd

from replan._common import plotting
from replan.paper import dynamics, multitask, similarity
from replan.paper._parts import (
    LOOKS,
    Run,
    Tables,
    draw_losses_by_strategy,
    protocol_of,
    typical,
)
from replan.paper.claims import Claim

FULL = {
    "seeds": 10,
    "steps": 100,
    "similarities": [0.05, 0.15, 0.3, 0.45, 0.6, 0.75, 0.9],
    "similarity": 0.3,
    "dimension": 2_000,
}
QUICK = FULL | {"seeds": 2, "steps": 50, "similarities": [0.1, 0.3, 0.9], "dimension": 500}
ACTIVATIONS = {"relu": "ReLU", "erf": "erf"}
_PARTS: dict[str, Any] = {"2": dynamics, "3": similarity, "5": multitask}
_DURATION, _LR = multitask.FULL["duration"], multitask.FULL["lr"]


def compute(
    run: Run,
    *,
    seeds: int,
    steps: int,
    similarities: list[float],
    similarity: float,
    dimension: int,
) -> Tables:
    """Return the tables of Figs. 2, 3 and 5, each with a column `activation`."""
    common: dict[str, Any] = {"seeds": seeds, "steps": steps}
    settings: dict[str, dict[str, Any]] = {
        "2": {"similarity": similarity, "dimension": dimension},
        "3": {"similarities": similarities},
        "5": {"similarities": similarities, "duration": _DURATION, "lr": _LR},
    }
    tables: dict[str, list[pd.DataFrame]] = {}
    for figure, part in _PARTS.items():
        for activation in ACTIVATIONS:
            made = part.compute(run, **common, **settings[figure], activation=activation)
            more = {"similarity": similarity} if figure == "2" else {}
            for name, table in made.items():
                rows = table.assign(activation=activation, **more)
                tables.setdefault(f"{name}-{figure}", []).append(rows)
    return {name: pd.concat(parts) for name, parts in tables.items()}


def _of(tables: Tables, figure: str, activation: str) -> Tables:
    """Return the tables of one figure and one activation, as its own module made them."""
    return {
        name.removesuffix(f"-{figure}"): table[table["activation"] == activation]
        for name, table in tables.items()
        if name.endswith(f"-{figure}")
    }


def draw(tables: Tables) -> plotting.Picture:
    """Draw a row for each activation: losses over time, and against similarity, twice."""
    with plotting.figure(width=7.6, height=6.0) as figure:
        rows = figure.subfigures(2, 1, squeeze=False)[:, 0]
        for i, (activation, word) in enumerate(ACTIVATIONS.items()):
            left, right = rows[i].subfigures(1, 2, squeeze=False, width_ratios=[1, 2])[0]
            bar, losses = left.subplots(2, 1, height_ratios=[1, 10])
            _draw_optimum(bar, losses, _of(tables, "2", activation))
            gamma = tables["curves-2"]["similarity"].iloc[0]
            bar.set_title(f"{word}: the optimum, γ = {gamma:g}", loc="left", fontsize=9)
            third, fifth = right.subplots(1, 2, sharey=True)
            for axes, number, looks in ((third, "3", LOOKS), (fifth, "5", multitask.NAMES)):
                found = _of(tables, number, activation)["losses"]
                draw_losses_by_strategy(axes, found, looks)
            third.set_title(f"{word}: task 2 after task 1", loc="left", fontsize=9)
            fifth.set_title(f"{word}: both from scratch", loc="left", fontsize=9)
            fifth.set_ylabel("")
        handles, labels = third.get_legend_handles_labels()
        names = {"no replay": "no replay (from scratch: sequential)"}
        labels = [names.get(label, label) for label in labels]
        figure.legend(handles, labels, loc="outside upper center", ncols=3, fontsize=8)
    return figure


def _draw_optimum(bar: Any, axes: Any, tables: Tables) -> None:
    """Draw the losses under the optimum of a typical initialisation, theory and SGD."""
    curves, protocols = tables["curves"], tables["protocols"]
    shown = curves[curves["strategy"] == "optimal"]
    begin, end = shown["time"].min(), shown["time"].max()
    ends = shown[shown["time"] == end].set_index("seed")
    seed = typical(ends[["theory_1", "theory_2"]].mean(axis=1))
    one = shown[shown["seed"] == seed]
    chosen = protocols[(protocols["strategy"] == "optimal") & (protocols["seed"] == seed)]
    plotting.draw_protocol(bar, protocol_of(chosen))
    bar.set(xticks=[])
    some = one.iloc[:: max(1, len(one) // 16)]
    for t in range(2):
        look: dict[str, Any] = {"color": plotting.task_colour(t)}
        axes.plot(
            one["time"] - begin, one[f"theory_{t + 1}"], linestyle=plotting.TASK_LINES[t],
            label=f"task {t + 1}", **look,
        )  # fmt: skip
        axes.plot(some["time"] - begin, some[f"sgd_{t + 1}"], "x", markersize=4, **look)
    axes.plot([], [], "kx", markersize=4, label="SGD")
    axes.set(yscale="log", xlabel="time after task 1", ylabel="loss", xlim=(0, end - begin))
    axes.legend(fontsize=7)


def claims(tables: Tables) -> list[Claim]:
    """Check all that the paper says about the three figures, with ReLU; erf's numbers beside."""
    found = []
    for figure, part in _PARTS.items():
        ours, theirs = (part.claims(_of(tables, figure, name)) for name in ACTIVATIONS)
        for relu, erf in zip(ours, theirs, strict=True):
            numbers = dict(relu.numbers) | {f"with erf, {k}": x for k, x in erf.numbers.items()}
            true = sum(map(bool, erf.held)) / len(erf.held)
            found.append(
                replace(
                    relu,
                    statement=f"ReLU, Fig. {figure}: {relu.statement}",
                    numbers=numbers | {"share of cases where it holds with erf": [true]},
                )
            )
    return found
