"""Fig. 5: both tasks from scratch, sequentially, interleaved and optimally."""

from typing import Any

import replan
from replan import strategies
from reproduction.base import Claim, Figure, Tables, over
from reproduction.drawing import LOOKS
from reproduction.theory import parts

FULL = {
    "seeds": 10,
    "steps": 200,
    "duration": 10.0,
    "lr": 10.0,
    "similarities": [round(0.05 * i, 2) for i in range(1, 20)],
}
QUICK = FULL | {"seeds": 3, "steps": 50, "similarities": [0.0, 0.1, 0.3, 0.6, 0.9]}
NAMES = {
    "sequential": LOOKS["no replay"],
    "interleaved 1:1": LOOKS["interleaved 1:1"],
    "optimal": LOOKS["optimal"],
}


def case(similarity: float, seed: int, activation: str = "erf", **training: Any) -> dict[str, Any]:
    """Return the final losses of all strategies on one problem; sequential is both orders' mean."""
    content = {"model": parts.two_tasks(similarity, activation), "start": {"fresh": {"seed": seed}}}
    problem = replan.Problem.from_dict(content | {"training": training})
    plan = replan.solve(problem)
    orders = [strategies.sequential(problem, order=order) for order in ([0, 1], [1, 0])]
    losses = {
        "sequential": sum(parts.loss(problem, protocol) for protocol in orders) / 2,
        "interleaved 1:1": parts.loss(problem, strategies.interleaved(problem)),
        "optimal": plan.loss,
    }
    return {
        "losses": parts.rows_of(losses),
        "plans": [parts.search_row(plan)],
        "protocols": parts.protocol_rows({"optimal": plan.protocol}),
    }


compute = over(case, similarity="similarities", seed="seeds")


def draw(tables: Tables) -> Figure:
    """Draw losses against similarity, and the optimum's colour bars for four similarities."""
    return parts.draw_against_similarity(tables, NAMES)


def claims(tables: Tables) -> list[Claim]:
    """Check what the paper says about Fig. 5."""
    losses = parts.by_strategy(tables["losses"])
    sequential, interleaved = losses["sequential"], losses["interleaved 1:1"]
    rise = interleaved.pct_change(axis=1).iloc[:, 1:].max(axis=1)
    gain = 1 - losses["optimal"] / interleaved
    return [
        parts.largest_inside(
            "Learning one task after the other is worst at an intermediate similarity.", sequential
        ),
        Claim(
            "The loss of interleaved training decreases with similarity.",
            "at all γ",
            rise < 0,
            {
                "largest rise from one γ to the next, relative": rise,
                "loss at the smallest γ / at the largest": interleaved.iloc[:, 0]
                / interleaved.iloc[:, -1],
            },
        ),
        Claim(
            "Interleaved training is better than sequential.",
            "at all γ",
            (interleaved < sequential).all(axis=1),
            {"sequential / interleaved, median over γ": (sequential / interleaved).median(axis=1)},
        ),
        Claim(
            "The optimum gains only marginally over interleaved training.",
            "less than 10 %, median over γ",
            gain.median(axis=1) < 0.1,
            {"gain, median over γ": gain.median(axis=1), "largest gain": gain.max(axis=1)},
        ),
    ]
