"""Needs PyTorch: `make test-torch`. `replan train` on a few hundred images."""

import csv
import json

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from replan import IntegrationError
from replan.cli._app import app
from replan.networks import _datasets
from replan.networks import _practice as practice
from replan.networks._driver import POLICIES
from replan.networks._practice import SplitTraining, train_pairs

SMALL = {"pairs": ("05", "27"), "samples": 640, "memory": 24, "probe": 8, "batch_size": 8}


@pytest.fixture
def fashion(images, monkeypatch):
    """A few images of classes 0, 2, 5 and 7 in the place of Fashion-MNIST."""
    monkeypatch.setattr(_datasets, "fashion_mnist", lambda root=None: images)
    return images


def read(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_a_run_folder(fashion, tmp_path):
    names = list(POLICIES)
    settings = SplitTraining(**SMALL)
    found = train_pairs(tmp_path, settings, strategies=names, seeds=2, workers=1)
    summary = found.summary()
    assert list(summary.index) == names
    assert max(map(len, str(found).splitlines())) <= 80
    kept = json.loads((tmp_path / "settings.json").read_text())
    assert kept["pairs"] == ["05", "27"]
    assert {"replan", "torch", "numpy", "python", "seed", "lr", "memory"} <= kept.keys()
    written = json.loads((tmp_path / "summary.json").read_text())
    assert written["settings"]["seeds"] == 2
    assert [row["strategy"] for row in written["summary"]] == names
    assert (tmp_path / "losses.png").stat().st_size > 10_000
    board = {path.parent.name for path in (tmp_path / "tensorboard").glob("*/events.*")}
    assert board == {f"{name}-{seed}" for name in names for seed in (1, 2)}

    rows = read(tmp_path / "metrics.csv")
    columns = ["strategy", "seed", "newest", "samples", "task", "loss", "accuracy", "trained"]
    assert list(rows[0]) == columns
    assert len(rows) == len(names) * 2 * (10 + 20)
    curves = found.curves["no-replay"]
    assert curves.losses.shape == (2, 20, 2)
    assert np.isnan(curves.losses[:, :10, 1]).all()  # not tested before it arrived
    assert not np.isnan(curves.losses[:, 10:]).any()
    assert float(rows[-1]["loss"]) == found.curves[names[-1]].final[-1, -1]
    ends = [row for row in rows if row["samples"] == "1280"]
    trained = {}
    for row in ends:
        trained.setdefault((row["strategy"], row["seed"]), []).append(int(row["trained"]))
    assert all(sum(counts) == 1280 for counts in trained.values())  # equal samples
    assert trained["no-replay", "1"] == [640, 640]
    assert trained["fixed-replay", "1"] == [960, 320]
    assert 640 < trained["focus-then-replay", "1"][0] <= 960
    by_hand = np.mean([float(r["loss"]) for r in ends if r["strategy"] == "fixed-replay"])
    assert summary.loc["fixed-replay", "loss"] == pytest.approx(by_hand)
    assert summary.loc["no-replay", "focus"] == 1.0
    assert summary.loc["fixed-replay", ["focus", "replayed"]].tolist() == [0.0, 0.25]
    assert list(written["summary"][0]) == [
        "strategy", "loss", "loss half width", "on the way", "on the way half width", "accuracy",
        "accuracy half width", "forgetting", "forgetting half width", "replayed", "focus",
    ]  # fmt: skip

    decisions = json.loads((tmp_path / "decisions.json").read_text())["decisions"]
    what = [(d["what"], d["step"]) for d in decisions["fixed-replay-1"]]
    assert what == [("focus", 0), ("focus", 640), ("replay", 640)]


def test_what_is_finished_is_not_computed_again(fashion, tmp_path, monkeypatch):
    settings = SplitTraining(**SMALL)
    once = {"strategies": ["no-replay"], "seeds": 1, "workers": 1}
    first = train_pairs(tmp_path, settings, **once).summary()
    monkeypatch.setattr(practice.PairNetwork, "train", lambda *_: pytest.fail("computed again"))
    again = train_pairs(tmp_path, settings, **once).summary()
    assert first.equals(again)
    assert np.isnan(first.loc["no-replay", "loss half width"])  # of one run
    (row,) = json.loads((tmp_path / "summary.json").read_text())["summary"]
    assert row["loss half width"] is None


def watched(monkeypatch):
    """Return the images that will be trained on, and those probed."""
    seen, probed = set(), set()
    loss = practice._loss

    def watch(model, batch):
        (seen if torch.is_grad_enabled() else probed).update(tuple(x.tolist()) for x in batch[0])
        return loss(model, batch)

    monkeypatch.setattr(practice, "_loss", watch)
    return seen, probed


def test_held_out_images_are_never_trained_on(fashion, monkeypatch):
    """Those of a pair that arrives, and what is left of them when others have arrived."""
    seen, probed = watched(monkeypatch)
    practice.learn_pairs("focus-then-replay", 1, SMALL, None, None)
    pairs = practice.Pairs(fashion, SMALL["pairs"], 1)
    apart = {
        tuple(x)
        for part, count in zip(pairs.train, (8, 4), strict=True)
        for x in part[0][:count].tolist()
    }
    assert len(apart) == 8 + 4
    assert len(probed) == 4 + 4
    assert probed < apart
    assert not seen & apart


def test_a_strategy_that_needs_no_losses_keeps_nothing_apart(fashion, monkeypatch):
    seen, probed = watched(monkeypatch)
    practice.learn_pairs("fixed-replay", 1, SMALL, None, None)
    assert not probed
    assert len(seen) == len(fashion.train_images)


def test_replay_keeps_what_no_replay_forgets(fashion):
    def old_loss(strategy):
        runs = [practice.learn_pairs(strategy, seed, SMALL, None, None) for seed in (1, 2, 3)]
        return np.mean([run["loss"][-1][0] for run in runs])

    assert old_loss("fixed-replay") < 0.9 * old_loss("no-replay")


def test_one_pair_has_a_way_too(fashion, tmp_path):
    settings = SplitTraining(**{**SMALL, "pairs": ("05",)})
    found = train_pairs(tmp_path, settings, strategies=["no-replay"], seeds=2, workers=1)
    summary = found.summary()
    assert not summary.isna().any(axis=None)
    assert summary.loc["no-replay", "focus"] == 1.0


def test_the_command(fashion, tmp_path):
    out = tmp_path / "run"
    options = "--pairs 02,57 --samples 640 --memory 24 --batch-size 8 --seeds 1 --workers 1"
    done = CliRunner().invoke(app, ["train", *options.split(), "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert "focus-then-replay" in done.output
    assert "losses.png" in done.output
    assert max(map(len, done.output.splitlines()[:-1])) <= 80
    assert json.loads((out / "settings.json").read_text())["memory"] == 24


def test_the_help_tells_the_defaults():
    text = " ".join(CliRunner().invoke(app, ["train", "--help"]).output.split())
    known = SplitTraining()
    told = {"pairs": ",".join(known.pairs), "memory": 200, "samples": 12_800, "batch-size": 64}
    for option, default in {**told, "lr": 0.05}.items():
        after = text.split(f"--{option} ")[-1].split("[default: ")[1]
        assert after.startswith(f"{default}]")
    assert (known.memory, known.samples, known.batch_size, known.lr) == (200, 12_800, 64, 0.05)


def test_without_tensorboard_there_are_no_events(fashion, tmp_path, monkeypatch):
    monkeypatch.setattr(practice, "find_spec", lambda name: None)
    settings = SplitTraining(**SMALL)
    train_pairs(tmp_path, settings, strategies=["no-replay"], seeds=1, workers=1)
    assert not (tmp_path / "tensorboard").exists()


def test_a_divergence_is_an_error_that_says_what_to_do(fashion):
    message = "no-replay with seed 1 diverged by step 64: try a smaller `lr`"
    with pytest.raises(IntegrationError, match=message):
        practice.learn_pairs("no-replay", 1, {**SMALL, "lr": 1e30}, None, None)


# Losses of the second pair at the end, and samples of the first, recorded before the driver was
# rewritten.
RECORDED = {
    "no-replay": [(0.007554713636636734, 640), (0.007411890663206577, 640)],
    "fixed-replay": [(0.015597326681017876, 960), (0.013925962150096893, 960)],
    "focus-then-replay": [(0.01245617400854826, 880), (0.007906296290457249, 640)],
    "focus-then-loss": [(0.014985927380621433, 948), (0.007906296290457249, 640)],
}


def test_the_numbers_are_those_recorded(fashion):
    for strategy, runs in RECORDED.items():
        for seed, (loss, trained) in enumerate(runs, start=1):
            found = practice.learn_pairs(strategy, seed, SMALL, None, None)
            assert found["trained"][-1][0] == trained
            assert found["loss"][-1][1] == pytest.approx(loss, rel=1e-4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--pairs", "00"], "`--pairs` expects pairs of different classes like 01, got '00'"),
        (["--pairs", "0,1"], "`--pairs` expects pairs of different classes like 01, got '0'"),
        (["--pairs", "02,52"], "`--pairs` expects each class once, got 02, 52"),
        (["--pairs", "02,89"], "`--pairs` expects classes that the data set has, got '89'"),
        (["--strategies", "no-repaly"], "did you mean `no-replay`?"),
        (["--memory", "3"], "`--memory` expects an integer of at least"),
        (["--strategies", "no-replay,no-replay"], "`--strategies` expects each name once"),
        (["--lr", "0"], "`--lr` expects a finite number above 0"),
        (["--seeds", "0"], "`--seeds` expects an integer of at least 1, got 0"),
    ],
)
def test_bad_input_is_refused(fashion, tmp_path, options, message):
    done = CliRunner().invoke(
        app, ["train", "--workers", "1", "--seeds", "1", "--out", str(tmp_path / "run"), *options]
    )
    assert isinstance(done.exception, ValueError)
    assert message in str(done.exception)
