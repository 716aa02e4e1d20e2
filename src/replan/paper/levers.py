"""What each lever is worth against the similarity of the tasks: the paper's problem, all controls.

Not a figure of the paper, which controls the tasks at a fixed learning rate, and both together.
"""

from __future__ import annotations

from typing import Any

import pandas as pd

from replan._common import plotting
from replan.control import levers
from replan.paper._parts import Run, Tables, continual, grid
from replan.paper.claims import Claim
from replan.problem import Problem

FULL = {
    "seeds": 10,
    "steps": 100,
    "similarities": [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9],
    "max_lr": 5.0,
}
QUICK = {"seeds": 2, "steps": 25, "similarities": [0.2, 0.5, 0.8], "max_lr": 5.0}

NAMES: dict[str, dict[str, Any]] = {
    "nothing": {"color": "0.25", "marker": "x", "linestyle": ":"},
    "share": {"color": "#0072B2", "marker": "s", "linestyle": "-"},
    "timing": {"color": "#CC3311", "marker": "o", "linestyle": "-"},
    "rate": {"color": "#009988", "marker": "v", "linestyle": "--", "band": False},
    "curve": {"color": "#EE7733", "marker": "^", "linestyle": "-.", "band": False},
    "rates": {"color": "#33BBEE", "marker": "D", "linestyle": "--", "band": False},
    "all": {"color": "#663333", "marker": "P", "linestyle": "-"},
}
WORDS = {
    "nothing": "nothing: equal shares, η = 1",
    "share": "share: constant, η = 1",
    "timing": "timing: shares over time, η = 1",
    "rate": "rate: constant, equal shares",
    "curve": "curve of the rate, equal shares",
    "rates": "rates: a curve per task, constant shares",
    "all": "all: shares and rates over time",
}
_ADDED = {name: NAMES[name] for name in ("share", "timing", "rate", "curve", "rates")}


def case(problem: dict[str, Any]) -> dict[str, Any]:
    """Return the loss of every lever alone, and of everything without it, on one problem."""
    found = levers(Problem.from_dict(problem))
    solved = {**found.alone[0], **{f"without {k}": x for k, x in found.rest[0].items()}}
    poor = [lever.status for lever in solved.values() if lever.status != "converged"]
    return {
        "levers": {name: lever.loss for name, lever in found.alone[0].items()},
        "without": {name: lever.loss for name, lever in found.rest[0].items()},
        "plan": {
            "share_of_task_1": found.alone[0]["share"].protocol.mean_shares[0],
            "rate": float(found.alone[0]["rate"].protocol.knobs["lr"][0]),
            "residual": max(x.certificate.pmp_residual / x.loss for x in solved.values()),
            "status": poor[0] if poor else "converged",
        },
    }


def compute(
    run: Run, *, seeds: int, steps: int, similarities: list[float], max_lr: float
) -> Tables:
    """Return the tables `levers`, `without` and `plans`."""
    points = grid(similarities, seeds)
    lr = {"min": 0.0, "max": max_lr}
    results = run(case, [{"problem": continual(**point, steps=steps, lr=lr)} for point in points])
    pairs = list(zip(points, results, strict=True))
    return {
        part: pd.DataFrame(
            [
                point | {"lever": name, "loss": loss}
                for point, result in pairs
                for name, loss in result[part].items()
            ]
        )
        for part in ("levers", "without")
    } | {"plans": pd.DataFrame([point | result["plan"] for point, result in pairs])}


def draw(tables: Tables) -> plotting.Picture:
    """Draw the losses of all levers, and what each adds when all others are used."""
    with plotting.figure(width=7.6, height=4.2) as figure:
        losses, added = figure.subplots(1, 2)
        for name, look in NAMES.items():
            chosen = tables["levers"].query("lever == @name")
            plotting.draw_median(
                losses, chosen, x="similarity", y="loss", label=WORDS[name], **look
            )
        losses.set(yscale="log", xlabel="task similarity γ", ylabel="final mean loss")
        for name, look in _ADDED.items():
            gain = 100 * (1 - _wide(tables, "all") / _wide(tables, name, "without"))
            shown = gain.melt(ignore_index=False, value_name="gain").reset_index()
            plotting.draw_median(added, shown, x="similarity", y="gain", **look)
        added.set(
            xlabel="task similarity γ", ylabel="what the lever adds to all others, %", ylim=(0, 100)
        )
        handles, _ = losses.get_legend_handles_labels()
        figure.legend(handles=handles, loc="outside upper center", ncols=3, fontsize=8)
    return figure


def _wide(tables: Tables, lever: str, part: str = "levers") -> pd.DataFrame:
    """Return the losses of a lever with a row for each initialisation, columns by similarity."""
    table = tables[part]
    return table[table["lever"] == lever].pivot_table(
        index="seed", columns="similarity", values="loss"
    )


def claims(tables: Tables) -> list[Claim]:
    """Check what the levers suggest."""
    share, timing, everything = (_wide(tables, name) for name in ("share", "timing", "all"))
    nothing, rate = _wide(tables, "nothing"), _wide(tables, "rate")
    curve = _wide(tables, "curve")
    early = 1 - timing / share
    late = 1 - everything / _wide(tables, "timing", "without")
    equal = 1 - everything / _wide(tables, "share", "without")
    return [
        Claim(
            "At η = 1 the timing of replay pays: it beats the best constant share.",
            "by at least 10 %, median over γ",
            list(early.median(axis=1) >= 0.1),
            {
                "timing below constant share, median over γ": early.median(axis=1),
                "smallest over γ": early.min(axis=1),
                "largest over γ": early.max(axis=1),
            },
        ),
        Claim(
            "With planned rates timing pays far less.",
            "less than half as much as at η = 1, medians over γ",
            list(late.median(axis=1) < 0.5 * early.median(axis=1)),
            {
                "all below constant shares with planned rates, median over γ": late.median(axis=1),
                "smallest over γ": late.min(axis=1),
                "largest over γ": late.max(axis=1),
            },
        ),
        Claim(
            "One constant learning rate, well chosen, beats the best timing at η = 1.",
            "at equal shares, median over γ",
            list((rate / timing).median(axis=1) < 1.0),
            {
                "best constant rate / best timing, median over γ": (rate / timing).median(axis=1),
                "best rate below nothing, median over γ": (1 - rate / nothing).median(axis=1),
                "best timing below nothing, median over γ": (1 - timing / nothing).median(axis=1),
            },
        ),
        Claim(
            "A curve of the rate beats the best constant rate.",
            "by at least 10 % at equal shares, median over γ",
            list((1 - curve / rate).median(axis=1) >= 0.1),
            {"curve below constant rate, median over γ": (1 - curve / rate).median(axis=1)},
        ),
        Claim(
            "With planned rates the shares still matter.",
            "planned ones are at least 10 % below equal ones, median over γ",
            list(equal.median(axis=1) >= 0.1),
            {"all below equal shares with planned rates, median over γ": equal.median(axis=1)},
        ),
    ]
