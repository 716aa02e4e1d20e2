"""What several figures of the theory need: the paper's problem, plans and protocols as rows."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd

import replan
from reproduction.base import Claim, Figure, Tables, pick
from reproduction.drawing import draw_losses, draw_protocol, figure, legend_of_tasks

SHOWN = (0.1, 0.3, 0.6, 0.9)  # similarities whose protocols are drawn, where they were computed


def two_tasks(similarity: float, activation: str) -> dict[str, Any]:
    """Return the paper's model of two tasks, as in a problem file."""
    return {"hidden": 2, "similarity": similarity, "activation": activation}


def continual(
    similarity: float, seed: int, steps: int, *, max_lr: float | None = None,
    activation: str = "erf",
) -> replan.Problem:  # fmt: skip
    """Return the paper's continual-learning problem.

    1,000 units on task 1 from random weights, then 25 in which both tasks count; K = T = 2, η = 1.
    With `max_lr` the learning rate is controlled, too.
    """
    return replan.Problem.from_dict(
        {
            "model": two_tasks(similarity, activation),
            "start": {"pretrain": {"task": 1, "duration": 1000.0, "lr": 1.0, "seed": seed}},
            "training": {"duration": 25.0, "steps": steps, "lr": 1.0},
            "control": {"tasks": True, "lr": {"min": 0.0, "max": max_lr} if max_lr else False},
        }
    )


def loss(problem: replan.Problem, protocol: replan.Protocol, **options: Any) -> float:
    """Return the final loss of a protocol."""
    return replan.evaluate(problem, protocol, **options).loss


def rows_of(values: Mapping[str, float], key: str = "strategy") -> list[dict[str, Any]]:
    """Return losses by name as rows of a table."""
    return [{key: name, "loss": value} for name, value in values.items()]


def search_row(*plans: replan.Plan) -> dict[str, Any]:
    """Return the work of all plans, and a status that is not "converged" where there is one."""
    return {
        "gradients": sum(plan.statistics["gradients"] for plan in plans),
        "status": max((plan.status for plan in plans), key=lambda status: status != "converged"),
    }


def protocol_rows(
    protocols: Mapping[str, replan.Protocol], knobs: tuple[str, ...] = ("lr",)
) -> list[dict[str, Any]]:
    """Return protocols by the name of their strategy as rows of a table, one per step."""
    rows: list[Any] = []
    for name, protocol in protocols.items():
        columns = {"start": protocol.edges[:-1], "end": protocol.edges[1:]}
        for t in range(protocol.tasks):
            columns[f"share_{t + 1}"] = protocol.shares[:, t]
            columns |= {f"{knob}_{t + 1}": protocol.by_task(knob)[:, t] for knob in knobs}
        rows += pd.DataFrame(columns).assign(strategy=name).to_dict("records")
    return rows


def protocol_of(rows: pd.DataFrame, knobs: tuple[str, ...] = ("lr",)) -> replan.Protocol:
    """Return the protocol in the rows of a table."""
    values = {name: rows.filter(regex=f"^{name}_").to_numpy() for name in ("share", *knobs)}
    return replan.Protocol(values.pop("share"), edges=[0.0, *rows["end"]], **values)


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


def final(curves: pd.DataFrame, columns: list[str]) -> pd.DataFrame:
    """Return the final mean of the columns: rows by initialisation, columns by strategy."""
    ends = curves[curves["time"] == curves["time"].max()]
    means = ends.assign(mean=ends[columns].mean(axis=1))
    return means.pivot(index="seed", columns="strategy", values="mean")


def by_strategy(losses: pd.DataFrame, key: str = "strategy") -> pd.DataFrame:
    """Return losses with a row for each initialisation, columns by strategy and similarity."""
    return losses.pivot_table(index="seed", columns=[key, "similarity"], values="loss")


def largest_inside(statement: str, losses: pd.DataFrame) -> Claim:
    """Return the claim that losses (columns by similarity) are largest inside their range."""
    largest, ends = losses.max(axis=1), losses.iloc[:, [0, -1]].max(axis=1)
    return Claim(
        statement,
        "the largest loss is 5 % above those at the smallest and the largest γ",
        largest > 1.05 * ends,
        {
            "γ of the largest loss": losses.idxmax(axis=1),
            "largest loss / larger end": largest / ends,
        },
    )


def draw_against_similarity(tables: Tables, looks: dict[str, dict[str, Any]]) -> Figure:
    """Draw losses against similarity, and the typical optimum's colour bar at some of them."""
    losses, protocols = tables["losses"], tables["protocols"]
    similarities = np.unique(losses["similarity"])
    shown = [gamma for gamma in similarities if gamma in SHOWN] or similarities[:4]
    picture = figure(7.2, 3.1)
    left, right = picture.subfigures(1, 2, squeeze=False, width_ratios=[5, 4])[0]
    axes = left.subplots()
    draw_losses(axes, losses, looks)
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)
    bars = right.subplots(len(shown), sharex=True, squeeze=False)[:, 0]
    for bar, gamma in zip(bars, shown, strict=True):
        optimal = pick(losses, strategy="optimal", similarity=gamma).set_index("seed")["loss"]
        rows = pick(protocols, similarity=gamma, seed=typical(optimal))
        draw_protocol(bar, protocol_of(rows))
        bar.set_ylabel(f"γ = {gamma:g}", rotation=0, ha="right", va="center")
    bars[-1].tick_params(bottom=True)
    bars[-1].set_xlabel("training time α")
    legend_of_tasks(right, ["task 1", "task 2"])
    return picture
