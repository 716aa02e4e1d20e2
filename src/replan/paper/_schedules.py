"""Schedules of one knob: the optimum beside constant values and simple schedules at their best."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.lines import Line2D

from replan import strategies
from replan._common import plotting
from replan.check import Floats
from replan.control import Plan, solve
from replan.paper._parts import LOOKS, Run, Tables, minimiser
from replan.problem import Problem
from replan.protocol import Protocol
from replan.trajectory import evaluate

CONSTANT, LINEAR, STEP, OPTIMAL = "best constant", "best linear", "best step", "optimal"
STYLES: dict[str, dict[str, Any]] = {
    CONSTANT: LOOKS["interleaved 1:1"],
    LINEAR: {"color": "#009E73", "marker": "^", "linestyle": "--"},
    STEP: {"color": "#E69F00", "marker": "v", "linestyle": "-."},
    OPTIMAL: LOOKS["optimal"],
}
_POINTS = {1: 11, 2: 7}  # of a grid along each of its settings, before the best is refined


def case(
    problem: dict[str, Any], knob: str, fixed: dict[str, float], lr: dict[str, float]
) -> dict[str, Any]:
    """Return the final losses of schedules of a knob, and the protocols of some of them.

    `problem` controls the knob alone; in "free" its learning rate is free as well, within `lr`.
    `fixed`: constant values by name; the first stands for leaving the knob alone, and it is where
    a step begins.
    """
    posed = Problem.from_dict(problem)
    off, values = next(iter(fixed.values())), posed.control.ranges[knob]
    plan = solve(posed)
    protocols = {name: _with(posed, knob, _constant(posed, value)) for name, value in fixed.items()}
    protocols |= {
        CONSTANT: _searched(posed, knob, _constant, [values]),
        LINEAR: _searched(posed, knob, _linear, [values, values]),
        STEP: _searched(posed, knob, partial(_step, first=off), [values, (0.0, posed.duration)]),
        OPTIMAL: plan.protocol,
    }
    losses = {name: evaluate(posed, protocol).loss for name, protocol in protocols.items()}
    for name in (LINEAR, STEP):  # a constant is one of each, and their searches may end elsewhere
        losses[name] = min(losses[name], losses[CONSTANT])
    return {
        "fixed": {
            "losses": losses,
            "protocols": {name: _rows(protocols[name], knob) for name in (CONSTANT, OPTIMAL)},
            "plan": {"gradients": plan.statistics["gradients"], "status": plan.status},
        },
        "free": _with_free_rate(problem, knob, fixed, lr, plan.protocol),
    }


def _with_free_rate(
    problem: dict[str, Any],
    knob: str,
    fixed: dict[str, float],
    lr: dict[str, float],
    optimum: Protocol,
) -> dict[str, Any]:
    """Return the results with the learning rate free: a constant knob, and both controlled.

    For a constant knob, one start is enough: others end at the same loss. Both are controlled from
    two: the best constant knob, and the optimum at the fixed rate.
    """

    def steady(value: float) -> Plan:
        training = problem["training"] | {knob: value}
        content = {"training": training, "control": {"tasks": False, "lr": lr}}
        posed = Problem.from_dict(problem | content)
        return solve(posed, start=strategies.interleaved(posed), starts=0)

    plans = {name: steady(value) for name, value in fixed.items()}
    limits = problem["control"][knob]
    value = minimiser(lambda value: steady(value).loss, limits["min"], limits["max"], points=5)
    best = min([steady(value), *plans.values()], key=lambda plan: plan.loss)
    both = Problem.from_dict(problem | {"control": problem["control"] | {"lr": lr}})
    found = [solve(both, start=start, starts=0) for start in (best.protocol, optimum)]
    joint = min(found, key=lambda plan: plan.loss)
    plans |= {CONSTANT: best, OPTIMAL: joint}
    return {
        "losses": {name: plan.loss for name, plan in plans.items()},
        "protocols": {name: _rows(plans[name].protocol, knob) for name in (CONSTANT, OPTIMAL)},
        "plan": {"gradients": joint.statistics["gradients"], "status": joint.status},
    }


def _searched(
    problem: Problem, knob: str, schedule: Callable[..., Floats], bounds: list[tuple[float, float]]
) -> Protocol:
    """Return the best protocol whose knob has the values `schedule(problem, *settings)`.

    The settings are searched for within their bounds: on a grid, then by the simplex method.
    """
    from scipy.optimize import brute

    low, high = np.transpose(bounds)

    def protocol(settings: Floats) -> Protocol:
        return _with(problem, knob, schedule(problem, *np.clip(settings, low, high)))

    best = brute(
        lambda settings: evaluate(problem, protocol(np.atleast_1d(settings)), rtol=1e-6).loss,
        bounds,
        Ns=_POINTS[len(bounds)],
    )
    return protocol(best)


def _constant(problem: Problem, value: float) -> Floats:
    return np.full(problem.steps, value)


def _linear(problem: Problem, first: float, last: float) -> Floats:
    """Values (steps,) along a line, at the middle of every step."""
    return first + (last - first) * (np.arange(problem.steps) + 0.5) / problem.steps


def _step(problem: Problem, last: float, when: float, *, first: float) -> Floats:
    """Values (steps,) that change at a time; in the step around it, their mean."""
    late = np.clip(np.arange(1, problem.steps + 1) - when / problem.duration * problem.steps, 0, 1)
    return first + (last - first) * late


def _with(problem: Problem, knob: str, values: Floats) -> Protocol:
    return strategies.interleaved(problem).with_knobs(**{knob: values})


def _rows(protocol: Protocol, knob: str) -> dict[str, Any]:
    """Return what a table holds of a protocol, by column."""
    columns = {"start": protocol.edges[:-1], "end": protocol.edges[1:]}
    columns |= {name: protocol.by_task(name)[:, 0] for name in (knob, "lr")}
    return {name: values.tolist() for name, values in columns.items()}


def compute(
    run: Run,
    problems: dict[float, dict[str, Any]],
    *,
    x: str,
    knob: str,
    fixed: Callable[[float], dict[str, float]],
    max_lr: float,
) -> Tables:
    """Return the tables `losses`, `plans` and `protocols` of problems by their value of `x`."""
    results = run(
        case,
        [
            {
                "problem": problem,
                "knob": knob,
                "fixed": fixed(value),
                "lr": {"min": 0.0, "max": max_lr},
            }
            for value, problem in problems.items()
        ],
    )
    parts = [
        ({x: value, "rate": rate}, result[rate])
        for value, result in zip(problems, results, strict=True)
        for rate in ("fixed", "free")
    ]
    return {
        "losses": pd.DataFrame(
            [
                at | {"strategy": name, "loss": loss}
                for at, part in parts
                for name, loss in part["losses"].items()
            ]
        ),
        "plans": pd.DataFrame([at | part["plan"] for at, part in parts]),
        "protocols": pd.concat(
            pd.DataFrame(rows).assign(**at, strategy=name)
            for at, part in parts
            for name, rows in part["protocols"].items()
        ),
    }


def by_strategy(tables: Tables, x: str, rate: str, value: str = "loss") -> pd.DataFrame:
    """Return final losses with the learning rate "fixed" or "free": rows by `x`, a column each."""
    losses = tables["losses"]
    return losses[losses["rate"] == rate].pivot(index=x, columns="strategy", values=value)


def values_of(tables: Tables, x: str, column: str, strategy: str, rate: str) -> pd.DataFrame:
    """Return the values of a knob: rows by `x`, a column for each step (from 0)."""
    chosen = tables["protocols"].query("strategy == @strategy and rate == @rate")
    step = chosen.groupby(x).cumcount()
    return chosen.assign(step=step).pivot(index=x, columns="step", values=column)


def largest_rise(values: pd.DataFrame) -> pd.Series:
    """Return by how much values (rows, steps) rise at most above an earlier one."""
    return (values - values.cummin(axis=1)).max(axis=1)


# Pictures


def draw(
    tables: Tables,
    *,
    x: str,
    knob: str,
    label: str,
    value: str,
    loss: str,
    looks: dict[str, dict[str, Any]],
) -> plotting.Picture:
    """Draw final losses against `x`, how far they lie above the optimum, and the optimal schedules.

    `label`, `loss`: of the axes for `x` and for the column `value` of the losses. `looks`: of the
    strategies besides those in `STYLES`.
    """
    looks = looks | STYLES
    with plotting.figure(width=7.2, height=7.0) as figure:
        above, below = figure.subfigures(2, 1, squeeze=False, height_ratios=[4, 5])[:, 0]
        left, right = above.subplots(1, 2)
        losses = {rate: by_strategy(tables, x, rate, value) for rate in ("fixed", "free")}
        _draw_losses(left, losses, looks)
        left.set(xlabel=label, ylabel=loss)
        _draw_excess(right, losses["fixed"], looks)
        right.set(xlabel=label, ylabel="above the optimum, %")
        right.set_title("learning rate fixed", fontsize=9)
        handles = right.get_legend_handles_labels()
        above.legend(*handles, loc="outside upper center", ncols=len(looks), fontsize=8)
        _draw_schedules(below, tables["protocols"].rename(columns={x: "x"}), knob, label)
    return figure


def _draw_losses(
    axes: Any, losses: dict[str, pd.DataFrame], looks: dict[str, dict[str, Any]]
) -> None:
    """Draw final losses; those with a free learning rate as thin lines with open markers."""
    rates: dict[str, dict[str, Any]] = {
        "fixed": {"linewidth": 1.6},
        "free": {"linewidth": 0.8, "markerfacecolor": "white"},
    }
    for rate, form in rates.items():
        for name in losses[rate].columns.drop([LINEAR, STEP], errors="ignore"):
            look = looks[name] | form | {"markersize": 4.5}
            axes.plot(losses[rate].index, losses[rate][name], **look)
        axes.plot([], [], "ko-", markersize=4.5, label=f"learning rate {rate}", **form)
    axes.set_yscale("log")
    plotting.plain_ticks(axes)
    axes.legend(fontsize=8)


def _draw_excess(axes: Any, losses: pd.DataFrame, looks: dict[str, dict[str, Any]]) -> None:
    for name, look in looks.items():
        excess = 100 * (losses[name] / losses[OPTIMAL] - 1)
        axes.plot(losses.index, excess, markersize=4.5, label=name, **look)
    axes.set_yscale("symlog", linthresh=1.0)
    axes.set_ylim(bottom=-0.2)
    axes.yaxis.set_major_formatter("{x:g}")


def _draw_schedules(figure: Any, protocols: pd.DataFrame, knob: str, label: str) -> None:
    """Draw schedules at three values of x: at a fixed learning rate, then with a free one."""
    points = np.sort(protocols["x"].unique())
    shown = points[np.unique(np.linspace(0, len(points) - 1, 3).round().astype(int))]
    panels = [("fixed", knob), ("free", knob), ("free", "lr")]
    axes = figure.subplots(3, len(shown), sharex=True, sharey="row", squeeze=False)
    for row, (rate, name) in zip(axes, panels, strict=True):
        for panel, x in zip(row, shown, strict=True):
            chosen = protocols[(protocols["rate"] == rate) & (protocols["x"] == x)]
            steady = chosen[chosen["strategy"] == CONSTANT]
            look = {"color": STYLES[CONSTANT]["color"], "linewidth": 1.0}
            panel.plot((steady["start"] + steady["end"]) / 2, steady[name], label=CONSTANT, **look)
            plotting.draw_knob(panel, _protocol(chosen[chosen["strategy"] == OPTIMAL], knob), name)
            panel.set_ylabel("")
        row[0].set_ylabel(f"{name}\n(rate {rate})" if name == knob else "learning rate")
        row[0].set_ylim(0, 1.1 * protocols[protocols["rate"] == rate][name].max() or 1.0)
    for panel, x in zip(axes[0], shown, strict=True):
        panel.set_title(f"{label} {x:g}", fontsize=9)
    for panel in axes[-1]:
        panel.set_xlabel("training time α")
    optimal = Line2D([], [], color="black", linewidth=2.2, label=OPTIMAL)
    handles, _ = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles=[*handles, optimal], loc="outside upper center", ncols=2, fontsize=8)


def _protocol(rows: pd.DataFrame, knob: str) -> Protocol:
    knobs = {name: rows[name] for name in (knob, "lr")}
    return Protocol(np.ones((len(rows), 1)), knobs=knobs, edges=[0.0, *rows["end"]])
