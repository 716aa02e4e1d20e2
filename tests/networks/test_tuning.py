"""The search for the best share, learning rate and decay, on functions with known minima."""

import math

import numpy as np
import pytest

from replan.networks._tuning import BUDGET, DECAYS, FINALISTS, SEARCH, SHARES, Choice, tune

START = Choice(0.1, "constant", 0.25)
SEEDS = range(11, 16)


def bowl(lr, share, decay="cosine"):
    """Losses whose minimum over the grid is at a rate, a share and a decay."""

    return on_all_seeds(
        lambda c: (
            math.log2(c.lr / lr) ** 2
            + 3 * abs(SHARES.index(c.share) - SHARES.index(share))
            + (c.decay != decay)
        )
    )


def on_all_seeds(loss):
    """Losses that are the same with all seeds."""
    return lambda wanted, seeds: np.array([[loss(c)] * len(seeds) for _, c in wanted])


@pytest.mark.parametrize("rate", [0.1 / 8, 0.05, 0.1, 0.8])
@pytest.mark.parametrize("share", [0.05, 0.25, 0.75])
@pytest.mark.parametrize("decay", DECAYS)
def test_the_minimum_is_found_beyond_where_the_search_begins(rate, share, decay):
    found = tune({"a": START}, bowl(rate, share, decay), SEEDS)
    assert found.best["a"] == (rate, decay, share)
    assert found.settled("a")
    assert len(found.tried["a"]) <= BUDGET


def test_all_strategies_may_try_equally_much():
    """One that never settles ends with the budget; nothing is tried twice."""
    asked = []

    def losses(wanted, seeds):
        asked.extend((name, choice, seed) for name, choice in wanted for seed in seeds)
        return np.array([[c.lr] * len(seeds) for _, c in wanted])  # ever smaller rates

    found = tune({"a": START, "b": START._replace(share=0.5)}, losses, SEEDS)
    assert [len(tried) for tried in found.tried.values()] == [BUDGET, BUDGET]
    search = [one for one in asked if one[2] in SEEDS[:SEARCH]]
    assert len(set(search)) == 2 * BUDGET * SEARCH
    assert len(asked) == 2 * (BUDGET * SEARCH + FINALISTS * len(SEEDS))
    assert not found.settled("a")
    assert "still falling" in str(found)


def test_more_seeds_decide_between_the_best():
    """A rate that does well with the first seeds, and badly with others, is not chosen."""

    def loss(choice, seed):
        if seed not in SEEDS[:SEARCH]:
            return 10 * choice.lr
        others = choice._replace(lr=0.1) != START
        return 0.1 * abs(math.log2(choice.lr / 0.2)) + others

    def losses(wanted, seeds):
        return np.array([[loss(choice, seed) for seed in seeds] for _, choice in wanted])

    found = tune({"a": START}, losses, SEEDS)
    assert min(found.tried["a"], key=found.tried["a"].get) == START._replace(lr=0.2)
    assert found.best["a"] == START._replace(lr=0.05)
    assert len(found.finals["a"]) == FINALISTS


def test_without_a_share_only_rate_and_decay_are_tried():
    start = Choice(0.1, "cosine", None)
    found = tune({"a": start}, on_all_seeds(lambda c: abs(c.lr - 0.4)), SEEDS)
    assert found.best["a"].lr == 0.4
    assert {c.share for c in found.tried["a"]} == {None}


def test_what_diverges_is_avoided():
    losses = on_all_seeds(lambda c: math.nan if c.lr > 0.02 else -c.lr)
    assert tune({"a": START}, losses, SEEDS).best["a"].lr == 0.1 / 8


def test_the_table_and_its_frame():
    starts = {"a": START, "b": Choice(0.1, "constant", None)}
    found = tune(starts, on_all_seeds(lambda c: c.lr), SEEDS)
    frame = found.to_frame()
    assert list(frame) == ["strategy", "lr", "decay", "share", "loss", "seeds"]
    assert len(frame) == sum(map(len, found.tried.values()))
    best = frame[frame["strategy"] == "a"].sort_values("loss").iloc[0]
    assert best["lr"] == found.best["a"].lr
    assert frame["seeds"].value_counts()[len(SEEDS)] == 2 * FINALISTS
    assert np.isnan(frame[frame["strategy"] == "b"]["share"]).all()
    text = str(found)
    assert "seeds 11–15" in text
    assert f"at most {BUDGET} choices" in text
