"""The figure of what is lost by not knowing, at tiny size, and its claims on made-up tables."""

import pandas as pd
import pytest

from replan.paper import make
from replan.paper import robust as figure

TINY = {
    "steps": 6,
    "similarities": [0.3],
    "counts": [1, 2],
    "similarity": 0.6,
    "members": 2,
    "tests": 2,
    "repeats": 1,
}


def test_the_figure_at_tiny_size(tmp_path):
    [made] = make(["robust"], tmp_path, changes=TINY, workers=1)
    losses = pd.read_csv(tmp_path / "robust.csv")
    assert len(losses) == 3 * 5 * 2
    assert set(losses["strategy"]) == set(figure.NAMES)
    means = losses.groupby("strategy")["loss"].mean()
    assert means["own optimum"] <= means.min() * (1 + 1e-3)
    plans = pd.read_csv(tmp_path / "robust-plans.csv")
    assert plans["members"].tolist() == [2, 1, 2]
    assert len(made.claims) == 6
    assert (tmp_path / "robust.png").exists()


def tables(one=0.8, rule=0.95, plain=0.9, gaps=(4.0, 2.0, 1.0), last=0.8):
    """Losses of interleaved at 2 and of the own optimum at 1; parts of the gap that are closed."""

    def rows(against, point, parts):
        level = {"interleaved": 0.0, "own optimum": 1.0} | parts
        return [
            {"against": against, **point, "strategy": name, "test": 0, "loss": 2.0 - part}
            for name, part in level.items()
        ]

    losses, plans = [], []
    names = ("one protocol", "tuned rule", "focus-then-replay")
    for similarity in (0.2, 0.8):
        point = {"similarity": similarity, "members": 8, "repeat": 0}
        losses += rows("similarity", point, dict(zip(names, (one, rule, plain), strict=True)))
    for members, gap in zip((1, 2, 4), gaps, strict=True):
        for repeat in (0, 1):
            point = {"similarity": 0.3, "members": members, "repeat": repeat}
            part = last if members == 4 else 0.8
            losses += rows("members", point, dict(zip(names, (part, rule, plain), strict=True)))
            plans.append({"against": "members", **point, "seen": 1.0, "unseen": 1.0 + gap})
    return {"losses": pd.DataFrame(losses), "plans": pd.DataFrame(plans)}


def verdicts(**changes):
    return [claim.verdict for claim in figure.claims(tables(**changes))]


def test_claims_hold_where_they_should():
    assert verdicts() == ["holds"] * 6


@pytest.mark.parametrize(
    ("change", "claim"),
    [
        ({"one": 0.4}, 0),
        ({"plain": 0.4}, 1),
        ({"rule": 0.89}, 2),
        ({"one": 0.96}, 3),
        ({"gaps": (1.0, 2.0, 4.0)}, 4),
        ({"last": 0.9}, 5),
    ],
)
def test_a_claim_does_not_hold_where_it_should_not(change, claim):
    found = verdicts(**change)
    assert found[claim] == "does not hold"
    assert [x for i, x in enumerate(found) if i != claim] == ["holds"] * 5


@pytest.mark.parametrize(
    ("gaps", "verdict"),
    [
        ((4.0, 2.0, -8.0), "holds"),
        ((2.0, 4.0, -1.0), "does not hold"),
        ((4.0, -1.0, -2.0), "undecided"),
    ],
)
def test_gaps_that_are_gone_count_with_their_sign(gaps, verdict):
    claim = figure.claims(tables(gaps=gaps))[4]
    assert claim.verdict == verdict
    assert claim.numbers["gap, 4 members"] == pytest.approx(gaps[2])
