"""Small data sets in the forms of the real ones, and a place where there are no others."""

import hashlib

import numpy as np
import pytest

from replan.networks import _datasets as datasets


def known(payload):
    return datasets.File(hashlib.sha256(payload).hexdigest(), len(payload))


@pytest.fixture
def nowhere_else(tmp_path, monkeypatch):
    """Keep data sets that are on this machine out of the tests."""
    monkeypatch.delenv("REPLAN_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    monkeypatch.setattr(datasets, "_DEBIAN", tmp_path / "debian")


@pytest.fixture
def fashion(monkeypatch):
    """The files of a small data set in the form of Fashion-MNIST, known by their digests."""
    rng = np.random.default_rng(0)
    payloads = {}
    for part, count in (("train", 7), ("t10k", 3)):
        images = rng.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        labels = rng.integers(0, 10, count, dtype=np.uint8)
        head = np.array([0x803, count, 28, 28], ">i4").tobytes()
        payloads[f"{part}-images-idx3-ubyte"] = head + images.tobytes()
        payloads[f"{part}-labels-idx1-ubyte"] = (
            np.array([0x801, count], ">i4").tobytes() + labels.tobytes()
        )
    for file, payload in payloads.items():
        monkeypatch.setitem(datasets.FASHION_MNIST, file, known(payload))
    return payloads


@pytest.fixture
def cifar(monkeypatch):
    """The files of a small data set in the form of CIFAR-10, known by their digests."""
    rng = np.random.default_rng(1)
    payloads = {}
    for file in datasets.CIFAR10:
        rows = rng.integers(0, 256, (4, 3073), dtype=np.uint8)
        rows[:, 0] %= 10
        payloads[file] = rows.tobytes()
        monkeypatch.setitem(datasets.CIFAR10, file, known(payloads[file]))
    return payloads
