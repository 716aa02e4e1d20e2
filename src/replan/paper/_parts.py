"""What several figures need: the paper's problem, and protocols as rows of a table."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from replan._common import plotting
from replan.paper.claims import Claim
from replan.protocol import Protocol

Run = Callable[..., list[dict[str, Any]]]  # sweep, with its cache and progress bar
Tables = dict[str, pd.DataFrame]

# Strategies look the same in all figures; colours as in the paper, safe for the colour-blind.
LOOKS: dict[str, dict[str, Any]] = {
    "no replay": {"color": "#AA4499", "marker": "x", "linestyle": "-"},
    "interleaved 1:1": {"color": "#0072B2", "marker": "s", "linestyle": "-"},
    "interleaved, optimal share": {
        "color": "0.25",
        "marker": "D",
        "linestyle": "-.",
        "band": False,
    },
    "optimal": {"color": "#CC3311", "marker": "o", "linestyle": "-"},
    "optimal, revision shuffled": {
        "color": "#33BBEE",
        "marker": "",
        "linestyle": "--",
        "band": False,
    },
}


def two_tasks(similarity: float, activation: str = "erf") -> dict[str, Any]:
    """Return the paper's model of two tasks, as the content of a problem file."""
    model = {"hidden": 2, "similarity": similarity}
    return model if activation == "erf" else model | {"activation": activation}


def continual(
    similarity: float, seed: int, *, steps: int, lr: dict[str, float] | bool = False,
    activation: str = "erf",
) -> dict[str, Any]:  # fmt: skip
    """Return the paper's continual-learning problem, as the content of a problem file.

    1,000 units on task 1 from random weights, then 25 in which both tasks count; K = T = 2, η = 1.
    `lr`: the range of the learning rate where it is controlled, too.
    """
    return {
        "model": two_tasks(similarity, activation),
        "start": {"pretrain": {"task": 1, "duration": 1000.0, "lr": 1.0, "seed": seed}},
        "training": {"duration": 25.0, "steps": steps, "lr": 1.0},
        "control": {"tasks": True, "lr": lr},
    }


def grid(similarities: list[float], seeds: int) -> list[dict[str, Any]]:
    """Return every pair of a similarity and an initialisation."""
    return [{"similarity": g, "seed": seed} for g, seed in product(similarities, range(seeds))]


def losses_by_strategy(points: list[dict[str, Any]], results: list[dict[str, Any]]) -> pd.DataFrame:
    """Return a table with a row for every point and every strategy in its result's `losses`."""
    return pd.DataFrame(
        [
            point | {"strategy": name, "loss": loss}
            for point, result in zip(points, results, strict=True)
            for name, loss in result["losses"].items()
        ]
    )


def protocol_rows(protocol: dict[str, Any]) -> pd.DataFrame:
    """Return a protocol, as `Protocol.to_dict` gives it, as a table with a row per step."""
    made = Protocol.from_dict(protocol)
    columns = {"start": made.edges[:-1], "end": made.edges[1:]}
    columns |= {f"share_{t + 1}": made.shares[:, t] for t in range(made.tasks)}
    columns |= {f"lr_{t + 1}": made.by_task("lr")[:, t] for t in range(made.tasks)}
    return pd.DataFrame(columns)


def protocol_of(rows: pd.DataFrame) -> Protocol:
    """Return the protocol in the rows of a table."""
    shares, lr = (rows.filter(regex=f"^{name}_").to_numpy() for name in ("share", "lr"))
    return Protocol(shares, lr=lr, edges=[0.0, *rows["end"]])


def minimiser(function: Callable[[float], float], low: float, high: float, points: int) -> float:
    """Return where a function is smallest from low to high: the best of a grid, refined."""
    from scipy.optimize import minimize_scalar

    grid = np.linspace(low, high, points)
    values = [function(float(x)) for x in grid]
    best = int(np.argmin(values))
    refined = minimize_scalar(
        function,
        bounds=(grid[max(best - 1, 0)], grid[min(best + 1, points - 1)]),
        method="bounded",
        options={"xatol": 2e-3 * (high - low)},
    )
    return float(refined.x if refined.fun < values[best] else grid[best])


def typical(losses: pd.Series) -> Any:
    """Return the index (an initialisation) of the median loss."""
    return losses.sort_values().index[(len(losses) - 1) // 2]


SHOWN = (0.1, 0.3, 0.6, 0.9)  # similarities whose protocols are shown, where they were computed


def collect(points: list[dict[str, Any]], results: list[dict[str, Any]]) -> Tables:
    """Return `losses` by strategy, `plans`, and the `protocols` of the similarities shown."""
    pairs = list(zip(points, results, strict=True))
    all_similarities = sorted({point["similarity"] for point in points})
    shown = [g for g in all_similarities if g in SHOWN] or all_similarities[:4]
    return {
        "losses": losses_by_strategy(points, results),
        "plans": pd.DataFrame([point | result["plan"] for point, result in pairs]),
        "protocols": pd.concat(
            protocol_rows(result["protocol"]).assign(**point)
            for point, result in pairs
            if point["similarity"] in shown
        ),
    }


def draw_against_similarity(tables: Tables, looks: dict[str, dict[str, Any]]) -> plotting.Picture:
    """Draw losses against similarity, and the typical optimum's colour bar for those shown."""
    losses = tables["losses"]
    with plotting.figure(width=7.2, height=3.1) as figure:
        left, right = figure.subfigures(1, 2, squeeze=False, width_ratios=[5, 4])[0]
        axes = left.subplots()
        draw_losses_by_strategy(axes, losses, looks)
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, fontsize=8)
        optima = {}
        for similarity, plans in tables["protocols"].groupby("similarity"):
            optimal = losses[losses["strategy"] == "optimal"].query("similarity == @similarity")
            seed = typical(optimal.set_index("seed")["loss"])
            optima[f"γ = {similarity:g}"] = protocol_of(plans[plans["seed"] == seed])
        plotting.draw_bars(right, optima)
    return figure


def draw_losses_by_strategy(
    axes: Any, losses: pd.DataFrame, looks: dict[str, dict[str, Any]]
) -> None:
    """Draw the final loss of each strategy against similarity, medians with bands."""
    for name, look in looks.items():
        chosen = losses[losses["strategy"] == name]
        plotting.draw_median(axes, chosen, x="similarity", y="loss", **({"label": name} | look))
    axes.set(yscale="log", xlabel="task similarity γ", ylabel="final mean loss")


def by_strategy(losses: pd.DataFrame) -> pd.DataFrame:
    """Return losses with a row for each initialisation, columns by strategy and similarity."""
    return losses.pivot_table(index="seed", columns=["strategy", "similarity"], values="loss")


def largest_inside(statement: str, losses: pd.DataFrame) -> Claim:
    """Return the claim that losses (columns by similarity) are largest inside their range."""
    largest, ends = losses.max(axis=1), losses.iloc[:, [0, -1]].max(axis=1)
    return Claim(
        statement,
        "the largest loss is 5 % above those at the smallest and the largest γ",
        list(largest > 1.05 * ends),
        {
            "γ of the largest loss": losses.idxmax(axis=1),
            "largest loss / larger end": largest / ends,
        },
    )
