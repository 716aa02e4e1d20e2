"""Ours: Figs. 2, 3 and 5 with ReLU beside erf: whether "focus, then replay" survives.

The paper's networks have erf units. All its other settings stay as they are.
"""

from dataclasses import replace
from typing import Any

import pandas as pd

from reproduction import drawing
from reproduction.base import Claim, Figure, Run, Tables, pick
from reproduction.theory import dynamics, multitask, similarity
from reproduction.theory.dynamics import draw_theory_and_sgd
from reproduction.theory.parts import protocol_of, typical

FULL = {
    "seeds": 10,
    "steps": 100,
    "similarities": [0.05, 0.15, 0.3, 0.45, 0.6, 0.75, 0.9],
    "similarity": 0.3,
    "dimension": 2_000,
}
QUICK = FULL | {"seeds": 2, "steps": 50, "similarities": [0.1, 0.3, 0.9], "dimension": 500}
ACTIVATIONS = {"relu": "ReLU", "erf": "erf"}
PARTS: dict[str, Any] = {"2": dynamics, "3": similarity, "5": multitask}


def compute(run: Run, **settings: Any) -> Tables:
    """Return the tables of Figs. 2, 3 and 5, each with a column `activation`."""
    tables: dict[str, list[pd.DataFrame]] = {}
    for figure_number, part in PARTS.items():
        own = part.FULL | {key: value for key, value in settings.items() if key in part.FULL}
        for activation in ACTIVATIONS:
            for name, table in part.compute(run, **own, activation=activation).items():
                rows = table.assign(activation=activation)
                tables.setdefault(f"{name}-{figure_number}", []).append(rows)
    return {name: pd.concat(parts) for name, parts in tables.items()}


def _of(tables: Tables, number: str, activation: str) -> Tables:
    """Return the tables of one figure and one activation, as its own module made them."""
    return {
        name.removesuffix(f"-{number}"): pick(table, activation=activation)
        for name, table in tables.items()
        if name.endswith(f"-{number}")
    }


def draw(tables: Tables) -> Figure:
    """Draw a row for each activation: losses over time, and against similarity, twice."""
    picture = drawing.figure(7.6, 6.0)
    rows = picture.subfigures(2, 1, squeeze=False)[:, 0]
    for row, (activation, word) in zip(rows, ACTIVATIONS.items(), strict=True):
        left, right = row.subfigures(1, 2, squeeze=False, width_ratios=[1, 2])[0]
        bar, losses = left.subplots(2, 1, height_ratios=[1, 10])
        _draw_optimum(bar, losses, _of(tables, "2", activation))
        bar.set_title(f"{word}: the optimum", loc="left")
        third, fifth = right.subplots(1, 2, sharey=True)
        drawing.draw_losses(third, _of(tables, "3", activation)["losses"], drawing.LOOKS)
        drawing.draw_losses(fifth, _of(tables, "5", activation)["losses"], multitask.NAMES)
        third.set_title(f"{word}: task 2 after task 1", loc="left")
        fifth.set_title(f"{word}: both from scratch", loc="left")
        fifth.set_ylabel("")
    handles, labels = third.get_legend_handles_labels()
    labels[labels.index("no replay")] = "no replay (from scratch: sequential)"
    picture.legend(handles, labels, loc="outside upper center", ncols=3)
    return picture


def _draw_optimum(bar: Any, axes: Any, tables: Tables) -> None:
    """Draw the losses under the optimum of a typical initialisation, theory and SGD."""
    shown = pick(tables["curves"], strategy="optimal")
    begin, end = shown["time"].min(), shown["time"].max()
    ends = pick(shown, time=end).set_index("seed")
    seed = typical(ends[["theory_1", "theory_2"]].mean(axis=1))
    drawing.draw_protocol(
        bar, protocol_of(pick(tables["protocols"], strategy="optimal", seed=seed))
    )
    bar.set(xticks=[])
    draw_theory_and_sgd(axes, pick(shown, seed=seed), begin)
    axes.set(yscale="log", xlabel="time after task 1", ylabel="loss", xlim=(0, end - begin))
    axes.legend(fontsize=7)


def claims(tables: Tables) -> list[Claim]:
    """Check all that the paper says about the three figures, with ReLU; erf's numbers beside."""
    found = []
    for number, part in PARTS.items():
        both = (part.claims(_of(tables, number, name)) for name in ACTIVATIONS)
        for relu, erf in zip(*both, strict=True):
            numbers = relu.numbers | {f"with erf, {key}": x for key, x in erf.numbers.items()}
            numbers["share of cases where it holds with erf"] = erf.held.count(True) / len(erf.held)
            statement = f"ReLU, Fig. {number}: {relu.statement}"
            found.append(replace(relu, statement=statement, numbers=numbers))
    return found
