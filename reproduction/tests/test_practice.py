"""The search for the best settings, what is measured, and each comparison."""

import importlib
import math
from types import SimpleNamespace

import numpy as np
import pytest

from reproduction.base import search
from reproduction.practice import tuned_replay

pytestmark = pytest.mark.usefixtures("folder")


def test_the_search_takes_the_best_choice_that_never_diverges():
    def case(lr, seed, share):
        return {"loss": None if lr > 0.5 and seed else abs(lr - 0.8) + 0.1 * seed + share}

    choices = [{"lr": lr} for lr in (0.1, 0.2, 0.4, 0.8)]
    best, tried = search(lambda f, cases: [f(**x) for x in cases], case, choices, [0, 1], share=1)
    assert best == {"lr": 0.4}
    np.testing.assert_allclose(tried["loss"], [1.75, 1.65, 1.45, np.inf])


def test_the_summary_of_a_run():
    split = pytest.importorskip("torch") and importlib.import_module("reproduction.practice.split")
    looks = [
        {"loss": [0.2], "accuracy": [1.0], "trained": [100, 0, 0]},
        {"loss": [0.4, 0.2], "accuracy": [0.8, 1.0], "trained": [125, 75, 0]},
        {"loss": [0.3, 0.3, 0.6], "accuracy": [0.7, 0.9, 0.5], "trained": [150, 100, 50]},
    ]
    steps = (("focus", 0), ("focus", 100), ("replay", 140), ("focus", 200))
    decisions = [SimpleNamespace(what=what, step=step) for what, step in steps]
    found = split.summary(looks, SimpleNamespace(decisions=decisions), 100)
    expected = {
        "loss": 0.4, "way": (0.3 + 0.4) / 2, "accuracy": 0.7, "forgetting": (0.3 + 0.1) / 2,
        "replayed": (50 + 25) / 300, "focus": (0.4 + 1.0) / 2,
    }  # fmt: skip
    assert found == pytest.approx(expected)
    looks[-1]["loss"][0] = math.nan
    assert split.summary(looks, None, 100) == {"loss": None}


def test_late_replay(made):
    table = made(
        "late-replay", samples=[20], tested=4, validated=2, planned=2, rates=3, steps=4,
        first=60, test_samples=20, hidden=3, cifar=["0 5 2 7"], max_lr=0.5,
    )["gains"]  # fmt: skip
    assert len(table) == 2 * 6
    assert set(table["data"]) == {"fashion-mnist", "cifar10"}
    late = table[table["contender"] == "late replay"]
    np.testing.assert_allclose(late["alone"], 0.5)
    np.testing.assert_allclose(late["share_1"], 0.25, atol=0.03)
    assert (table[table["contender"] == "fixed share"]["% below"] == 0).all()


def test_held_out_gap(made):
    pytest.importorskip("jax")
    tiny = {"counts": [2], "unseen": 3, "first": 60, "samples": 20, "gradients": 2}
    row = made("held-out-gap", test_samples=20, **tiny)["plans"].iloc[0]
    assert row["plan, planned on"] <= row["constant, planned on"] + 1e-9
    assert row["gradients"] <= 2


def test_tuned_replay(made, monkeypatch):
    pytest.importorskip("torch")
    small = {"images": 60, "batches": 10, "batch_size": 12, "memory": 30, "probe": 6, "hidden": 8}
    monkeypatch.setitem(tuned_replay.SIZES, "few", small)
    tables = made("tuned-replay", shares=[0.25], factors=[1, 2])
    tuned = tables["tuned"].set_index("strategy")
    assert list(tuned.index) == tuned_replay.strategies("task")
    assert len(tables["tried"]) == 2 * 4
    assert tuned.loc["fixed-replay", "loss − fixed-replay"] == 0
    assert np.isfinite(tuned["loss"]).all()


def test_a_fixed_share_is_what_is_trained_on():
    pytest.importorskip("torch")
    split = {"images": 60, "batches": 10, "batch_size": 12, "memory": 30, "hidden": 8}
    case = {"split": split, "lr": 0.1, "decay": "cosine", "share": 0.5, "seed": 1, "tested": "test"}
    found = tuned_replay.case("fixed-replay", **case)
    assert found["replayed"] == pytest.approx(1 / 3)  # half of two of three turns
    assert found["accuracy"] > 0.75  # chance is 0.5
    assert tuned_replay.case("fixed-replay", **case) == found
