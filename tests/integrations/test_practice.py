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
from replan.networks._practice import TUNING_SEEDS, SplitTraining, train_tasks
from replan.networks._task_data import PAIRS, fashion_pairs
from replan.networks._tuning import BUDGET, FINALISTS, SEARCH, SHARES, Choice

TASKS = ("05", "27")
SMALL = {"samples": 640, "memory": 24, "probe": 8, "batch_size": 8, "lr": 0.05, "share": 0.5}
SOURCE = {"pairs": list(TASKS)}


@pytest.fixture
def fashion(images, monkeypatch):
    """A few images of classes 0, 2, 5 and 7 in the place of Fashion-MNIST."""
    monkeypatch.setattr(_datasets, "fashion_mnist", lambda root=None: images)
    practice.read_tasks.cache_clear()
    yield images
    practice.read_tasks.cache_clear()


def read(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_a_run_folder(fashion, tmp_path):
    names = list(POLICIES)
    settings = SplitTraining(**SMALL)
    result = train_tasks(tmp_path, settings, pairs=TASKS, strategies=names, seeds=2, workers=1)
    found = result.experiment
    summary = found.summary()
    assert list(summary.index) == names
    assert max(map(len, str(found).splitlines())) <= 80
    assert "differences to fixed-replay, paired by seed" in str(result)
    assert result.tuning is None
    kept = json.loads((tmp_path / "settings.json").read_text())
    assert kept["pairs"] == ["05", "27"]
    assert {"replan", "torch", "numpy", "python", "seed", "lr", "decay", "share"} <= kept.keys()
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
    gaps = found.differences("fixed-replay")
    assert list(gaps.index) == [name for name in names if name != "fixed-replay"]
    final = {name: curves.final.mean(axis=1) for name, curves in found.curves.items()}
    paired = final["no-replay"] - final["fixed-replay"]
    assert gaps.loc["no-replay", "loss"] == pytest.approx(paired.mean())
    half = 12.706 * paired.std(ddof=1) / np.sqrt(2)  # Student's t, two runs
    assert gaps.loc["no-replay", "loss half width"] == pytest.approx(half, rel=1e-4)
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
    once = {"pairs": TASKS, "strategies": ["no-replay"], "seeds": 1, "workers": 1}
    first = train_tasks(tmp_path, settings, **once).experiment.summary()
    monkeypatch.setattr(practice.TaskNetwork, "train", lambda *_: pytest.fail("computed again"))
    again = train_tasks(tmp_path, settings, **once).experiment.summary()
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
    practice.learn_tasks("focus-then-replay", 1, SMALL, SOURCE)
    tensors = practice.Tensors(fashion_pairs(TASKS), SplitTraining(**SMALL), 1, "test")
    apart = {
        tuple(x)
        for part, count in zip(tensors.train, (8, 4), strict=True)
        for x in part[0][:count].tolist()
    }
    assert len(apart) == 8 + 4
    assert len(probed) == 4 + 4
    assert probed < apart
    assert not seen & apart


def test_a_strategy_that_needs_no_losses_keeps_nothing_apart(fashion, monkeypatch):
    seen, probed = watched(monkeypatch)
    practice.learn_tasks("fixed-replay", 1, SMALL, SOURCE)
    assert not probed
    assert len(seen) == len(fashion.train_images)


def test_losses_are_estimated_after_the_first_batch_and_then_every_so_often(fashion, monkeypatch):
    times = []
    estimate = practice.TaskNetwork.estimate
    watch = lambda self: (times.append(self.time), estimate(self))[1]  # noqa: E731
    monkeypatch.setattr(practice.TaskNetwork, "estimate", watch)
    practice.learn_tasks("focus-then-replay", 1, SMALL, SOURCE)
    assert times[0] == 640 + 8
    assert set(np.diff(times)) == {5 * 8}


def test_replay_keeps_what_no_replay_forgets(fashion):
    def old_loss(strategy):
        runs = [practice.learn_tasks(strategy, seed, SMALL, SOURCE) for seed in (1, 2, 3)]
        return np.mean([run["loss"][-1][0] for run in runs])

    assert old_loss("fixed-replay") < 0.9 * old_loss("no-replay")


def test_one_pair_has_a_way_too(fashion, tmp_path):
    settings = SplitTraining(**SMALL)
    found = train_tasks(
        tmp_path, settings, pairs=["05"], strategies=["no-replay"], seeds=2, workers=1
    )
    summary = found.experiment.summary()
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
    names = ("memory", "samples", "batch_size", "hidden", "heads", "optimizer", "decay")
    told = {name: getattr(known, name) for name in names} | {"pairs": ",".join(PAIRS)}
    for option, default in told.items():
        after = text.split(f"--{option.replace('_', '-')} ")[-1].split("[default: ")[1]
        assert after.startswith(f"{default}]"), option
    assert f"[default: {practice.RATES['sgd']}; adam: {practice.RATES['adam']}]" in text
    assert f"[default: {practice.SHARES['task']}; one head: {practice.SHARES['one']}]" in text


def test_defaults_depend_on_the_optimizer_and_the_heads():
    assert SplitTraining().choice == (practice.RATES["sgd"], "constant", practice.SHARES["task"])
    one = SplitTraining(heads="one", optimizer="adam", decay="cosine").choice
    assert one == (practice.RATES["adam"], "cosine", practice.SHARES["one"])
    assert SplitTraining(heads="one", lr=0.3, share=0.2).choice == (0.3, "constant", 0.2)


def test_without_tensorboard_there_are_no_events(fashion, tmp_path, monkeypatch):
    monkeypatch.setattr(practice, "find_spec", lambda name: None)
    settings = SplitTraining(**SMALL)
    train_tasks(tmp_path, settings, pairs=TASKS, strategies=["no-replay"], seeds=1, workers=1)
    assert not (tmp_path / "tensorboard").exists()


def test_a_divergence_is_an_error_that_says_what_to_do(fashion):
    message = "no-replay with seed 1 diverged by step 64: try a smaller `lr`"
    with pytest.raises(IntegrationError, match=message):
        practice.learn_tasks("no-replay", 1, {**SMALL, "lr": 1e30}, SOURCE)


# Losses of the second pair at the end, and samples of the first.
RECORDED = {
    "no-replay": [(0.0041560702957212925, 640), (0.004060731735080481, 640)],
    "fixed-replay": [(0.010636386461555958, 960), (0.008967562578618526, 960)],
    "focus-until-halved": [(0.009211230091750622, 936), (0.008009265176951885, 936)],
    "focus-then-replay": [(0.004488218110054731, 676), (0.0054953801445662975, 796)],
    "focus-then-loss": [(0.004488218110054731, 676), (0.005758082494139671, 823)],
}


def test_the_numbers_are_those_recorded(fashion):
    for strategy, runs in RECORDED.items():
        for seed, (loss, trained) in enumerate(runs, start=1):
            found = practice.learn_tasks(strategy, seed, SMALL, SOURCE)
            assert found["trained"][-1][0] == trained
            assert found["loss"][-1][1] == pytest.approx(loss, rel=1e-4)


def test_a_share_is_that_of_replay(fashion):
    found = practice.learn_tasks("fixed-replay", 1, SMALL | {"share": 0.25}, SOURCE)
    assert found["trained"][-1] == [640 + 160, 480]


def test_a_decay_ends_at_zero_and_begins_anew_with_each_task(fashion, monkeypatch):
    rates = []
    step = torch.optim.SGD.step
    watch = lambda self: (rates.append(self.param_groups[0]["lr"]), step(self))  # noqa: E731
    monkeypatch.setattr(torch.optim.SGD, "step", watch)
    practice.learn_tasks("no-replay", 1, SMALL | {"decay": "cosine"}, SOURCE)
    first, second = np.array(rates).reshape(2, 80)
    assert first.tolist() == second.tolist()
    assert first[0] == 0.05
    assert first == pytest.approx(0.025 * (1 + np.cos(np.pi * np.arange(80) / 80)))


def test_classes_of_other_tasks_compete_only_with_one_head(fashion):
    per_task, one = (
        practice.learn_tasks("no-replay", 1, SMALL | {"heads": heads}, SOURCE)
        for heads in ("task", "one")
    )
    assert per_task["accuracy"][-1][0] > 0.9
    assert one["accuracy"][-1][0] < 0.1  # all is taken for a class of the last task
    assert one["accuracy"][-1][1] > 0.9


def test_fewer_images(fashion, monkeypatch):
    seen, _ = watched(monkeypatch)
    practice.learn_tasks("no-replay", 1, SMALL | {"images": 30}, SOURCE)
    assert len(seen) == 2 * 30


# Tuning

SHORT = SMALL | {"samples": 80}


def test_each_strategy_is_tuned_and_then_tested_with_other_seeds(fashion, tmp_path, monkeypatch):
    monkeypatch.setattr("replan.networks._tuning.BUDGET", 9)
    calls = []
    learn = practice._learn

    def watch(strategy, seed, settings, source, tested, board):
        calls.append((strategy, seed, settings["lr"], settings["decay"], settings["share"], tested))
        return learn(strategy, seed, settings, source, tested, board)

    monkeypatch.setattr(practice, "_learn", watch)
    names = ["no-replay", "fixed-replay", "focus-then-replay"]
    found = train_tasks(
        tmp_path, SplitTraining(**SHORT), pairs=TASKS, strategies=names, tune=True, seeds=2,
        workers=1,
    )  # fmt: skip
    tuning = found.tuning
    assert list(tuning.best) == names
    assert all(len(tried) <= 9 for tried in tuning.tried.values())
    assert len(tuning.tried["fixed-replay"]) == len(tuning.tried["focus-then-replay"]) == 9
    assert {share for _, _, share in tuning.tried["no-replay"]} == {None}
    assert {share for _, _, share in tuning.tried["fixed-replay"]} <= set(SHARES)
    for name in names:
        own = [call[1:] for call in calls if call[0] == name]
        assert {one[0] for one in own if one[-1] == "validation"} == set(TUNING_SEEDS)
        lr, decay, share = tuning.best[name]
        tests = [one for one in own if one[-1] == "test"]
        assert tests == [(seed, lr, decay, share, "test") for seed in (1, 2)]
    kept = json.loads((tmp_path / "settings.json").read_text())["tuned"]
    assert Choice(**kept["fixed-replay"]) == tuning.best["fixed-replay"]
    tried = sum(map(len, tuning.tried.values()))
    assert len(read(tmp_path / "tuning.csv")) == tried
    text = str(found)
    assert "best of at most 9 choices each, on validation data" in text
    assert max(map(len, text.splitlines())) <= 80
    calls.clear()
    train_tasks(
        tmp_path, SplitTraining(**SHORT), pairs=TASKS, strategies=names, tune=True, seeds=2,
        workers=1,
    )  # fmt: skip
    assert not calls  # all is kept


def test_choices_depend_on_validation_images_alone_and_results_on_test_images(
    images, monkeypatch, tmp_path
):
    dark = images.test_images.copy()
    dark[1::2] = 0
    results = []
    for pixels in (images.test_images, dark):
        changed = images._replace(test_images=pixels)
        monkeypatch.setattr(_datasets, "fashion_mnist", lambda root=None, found=changed: found)
        practice.read_tasks.cache_clear()
        results.append(
            (
                practice.validate_tasks("fixed-replay", 1, SHORT, SOURCE)["loss"],
                practice.learn_tasks("fixed-replay", 1, SHORT, SOURCE)["loss"],
            )
        )
    practice.read_tasks.cache_clear()
    (value, losses), (again, others) = results
    assert value == again
    assert losses != others


def test_a_rate_that_diverges_is_no_choice(fashion):
    assert practice.validate_tasks("no-replay", 1, SHORT | {"lr": 1e30}, SOURCE) == {"loss": None}


def test_tuning_by_the_command(fashion, tmp_path, monkeypatch):
    monkeypatch.setattr("replan.networks._tuning.BUDGET", 2)
    options = "--pairs 02,57 --samples 80 --memory 24 --batch-size 8 --seeds 2 --workers 1 --tune"
    done = CliRunner().invoke(app, ["train", *options.split(), "--out", str(tmp_path / "run")])
    assert done.exit_code == 0, done.output
    assert "differences to fixed-replay, paired by seed" in done.output
    assert "tuning.csv" in done.output


def test_the_help_tells_what_tuning_costs():
    text = " ".join(CliRunner().invoke(app, ["train", "--help"]).output.split())
    runs = BUDGET * SEARCH + FINALISTS * (len(TUNING_SEEDS) - SEARCH)
    assert f"up to {runs} more runs each" in text


# Data of one's own


def test_tasks_of_ones_own(tmp_path):
    """With words and numbers as classes, three of them in one task; cached by their content."""
    rng = np.random.default_rng(0)
    folder = tmp_path / "tasks"
    folder.mkdir()

    def write(shift):
        y = rng.permutation(np.repeat(["a", "b", "c"], 40))
        x = rng.normal(size=(120, 2, 3)) + 3 * (y == "a")[:, None, None] + shift
        np.savez(folder / "1-words.npz", x=x, y=y)

    write(0.0)
    y = rng.permutation(np.repeat([0, 1], 30))
    np.savez(folder / "2-numbers.npz", x=rng.normal(size=(60, 2, 3)) + 3 * y[:, None, None], y=y)
    options = "--samples 160 --memory 24 --batch-size 8 --seeds 1 --workers 1 --strategies"
    command = ["train", "--data", str(folder), *options.split(), "fixed-replay"]
    run = tmp_path / "run"

    def loss():
        done = CliRunner().invoke(app, [*command, "--out", str(run)])
        assert done.exit_code == 0, done.output
        (row,) = json.loads((run / "summary.json").read_text())["summary"]
        return row["loss"]

    first = loss()
    assert {row["task"] for row in read(run / "metrics.csv")} == {"1-words", "2-numbers"}
    assert json.loads((run / "settings.json").read_text())["tasks"] == ["1-words", "2-numbers"]
    assert loss() == first
    write(1.0)
    assert loss() != first


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--pairs", "01"], "`--data` brings tasks of its own"),
        (["--root", "x"], "`--data` brings tasks of its own"),
        (["--probe-less"], "No such option"),
        (["--heads", "two"], "`--heads` expects one of task, one"),
        (["--heads", "task"], "`--heads` expects 'one' where a task has one class only"),
        (["--memory", "20", "--heads", "one"], "`--memory` expects an integer of at least 22"),
        (["--images", "20", "--heads", "one"], "`--images` expects an integer of at least 21"),
        (["--optimizer", "adm"], "did you mean `adam`?"),
        (["--decay", "cos"], "`--decay` expects one of constant, cosine"),
        (["--share", "1.5"], "`--share` expects a finite number above 0 and at most 1"),
        (["--seed", "1000000"], "`--seed` expects an integer"),
    ],
)
def test_bad_settings_for_tasks_of_ones_own_are_refused(tmp_path, options, message):
    for task, classes in (("1", [0, 1]), ("2", [2])):
        np.savez(tmp_path / f"{task}.npz", x=np.ones((60, 3)), y=np.resize(classes, 60))
    command = ["train", "--data", str(tmp_path), "--workers", "1", "--out", str(tmp_path / "run")]
    done = CliRunner().invoke(app, [*command, *options])
    assert done.exit_code != 0
    assert message in done.output + str(done.exception)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--pairs", "00"], "`--pairs` expects pairs of different classes like 01, got '00'"),
        (["--pairs", "0,1"], "`--pairs` expects pairs of different classes like 01, got '0'"),
        (["--pairs", "02,52"], "`--pairs` expects each class once, got 02, 52"),
        (["--pairs", "02,89"], "`--pairs` expects classes that the data set has, got '89'"),
        (["--strategies", "no-repaly"], "did you mean `no-replay`?"),
        (["--pairs", "02,57", "--memory", "3"], "`--memory` expects an integer of at least"),
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
