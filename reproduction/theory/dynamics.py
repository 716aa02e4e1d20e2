"""Fig. 2: learning task 2 after task 1 without replay, interleaved and optimally, with real SGD."""

from typing import Any

import numpy as np
import pandas as pd

import replan
from replan import strategies
from reproduction import drawing
from reproduction.base import Claim, Figure, Tables, over, pick
from reproduction.theory import parts

FULL = {"seeds": 10, "steps": 250, "similarity": 0.3, "dimension": 20_000}
QUICK = FULL | {"seeds": 3, "steps": 50, "dimension": 500}
FIRST, SECOND = (0.0, 20.0), (990.0, 1025.0)  # the times shown
CHANGE = 1000.0  # when task 2 begins
NAMES = ("no replay", "interleaved 1:1", "optimal")
_THEORY, _SGD = ["theory_1", "theory_2"], ["sgd_1", "sgd_2"]


def case(
    seed: int, steps: int, similarity: float, dimension: int, activation: str = "erf"
) -> dict[str, Any]:
    """Return losses of theory and SGD in both phases, and the protocols of the second."""
    second = parts.continual(similarity, seed, steps, activation=activation)
    fresh = second.model.start_from_dict({"fresh": {"seed": seed}})
    first = second.changed(start=fresh, duration=CHANGE)
    times = [*np.linspace(*FIRST, 81), *np.linspace(SECOND[0], CHANGE, 21)]
    sgd: dict[str, Any] = {"dimension": dimension, "runs": 1, "seed": seed}
    before = replan.simulate(first, strategies.one_task(first), times=times, **sgd)
    plan = replan.solve(second)
    made = (strategies.no_replay(second), strategies.interleaved(second), plan.protocol)
    protocols = dict(zip(NAMES, made, strict=True))
    curves = _curves("first phase", before, 0.0)
    for name, protocol in protocols.items():
        curves += _curves(name, replan.simulate(second, protocol, after=before, **sgd), CHANGE)
    return {
        "curves": curves,
        "protocols": parts.protocol_rows(protocols),
        "runs": [{"dimension": dimension} | parts.search_row(plan)],
    }


def _curves(name: str, run: replan.Simulation, begin: float) -> list[dict[str, Any]]:
    rows = np.column_stack([begin + run.times, run.theory_losses, run.losses[0]])
    table = pd.DataFrame(rows, columns=["time", *_THEORY, *_SGD]).assign(strategy=name)
    return table.to_dict("records")


compute = over(case, seed="seeds")


def draw(tables: Tables) -> Figure:
    """Draw, for each strategy, the losses of a typical initialisation under its colour bar."""
    curves = tables["curves"]
    seed = parts.typical(parts.final(curves, _THEORY)["optimal"])
    picture = drawing.figure(7.2, 4.0)
    axes = picture.subplots(2, 6, sharey="row", height_ratios=[1, 12], width_ratios=[2, 3.5] * 3)
    for i, name in enumerate(NAMES):
        protocol = parts.protocol_of(pick(tables["protocols"], strategy=name, seed=seed))
        whole = replan.Protocol([[1.0, 0.0]], CHANGE, lr=1.0).then(protocol)
        everyone = curves[curves["strategy"].isin(["first phase", name])]
        for j, limits in enumerate((FIRST, SECOND)):
            bar, panel = axes[:, 2 * i + j]
            drawing.draw_protocol(bar, whole)
            bar.set(xlim=limits, xticks=[])
            _draw_losses(panel, everyone[everyone["time"].between(*limits)], seed)
            panel.set(xlim=limits, yscale="log", ylim=(1e-7, 0.5))
        axes[0, 2 * i].set_title(f"{'abc'[i]}) {name}", loc="left")
        axes[1, 2 * i].set(xticks=[0, 10, 20])
        panel.set(xticks=[1000, 1020])
        panel.spines["left"].set_visible(False)
        panel.tick_params(left=False, which="both")
    axes[1, 0].set_ylabel("loss")
    picture.supxlabel("training time α", fontsize=9)
    drawing.legend_above(picture, axes[1, 0])
    return picture


def _draw_losses(axes: Any, everyone: pd.DataFrame, seed: int) -> None:
    """Draw the losses of one initialisation: theory as lines, SGD as crosses; a band of all."""
    mean = everyone.assign(mean=everyone[_THEORY].mean(axis=1))
    drawing.draw_median(axes, mean, x="time", y="mean", color="0.5", linewidth=0)
    one = pick(mean, seed=seed)
    some = one.iloc[:: max(1, len(one) // 16)]
    for t, line in enumerate(drawing.TASK_LINES[:2]):
        look: dict[str, Any] = {"color": drawing.task_colour(t)}
        axes.plot(one["time"], one[_THEORY[t]], linestyle=line, label=f"task {t + 1}", **look)
        axes.plot(some["time"], some[_SGD[t]], "x", markersize=4, **look)
    axes.plot([], [], "kx", markersize=4, label="SGD")
    axes.plot(one["time"], one["mean"], "k:", label="mean of both")
    axes.fill_between([], [], [], color="0.5", alpha=0.3, label="10-90 % of all initialisations")


def claims(tables: Tables) -> list[Claim]:
    """Check what the paper says about Fig. 2."""
    curves, final = tables["curves"], parts.final(tables["curves"], _THEORY)
    learnt = pick(curves, strategy="first phase", time=CHANGE).set_index("seed")["theory_1"]
    bound = 1 / np.sqrt(tables["runs"]["dimension"].iloc[0])
    gap = np.abs(curves[_SGD].to_numpy() - curves[_THEORY].to_numpy()).max(axis=1)
    gaps = curves.assign(gap=gap)
    worst = gaps.pivot_table(index="seed", columns="strategy", values="gap", aggfunc="max")
    after = worst[list(NAMES)].max(axis=1)
    ends = gaps[gaps["time"] == gaps["time"].max()]
    relative = (ends["gap"] / ends[_THEORY].max(axis=1)).groupby(ends["seed"]).max()
    optima = pick(tables["protocols"], strategy="optimal").groupby("seed")
    focus = pd.Series({seed: parts.protocol_of(rows).focus_length(1) for seed, rows in optima})
    no_replay, interleaved, optimal = (final[name] for name in NAMES)
    return [
        Claim(
            "After 1,000 units on task 1 its loss is about 1e-6.",
            "within a factor of 10",
            (learnt > 1e-7) & (learnt < 1e-5),
            {"loss": learnt},
        ),
        Claim(
            "SGD deviates from the theory by less than 1/√N.",
            "at 101 times of the second phase, for all three strategies",
            after < bound,
            {
                "largest deviation × √N": after / bound,
                "at the end, relative to the loss": relative,
                "in the first phase": worst["first phase"] / bound,
            },
        ),
        Claim(
            "Optimal replay ends below interleaved, which ends below no replay.",
            "the mean losses at the end are in this order",
            (optimal < interleaved) & (interleaved < no_replay),
            {
                "interleaved / optimal": interleaved / optimal,
                "no replay / interleaved": no_replay / interleaved,
                "optimal": optimal,
            },
        ),
        Claim(
            "The optimal strategy always opens with a phase on the new task alone.",
            "it lasts at least 1 unit",
            focus >= 1.0,
            {"its length": focus},
            always=True,
        ),
    ]
