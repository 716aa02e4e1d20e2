"""Fig. 9: annealed learning rates and the joint optimum beside strategies at a constant rate."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from replan import strategies
from replan._common import plotting
from replan.control import solve
from replan.paper._parts import (
    LOOKS,
    Run,
    Tables,
    by_strategy,
    continual,
    draw_losses_by_strategy,
    grid,
    losses_by_strategy,
)
from replan.paper.claims import Claim
from replan.problem import Control, Problem
from replan.protocol import Protocol
from replan.trajectory import evaluate

FULL = {
    "seeds": 10,
    "steps": 100,
    "similarities": [round(0.1 * i - 0.05, 2) for i in range(1, 11)],
    "max_lr": 10.0,
}
QUICK = {"seeds": 2, "steps": 25, "similarities": [0.1, 0.5, 0.9], "max_lr": 10.0}
EXPONENTS = [0.0, 0.25, 0.5, 1.0, 2.0, 4.0]
SCALES = [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 12.8]  # of the duration
_CONSTANT = (
    "no replay", "interleaved 1:1", "interleaved, optimal share", "optimal",
    "optimal, revision shuffled",
)  # fmt: skip
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
    bases = [
        strategies.interleaved(joint),
        strategies.interleaved(joint, shares=best.protocol.mean_shares),
    ]
    revised = strategies.shuffled(joint, protocol=best.protocol, after=focus, seed=seed)
    return {
        "losses": {
            "no replay": evaluate(joint, strategies.no_replay(joint)).loss,
            "interleaved 1:1": evaluate(joint, bases[0]).loss,
            "interleaved, optimal share": evaluate(joint, bases[1]).loss,
            "optimal, revision shuffled": evaluate(joint, revised).loss,
            "optimal": best.loss,
            "power law": min(_annealed(joint, base, exponent=EXPONENTS) for base in bases),
            "exponential": min(
                _annealed(joint, base, scale=[joint.duration * x for x in SCALES]) for base in bases
            ),
            "joint optimum": plan.loss,
        },
        "plan": {
            "gradients": plan.statistics["gradients"] + best.statistics["gradients"],
            "status": plan.status if plan.status != "converged" else best.status,
        },
    }


def _annealed(problem: Problem, base: Protocol, **grid: Any) -> float:
    """Return the smallest loss of a schedule over a grid, with the tasks of `base`."""
    schedule = strategies.power_law_lr if "exponent" in grid else strategies.exponential_lr
    _, high = problem.control.lr or (0.0, 0.0)
    rates = high * np.geomspace(1 / 64, 1, 13)
    found = strategies.grid_search(problem, schedule, initial=rates, protocol=base, **grid)
    return evaluate(problem, found.protocol).loss


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
        "plans": pd.DataFrame([point | result["plan"] for point, result in pairs]),
    }


def draw(tables: Tables) -> plotting.Picture:
    """Draw final losses against similarity."""
    with plotting.figure(width=5.6, height=3.4) as figure:
        axes = figure.subplots()
        labelled = {
            name: look | {"label": f"{name}, η = 1" if name in _CONSTANT else name}
            for name, look in NAMES.items()
        }
        draw_losses_by_strategy(axes, tables["losses"], labelled)
        axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))
    return figure


def claims(tables: Tables) -> list[Claim]:
    """Check what the paper says about Fig. 9."""
    losses = by_strategy(tables["losses"])
    joint = losses["joint optimum"]
    names = [name for name in NAMES if name != "joint optimum"]
    best = pd.concat([losses[name] for name in names], keys=names).groupby(level=1).min()
    annealed = np.minimum(losses["power law"], losses["exponential"])
    return [
        Claim(
            "The joint optimum of tasks and learning rate outperforms every other strategy.",
            "by at least 1 % at all γ (annealed rates are among the solver's starts)",
            list((1.01 * joint < best).all(axis=1)),
            {
                "best annealed / joint, median over γ": (annealed / joint).median(axis=1),
                "best other / joint, median over γ": (best / joint).median(axis=1),
                "smallest over γ": (best / joint).min(axis=1),
            },
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
