import numpy as np
import pytest
from scipy import stats

from reproduction.base import Claim, below, collect, grid, mean_interval, page, paired


@pytest.mark.parametrize(
    ("held", "options", "verdict"),
    [
        ([True] * 9 + [False], {}, "holds"),
        ([True] * 9 + [False], {"always": True}, "depends on the initialisation"),
        ([False] * 9 + [True], {"over": "seed"}, "does not hold"),
        ([False] * 8 + [True, None], {"over": "seed"}, "depends on the seed"),
        ([None], {}, "undecided"),
        ([np.nan], {}, "undecided"),
        ([True] * 2, {"least": 3}, "undecided"),
    ],
)
def test_the_verdict_counts_instances(held, options, verdict):
    assert Claim("x", "y", held, {}, **options).verdict == verdict


def test_a_page_shows_medians_and_ranges():
    claim = Claim("It works.", "always", [True, False], {"gain": [1.0, 3.0], "none": [np.nan]})
    figure = {"command": "make it", "settings": {"seeds": 2}, "claims": [vars(claim)]}
    text = page({"readout": figure})
    row = "| It works. | always | gain 2 (1.2 … 2.8); none none | 1 of 2 | **depends on the"
    assert row in text
    assert "`make it`: seeds 2." in text


def test_intervals_are_those_of_a_t_test():
    values = np.random.default_rng(0).normal(0.3, 1.0, 20)
    low, high = stats.ttest_1samp(values, 0.0).confidence_interval(0.95)
    mean = values.mean()
    assert np.allclose(mean_interval(values), [mean, low, high])
    assert paired(values) == {"difference": mean, "95 % from": low, "to": high}
    assert [below(values - 2), below(values), below(values + 2)] == [True, None, False]
    assert list(mean_interval([3.0])) == [3.0, -np.inf, np.inf]


def test_rows_carry_the_point_of_their_case():
    def case(a, b, c):
        return {"sums": [{"sum": a + b + c}], "columns": {"x": [a, b]}}

    points = grid(a=[1, 2], b=[10, 20])
    tables = collect(lambda case, cases: [case(**x) for x in cases], case, points, c=100)
    rows = tables["sums"][["a", "b", "sum"]].to_numpy().tolist()
    assert rows == [[1, 10, 111], [1, 20, 121], [2, 10, 112], [2, 20, 122]]
    assert len(tables["columns"]) == 8
