import json

import numpy as np
import pytest

from replan.paper.claims import Claim, page


@pytest.mark.parametrize(
    ("held", "verdict"),
    [
        ([True] * 10, "holds"),
        ([True] * 9 + [False], "holds"),
        ([True] * 8 + [False] * 2, "depends on the initialisation"),
        ([True] + [False] * 8, "depends on the initialisation"),
        ([True] + [False] * 9, "does not hold"),
        ([False], "does not hold"),
        ([None], "undecided"),
        ([True, None, True], "depends on the initialisation"),
    ],
)
def test_the_verdict_counts_initialisations(held, verdict):
    assert Claim("It is so.", "it is", held, {}).verdict == verdict


@pytest.mark.parametrize(("count", "verdict"), [(7, "undecided"), (8, "holds")])
def test_too_few_instances_decide_nothing(count, verdict):
    claim = Claim("It is so.", "it is", [True] * count, {}, least=8)
    assert claim.verdict == verdict
    assert claim.to_dict()["least"] == 8


def test_pages_of_older_files_are_made():
    old = Claim("It is so.", "it is", [True], {}).to_dict()
    del old["least"]
    settings = {"memories": ["50", "all"], "sizes": [1, 2, 3, 4, 5.5]}
    text = page({"this": {"command": "replan figure this", "settings": settings, "claims": [old]}})
    assert "| It is so. | it is |  | 1 of 1 | **holds** |" in text
    assert "memories 50, all, sizes 1 … 5.5 (5)." in text


def test_numbers_are_told_by_median_and_range_and_survive_a_file():
    claim = Claim("It is so.", "x > 0", [True, True, False], {"x": [1.0, 2.0, np.nan], "y": [3]})
    assert claim.number_texts() == ["x 1.5 (1.1 … 1.9)", "y 3"]
    content = json.loads(json.dumps(claim.to_dict(), allow_nan=False))
    assert content["numbers"]["x"] == [1.0, 2.0, None]
    assert content["verdict"] == "depends on the initialisation"
    figure = {"command": "replan figure this", "settings": {"seeds": 3}, "claims": [content]}
    text = page({"this": figure})
    assert "| It is so. | x > 0 | x 1.5 (1.1 … 1.9); y 3 | 2 of 3 |" in text
    assert "`replan figure this`: seeds 3." in text
