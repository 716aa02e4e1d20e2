"""Fig. 8: readout weights and cosine similarities under the optimum, for four similarities."""

from itertools import product
from typing import Any

import numpy as np
import pandas as pd

import replan
from reproduction import drawing
from reproduction.base import Claim, Figure, Tables, over, pick
from reproduction.theory.parts import continual, search_row

FULL = {"seeds": 10, "steps": 250, "similarities": [0.1, 0.3, 0.6, 0.9]}
QUICK = FULL | {"seeds": 2, "steps": 50}
_POINTS = 51


def case(similarity: float, seed: int, steps: int) -> dict[str, Any]:
    """Return the readout and the cosine of each task and unit over time, under the optimum.

    Units are numbered so that unit k belongs to teacher k: this makes the sum of the final cosines
    larger.
    """
    plan = replan.solve(continual(similarity, seed, steps))
    run = plan.trajectory
    some = np.unique(np.linspace(0, len(run.times) - 1, _POINTS).astype(int))
    readouts, cosines = np.abs(run.unpacked.V)[some], run.problem.model.cosines(run.unpacked)[some]
    own = np.trace(cosines[-1])
    units = [0, 1] if own >= cosines[-1].sum() - own else [1, 0]
    parts = [
        pd.DataFrame(
            {
                "time": run.times[some],
                "task": task + 1,
                "unit": unit + 1,
                "readout": readouts[:, task, units[unit]],
                "cosine": cosines[:, units[unit], task],
            }
        )
        for task, unit in product(range(2), repeat=2)
    ]
    return {"overlaps": pd.concat(parts).to_dict("records"), "plans": [search_row(plan)]}


compute = over(case, similarity="similarities", seed="seeds")


def draw(tables: Tables) -> Figure:
    """Draw readouts above and cosines below, a column per similarity, medians with bands."""
    table = tables["overlaps"]
    similarities = np.unique(table["similarity"])
    picture = drawing.figure(7.2, 3.9)
    axes = picture.subplots(2, len(similarities), sharex=True, sharey="row", squeeze=False)
    for (upper, lower), similarity in zip(axes.T, similarities, strict=True):
        for (task, unit), rows in pick(table, similarity=similarity).groupby(["task", "unit"]):
            look: dict[str, Any] = {
                "color": drawing.task_colour(task - 1),
                "linestyle": "-" if task == unit else ":",
                "label": f"task {task}, unit {unit}",
            }
            drawing.draw_median(upper, rows, x="time", y="readout", **look)
            drawing.draw_median(lower, rows, x="time", y="cosine", **look)
        upper.set_title(f"γ = {similarity:g}")
    axes[0, 0].set_ylabel("readout $|v_k^{(t)}|$")
    axes[1, 0].set_ylabel("cosine similarity")
    picture.supxlabel("training time α", fontsize=9)
    drawing.legend_above(picture, axes[0, 0])
    return picture


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
    rest = (other.last() / other.max()).groupby(["seed", "similarity"]).mean().unstack()
    first, last = rest.columns[[0, -1]]
    return [
        Claim(
            "Each hidden unit specialises on one teacher, at every similarity.",
            "at the end each unit is nearer to its own teacher, at all γ: its cosines differ by at "
            "least half as much as if it lay on that teacher",
            (special > 0.5).all(axis=1),
            {f"smaller difference / (1 - γ), γ = {g:g}": special[g] for g in special.columns},
        ),
        Claim(
            "Off-diagonal readouts are suppressed more slowly as γ → 1.",
            f"more of their maxima is left at the end at γ = {last:g} than at γ = {first:g}",
            rest[last] > rest[first],
            {f"end / maximum at γ = {g:g}": rest[g] for g in rest.columns},
        ),
    ]
