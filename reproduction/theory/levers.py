"""Ours: what each lever is worth against similarity, on the paper's problem with all controls.

The paper controls the tasks at a fixed learning rate, and both together.
"""

from typing import Any

import replan
from reproduction.base import Claim, Figure, Tables, over, pick
from reproduction.drawing import draw_median, figure, legend_above
from reproduction.theory.parts import by_strategy, continual, rows_of

FULL = {
    "seeds": 10,
    "steps": 100,
    "similarities": [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9],
    "max_lr": 5.0,
}
QUICK = FULL | {"seeds": 2, "steps": 25, "similarities": [0.2, 0.5, 0.8]}
LOOKS: dict[str, dict[str, Any]] = {
    "nothing": {"color": "0.25", "marker": "x", "linestyle": ":"},
    "share": {"color": "#0072B2", "marker": "s", "linestyle": "-"},
    "timing": {"color": "#CC3311", "marker": "o", "linestyle": "-"},
    "rate": {"color": "#009988", "marker": "v", "linestyle": "--", "band": False},
    "curve": {"color": "#EE7733", "marker": "^", "linestyle": "-.", "band": False},
    "rates": {"color": "#33BBEE", "marker": "D", "linestyle": "--", "band": False},
    "all": {"color": "#663333", "marker": "P", "linestyle": "-"},
}


def case(similarity: float, seed: int, steps: int, max_lr: float) -> dict[str, Any]:
    """Return the loss of every lever alone, and of everything without it, on one problem."""
    found = replan.levers(continual(similarity, seed, steps, max_lr=max_lr))
    alone, rest = found.alone[0], found.rest[0]
    status = [x.status for x in (*alone.values(), *rest.values()) if x.status != "converged"]
    plan = {"status": [*status, "converged"][0]}
    losses = ({name: x.loss for name, x in levers.items()} for levers in (alone, rest))
    tables = dict(zip(("levers", "without"), losses, strict=True))
    return {name: rows_of(x, "lever") for name, x in tables.items()} | {"plans": [plan]}


compute = over(case, similarity="similarities", seed="seeds")


def draw(tables: Tables) -> Figure:
    """Draw the losses of all levers, and what each adds when all others are used."""
    alone, rest = (by_strategy(tables[x], "lever") for x in ("levers", "without"))
    picture = figure(7.6, 4.2)
    losses, added = picture.subplots(1, 2)
    for name, look in LOOKS.items():
        chosen = pick(tables["levers"], lever=name)
        draw_median(losses, chosen, x="similarity", y="loss", label=name, **look)
        if name not in ("nothing", "all"):
            gain = 100 * (1 - alone["all"] / rest[name])
            shown = gain.melt(ignore_index=False, value_name="gain")
            draw_median(added, shown, x="similarity", y="gain", **look)
    losses.set(yscale="log", xlabel="task similarity γ", ylabel="final mean loss")
    label = "what the lever adds to all others, %"
    added.set(xlabel="task similarity γ", ylabel=label, ylim=(0, 100))
    legend_above(picture, losses, ncols=3)
    return picture


def claims(tables: Tables) -> list[Claim]:
    """Check what the levers suggest."""
    alone, rest = (by_strategy(tables[x], "lever") for x in ("levers", "without"))
    timing, rate = alone["timing"], alone["rate"]
    early, late = 1 - timing / alone["share"], 1 - alone["all"] / rest["timing"]
    beats = (rate / timing).median(axis=1)
    return [
        Claim(
            "At η = 1 the timing of replay pays: it beats the best constant share.",
            "by at least 10 %, median over γ",
            early.median(axis=1) >= 0.1,
            {"timing below constant share, median over γ": early.median(axis=1)},
        ),
        Claim(
            "With planned rates timing pays far less.",
            "less than half as much as at η = 1, medians over γ",
            late.median(axis=1) < 0.5 * early.median(axis=1),
            {"all below constant shares with planned rates, median over γ": late.median(axis=1)},
        ),
        Claim(
            "One constant learning rate, well chosen, beats the best timing at η = 1.",
            "at equal shares, median over γ",
            beats < 1.0,
            {"best constant rate / best timing, median over γ": beats},
        ),
    ]
