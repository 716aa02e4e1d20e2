"""Ours: what is lost by not knowing: one protocol, or one rule, for many starts.

The paper's optima know the overlaps of their start.
"""

from functools import partial
from typing import Any

import pandas as pd

import replan
from replan import strategies
from reproduction.base import Claim, Figure, Tables, over
from reproduction.drawing import draw_losses, figure, legend_above
from reproduction.theory.parts import continual, loss, search_row

FULL = {"steps": 50, "similarities": [0.1, 0.3, 0.5, 0.7, 0.9], "members": 16, "tests": 16}
QUICK = FULL | {"steps": 25, "similarities": [0.2, 0.8], "members": 3, "tests": 4}
ONE, RULE, OWN, MIXED = "one protocol", "focus-then-replay", "own optimum", "interleaved"
LOOKS: dict[str, dict[str, Any]] = {
    MIXED: {"color": "#0072B2", "marker": "s", "linestyle": "-"},
    RULE: {"color": "0.25", "marker": "x", "linestyle": ":", "band": False},
    ONE: {"color": "#009988", "marker": "v", "linestyle": "-.", "band": False},
    OWN: {"color": "#CC3311", "marker": "o", "linestyle": "-"},
}
_REACHED = 0.5  # of the gap between interleaved and the own optimum: worth having


def case(similarity: float, members: int, steps: int, tests: int) -> dict[str, Any]:
    """Return the losses, on each start tested, of one protocol for others and of the rest."""
    others = [continual(similarity, tests + i, steps) for i in range(members)]
    plan = replan.solve(replan.Problem.ensemble(others))
    rows = []
    for seed in range(tests):
        problem = continual(similarity, seed, steps)
        own = replan.solve(problem, replan.Relax(starts=1, tolerance=1e-3))
        losses = {
            OWN: min(own.loss, own.certificate.relaxed_value),  # may mix tasks in a step
            MIXED: loss(problem, strategies.interleaved(problem)),
            RULE: loss(problem, strategies.focus_then_replay(problem)),
            ONE: loss(problem, plan.protocol),
        }
        rows += [{"strategy": name, "test": seed, "loss": x} for name, x in losses.items()]
    return {"losses": rows, "plans": [search_row(plan)]}


compute = over(case, similarity="similarities")


def closed(losses: pd.DataFrame) -> pd.DataFrame:
    """Return how much of the gap between interleaved and the own optimum each strategy closes."""
    means = losses.pivot_table(index="similarity", columns="strategy", values="loss")
    return means.rsub(means[MIXED], axis=0).div(means[MIXED] - means[OWN], axis=0)


def draw(tables: Tables) -> Figure:
    """Draw losses on unseen starts against similarity, and parts of the gap that are closed."""
    picture = figure(7.2, 3.6)
    left, right = picture.subplots(1, 2)
    draw_losses(left, tables["losses"], LOOKS)
    parts = 100 * closed(tables["losses"])
    for name in (RULE, ONE):
        look = {key: x for key, x in LOOKS[name].items() if key != "band"}
        right.plot(parts.index, parts[name], **look)
    right.set(xlabel="task similarity γ", ylabel="of the gap that is closed, %")
    legend_above(picture, left)
    return picture


def claims(tables: Tables) -> list[Claim]:
    """Check what somebody who knows nothing should do."""
    judge, parts = partial(Claim, over="similarity"), closed(tables["losses"])
    one, rule = parts[ONE], parts[RULE]
    worth = f"closes at least {_REACHED:.0%} of the gap between interleaved and the own optimum"
    return [
        judge(
            "One protocol for all starts is worth having without knowing any.",
            f"on unseen starts it {worth}",
            one >= _REACHED,
            {"part of the gap closed": one},
        ),
        judge(
            "A rule that reacts is worth having.",
            f"focus-then-replay, until the losses meet and then equal shares, {worth}",
            rule >= _REACHED,
            {"part of the gap closed": rule},
        ),
        judge(
            "A rule that reacts beats one protocol for all.",
            "focus-then-replay closes more of the gap than the protocol, on unseen starts",
            rule > one,
            {"rule − protocol": rule - one},
        ),
    ]
