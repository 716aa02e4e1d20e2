"""Fig. 2: learning task 2 after task 1 without replay, interleaved and optimally, with real SGD."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from replan import strategies
from replan._common import plotting
from replan.control import solve
from replan.paper._parts import Run, Tables, continual, protocol_of, protocol_rows, typical
from replan.paper.claims import Claim
from replan.problem import Problem
from replan.protocol import Protocol
from replan.simulation import Simulation, simulate

FULL = {"seeds": 10, "steps": 250, "similarity": 0.3, "dimension": 20_000}
QUICK = {"seeds": 3, "steps": 50, "similarity": 0.3, "dimension": 500}
FIRST, SECOND = (0.0, 20.0), (990.0, 1025.0)  # the times shown
NAMES = ("no replay", "interleaved 1:1", "optimal")


def case(problem: dict[str, Any], seed: int, dimension: int) -> dict[str, Any]:
    """Return losses of theory and SGD in both phases, and the protocols of the second."""
    second = Problem.from_dict(problem)
    learnt = problem["start"]["pretrain"]
    first = replace(
        second,
        start=second.model.start_from_dict({"fresh": {"seed": seed}}),
        duration=learnt["duration"],
    )
    times = [*np.linspace(*FIRST, 81), *np.linspace(SECOND[0], first.duration, 21)]
    settings: dict[str, Any] = {"dimension": dimension, "seeds": 1, "seed": seed, "threads": 1}
    before = simulate(first, strategies.one_task(first), times=times, **settings)
    plan = solve(second)
    protocols = {
        "no replay": strategies.no_replay(second),
        "interleaved 1:1": strategies.interleaved(second),
        "optimal": plan.protocol,
    }
    return {
        "curves": {"first phase": _curves(before, 0.0)}
        | {
            name: _curves(simulate(second, made, after=before, **settings), first.duration)
            for name, made in protocols.items()
        },
        "protocols": {name: made.to_dict() for name, made in protocols.items()},
        "plan": {"gradients": plan.statistics["gradients"], "status": plan.status},
    }


def _curves(run: Simulation, begin: float) -> dict[str, Any]:
    return {
        "time": (begin + run.times).tolist(),
        **{f"theory_{t + 1}": run.theory_losses[:, t].tolist() for t in range(2)},
        **{f"sgd_{t + 1}": run.losses[0, :, t].tolist() for t in range(2)},
    }


def compute(
    run: Run, *, seeds: int, steps: int, similarity: float, dimension: int, activation: str = "erf"
) -> Tables:
    """Return the tables `curves`, `protocols` and `runs`."""
    results = run(
        case,
        [
            {
                "problem": continual(similarity, seed, steps=steps, activation=activation),
                "seed": seed,
                "dimension": dimension,
            }
            for seed in range(seeds)
        ],
    )
    return {
        "curves": pd.concat(
            pd.DataFrame(curves).assign(strategy=name, seed=seed)
            for seed, result in enumerate(results)
            for name, curves in result["curves"].items()
        ),
        "protocols": pd.concat(
            protocol_rows(protocol).assign(strategy=name, seed=seed)
            for seed, result in enumerate(results)
            for name, protocol in result["protocols"].items()
        ),
        "runs": pd.DataFrame(
            [
                {"seed": seed, "dimension": dimension, **result["plan"]}
                for seed, result in enumerate(results)
            ]
        ),
    }


def draw(tables: Tables) -> plotting.Picture:
    """Draw, for each strategy, the losses of a typical initialisation under its colour bar."""
    curves, protocols = tables["curves"], tables["protocols"]
    seed = typical(_final(curves)["optimal"])
    chosen = curves[curves["seed"] == seed]
    with plotting.figure(width=7.2, height=4.0) as figure:
        axes = figure.subplots(2, 6, sharey="row", height_ratios=[1, 12], width_ratios=[2, 3.5] * 3)
        for i, name in enumerate(NAMES):
            bar, pair = axes[0, 2 * i : 2 * i + 2], axes[1, 2 * i : 2 * i + 2]
            rows = protocols[(protocols["strategy"] == name) & (protocols["seed"] == seed)]
            whole = Protocol([[1.0, 0.0]], 1000.0).then(protocol_of(rows))
            for part, limits in zip(bar, (FIRST, SECOND), strict=True):
                plotting.draw_protocol(part, whole)
                part.set(xlim=limits, xticks=[])
            bar[0].set_title(f"{'abc'[i]}) {name}", loc="left", fontsize=9)
            shown = chosen[chosen["strategy"].isin(["first phase", name])]
            everyone = curves[curves["strategy"].isin(["first phase", name])]
            for part, limits in zip(pair, (FIRST, SECOND), strict=True):
                _draw_losses(
                    part, shown[shown["time"].between(*limits)],
                    everyone[everyone["time"].between(*limits)],
                )  # fmt: skip
                part.set(xlim=limits, yscale="log", ylim=(1e-7, 0.5))
            pair[0].set(xticks=[0, 10, 20])
            pair[1].set(xticks=[1000, 1020])
            pair[1].spines["left"].set_visible(False)
            pair[1].tick_params(left=False, which="both")
        axes[1, 0].set_ylabel("loss")
        figure.supxlabel("training time α", fontsize=9)
        handles, labels = axes[1, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=5)
    return figure


def _draw_losses(axes: Any, one: pd.DataFrame, everyone: pd.DataFrame) -> None:
    mean = everyone.assign(mean=everyone[["theory_1", "theory_2"]].mean(axis=1))
    plotting.draw_median(axes, mean, x="time", y="mean", color="0.5", linewidth=0)
    some = one.iloc[:: max(1, len(one) // 16)]
    for t in range(2):
        look: dict[str, Any] = {"color": plotting.task_colour(t)}
        axes.plot(
            one["time"], one[f"theory_{t + 1}"], linestyle=plotting.TASK_LINES[t],
            label=f"task {t + 1}", **look,
        )  # fmt: skip
        axes.plot(some["time"], some[f"sgd_{t + 1}"], "x", markersize=4, **look)
    axes.plot(one["time"], one[["theory_1", "theory_2"]].mean(axis=1), "k:", label="mean of both")
    axes.plot([], [], "kx", markersize=4, label="SGD")
    axes.fill_between([], [], [], color="0.5", alpha=0.3, label="10-90 % of all initialisations")


def _final(curves: pd.DataFrame) -> pd.DataFrame:
    """Return the final mean loss of every initialisation (rows) and strategy (columns)."""
    ends = curves[curves["time"] == curves["time"].max()]
    mean = ends[["theory_1", "theory_2"]].mean(axis=1)
    return ends.assign(mean=mean).pivot(index="seed", columns="strategy", values="mean")


def claims(tables: Tables) -> list[Claim]:
    """Check what the paper says about Fig. 2."""
    curves, final = tables["curves"], _final(tables["curves"])
    phase_1 = curves[curves["strategy"] == "first phase"]
    learnt = phase_1[phase_1["time"] == 1000.0].set_index("seed")["theory_1"]
    bound = 1 / np.sqrt(tables["runs"]["dimension"].iloc[0])
    gaps = curves.assign(
        gap=np.abs(
            curves[["sgd_1", "sgd_2"]].to_numpy() - curves[["theory_1", "theory_2"]].to_numpy()
        ).max(axis=1)
    )
    worst = gaps.pivot_table(index="seed", columns="strategy", values="gap", aggfunc="max")
    after = worst[list(NAMES)].max(axis=1)
    ends = gaps[gaps["time"] == gaps["time"].max()]
    relative = (ends["gap"] / ends[["theory_1", "theory_2"]].max(axis=1)).groupby(ends["seed"])
    relative = relative.max()
    optimal = tables["protocols"].query("strategy == 'optimal'")
    focus = pd.Series(
        {seed: protocol_of(rows).focus_length(1) for seed, rows in optimal.groupby("seed")}
    )
    return [
        Claim(
            "After 1,000 units on task 1 its loss is about 1e-6.",
            "within a factor of 10",
            list((learnt > 1e-7) & (learnt < 1e-5)),
            {"loss": learnt},
        ),
        Claim(
            "SGD deviates from the theory by less than 1/√N.",
            "at 101 times of the second phase, for all three strategies",
            list(after < bound),
            {
                "largest deviation × √N": after / bound,
                "at the end, relative to the loss": relative,
                "in the first phase": worst["first phase"] / bound,
            },
        ),
        Claim(
            "Optimal replay ends below interleaved, which ends below no replay.",
            "the mean losses at the end are in this order",
            list(
                (final["optimal"] < final["interleaved 1:1"])
                & (final["interleaved 1:1"] < final["no replay"])
            ),
            {
                "interleaved / optimal": final["interleaved 1:1"] / final["optimal"],
                "no replay / interleaved": final["no replay"] / final["interleaved 1:1"],
                "optimal": final["optimal"],
            },
        ),
        Claim(
            "The optimal strategy always opens with a phase on the new task alone.",
            "it lasts at least 1 unit",
            list(focus >= 1.0),
            {"its length": focus},
            always=True,
        ),
    ]
