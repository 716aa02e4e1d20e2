"""Ours: what is lost by not knowing: one protocol, or one rule, for many starts.

The paper's optima know the overlaps of their start.
"""

from functools import partial
from typing import Any

import numpy as np
import pandas as pd

import replan
from replan import strategies
from reproduction.base import Claim, Figure, Run, Tables, collect, grid, pick
from reproduction.drawing import draw_median, figure, legend_above
from reproduction.theory.parts import continual, loss, search_row

FULL = {
    "steps": 50,
    "similarities": [0.1, 0.3, 0.5, 0.7, 0.9],
    "counts": [1, 2, 4, 8, 16, 32, 64],
    "similarity": 0.3,
    "members": 16,
    "tests": 16,
    "repeats": 3,
}
QUICK = FULL | {
    "steps": 25, "similarities": [0.2, 0.8], "counts": [1, 2, 4], "members": 3, "tests": 4,
    "repeats": 2,
}  # fmt: skip
ONE, RULE, OWN, MIXED = "one protocol", "focus-then-replay", "own optimum", "interleaved"
LOOKS: dict[str, dict[str, Any]] = {
    MIXED: {"color": "#0072B2", "marker": "s", "linestyle": "-"},
    RULE: {"color": "0.25", "marker": "x", "linestyle": ":", "band": False},
    ONE: {"color": "#009988", "marker": "v", "linestyle": "-.", "band": False},
    OWN: {"color": "#CC3311", "marker": "o", "linestyle": "-"},
}
_REACHED = 0.5  # of the gap between interleaved and the own optimum: worth having
_POINT = ["similarity", "members", "repeat"]


def knowing(similarity: float, steps: int, tests: int) -> dict[str, Any]:
    """Return the losses, on each start, of what knows it or needs to know nothing."""
    rows = []
    for seed in range(tests):
        problem = continual(similarity, seed, steps)
        losses = {
            OWN: _own_optimum(problem),
            MIXED: loss(problem, strategies.interleaved(problem)),
            RULE: loss(problem, strategies.focus_then_replay(problem)),
        }
        rows += [{"strategy": name, "test": seed, "loss": x} for name, x in losses.items()]
    return {"losses": rows}


def case(
    against: str, similarity: float, members: int, repeat: int, steps: int, tests: int, apart: int
) -> dict[str, Any]:
    """Return the losses, on unseen starts, of the protocol that is best for some others.

    Draws of members begin `apart` from each other; `against` is a label. `seen`: the mean regret on
    the members themselves.
    """
    first = tests + repeat * apart
    problems = [continual(similarity, first + i, steps) for i in range(members)]
    plan = replan.solve(replan.Problem.ensemble(problems))
    unseen = [loss(continual(similarity, seed, steps), plan.protocol) for seed in range(tests)]
    regret = plan.loss - float(np.mean([_own_optimum(problem) for problem in problems]))
    row = {"seen": regret, "residual": plan.certificate.pmp_residual / plan.loss}
    return {
        "losses": [{"strategy": ONE, "test": i, "loss": x} for i, x in enumerate(unseen)],
        "plans": [row | search_row(plan)],
    }


def _own_optimum(problem: replan.Problem) -> float:
    """Return the least loss of a protocol for one start, which may mix tasks in a step."""
    plan = replan.solve(problem, replan.Relax(starts=1, tolerance=1e-3))
    return min(plan.loss, plan.certificate.relaxed_value)


def compute(
    run: Run, *, steps: int, similarities: list[float], counts: list[int], similarity: float,
    members: int, tests: int, repeats: int,
) -> Tables:  # fmt: skip
    """Return the tables `losses`, by similarity and by members, and `plans`."""
    common: dict[str, Any] = {"steps": steps, "tests": tests}
    values = sorted({*similarities, similarity})
    known = collect(run, knowing, grid(similarity=values), **common)["losses"]
    points = grid(against=["similarity"], similarity=similarities, members=[members], repeat=[0])
    points += grid(
        against=["members"], similarity=[similarity], members=counts, repeat=range(repeats)
    )
    tables = collect(run, case, points, **common, apart=max(counts))
    losses = pd.concat([tables["losses"], pd.DataFrame(points).merge(known)])
    return tables | {"losses": losses}


def _means(losses: pd.DataFrame, against: str) -> pd.DataFrame:
    """Return mean losses over the starts tested: a row for each point, a column each."""
    some = pick(losses, against=against)
    return some.pivot_table(index=_POINT, columns="strategy", values="loss")


def _regrets(tables: Tables) -> pd.DataFrame:
    """Return the mean regrets of one protocol on `seen` and `unseen` starts, by members."""
    means = _means(tables["losses"], "members")
    regrets = pick(tables["plans"], against="members").set_index(_POINT)[["seen"]]
    return regrets.assign(unseen=means[ONE] - means[OWN])


def closed(losses: pd.DataFrame, against: str) -> pd.DataFrame:
    """Return how much of the gap between interleaved and the own optimum each strategy closes."""
    means = _means(losses, against)
    return means.rsub(means[MIXED], axis=0).div(means[MIXED] - means[OWN], axis=0)


def draw(tables: Tables) -> Figure:
    """Draw losses against similarity, and parts of the gap and regrets against members."""
    losses, regrets = tables["losses"], _regrets(tables)
    picture = figure(9.6, 3.9)
    left, middle, right = picture.subplots(1, 3)
    for name, look in LOOKS.items():
        some = pick(losses, against="similarity", strategy=name)
        draw_median(left, some, x="similarity", y="loss", label=name, **look)
    left.set(yscale="log", xlabel="task similarity γ", ylabel="final mean loss, unseen starts")
    parts = 100 * closed(losses, "members")
    for name in (RULE, ONE):
        draw_median(middle, parts, x="members", y=name, **LOOKS[name])
    middle.set(ylabel="of the gap that is closed, %")
    for part, line in (("seen", ":"), ("unseen", "-")):
        look = LOOKS[ONE] | {"linestyle": line, "band": True, "label": f"one protocol, {part}"}
        draw_median(right, regrets, x="members", y=part, **look)
    right.set(ylabel="mean regret against own optima")
    right.legend()
    counts = regrets.index.unique("members")
    for axes in (middle, right):
        axes.set(xscale="log", xlabel="members")
        axes.set_xticks(counts, counts)
        axes.set_xticks([], minor=True)
    legend_above(picture, left)
    return picture


def claims(tables: Tables) -> list[Claim]:
    """Check what somebody who knows nothing should do."""
    by_similarity, by_members = (closed(tables["losses"], x) for x in ("similarity", "members"))
    judge = partial(Claim, over="similarity")
    one, rule = by_similarity[ONE], by_similarity[RULE]
    regrets = _regrets(tables)
    gaps = (regrets["unseen"] - regrets["seen"]).groupby("members").mean()
    positive = gaps[gaps > 0]
    slope = np.nan
    if len(positive) > 1:  # a gap that is not positive has no logarithm
        slope = np.polyfit(np.log(positive.index.to_numpy(float)), np.log(positive), 1)[0]
    parts = by_members[ONE].unstack("members")
    largest, before = parts.columns[-1], parts.columns[max(len(parts.columns) - 2, 0)]
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
        Claim(
            "The regret on unseen starts comes down to that on seen ones as members are added.",
            "a regression of the log of the mean difference, where it is positive, on log members "
            "has a negative slope",
            [None if np.isnan(slope) else slope < 0],
            {"slope": slope} | {f"gap, {m} members": gap for m, gap in gaps.items()},
            "regression",
        ),
        Claim(
            "With many members one protocol is as good as it gets: more would not help.",
            f"with {largest} it closes within 5 % of the gap of what half as many do",
            (parts[largest] - parts[before]).abs() <= 0.05,
            {f"part closed with {largest}": parts[largest]},
            "draw of members",
        ),
    ]
