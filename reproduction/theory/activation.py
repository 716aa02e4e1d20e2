"""Ours: Figs. 2, 3 and 5 with ReLU beside erf: whether "focus, then replay" survives.

The paper's networks have erf units. All its other settings stay as they are.
"""

from dataclasses import replace
from typing import Any

import pandas as pd

from reproduction import drawing
from reproduction.base import Claim, Figure, Run, Tables, pick
from reproduction.theory import dynamics, multitask, similarity

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
    """Draw final losses against similarity, a row for each activation: Figs. 3 and 5."""
    picture = drawing.figure(7.2, 6.0)
    rows = picture.subplots(2, 2, sharey="row")
    for (third, fifth), (activation, word) in zip(rows, ACTIVATIONS.items(), strict=True):
        drawing.draw_losses(third, _of(tables, "3", activation)["losses"], drawing.LOOKS)
        drawing.draw_losses(fifth, _of(tables, "5", activation)["losses"], multitask.NAMES)
        third.set_title(f"{word}: task 2 after task 1", loc="left")
        fifth.set_title(f"{word}: both from scratch", loc="left")
        fifth.set_ylabel("")
    handles, labels = third.get_legend_handles_labels()
    labels[labels.index("no replay")] = "no replay (from scratch: sequential)"
    picture.legend(handles, labels, loc="outside upper center", ncols=3)
    return picture


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
