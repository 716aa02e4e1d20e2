import json

import numpy as np
import pytest

from replan.statistics import mean_interval
from replan.curves import Curves

TIMES = [0.0, 1.0, 2.0]


def losses(runs=5, seed=0):
    return np.random.default_rng(seed).uniform(0.1, 1.0, (runs, 3, 2))


def with_a_diverged_run():
    values = losses()
    values[3, 1:] = np.nan
    return Curves(TIMES, values, runs=[10, 11, 12, 13, 14])


def test_statistics_are_over_the_runs():
    values = losses()
    curves = Curves(TIMES, values)
    np.testing.assert_allclose(curves.mean, values.mean(axis=0))
    np.testing.assert_allclose(curves.standard_error, values.std(axis=0, ddof=1) / np.sqrt(5))
    for found, wanted in zip(curves.interval, mean_interval(values), strict=True):
        np.testing.assert_array_equal(found, wanted)
    np.testing.assert_allclose(curves.quantiles([0.5])[0], np.median(values, axis=0))
    assert np.array_equal(curves.final, values[:, -1])
    assert (curves.runs, curves.failures, curves.tasks) == ([0, 1, 2, 3, 4], {}, 2)


def test_runs_that_are_not_finite_have_a_mean_without_an_interval():
    values = [[1.0, np.inf, -np.inf, np.inf], [3.0, 1.0, 1.0, -np.inf]]
    mean, low, high = mean_interval(values)
    np.testing.assert_array_equal(mean, [2.0, np.inf, -np.inf, np.nan])
    assert np.array_equal(low[1:], [-np.inf] * 3)
    assert np.array_equal(high[1:], [np.inf] * 3)
    for found, wanted in zip((mean, low, high), mean_interval([1.0, 3.0]), strict=True):
        assert found[0] == wanted


def test_a_diverged_run_is_left_out_counted_and_named():
    curves = with_a_diverged_run()
    others = losses()[[0, 1, 2, 4]]
    assert np.array_equal(curves.finished, others)
    np.testing.assert_allclose(curves.mean, others.mean(axis=0))
    np.testing.assert_allclose(curves.quantiles([0.5])[0], np.median(others, axis=0))
    assert curves.interval.mean.shape == (3, 2)
    assert curves.failures == {13: "no finite losses at the end"}
    assert str(curves).startswith("4 of 5 runs, 3 times up to 2")
    assert "run 13: no finite losses at the end" in str(curves)


def test_a_failure_that_is_given_says_why():
    values = losses()
    values[0, -1] = np.inf
    curves = Curves(TIMES, values, failures={0: "it diverged", 2: "it was stopped"})
    assert curves.failures == {0: "it diverged", 2: "it was stopped"}
    assert len(curves.finished) == 3
    many = Curves(TIMES, np.full((10, 3, 1), np.nan))
    assert many.left_out == ["runs 0, 1, 2, 3, 4, 5, 6, 7 and 2 more: no finite losses at the end"]


def test_where_no_run_finished_nothing_is_known():
    curves = Curves(TIMES, np.full((2, 3, 2), np.nan))
    for found in (curves.mean, curves.standard_error, *curves.interval, *curves.quantiles([0.5])):
        assert found.shape == (3, 2)
        assert np.all(np.isnan(found))
    assert "0 of 2 runs" in str(curves)


def test_one_run_has_a_mean_and_no_spread():
    curves = Curves(TIMES, losses(1))
    assert np.array_equal(curves.mean, losses(1)[0])
    assert np.all(np.isnan(curves.standard_error))
    assert np.all(np.isinf(curves.interval.half_width))
    assert "inf" not in str(curves)


def test_a_task_not_measured_yet_is_unknown_and_no_failure():
    values = losses()
    values[:, 0, 1] = np.nan
    curves = Curves(TIMES, values)
    assert not curves.failures
    assert np.isnan(curves.mean[0, 1])
    np.testing.assert_allclose(curves.mean[1:], values.mean(axis=0)[1:])


def test_a_table_and_files(tmp_path):
    curves = with_a_diverged_run()
    table = curves.to_frame()
    assert list(table) == ["run", "time", "loss_1", "loss_2"]
    assert len(table) == 15
    row = table[(table["run"] == 11) & (table["time"] == 2.0)]
    assert row[["loss_1", "loss_2"]].to_numpy()[0].tolist() == curves.losses[1, 2].tolist()
    curves.save(tmp_path / "x.csv")
    lines = (tmp_path / "x.csv").read_text().splitlines()
    assert lines[0] == "run,time,loss_1,loss_2"
    one, two = curves.losses[0, 0].tolist()
    assert lines[1] == f"10,0.0,{one!r},{two!r}"
    curves.save(tmp_path / "x.json")
    content = json.loads((tmp_path / "x.json").read_text())
    assert content["losses"][3][2] == [None, None]
    assert content["failures"] == {"13": "no finite losses at the end"}
    assert content["runs"] == [10, 11, 12, 13, 14]


def test_a_figure_is_returned_and_written_only_where_a_path_is_given(tmp_path):
    from matplotlib.figure import Figure

    curves = with_a_diverged_run()
    figure = curves.plot()
    assert len(figure.axes[0].lines) == 2
    curves.plot(tmp_path / "x.png")
    assert (tmp_path / "x.png").stat().st_size > 5000
    axes = Figure().subplots()
    assert curves.plot(axes=axes) is None
    assert len(axes.lines) == 2
    with pytest.raises(
        ValueError, match=r"`path` expects None where `axes` are given, got 'y.png'"
    ):
        curves.plot("y.png", axes=axes)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1.0, 0.0, 2.0], losses()), "`times` expects ascending times"),
        (([], np.empty((1, 0, 2))), "`times` expects ascending times"),
        (([0.0, 1.0], losses()), r"`losses` expects .* \(runs, 2, tasks\), got shape \(5, 3, 2\)"),
        ((TIMES, losses()[0]), r"`losses` expects .* shape \(runs, 3, tasks\)"),
        ((TIMES, losses(), [1, 2]), "`runs` expects 5 different names, got"),
        ((TIMES, losses(), [1, 1, 2, 3, 4]), "`runs` expects 5 different names"),
        ((TIMES, losses(), [], {9: "why"}), r"`failures` expects names of runs, got \[9\]"),
    ],
)
def test_bad_input_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Curves(*arguments)
