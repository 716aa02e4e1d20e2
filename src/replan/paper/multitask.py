"""Fig. 5: both tasks from scratch, sequentially, interleaved and optimally."""

from __future__ import annotations

from typing import Any

from replan import strategies
from replan._common import plotting
from replan.control import solve
from replan.paper._parts import (
    LOOKS,
    Run,
    Tables,
    by_strategy,
    collect,
    draw_against_similarity,
    grid,
    largest_inside,
    two_tasks,
)
from replan.paper.claims import Claim
from replan.problem import Problem
from replan.trajectory import evaluate

FULL = {
    "seeds": 10, "steps": 200, "duration": 10.0, "lr": 10.0,
    "similarities": [round(0.05 * i, 2) for i in range(1, 20)],
}  # fmt: skip
QUICK = FULL | {"seeds": 3, "steps": 50, "similarities": [0.0, 0.1, 0.3, 0.6, 0.9]}
NAMES = {
    "sequential": LOOKS["no replay"],
    "interleaved 1:1": LOOKS["interleaved 1:1"],
    "optimal": LOOKS["optimal"],
}


def case(problem: dict[str, Any]) -> dict[str, Any]:
    """Return the final losses of all strategies on one problem; sequential is both orders' mean."""
    posed = Problem.from_dict(problem)
    plan = solve(posed)
    orders = [strategies.sequential(posed, order=order) for order in ([0, 1], [1, 0])]
    return {
        "losses": {
            "sequential": sum(evaluate(posed, made).loss for made in orders) / 2,
            "interleaved 1:1": evaluate(posed, strategies.interleaved(posed)).loss,
            "optimal": plan.loss,
        },
        "plan": {"gradients": plan.statistics["gradients"], "status": plan.status},
        "protocol": plan.protocol.to_dict(),
    }


def compute(
    run: Run, *, seeds: int, steps: int, duration: float, lr: float, similarities: list[float],
    activation: str = "erf",
) -> Tables:  # fmt: skip
    """Return the tables `losses`, `plans` and `protocols`."""
    points = grid(similarities, seeds)
    results = run(
        case,
        [
            {
                "problem": {
                    "model": two_tasks(point["similarity"], activation),
                    "start": {"fresh": {"seed": point["seed"]}},
                    "training": {"duration": duration, "steps": steps, "lr": lr},
                }
            }
            for point in points
        ],
    )
    return collect(points, results)


def draw(tables: Tables) -> plotting.Picture:
    """Draw losses against similarity, and the optimum's colour bars for four similarities."""
    return draw_against_similarity(tables, NAMES)


def claims(tables: Tables) -> list[Claim]:
    """Check what the paper says about Fig. 5."""
    losses = by_strategy(tables["losses"])
    sequential, interleaved = losses["sequential"], losses["interleaved 1:1"]
    ends = [sequential.columns[0], sequential.columns[-1]]
    gain = 1 - losses["optimal"] / interleaved
    return [
        largest_inside(
            "Learning one task after the other is worst at an intermediate similarity.", sequential
        ),
        Claim(
            "The loss of interleaved training decreases with similarity.",
            "at all γ",
            list((interleaved.diff(axis=1).iloc[:, 1:] < 0).all(axis=1)),
            {
                "largest rise from one γ to the next, relative": (
                    interleaved.pct_change(axis=1).iloc[:, 1:].max(axis=1)
                ),
                "loss at the smallest γ / at the largest": interleaved[ends[0]]
                / interleaved[ends[1]],
            },
        ),
        Claim(
            "Interleaved training is better than sequential.",
            "at all γ",
            list((interleaved < sequential).all(axis=1)),
            {"sequential / interleaved, median over γ": (sequential / interleaved).median(axis=1)},
        ),
        Claim(
            "The optimum gains only marginally over interleaved training.",
            "less than 10 %, median over γ",
            list(gain.median(axis=1) < 0.1),
            {"gain, median over γ": gain.median(axis=1), "largest gain": gain.max(axis=1)},
        ),
    ]
