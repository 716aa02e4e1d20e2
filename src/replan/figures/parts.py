"""What several figures need: the paper's problem, and protocols as rows of a table."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pandas as pd

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
    "pseudo-optimal": {"color": "#33BBEE", "marker": "", "linestyle": "--", "band": False},
}


def continual(
    similarity: float, seed: int, *, steps: int, lr: dict[str, float] | bool = False
) -> dict[str, Any]:
    """Return the paper's continual-learning problem, as the content of a problem file.

    1,000 units on task 1 from random weights, then 25 in which both tasks count; K = T = 2, η = 1.
    `lr`: the range of the learning rate where it is controlled, too.
    """
    return {
        "model": {"hidden": 2, "similarity": similarity},
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
    """Return a protocol, as `Protocol.to_dict` gives it, as a table with a row a step."""
    made = Protocol(protocol["shares"], lr=protocol["lr"], edges=protocol["edges"])
    columns = {"start": made.edges[:-1], "end": made.edges[1:]}
    columns |= {f"share_{t + 1}": made.shares[:, t] for t in range(made.tasks)}
    columns |= {f"lr_{t + 1}": made.lr_by_task[:, t] for t in range(made.tasks)}
    return pd.DataFrame(columns)


def protocol_of(rows: pd.DataFrame) -> Protocol:
    """Return the protocol in the rows of a table."""
    shares, lr = (rows.filter(regex=f"^{name}_").to_numpy() for name in ("share", "lr"))
    return Protocol(shares, lr=lr, edges=[0.0, *rows["end"]])


def typical(losses: pd.Series) -> Any:
    """Return the index (an initialisation) of the middle one of the losses."""
    return losses.sort_values().index[(len(losses) - 1) // 2]


def typical_optima(losses: pd.DataFrame, protocols: pd.DataFrame) -> dict[str, Protocol]:
    """Return the optimal protocol of the middle initialisation at every similarity, by its name."""
    optima = {}
    for similarity, plans in protocols.groupby("similarity"):
        optimal = losses[losses["strategy"] == "optimal"].query("similarity == @similarity")
        seed = typical(optimal.set_index("seed")["loss"])
        optima[f"γ = {similarity:g}"] = protocol_of(plans[plans["seed"] == seed])
    return optima
