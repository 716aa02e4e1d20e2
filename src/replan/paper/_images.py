"""What the figures on real images share: runs of the experiment, curves, paired differences."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
import pandas as pd

from replan import check
from replan._common import plotting
from replan.networks import (
    Images,
    Training,
    cifar10,
    experiment,
    fashion_mnist,
    mixed_tasks,
    parity_tasks,
)
from replan.paper._parts import LOOKS, Run
from replan.statistics import mean_interval

STYLES = {  # of the strategies, in the order of panels and claims
    "no-replay": LOOKS["no replay"] | {"marker": ""},
    "interleaved": LOOKS["interleaved 1:1"] | {"marker": ""},
    "focus-then-replay": LOOKS["optimal"] | {"marker": "", "linestyle": "--"},
}
TRAINING = asdict(Training())
MIXED = {"upstream": [0, 5], "auxiliary": [2, 7], "normalise": "unit", "test_samples": 2000}
PARITY = {"normalise": "unit", "test_samples": 2000}


def images_of(data: str) -> Images:
    """Return a data set by its name."""
    check.one_of("data", data, ("fashion-mnist", "cifar10"))
    return fashion_mnist() if data == "fashion-mnist" else cifar10()


def case(
    data: str, tasks: dict[str, Any], training: dict[str, Any], looks: list[int], block: list[int]
) -> dict[str, Any]:
    """Return the test losses of a block of realisations, by strategy, and when replay began."""
    make = mixed_tasks if data == "fashion-mnist" else parity_tasks
    made = make(images_of(data), **tasks)
    found = experiment(
        made, looks, training=Training(**training), strategies=list(STYLES),
        realisations=range(*block), threads=1,
    )  # fmt: skip
    return {
        "losses": {name: curves.losses.tolist() for name, curves in found.curves.items()},
        "switches": found.switches("focus-then-replay").tolist(),
    }


def learn(
    run: Run, data: str, tasks: list[dict[str, Any]], looks: list[int], seeds: int, settings: Any
) -> pd.DataFrame:
    """Return a table with a row for every setting of the tasks, realisation, strategy and test."""
    training = {name: settings[name] for name in TRAINING}
    looks = sorted(set(looks))
    blocks = [[first, min(first + 10, seeds)] for first in range(0, seeds, 10)]
    cases: list[dict[str, Any]] = [
        {"data": data, "tasks": one, "training": training, "looks": looks, "block": block}
        for one in tasks
        for block in blocks
    ]
    rows = []
    for made, result in zip(cases, run(case, cases), strict=True):
        for name, losses in result["losses"].items():
            for seed, curve, switch in zip(
                range(*made["block"]), losses, result["switches"], strict=True
            ):
                rows += [
                    {
                        "similarity": made["tasks"].get("similarity"), "seed": seed,
                        "strategy": name, "step": step, "loss_1": one, "loss_2": two,
                        "mean": (one + two) / 2, "switch": switch,
                    }
                    for step, (one, two) in zip(looks, curve, strict=True)
                ]  # fmt: skip
    return pd.DataFrame(rows)


_LINES: dict[str, dict[str, Any]] = {
    "loss_1": {"color": plotting.task_colour(0), "linestyle": "-", "label": "task 1"},
    "loss_2": {"color": plotting.task_colour(1), "linestyle": "--", "label": "task 2"},
    "mean": {"color": "black", "linestyle": ":", "label": "mean"},
}


def draw_strategies(axes: Any, curves: pd.DataFrame) -> None:
    """Draw, in three axes, the losses of each strategy: medians, with bands from 10 to 90 %."""
    for panel, name in zip(axes, STYLES, strict=True):
        rows = curves[curves["strategy"] == name]
        for column, look in _LINES.items():
            plotting.draw_median(panel, rows, x="step", y=column, **look)
        panel.axvline(0, color="0.7", linewidth=0.8)
        panel.set_title(name, fontsize=9)
        panel.set(yscale="log", xlabel="step (task 2 from 0)")
    limits = np.array([panel.get_ylim() for panel in axes])
    for panel in axes:
        panel.set_ylim(limits[:, 0].min(), limits[:, 1].max())
        plotting.plain_ticks(panel)
        panel.tick_params(labelleft=panel is axes[0])
        panel.xaxis.set_major_formatter(lambda step, _: f"{step / 1000:g}k" if step else "0")


def draw_comparison(axes: Any, curves: pd.DataFrame) -> None:
    """Draw the mean loss of each strategy after the change of task, with 95 % intervals."""
    for name, look in STYLES.items():
        draw_interval(axes, table_of(curves, name), look | {"label": name})


def draw_interval(axes: Any, table: pd.DataFrame, look: dict[str, Any]) -> None:
    """Draw the mean over rows (realisations) of each column, with its 95 % interval."""
    middle, low, high = mean_interval(table.to_numpy())
    if len(table) > 1:
        band = {"color": look["color"], "alpha": 0.2, "linewidth": 0}
        axes.fill_between(table.columns, low, high, **band)
    axes.plot(table.columns, middle, **look)


def legend_of(figure: Any, *axes: Any) -> None:
    """Put one legend for several axes above a figure."""
    pairs = [
        part for panel in axes for part in zip(*panel.get_legend_handles_labels(), strict=True)
    ]
    handles, labels = zip(*pairs, strict=True)
    figure.legend(handles, labels, loc="outside upper center", ncols=6, fontsize=8)


def table_of(curves: pd.DataFrame, strategy: str) -> pd.DataFrame:
    """Return the mean loss of a strategy, realisations × steps after the change of task."""
    rows = curves[(curves["strategy"] == strategy) & (curves["step"] > 0)]
    return rows.pivot(index="seed", columns="step", values="mean")


def numbers(name: str, difference: Any) -> dict[str, float]:
    """Return the mean of paired differences and its 95 % interval, as numbers of a claim."""
    mean, low, high = map(float, mean_interval(difference))
    return {name: mean, "95 % from": low, "to": high}


def below(difference: Any) -> bool | None:
    """Return whether paired differences are below zero; None where their interval contains zero."""
    _, low, high = mean_interval(difference)
    return True if high < 0 else False if low > 0 else None
