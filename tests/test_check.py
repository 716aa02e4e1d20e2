"""Refusals: what their messages say."""

import pytest

from replan import check


@pytest.mark.parametrize(
    ("word", "near"),
    [
        ("ReLU", "relu"),
        ("focus", "focus-then-replay"),
        ("interleved", "interleaved"),
        ("zzz", None),
        (3, None),
    ],
)
def test_hints_at_the_nearest_word(word, near):
    known = ["relu", "focus-then-replay", "interleaved"]
    assert check.hint(word, known) == (f", did you mean `{near}`?" if near else "")
