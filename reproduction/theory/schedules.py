"""Schedules of one knob: the optimum beside constant values, at a fixed and at a free rate."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

import replan
from replan import strategies
from reproduction import drawing
from reproduction.base import Figure, Tables, pick
from reproduction.theory import parts

CONSTANT, OPTIMAL = "best constant", "optimal"
STYLES = {CONSTANT: drawing.LOOKS["interleaved 1:1"], OPTIMAL: drawing.LOOKS["optimal"]}


_POINTS = 11  # of a grid, before the best constant is refined


def by_rate(losses: dict[str, Any], plans: dict[str, Any], protocols: dict[str, Any]) -> Any:
    """Return the tables of a case, from what there is for each kind of learning rate."""
    return {
        "losses": [row | {"rate": rate} for rate, x in losses.items() for row in parts.rows_of(x)],
        "plans": [row | {"rate": rate} for rate, row in plans.items()],
        "protocols": [row | {"rate": rate} for rate, rows in protocols.items() for row in rows],
    }


def contenders(
    content: dict[str, Any], knob: str, fixed: dict[str, float], max_lr: float
) -> dict[str, Any]:
    """Return the tables of one problem, with the learning rate "fixed", and "free" up to `max_lr`.

    `content` is that of a problem file that controls the knob alone. `fixed`: constant values by
    name; the first means not to use the knob.
    """
    problem, limits = replan.Problem.from_dict(content), content["control"][knob]
    plan = replan.solve(problem)

    def steady(value: float) -> replan.Protocol:
        return strategies.interleaved(problem).with_knobs(**{knob: value})

    best = _best_constant(lambda x: parts.loss(problem, steady(x), rtol=1e-6), limits)
    protocols = {name: steady(value) for name, value in (fixed | {CONSTANT: best}).items()}
    protocols[OPTIMAL] = plan.protocol
    losses = {name: parts.loss(problem, protocol) for name, protocol in protocols.items()}
    free = _with_free_rate(content, knob, fixed, max_lr, plan.protocol)
    shown = {
        "fixed": {name: protocols[name] for name in (CONSTANT, OPTIMAL)},
        "free": {name: free[name].protocol for name in (CONSTANT, OPTIMAL)},
    }
    return by_rate(
        {"fixed": losses, "free": {name: found.loss for name, found in free.items()}},
        {"fixed": parts.search_row(plan), "free": parts.search_row(free[OPTIMAL])},
        {rate: parts.protocol_rows(made, (knob, "lr")) for rate, made in shown.items()},
    )


def _with_free_rate(
    content: dict[str, Any], knob: str, fixed: dict[str, float], max_lr: float,
    optimum: replan.Protocol,
) -> dict[str, replan.Plan]:  # fmt: skip
    """Return plans of the learning rate: for constant values of the knob, and with it.

    For a constant knob, one start is enough: others end at the same loss. Both are controlled from
    two: the best constant knob, and the optimum at the fixed rate.
    """
    lr = {"min": 0.0, "max": max_lr}

    def steady(value: float) -> replan.Plan:
        training, control = content["training"] | {knob: value}, {"tasks": False, "lr": lr}
        problem = replan.Problem.from_dict(content | {"training": training, "control": control})
        return replan.solve(problem, replan.Relax(0), initial=strategies.interleaved(problem))

    plans = {name: steady(value) for name, value in fixed.items()}
    limits = content["control"][knob]
    value = parts.minimiser(
        lambda value: steady(value).loss, limits["min"], limits["max"], points=5
    )
    best = min([steady(value), *plans.values()], key=lambda plan: plan.loss)
    both = replan.Problem.from_dict(content | {"control": content["control"] | {"lr": lr}})
    starts = (best.protocol, optimum)
    joint = [replan.solve(both, replan.Relax(0), initial=start) for start in starts]
    return plans | {CONSTANT: best, OPTIMAL: min(joint, key=lambda plan: plan.loss)}


def _best_constant(loss: Callable[[float], float], limits: dict[str, float]) -> float:
    """Return the value with the least loss: on a grid, then by the simplex method."""
    from scipy.optimize import brute

    low, high = limits["min"], limits["max"]
    found = brute(lambda x: loss(float(np.clip(x, low, high)[0])), [(low, high)], Ns=_POINTS)
    return float(np.clip(found, low, high)[0])


def wide(tables: Tables, x: str, rate: str, value: str = "loss") -> pd.DataFrame:
    """Return final losses with the learning rate "fixed" or "free": rows by `x`, a column each."""
    return pick(tables["losses"], rate=rate).pivot(index=x, columns="strategy", values=value)


def knob_values(tables: Tables, x: str, knob: str, strategy: str, rate: str) -> pd.DataFrame:
    """Return the values of a knob: rows by `x`, a column for each step (from 0)."""
    chosen = pick(tables["protocols"], strategy=strategy, rate=rate)
    step = chosen.groupby(x).cumcount()
    return chosen.assign(step=step).pivot(index=x, columns="step", values=f"{knob}_1")


def largest_rise(values: pd.DataFrame) -> pd.Series:
    """Return the largest rise of values (rows, steps) above an earlier one."""
    return (values - values.cummin(axis=1)).max(axis=1)


def three_of(values: Any) -> Any:
    """Return the first, a middle and the last one of sorted values."""
    return values[np.unique(np.linspace(0, len(values) - 1, 3).round().astype(int))]


def draw(
    tables: Tables, *, x: str, knob: str, value: str, loss: str, looks: dict[str, dict[str, Any]]
) -> Figure:
    """Draw final losses against `x`, and the schedules of the knob and the rate at three of them.

    `value`, `loss`: the column of the losses and its label. `looks`: of the constant contenders.
    """
    looks, label = looks | STYLES, x.replace("_", " ")
    picture = drawing.figure(7.2, 7.0)
    above, below = picture.subfigures(2, 1, squeeze=False, height_ratios=[4, 5])[:, 0]
    left, right = above.subplots(1, 2, sharey=True)
    for axes, rate in ((left, "fixed"), (right, "free")):
        losses = wide(tables, x, rate, value)
        for name in losses:
            axes.plot(losses.index, losses[name], label=name, **looks[name])
        axes.set(yscale="log", xlabel=label, title=f"learning rate {rate}")
    left.set_ylabel(loss)
    drawing.legend_above(above, left)
    shown = three_of(np.unique(tables["protocols"][x]))
    rows = (("fixed", knob), ("free", knob), ("free", "lr"))
    for (rate, name), panels in zip(
        rows, below.subplots(3, len(shown), sharex=True, sharey="row", squeeze=False), strict=True
    ):
        some = pick(tables["protocols"], rate=rate)
        for panel, at in zip(panels, shown, strict=True):
            steady, optimum = (
                parts.protocol_of(pick(some, strategy=strategy, **{x: at}), (knob, "lr"))
                for strategy in (CONSTANT, OPTIMAL)
            )
            panel.stairs(steady.knobs[name][:, 0], steady.edges, baseline=None, color="0.6")
            drawing.draw_knob(panel, optimum, name)
            panel.set_title(f"{label} {at:g}, rate {rate}")
        panels[0].set(ylabel=name, ylim=(0, 1.1 * some[f"{name}_1"].max() or 1.0))
    below.supxlabel("training time α (grey: best constant)", fontsize=9)
    return picture
