"""The search for the best share, learning rate and decay, on functions with known minima."""

import math

import numpy as np
import pytest

from replan.networks import _tuning
from replan.networks._tuning import BUDGET, DECAYS, SHARES, Choice, tune

START = Choice(0.1, "constant", 0.25)


def bowl(lr, share, decay="cosine"):
    """Losses whose minimum over the grid is at a rate, a share and a decay."""

    def losses(wanted):
        return [
            math.log2(c.lr / lr) ** 2
            + 3 * abs(SHARES.index(c.share) - SHARES.index(share))
            + (c.decay != decay)
            for _, c in wanted
        ]

    return losses


@pytest.mark.parametrize("rate", [0.1 / 8, 0.05, 0.1, 0.8])
@pytest.mark.parametrize("share", [0.05, 0.25, 0.75])
@pytest.mark.parametrize("decay", DECAYS)
def test_the_minimum_is_found_beyond_where_the_search_begins(rate, share, decay):
    found = tune({"a": START}, bowl(rate, share, decay), [1])
    assert found.best["a"] == (rate, decay, share)
    assert found.settled("a")
    assert len(found.tried["a"]) <= BUDGET


def test_all_strategies_may_try_equally_much():
    """One that never settles ends with the budget; nothing is tried twice."""
    asked = []

    def losses(wanted):
        asked.extend(wanted)
        return [c.lr for _, c in wanted]  # ever smaller rates

    found = tune({"a": START, "b": START._replace(share=0.5)}, losses, [1])
    assert [len(tried) for tried in found.tried.values()] == [BUDGET, BUDGET]
    assert len(set(asked)) == len(asked) == 2 * BUDGET
    assert not found.settled("a")
    assert "still falling" in str(found)


def test_without_a_share_only_rate_and_decay_are_tried():
    found = tune({"a": Choice(0.1, "cosine", None)}, lambda w: [abs(c.lr - 0.4) for _, c in w], [1])
    assert found.best["a"].lr == 0.4
    assert {c.share for c in found.tried["a"]} == {None}


def test_what_diverges_is_avoided():
    def losses(wanted):
        return [math.nan if c.lr > 0.02 else -c.lr for _, c in wanted]

    assert tune({"a": START}, losses, [1]).best["a"].lr == 0.1 / 8


def test_the_table_and_its_frame():
    found = tune(
        {"a": START, "b": Choice(0.1, "constant", None)}, lambda w: [c.lr for _, c in w], [4, 5]
    )
    frame = found.to_frame()
    assert list(frame) == ["strategy", "lr", "decay", "share", "loss"]
    assert len(frame) == sum(map(len, found.tried.values()))
    best = frame[frame["strategy"] == "a"].sort_values("loss").iloc[0]
    assert best["lr"] == found.best["a"].lr
    assert np.isnan(frame[frame["strategy"] == "b"]["share"]).all()
    text = str(found)
    assert "mean of seeds 4–5" in text
    assert f"at most {_tuning.BUDGET} choices" in text
