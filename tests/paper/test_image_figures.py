"""The figures on real images at tiny size, and their claims on made-up tables."""

from functools import partial
from importlib import import_module
from itertools import product

import numpy as np
import pandas as pd
import pytest

from replan.paper import IMAGE_FIGURES, make
from replan.paper import _images as images
from replan.sweeps import sweep

TINY = {"seeds": 2, "first": 60, "interval": 10, "sample": 10, "test_samples": 20}
MORE = {
    "fashion-dynamics": {"steps": 100},
    "fashion-similarity": {"sizes": [20, 60], "similarities": [0.3, 0.7]},
    "cifar-dynamics": {"steps": 100},
}


def module_of(name):
    return import_module(f"replan.paper.{name.replace('-', '_')}")


@pytest.fixture
def data(images, monkeypatch):
    """Small data sets in place of the real ones: CIFAR's are noise."""
    from replan.paper import _images as module

    rng = np.random.default_rng(0)
    noise = [rng.integers(0, 256, (n, 3, 32, 32), dtype=np.uint8) for n in (200, 40)]
    labels = [np.arange(n, dtype=np.uint8) % 10 for n in (200, 40)]
    fake = type(images)(noise[0], labels[0], noise[1], labels[1])
    monkeypatch.setattr(module, "fashion_mnist", lambda: images)
    monkeypatch.setattr(module, "cifar10", lambda: fake)


@pytest.mark.parametrize("name", IMAGE_FIGURES)
def test_a_figure_at_tiny_size(name, data, tmp_path):
    module = module_of(name)
    settings = module.FULL | TINY | MORE[name]
    assert set(settings) == set(module.FULL) == set(module.QUICK)
    tables = module.compute(partial(sweep, workers=1), **settings)
    picture = module.draw(tables)
    for ending in ("png", "pdf"):
        picture.savefig(tmp_path / f"x.{ending}")
        assert (tmp_path / f"x.{ending}").stat().st_size > 5000
    known = {"holds", "does not hold", "undecided", "depends on the similarity"}
    assert {claim.verdict for claim in module.claims(tables)} <= known
    assert not any(table.drop(columns="switch").isna().any().any() for table in tables.values())


def test_losses_keep_their_steps_whatever_the_order_of_the_sizes(data):
    module = module_of("fashion-similarity")
    settings = module.FULL | TINY | {"similarities": [0.5]}
    run = partial(sweep, workers=1)
    one = module.compute(run, **settings | {"sizes": [20, 60]})["losses"]
    two = module.compute(run, **settings | {"sizes": [60, 20, 60]})["losses"]
    pd.testing.assert_frame_equal(one, two)


def test_one_realisation_decides_nothing():
    tables = similarity()
    tables["losses"] = tables["losses"].query("seed == 0")
    found = module_of("fashion-similarity").claims(tables)
    assert found[2].held == [None, None, None]


def test_make_writes_the_settings(data, tmp_path):
    [made] = make(
        ["fashion-dynamics"], tmp_path, workers=1, seeds=2,
        changes={k: v for k, v in TINY.items() if k != "seeds"} | {"steps": 50, "lr": 0.5},
    )  # fmt: skip
    text = (tmp_path / "claims.md").read_text()
    for part in ("lr 0.5", "hidden 8", "upstream 0, 5", "normalise unit", "smoothing 0.8"):
        assert part in text
    assert all(path.exists() for path in made.files)


def curves(levels, seeds=20, noise=0.001, steps=(100, 500, 4000), **more):
    """Return a table of losses: `levels` has the mean loss at each step, by strategy."""
    rng = np.random.default_rng(0)
    rows = [
        {"strategy": name, "seed": seed, "step": step, "mean": loss + noise * rng.normal(),
         "switch": 300, **more}
        for name, losses in levels.items()
        for seed, (step, loss) in product(range(seeds), zip(steps, losses, strict=True))
    ]  # fmt: skip
    return pd.DataFrame(rows)


def dynamics(no_replay=(0.2, 0.1, 0.09), interleaved=(0.25, 0.15, 0.06), rule=(0.2, 0.1, 0.06)):
    levels = dict(zip(images.STYLES, (no_replay, interleaved, rule), strict=True))
    return {"curves": curves(levels)}


def similarity(**levels):
    parts = []
    for gamma in (0.1, 0.5, 0.9):
        parts.append(dynamics(**levels)["curves"].assign(similarity=gamma))
    return {"losses": pd.concat(parts)}


def cifar(late=1.0, gain=0.03):
    interleaved = (1.0, 1.0, 1.0)
    levels = ((1.1, 1.1, 1.2), interleaved, (1 - gain, 1.0, late))
    levels = dict(zip(images.STYLES, levels, strict=True))
    return {"curves": curves(levels, noise=1e-4)}


MADE = {
    "fashion-dynamics": (dynamics, [
        ({"no_replay": (0.3, 0.2, 0.09)}, 0, "does not hold"),
        ({"no_replay": (0.2, 0.15, 0.09)}, 0, "undecided"),
        ({"no_replay": (0.2, 0.1, 0.05)}, 1, "does not hold"),
        ({"rule": (0.3, 0.2, 0.3)}, 2, "does not hold"),
        ({"rule": (0.3, 0.2, 0.3)}, 3, "does not hold"),
        ({"rule": (0.25, 0.15, 0.06)}, 3, "undecided"),
    ]),
    "fashion-similarity": (similarity, [
        ({"no_replay": (0.3, 0.1, 0.09)}, 0, "does not hold"),
        ({"no_replay": (0.2, 0.1, 0.05)}, 1, "does not hold"),
        ({"rule": (0.2, 0.12, 0.06)}, 2, "does not hold"),
        ({"rule": (0.26, 0.16, 0.07)}, 3, "does not hold"),
    ]),
    "cifar-dynamics": (cifar, [
        ({"gain": 0.1}, 0, "does not hold"),
        ({"gain": 0.06}, 0, "undecided"),
        ({"gain": 0.005}, 0, "does not hold"),
        ({"late": 1.01}, 1, "does not hold"),
    ]),
}  # fmt: skip


@pytest.mark.parametrize("name", IMAGE_FIGURES)
def test_claims_hold_where_they_should(name):
    found = module_of(name).claims(MADE[name][0]())
    assert [claim.verdict for claim in found] == ["holds"] * len(found)


@pytest.mark.parametrize(
    ("name", "change", "claim", "verdict"),
    [(name, *case) for name, (_, changes) in MADE.items() for case in changes],
)
def test_a_claim_fails_where_it_should(name, change, claim, verdict):
    found = module_of(name).claims(MADE[name][0](**change))
    assert found[claim].verdict == verdict


def test_differences_come_with_their_interval():
    difference = np.random.default_rng(0).normal(1.0, 2.0, 400)
    mean, low, high = images.numbers("mean", difference).values()
    assert mean == pytest.approx(difference.mean())
    assert high - low == pytest.approx(2 * 1.966 * difference.std(ddof=1) / 20, rel=1e-3)
    found = module_of("fashion-dynamics").claims(dynamics())[0]
    texts = found.number_texts()
    assert [text.rpartition(" ")[0] for text in texts] == ["difference", "95 % from", "to"]
    assert "(" not in "".join(texts)
