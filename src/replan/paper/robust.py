"""What is lost by not knowing: one protocol, or one rule, for many starts of the paper's problem.

Not a figure of the paper, whose optima know the overlaps of their start.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from replan._common import plotting
from replan.control import solve
from replan.control._regret import own_optimum
from replan.control.relax import Relax
from replan.paper._parts import Run, Tables, continual
from replan.paper.claims import Claim
from replan.problem import Ensemble, Problem
from replan.strategies import interleaved
from replan.trajectory import evaluate
from replan.tuning import tune

FULL = {
    "steps": 50,
    "similarities": [0.1, 0.3, 0.5, 0.7, 0.9],
    "counts": [1, 2, 4, 8, 16, 32, 64],
    "similarity": 0.3,
    "members": 16,
    "tests": 16,
    "repeats": 3,
}
QUICK = {
    "steps": 25,
    "similarities": [0.2, 0.8],
    "counts": [1, 2, 4],
    "similarity": 0.3,
    "members": 3,
    "tests": 4,
    "repeats": 2,
}

NAMES: dict[str, dict[str, Any]] = {
    "interleaved": {"color": "#0072B2", "marker": "s", "linestyle": "-"},
    "focus-then-replay": {"color": "0.25", "marker": "x", "linestyle": ":"},
    "tuned rule": {"color": "#EE7733", "marker": "^", "linestyle": "--"},
    "one protocol": {"color": "#009988", "marker": "v", "linestyle": "-."},
    "own optimum": {"color": "#CC3311", "marker": "o", "linestyle": "-"},
}
_KNOWS = "own optimum"
_EVERY = 2  # steps from one observation of a rule to the next
_REACHED = 0.5  # of the gap between interleaved and the own optimum: worth having


def knowing(problem: dict[str, Any], seeds: Sequence[int]) -> dict[str, Any]:
    """Return the losses of what knows each start, or needs to know nothing of any."""
    posed = Problem.from_dict(_of_seed(problem, seeds=list(seeds)))
    rule = tune(posed, every=_EVERY, until="met", margin=0.0, shares=None)  # nothing to tune
    return {
        _KNOWS: _own_optima(posed),
        "interleaved": evaluate(posed, interleaved(posed)).member_losses.tolist(),
        "focus-then-replay": rule.values.tolist(),
    }


def case(
    problem: dict[str, Any], seeds: Sequence[int], test_seeds: Sequence[int]
) -> dict[str, Any]:
    """Return the losses, on unseen starts, of what is found by looking at other ones.

    And the mean regret of the one protocol on the starts that it was made for.
    """
    ensemble = {"test_seeds": list(test_seeds)}
    posed = Problem.from_dict(_of_seed(problem, seeds=list(seeds)) | {"ensemble": ensemble})
    assert isinstance(posed, Ensemble) and posed.unseen is not None
    plan, rule = solve(posed), tune(posed, every=_EVERY)
    unseen = evaluate(posed.unseen, plan.protocol).member_losses
    return {
        "losses": {"one protocol": unseen.tolist(), "tuned rule": rule.unseen_values.tolist()},
        "seen": plan.loss - float(np.mean(_own_optima(posed))),
        "settings": {key: x for key, x in rule.settings.items() if x not in (None, np.inf)},
        "status": plan.status,
        "residual": plan.certificate.pmp_residual / plan.loss,
    }


def _own_optima(posed: Problem) -> list[float]:
    return [own_optimum(one, Relax(starts=1, tolerance=1e-3)) for one in posed.members]


def _of_seed(problem: dict[str, Any], **seed: Any) -> dict[str, Any]:
    start = {key: x for key, x in problem["start"]["pretrain"].items() if key != "seed"}
    return problem | {"start": {"pretrain": start | seed}}


def compute(
    run: Run, *, steps: int, similarities: list[float], counts: list[int], similarity: float,
    members: int, tests: int, repeats: int,
) -> Tables:  # fmt: skip
    """Return the tables `losses`, by similarity and by members, and `plans`."""
    points: list[dict[str, Any]] = [
        {"similarity": value, "members": members, "repeat": 0} for value in similarities
    ]
    points += [
        {"similarity": similarity, "members": count, "repeat": repeat}
        for count in counts
        for repeat in range(repeats)
    ]
    parts = ["similarity"] * len(similarities) + ["members"] * len(counts) * repeats
    tested = list(range(tests))
    posed = {x: continual(x, 0, steps=steps) for x in {*similarities, similarity}}
    known = run(knowing, [{"problem": one, "seeds": tested} for one in posed.values()])
    known_at = dict(zip(posed, known, strict=True))
    cases = [
        {
            "problem": posed[point["similarity"]],
            "seeds": [tests + point["repeat"] * max(counts) + i for i in range(point["members"])],
            "test_seeds": tested,
        }
        for point in points
    ]
    whole = list(zip(parts, points, run(case, cases), strict=True))
    losses = [
        {"against": part, **point, "strategy": name, "test": i, "loss": loss}
        for part, point, result in whole
        for name, values in (known_at[point["similarity"]] | result["losses"]).items()
        for i, loss in enumerate(values)
        if name in NAMES
    ]
    plans = [
        {"against": part, **point, "seen": result["seen"]}
        | {
            "unseen": float(
                np.mean(result["losses"]["one protocol"])
                - np.mean(known_at[point["similarity"]][_KNOWS])
            )
        }
        | {f"rule_{key}": x for key, x in result["settings"].items()}
        | {"residual": result["residual"], "status": result["status"]}
        for part, point, result in whole
    ]
    return {"losses": pd.DataFrame(losses), "plans": pd.DataFrame(plans)}


def closed(losses: pd.DataFrame) -> pd.DataFrame:
    """Return how much of the gap between interleaved and the own optimum each strategy closes.

    Of means over the members tested; a row for each point, a column for each strategy.
    """
    means = losses.pivot_table(
        index=["similarity", "members", "repeat"], columns="strategy", values="loss"
    )
    worst, best = means["interleaved"], means[_KNOWS]
    return means.rsub(worst, axis=0).div(worst - best, axis=0)


def draw(tables: Tables) -> plotting.Picture:
    """Draw losses against similarity, and parts of the gap and regrets against members."""
    losses, plans = tables["losses"], tables["plans"]
    with plotting.figure(width=9.6, height=3.9) as figure:
        left, middle, right = figure.subplots(1, 3)
        shown = losses[losses["against"] == "similarity"]
        for name, look in NAMES.items():
            some = shown[shown["strategy"] == name]
            band = {"band": name in ("interleaved", _KNOWS)}
            plotting.draw_median(left, some, x="similarity", y="loss", label=name, **look | band)
        left.set(yscale="log", xlabel="task similarity γ", ylabel="final mean loss, unseen starts")
        parts = closed(losses[losses["against"] == "members"]).reset_index()
        for name, look in NAMES.items():
            if name in ("interleaved", _KNOWS):
                continue
            some = parts.assign(part=100 * parts[name])
            plotting.draw_median(middle, some, x="members", y="part", **look)
        middle.set(ylabel="of the gap that is closed, %")
        many = plans[plans["against"] == "members"]
        for part, line in (("seen", ":"), ("unseen", "-")):
            plotting.draw_median(
                right, many, x="members", y=part, label=f"one protocol, {part} starts",
                color="#009988", marker="v", linestyle=line,
            )  # fmt: skip
        right.set(ylabel="mean regret against own optima")
        right.legend(fontsize=8)
        counts = sorted(set(many["members"]))
        for axes in (middle, right):
            axes.set(xscale="log", xlabel="members")
            axes.set_xticks(counts, [str(count) for count in counts])
            axes.set_xticks([], minor=True)
        handles, _ = left.get_legend_handles_labels()
        figure.legend(handles=handles, loc="outside upper center", ncols=5, fontsize=8)
    return figure


def claims(tables: Tables) -> list[Claim]:
    """Check what somebody who knows nothing should do."""
    losses, plans = tables["losses"], tables["plans"]
    by_similarity = closed(losses[losses["against"] == "similarity"])
    by_members = closed(losses[losses["against"] == "members"])
    many = plans[plans["against"] == "members"].assign(gap=lambda x: x["unseen"] - x["seen"])
    slope, gaps = _slope(many)
    largest = by_members.index.get_level_values("members").max()
    last = by_members.xs(largest, level="members")
    one, rule, plain = (by_similarity[x] for x in ("one protocol", "tuned rule",
                                                   "focus-then-replay"))  # fmt: skip
    return [
        Claim(
            "One protocol for all starts is worth having without knowing any.",
            f"on unseen starts it closes at least {_REACHED:.0%} of the gap between interleaved "
            "and the own optimum",
            list(one >= _REACHED),
            {"part of the gap closed": one},
            over="similarity",
        ),
        Claim(
            "A rule that reacts, as it is, is worth having.",
            "focus-then-replay, until the losses meet and then equal shares, closes at least "
            f"{_REACHED:.0%} of the gap, on unseen starts",
            list(plain >= _REACHED),
            {"part of the gap closed": plain},
            over="similarity",
        ),
        Claim(
            "Tuning the rule by theory pays on starts that it has not seen.",
            "the tuned rule closes more of the gap than focus-then-replay as it is",
            list(rule > plain),
            {"tuned": rule, "as it is": plain, "difference": rule - plain},
            over="similarity",
        ),
        Claim(
            "A rule that reacts beats one protocol for all.",
            "the tuned rule closes more of the gap than the protocol, on unseen starts",
            list(rule > one),
            {"rule − protocol": rule - one},
            over="similarity",
        ),
        Claim(
            "The regret on unseen starts comes down to that on seen ones as members are added.",
            "a regression of the log of the mean difference, where it is positive, on log members "
            "has a negative slope",
            [None if slope is None else slope < 0],
            {"slope": np.nan if slope is None else slope}
            | {f"gap, {m} members": gap for m, gap in gaps.items()},
            over="regression",
        ),
        Claim(
            "With many members one protocol is as good as it gets: more would not help.",
            f"with {largest} it closes within 5 % of the gap of what half as many do",
            list((last["one protocol"] - _half(by_members, largest)).abs() <= 0.05),
            {f"part closed with {largest}": last["one protocol"]},
            over="draw of members",
        ),
    ]


def _slope(many: pd.DataFrame) -> tuple[float | None, dict[int, float]]:
    """Return the slope of log gap against log members, and the mean gap by members.

    A mean gap that is not positive has no logarithm; with fewer than two others there is no slope.
    """
    gaps = many.groupby("members")["gap"].mean()
    positive = gaps[gaps > 0]
    x, y = np.log(positive.index.to_numpy(float)), np.log(positive.to_numpy())
    slope = float(np.polyfit(x, y, 1)[0]) if positive.size > 1 else None
    return slope, {int(m): float(gap) for m, gap in gaps.items()}


def _half(parts: pd.DataFrame, largest: int) -> pd.Series:
    """Return what one protocol closes with the next smaller number of members."""
    counts = sorted(set(parts.index.get_level_values("members")))
    return parts.xs(counts[-2] if len(counts) > 1 else largest, level="members")["one protocol"]
