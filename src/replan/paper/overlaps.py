"""Fig. 8: readout weights and cosine similarities under the optimum, for four similarities."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from replan._common import plotting
from replan.control import solve
from replan.paper._parts import Run, Tables, continual, grid
from replan.paper.claims import Claim
from replan.problem import Problem

FULL = {"seeds": 10, "steps": 250, "similarities": [0.1, 0.3, 0.6, 0.9]}
QUICK = {"seeds": 2, "steps": 50, "similarities": [0.1, 0.3, 0.6, 0.9]}
_POINTS = 51


def case(problem: dict[str, Any]) -> dict[str, Any]:
    """Return readouts and cosines, both (time, task, unit), under the optimum.

    Units are numbered so that unit k belongs to teacher k: this makes the cosines' sum at the end
    larger.
    """
    plan = solve(Problem.from_dict(problem))
    run = plan.trajectory
    some = np.unique(np.linspace(0, len(run.times) - 1, _POINTS).astype(int))
    readouts, cosines = np.abs(run.overlaps.V), np.abs(run.cosines)
    straight = cosines[-1, 0, 0] + cosines[-1, 1, 1]
    order = [0, 1] if straight >= cosines[-1, 0, 1] + cosines[-1, 1, 0] else [1, 0]
    return {
        "time": run.times[some].tolist(),
        "readout": readouts[some][:, :, order].tolist(),
        "cosine": cosines[some][:, order].transpose(0, 2, 1).tolist(),
        "plan": {"gradients": plan.statistics["gradients"], "status": plan.status},
    }


def compute(run: Run, *, seeds: int, steps: int, similarities: list[float]) -> Tables:
    """Return the tables `overlaps` (of each task and hidden unit) and `plans`."""
    points = grid(similarities, seeds)
    results = run(case, [{"problem": continual(**point, steps=steps)} for point in points])
    pairs = list(zip(points, results, strict=True))
    return {
        "overlaps": pd.concat(
            pd.DataFrame(
                {
                    "time": result["time"],
                    "task": task + 1,
                    "unit": unit + 1,
                    "readout": np.array(result["readout"])[:, task, unit],
                    "cosine": np.array(result["cosine"])[:, task, unit],
                }
            ).assign(**point)
            for point, result in pairs
            for task, unit in product(range(2), repeat=2)
        ),
        "plans": pd.DataFrame([point | result["plan"] for point, result in pairs]),
    }


def draw(tables: Tables) -> plotting.Picture:
    """Draw readouts above and cosines below, a column per similarity, medians with bands."""
    table = tables["overlaps"]
    similarities = sorted(table["similarity"].unique())
    with plotting.figure(width=7.2, height=3.9) as figure:
        axes = figure.subplots(2, len(similarities), sharex=True, sharey="row")
        for column, similarity in zip(axes.T, similarities, strict=True):
            here = table[table["similarity"] == similarity]
            for (task, unit), rows in here.groupby(["task", "unit"]):
                look: dict[str, Any] = {
                    "color": plotting.task_colour(task - 1),
                    "linestyle": "-" if task == unit else ":",
                    "label": f"task {task}, unit {unit}",
                }
                plotting.draw_median(column[0], rows, x="time", y="readout", **look)
                plotting.draw_median(column[1], rows, x="time", y="cosine", **look)
            column[0].set_title(f"γ = {similarity:g}", fontsize=9)
        axes[0, 0].set_ylabel("readout $|v_k^{(t)}|$")
        axes[1, 0].set_ylabel("cosine similarity")
        figure.supxlabel("training time α", fontsize=9)
        handles, labels = axes[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=4)
    return figure


def claims(tables: Tables) -> list[Claim]:
    """Check what the paper says about Fig. 8."""
    table = tables["overlaps"]
    end = table[table["time"] == table["time"].max()]
    cosines = end.pivot(index=["seed", "similarity"], columns=["unit", "task"], values="cosine")
    gamma = cosines.index.get_level_values("similarity").to_numpy()
    # 1 for a unit on its own teacher, 0 for one halfway between the two
    apart = pd.DataFrame({k: (cosines[k][k] - cosines[k][3 - k]) / (1 - gamma) for k in (1, 2)})
    special = apart.min(axis=1).unstack()
    other = table[table["task"] != table["unit"]].groupby(["seed", "similarity", "task"])["readout"]
    left = (other.last() / other.max()).groupby(["seed", "similarity"]).mean().unstack()
    first, last = left.columns[0], left.columns[-1]
    return [
        Claim(
            "Each hidden unit specialises on one teacher, at every similarity.",
            "at the end each unit is nearer to its own teacher, at all γ: its cosines differ by at "
            "least half as much as if it lay on that teacher",
            list((special > 0.5).all(axis=1)),
            {f"smaller difference / (1 - γ), γ = {g:g}": special[g] for g in special.columns},
        ),
        Claim(
            "Off-diagonal readouts are suppressed more slowly as γ → 1.",
            f"more of their maxima is left at the end at γ = {last:g} than at γ = {first:g}",
            list(left[last] > left[first]),
            {f"end / maximum at γ = {g:g}": left[g] for g in left.columns},
        ),
    ]
