"""Fig. 3: the final loss of five strategies against the similarity of the tasks."""

from __future__ import annotations

from typing import Any

import numpy as np

from replan import strategies
from replan._common import plotting
from replan.control import solve
from replan.paper._parts import (
    LOOKS,
    Run,
    Tables,
    by_strategy,
    collect,
    continual,
    draw_against_similarity,
    grid,
    largest_inside,
)
from replan.paper.claims import Claim
from replan.problem import Problem
from replan.trajectory import evaluate

FULL = {"seeds": 10, "steps": 250, "similarities": [round(0.05 * i, 2) for i in range(1, 20)]}
QUICK = {"seeds": 3, "steps": 50, "similarities": [0.0, 0.1, 0.3, 0.6, 0.9]}


def case(problem: dict[str, Any], seed: int) -> dict[str, Any]:
    """Return the final losses of all strategies on one problem, and what the optimum looks like."""
    posed = Problem.from_dict(problem)
    plan = solve(posed)
    focus = plan.protocol.focus_length(1)
    share = plan.protocol.mean_shares
    protocols = {
        "no replay": strategies.no_replay(posed),
        "interleaved 1:1": strategies.interleaved(posed),
        "interleaved, optimal share": strategies.interleaved(posed, shares=share),
        "optimal, revision shuffled": strategies.shuffled(
            posed, protocol=plan.protocol, after=focus, seed=seed
        ),
    }
    old, new = plan.trajectory.losses_at([focus])[0]
    return {
        "losses": {name: evaluate(posed, made).loss for name, made in protocols.items()}
        | {"optimal": plan.loss},
        "plan": {
            "focus": focus,
            "replay_share": share[0],
            "loss_ratio": new / old,
            "meeting": strategies.focus_then_replay(posed).focus_length(1),
            "status": plan.status,
            "gradients": plan.statistics["gradients"],
        },
        "protocol": plan.protocol.to_dict(),
    }


def compute(
    run: Run, *, seeds: int, steps: int, similarities: list[float], activation: str = "erf"
) -> Tables:
    """Return the tables `losses`, `plans` and `protocols`."""
    points = grid(similarities, seeds)
    results = run(
        case,
        [
            {
                "problem": continual(**point, steps=steps, activation=activation),
                "seed": point["seed"],
            }
            for point in points
        ],
    )
    return collect(points, results)


def draw(tables: Tables) -> plotting.Picture:
    """Draw losses against similarity, and the optimum's colour bars for four similarities."""
    return draw_against_similarity(tables, LOOKS)


def claims(tables: Tables) -> list[Claim]:
    """Check what the paper says about Fig. 3."""
    losses = by_strategy(tables["losses"])
    plans = tables["plans"]
    no_replay, optimal = losses["no replay"], losses["optimal"]
    ends = [optimal.columns[0], optimal.columns[-1]]
    excess = losses["optimal, revision shuffled"] / optimal - 1
    price = losses["interleaved, optimal share"] / optimal - 1
    ratio = plans.pivot_table(index="seed", columns="similarity", values="loss_ratio")
    near = (ratio > 0.5) & (ratio < 2)
    return [
        largest_inside(
            "Without replay the loss is largest at an intermediate similarity.", no_replay
        ),
        Claim(
            "With optimal replay the loss is smallest at an intermediate similarity.",
            "the smallest loss is 5 % below those at the smallest and the largest γ",
            list(optimal.min(axis=1) < 0.95 * optimal[ends].min(axis=1)),
            {
                "γ of the smallest loss": optimal.idxmin(axis=1),
                "smallest loss / smaller end": optimal.min(axis=1) / optimal[ends].min(axis=1),
            },
        ),
        Claim(
            "The optimum with its revision shuffled performs comparably to the optimum.",
            "within 10 % of the optimum at 90 % of all γ",
            list(excess.quantile(0.9, axis=1) < 0.1),
            {
                "excess loss, median over γ": excess.median(axis=1),
                "largest excess over γ": excess.max(axis=1),
            },
        ),
        Claim(
            "The same share of replay without a focus phase performs worse.",
            "its excess is above 5 % and above twice that of the shuffled revision, medians over γ",
            list(price.median(axis=1) > np.maximum(0.05, 2 * excess.median(axis=1))),
            {"excess of interleaved at the optimal share, median over γ": price.median(axis=1)},
        ),
        Claim(
            "The focus phase ends about where the losses of the tasks meet.",
            "at its end the losses are within a factor of 2 at half of all γ",
            list(near.mean(axis=1) >= 0.5),
            {
                "loss of task 2 / task 1 at its end, median over γ": ratio.median(axis=1),
                "share of γ within a factor of 2": near.mean(axis=1),
                "end of the focus phase, median over γ": plans.groupby("seed")["focus"].median(),
                "where they meet without replay": plans.groupby("seed")["meeting"].median(),
            },
        ),
    ]
