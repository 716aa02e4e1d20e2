"""Fig. 3: the final loss of five strategies against the similarity of the tasks."""

from typing import Any

import numpy as np

import replan
from replan import strategies
from reproduction.base import Claim, Figure, Tables, over
from reproduction.drawing import LOOKS
from reproduction.theory import parts

FULL = {"seeds": 10, "steps": 250, "similarities": [round(0.05 * i, 2) for i in range(1, 20)]}
QUICK = {"seeds": 3, "steps": 50, "similarities": [0.0, 0.1, 0.3, 0.6, 0.9]}


def case(similarity: float, seed: int, steps: int, activation: str = "erf") -> dict[str, Any]:
    """Return the final losses of all strategies on one problem, and what the optimum looks like."""
    problem = parts.continual(similarity, seed, steps, activation=activation)
    plan = replan.solve(problem)
    focus, share = plan.protocol.focus_length(1), plan.protocol.mean_shares
    old, new = plan.trajectory.losses_at([focus])[0]
    losses = at_fixed_rate(problem, plan, seed)
    optimum = {
        "focus": focus,
        "replay_share": share[0],
        "loss_ratio": new / old,
        "meeting": strategies.focus_then_replay(problem).focus_length(1),
    }
    return {
        "losses": parts.rows_of(losses),
        "plans": [optimum | parts.search_row(plan)],
        "protocols": parts.protocol_rows({"optimal": plan.protocol}),
    }


def at_fixed_rate(problem: replan.Problem, plan: replan.Plan, seed: int) -> dict[str, float]:
    """Return the losses of the five strategies, given the optimum at the fixed rate."""
    focus, share = plan.protocol.focus_length(1), plan.protocol.mean_shares
    protocols = {
        "no replay": strategies.no_replay(problem),
        "interleaved 1:1": strategies.interleaved(problem),
        "interleaved, optimal share": strategies.interleaved(problem, shares=share),
        "optimal, revision shuffled": strategies.shuffled(
            problem, protocol=plan.protocol, after=focus, seed=seed
        ),
    }
    return {name: parts.loss(problem, x) for name, x in protocols.items()} | {"optimal": plan.loss}


compute = over(case, similarity="similarities", seed="seeds")


def draw(tables: Tables) -> Figure:
    """Draw losses against similarity, and the optimum's colour bars for four similarities."""
    return parts.draw_against_similarity(tables, LOOKS)


def claims(tables: Tables) -> list[Claim]:
    """Check what the paper says about Fig. 3."""
    losses, plans = parts.by_strategy(tables["losses"]), tables["plans"]
    optimal = losses["optimal"]
    least, ends = optimal.min(axis=1), optimal.iloc[:, [0, -1]].min(axis=1)
    excess = losses["optimal, revision shuffled"] / optimal - 1
    price = (losses["interleaved, optimal share"] / optimal - 1).median(axis=1)
    ratio = plans.pivot_table(index="seed", columns="similarity", values="loss_ratio")
    near = ((ratio > 0.5) & (ratio < 2)).mean(axis=1)
    return [
        parts.largest_inside(
            "Without replay the loss is largest at an intermediate similarity.",
            losses["no replay"],
        ),
        Claim(
            "With optimal replay the loss is smallest at an intermediate similarity.",
            "the smallest loss is 5 % below those at the smallest and the largest γ",
            least < 0.95 * ends,
            {
                "γ of the smallest loss": optimal.idxmin(axis=1),
                "smallest loss / smaller end": least / ends,
            },
        ),
        Claim(
            "The optimum with its revision shuffled performs comparably to the optimum.",
            "within 10 % of the optimum at 90 % of all γ",
            excess.quantile(0.9, axis=1) < 0.1,
            {
                "excess loss, median over γ": excess.median(axis=1),
                "largest excess over γ": excess.max(axis=1),
            },
        ),
        Claim(
            "The same share of replay without a focus phase performs worse.",
            "its excess is above 5 % and above twice that of the shuffled revision, medians over γ",
            price > np.maximum(0.05, 2 * excess.median(axis=1)),
            {"excess of interleaved at the optimal share, median over γ": price},
        ),
        Claim(
            "The focus phase ends about where the losses of the tasks meet.",
            "at its end the losses are within a factor of 2 at half of all γ",
            near >= 0.5,
            {
                "loss of task 2 / task 1 at its end, median over γ": ratio.median(axis=1),
                "share of γ within a factor of 2": near,
                "end of the focus phase, median over γ": plans.groupby("seed")["focus"].median(),
                "where they meet without replay": plans.groupby("seed")["meeting"].median(),
            },
        ),
    ]
