"""Fig. 9: annealed learning rates and the joint optimum beside strategies at a constant rate."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pandas as pd

from replan import plotting, strategies
from replan.claims import Claim
from replan.control import solve
from replan.figures.parts import LOOKS, Run, Tables, continual, grid, losses_by_strategy
from replan.files import FilePath
from replan.problem import Control, Problem
from replan.trajectory import evaluate

FULL = {
    "seeds": 10,
    "steps": 100,
    "similarities": [round(0.1 * i - 0.05, 2) for i in range(1, 11)],
    "max_lr": 10.0,
}
QUICK = {"seeds": 2, "steps": 25, "similarities": [0.1, 0.5, 0.9], "max_lr": 10.0}
_CONSTANT = ("no replay", "interleaved 1:1", "optimal", "pseudo-optimal")
NAMES = {name: LOOKS[name] for name in _CONSTANT} | {
    "power law": {"color": "#EE7733", "marker": "^", "linestyle": "-.", "band": False},
    "exponential": {"color": "#009988", "marker": "v", "linestyle": "--", "band": False},
    "joint optimum": {"color": "#663333", "marker": "P", "linestyle": "-"},
}


def case(problem: dict[str, Any], seed: int) -> dict[str, Any]:
    """Return the final losses of all strategies on one problem."""
    joint = Problem.from_dict(problem)
    steady = replace(joint, control=Control())
    plan, best = solve(joint), solve(steady)
    focus = best.protocol.focus_length(1)
    protocols = {
        "no replay": strategies.no_replay(joint),
        "interleaved 1:1": strategies.interleaved(joint),
        "pseudo-optimal": strategies.shuffled(
            joint, protocol=best.protocol, after=focus, seed=seed
        ),
        "power law": strategies.power_law_lr(joint),
        "exponential": strategies.exponential_lr(joint),
    }
    return {
        "losses": {name: evaluate(joint, made).loss for name, made in protocols.items()}
        | {"optimal": best.loss, "joint optimum": plan.loss},
        "gradients": plan.statistics["gradients"] + best.statistics["gradients"],
    }


def compute(
    run: Run, *, seeds: int, steps: int, similarities: list[float], max_lr: float
) -> Tables:
    """Return the tables `losses` and `plans`."""
    lr = {"min": 0.0, "max": max_lr}
    points = grid(similarities, seeds)
    results = run(
        case,
        [
            {"problem": continual(**point, steps=steps, lr=lr), "seed": point["seed"]}
            for point in points
        ],
    )
    pairs = list(zip(points, results, strict=True))
    return {
        "losses": losses_by_strategy(points, results),
        "plans": pd.DataFrame([point | {"gradients": r["gradients"]} for point, r in pairs]),
    }


def draw(tables: Tables, path: FilePath) -> None:
    """Draw final losses against similarity."""
    losses = tables["losses"]
    with plotting.figure(path, width=5.6, height=3.4) as figure:
        axes = figure.subplots()
        for name, look in NAMES.items():
            chosen = losses[losses["strategy"] == name]
            label = f"{name}, η = 1" if name in _CONSTANT else name
            plotting.draw_median(axes, chosen, x="similarity", y="loss", label=label, **look)
        axes.set(yscale="log", xlabel="task similarity γ", ylabel="final mean loss")
        axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))


def claims(tables: Tables) -> list[Claim]:
    """Check what the paper says of its Fig. 9."""
    losses = tables["losses"].pivot_table(
        index="seed", columns=["strategy", "similarity"], values="loss"
    )
    joint = losses["joint optimum"]
    names = [name for name in NAMES if name != "joint optimum"]
    best = pd.concat([losses[name] for name in names], keys=names).groupby(level=1).min()
    annealed = losses["power law"].where(
        losses["power law"] < losses["exponential"], losses["exponential"]
    )
    return [
        Claim(
            "The joint optimum of tasks and learning rate beats every other strategy.",
            "at all γ",
            list((joint < best).all(axis=1)),
            {
                "best other / joint, median over γ": (best / joint).median(axis=1),
                "smallest over γ": (best / joint).min(axis=1),
            },
        ),
        Claim(
            "Annealed interleaved training still leaves a gap to the joint optimum.",
            "at least 10 %, median over γ",
            list((annealed / joint).median(axis=1) > 1.1),
            {"best annealed / joint, median over γ": (annealed / joint).median(axis=1)},
        ),
        Claim(
            "Interleaved training with an annealed rate beats the optimum at η = 1.",
            "median over γ",
            list((annealed / losses["optimal"]).median(axis=1) < 1.0),
            {
                "best annealed / optimum at η = 1, median over γ": (
                    annealed / losses["optimal"]
                ).median(axis=1)
            },
        ),
    ]
