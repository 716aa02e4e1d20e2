"""Figures made in this process, and made-up images, so that no test downloads anything."""

import json

import matplotlib
import numpy as np
import pytest

from reproduction.__main__ import load
from reproduction.drawing import STYLE
from reproduction.images import data
from reproduction.images.tasks import make_tasks


@pytest.fixture
def made():
    """Return made(name, **settings): the tables of a figure that was computed, drawn and judged."""

    def run(function, cases):
        return json.loads(
            json.dumps([function(**case) for case in cases], default=np.ndarray.tolist)
        )

    def make(name, **settings):
        module = load(name)
        assert settings.keys() <= module.FULL.keys() == module.QUICK.keys()
        tables = module.compute(run, **module.QUICK | settings)
        if hasattr(module, "draw"):
            with matplotlib.rc_context(STYLE):
                module.draw(tables).canvas.draw()
        if hasattr(module, "claims"):
            claims = module.claims(tables)
            assert claims
            assert all(claim.held and claim.numbers and claim.verdict for claim in claims)
        return tables

    return make


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Data sets of ten classes, a random template each with noise, where `fetch` looks for them."""
    monkeypatch.setenv("REPLAN_DATA", str(tmp_path))
    make_tasks.cache_clear()
    rng = np.random.default_rng(0)
    for name, pixels in (("fashion-mnist", 784), ("cifar10", 3072)):
        templates = rng.integers(0, 200, (10, pixels))
        parts = []
        for count in (40, 20):
            labels = np.repeat(np.arange(10, dtype=np.uint8), count)
            noise = rng.integers(0, 56, (len(labels), pixels))
            order = rng.permutation(len(labels))
            parts += [(templates[labels] + noise).astype(np.uint8)[order], labels[order]]
        train, train_labels, test, test_labels = parts
        if name == "fashion-mnist":
            contents = [b"i" * 16 + train.tobytes(), b"l" * 8 + train_labels.tobytes()]
            contents += [b"i" * 16 + test.tobytes(), b"l" * 8 + test_labels.tobytes()]
        else:
            rows = np.column_stack([train_labels, train])
            contents = [part.tobytes() for part in np.array_split(rows, 5)]
            contents.append(np.column_stack([test_labels, test]).tobytes())
        place = tmp_path / data.FOLDERS[name]
        place.mkdir()
        for file, content in zip(data.FILES[name], contents, strict=True):
            (place / file).write_bytes(content)
    return tmp_path
