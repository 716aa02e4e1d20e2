"""Sizes for which there is no room are refused before anything is allocated."""

import math

import pytest

from replan.core import memory


@pytest.mark.parametrize(
    ("size", "text"),
    [(3e5, "0.3 MB"), (2.5e7, "25 MB"), (9.999e8, "1 GB"), (3.71e10, "37 GB"), (5e17, "5e+05 TB")],
)
def test_amounts(size, text):
    assert memory.amount(size) == text


def test_what_is_free_decides_but_small_sizes_are_never_refused(monkeypatch):
    assert 0 < memory.free() < math.inf
    monkeypatch.setattr(memory, "free", lambda: 1e9)
    memory.require("`x` = 9", 0.9e9 / 8)
    with pytest.raises(ValueError, match="need about 37 GB of memory, 1 GB are free"):
        memory.require("`x` = 9", 37.1e9 / 8)
    monkeypatch.setattr(memory, "free", lambda: pytest.fail("asked"))
    memory.require("`steps`", 10_000_000)
