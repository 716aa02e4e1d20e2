"""Pictures: what `plot` returns and writes, where it draws, and in which style."""

import io

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

import replan
from replan import Protocol, strategies
from replan._common import plotting


@pytest.fixture(scope="module")
def problem():
    model = replan.TeacherStudent.similar(0.3)
    return replan.Problem(model, model.fresh(seed=1), duration=4.0, steps=8)


@pytest.fixture(scope="module")
def results(problem):
    protocol = strategies.interleaved(problem)
    annealed = Protocol(protocol.shares, 4.0, lr=np.linspace(2.0, 0.5, protocol.steps))
    return {
        "protocol": protocol,
        "trajectory": replan.evaluate(problem, protocol),
        "annealed": replan.evaluate(problem, annealed),
        "comparison": replan.compare(problem),
        "simulation": replan.simulate(problem, protocol, dimension=50, seeds=2),
        "plan": replan.solve(problem),
    }


NAMES = ["protocol", "trajectory", "annealed", "comparison", "simulation", "plan"]
PANELS = {"protocol": 1, "trajectory": 2, "annealed": 3, "comparison": 2, "simulation": 2}


def size(png):
    height, width, _ = imread(io.BytesIO(png)).shape
    return width, height


def many(tasks):
    """Return a problem of many tasks that is quickly evaluated, with equal targets."""
    model = replan.TeacherStudent.similar(0.3, tasks=tasks, hidden=1)
    start = model.fresh(seed=1)
    return replan.Problem(model, start, duration=2.0, steps=4, targets=[0.1] * tasks)


@pytest.mark.parametrize("tasks", [1, 2, 6, 9, 20])
def test_legends_fit_whatever_the_number_of_tasks(tasks):
    """Legends that have no room collide with the panels, or lose entries, with a warning."""
    problem = many(tasks)
    run = replan.evaluate(problem, strategies.sequential(problem))
    runs = {"sequential": run, "a-strategy-with-a-name-that-is-very-long-indeed": run}
    simulation = replan.simulate(problem, run.protocol, dimension=50, seeds=2)
    for result, entries in (
        (run.protocol, tasks),
        (run, 2 * tasks + (tasks > 1)),  # a single loss is the weighted one
        (replan.Comparison(problem, runs, {}), tasks + 1),
        (simulation, tasks),
        (simulation.curves, tasks),
    ):
        figure = result.plot()
        figure.draw_without_rendering()
        [legend] = [*figure.legends, *(axes.legend_ for axes in figure.axes if axes.legend_)]
        assert len(legend.get_texts()) == entries
        box = legend.get_window_extent()
        assert figure.bbox.contains(*box.min)
        assert figure.bbox.contains(*box.max)
        for axes in figure.axes:
            assert axes.get_window_extent().width > 150
            for label in (*axes.get_xticklabels(), *axes.get_yticklabels(), *axes.texts):
                assert not label.get_window_extent().overlaps(box)


def test_a_curve_is_smooth_however_long_its_steps():
    """A curve drawn at the edges alone would be a straight line."""
    model = replan.TeacherStudent.similar(0.9, hidden=2)
    problem = replan.Problem(model, model.fresh(seed=3), duration=40.0, steps=1)
    run = replan.evaluate(problem, Protocol([[0.5, 0.5], [1.0, 0.0]], edges=[0.0, 30.0, 40.0]))
    assert len(run.times) == 3
    for result, panel in (run, 1), (replan.simulate(problem, run.protocol, dimension=50), 1):
        line = result.plot().axes[panel].lines[0]
        times = line.get_xdata()
        assert len(times) >= 200
        assert np.diff(times).max() <= 40.0 / 200
        assert set(run.times) <= set(times)
        some = [7, 100, -1]
        assert line.get_ydata()[some] == pytest.approx(run.losses_at(times[some])[:, 0], rel=1e-9)


def test_sampling_costs_no_more_than_the_run_itself(monkeypatch):
    """Evaluating each time from the last edge would take 125 times the integration steps."""
    model = replan.TeacherStudent.similar(0.9, hidden=2)
    problem = replan.Problem(model, model.fresh(seed=3), duration=400.0, steps=1)
    run = replan.evaluate(problem, strategies.interleaved(problem))
    assert run.substeps.sum() > 1000
    taken, roll_out = [], type(model).roll_out

    def counted(self, start, pieces):
        taken.append(pieces.substeps.sum())
        return roll_out(self, start, pieces)

    monkeypatch.setattr(type(model), "roll_out", counted)
    run.plot()
    assert sum(taken) <= run.substeps.sum() + 250


def test_twenty_tasks_have_colours_of_their_own():
    colours = [plotting.task_colour(t) for t in range(20)]
    assert len(set(colours)) == 20
    rgb = np.array([matplotlib.colors.to_rgb(colour) for colour in colours])
    gaps = np.linalg.norm(rgb[:, None] - rgb, axis=2) + 9 * np.eye(20)
    assert gaps.min() > 0.2
    assert colours[:2] == ["#E69F00", "#009E73"]


def test_equal_targets_take_turns_along_one_line(monkeypatch):
    drawn = {}
    monkeypatch.setattr(
        matplotlib.axes.Axes, "axhline",
        lambda self, y, color, linestyle, **look: drawn.setdefault(color, linestyle),
    )  # fmt: skip
    problem = many(3)
    replan.evaluate(problem, strategies.interleaved(problem)).plot()
    assert list(drawn.values()) == [(0, (5, 10)), (5, (5, 10)), (10, (5, 10))]


def test_a_comparison_shows_all_losses_and_learning_rates(problem):
    """Also a loss of 0, which a log scale has no place for, and losses that are equal."""
    run = replan.evaluate(problem, strategies.interleaved(problem))
    faster = replan.evaluate(problem, Protocol([[0.5, 0.5]], 4.0, lr=2.5))
    faster.losses[-1] = [0.0, 0.3]
    run.losses[-1] = 0.02
    figure = replan.Comparison(problem, {"faster": faster, "interleaved": run}, {}).plot()
    figure.draw_without_rendering()
    bars, points = figure.axes
    assert [text.get_text() for text in bars.texts] == ["2.5", "1", "lr"]
    first, second = points.lines[:2]
    left, right = points.get_xlim()
    assert first.get_xdata().tolist() == [left, 0.02]
    assert points.get_xticklabels()[-1].get_text() == "0"
    assert points.get_xticks()[-1] == left
    assert right > 0.3
    assert second.get_xdata()[1] == 0.02
    ends = [points.transData.transform(line.get_xydata())[1, 1] for line in (first, second)]
    gap = abs(ends[0] - ends[1])
    assert gap >= first.get_markersize() * figure.dpi / 72  # neither marker touches the other


@pytest.mark.parametrize("name", NAMES)
def test_plot_returns_a_figure_and_writes_only_where_told(name, results, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    figure = results[name].plot()
    assert isinstance(figure, Figure)
    assert len(figure.axes) == PANELS.get(name, 2)
    assert not list(tmp_path.iterdir())
    assert isinstance(results[name].plot("picture.png"), Figure)
    assert [path.name for path in tmp_path.iterdir()] == ["picture.png"]


def test_nothing_is_left_with_pyplot(results):
    from matplotlib import pyplot

    settings = dict(matplotlib.rcParams)
    for result in results.values():
        result.plot()._repr_png_()
    assert pyplot.get_fignums() == []
    assert dict(matplotlib.rcParams) == settings


def test_the_style_counts_when_a_figure_is_drawn_and_saved_later(results, tmp_path):
    """Ticks are made in drawing: outside of the style their labels would have size 10."""
    results["trajectory"].plot(tmp_path / "a.png")
    figure = results["trajectory"].plot()
    figure.savefig(tmp_path / "b.png")
    first, later = ((tmp_path / name).read_bytes() for name in ("a.png", "b.png"))
    assert size(first) == (1280, 720)
    assert np.array_equal(imread(io.BytesIO(first)), imread(io.BytesIO(later)))
    fresh = results["trajectory"].plot()
    fresh.draw_without_rendering()
    assert {label.get_fontsize() for label in fresh.axes[-1].get_xticklabels()} == {9.0}


def test_a_notebook_shows_the_picture_at_half_its_pixels(results):
    png, shown = results["trajectory"].plot()._repr_png_()
    assert shown == {"width": 640, "height": 360}
    assert size(png) == (1280, 720)


@pytest.mark.parametrize(
    ("name", "panels"),
    [
        ("protocol", [1]),
        ("trajectory", [1, 2, 3]),
        ("comparison", [2]),
        ("simulation", [1, 2]),
        ("plan", [1, 2, 3]),
    ],
)
def test_plot_draws_into_given_axes(name, panels, results):
    for count in (1, 2, 3, 4):
        figure = Figure()
        axes = figure.subplots(1, count)
        if count not in panels:
            with pytest.raises(ValueError, match=rf"`axes` expects .*, got {count}$"):
                results[name].plot(axes=axes)
            continue
        # A figure that is returned would show twice in a notebook: as the value and by pyplot.
        assert results[name].plot(axes=axes) is None
        assert all(one.has_data() for one in figure.axes)
        assert len(figure.axes) == count
        assert not figure.legends
        assert figure.axes[-1].get_xlabel() in ("training time α", "final loss")
        where = figure.axes[-1 if name == "comparison" or count < 3 else 1]
        assert {"task 1", "task 2"} <= set(where.get_legend_handles_labels()[1])
        figure.savefig(io.BytesIO())
    with pytest.raises(ValueError, match="`path` expects None where `axes` are given, got 'x'"):
        results[name].plot("x", axes=axes)
    with pytest.raises(ValueError, match="`axes` expects matplotlib axes, got 3"):
        results[name].plot(axes=3)


def test_given_axes_keep_the_style_of_their_figure(results):
    figure = Figure()
    results["protocol"].plot(axes=figure.subplots())
    figure.draw_without_rendering()
    assert {label.get_fontsize() for label in figure.axes[0].get_xticklabels()} == {10.0}


def test_a_bad_path_is_refused_before_anything_is_drawn(tmp_path, monkeypatch):
    drawn = []
    with (
        pytest.raises(ValueError, match=r"`path` .* ends in .png or .pdf or .svg, got 'x.jpg'"),
        plotting.figure("x.jpg", width=1, height=1),
    ):
        drawn.append(1)
    assert not drawn
    with pytest.raises(ValueError, match=r"`path` expects a file in a folder that exists, got '"):
        Protocol([[1.0]], 1.0).plot(tmp_path / "nowhere" / "x.png")


def test_a_plain_figure_has_the_resolution_of_the_others(tmp_path):
    plotting.save(Figure(figsize=(4.6, 3.2)), tmp_path / "x.png")
    assert size((tmp_path / "x.png").read_bytes()) == (920, 640)


def test_a_picture_that_fails_leaves_the_old_one(tmp_path):
    path = tmp_path / "x.png"
    Protocol([[1.0]], 1.0).plot(path)
    before = path.read_bytes()
    figure = Protocol([[0.0, 1.0]], 1.0).plot()
    figure.supxlabel("$unbalanced")
    figure.axes[0].set_xlabel(r"$\no$")
    with pytest.raises(ValueError, match="no"):
        plotting.save(figure, path)
    assert path.read_bytes() == before
    assert [found.name for found in tmp_path.iterdir()] == ["x.png"]


def test_a_comparison_without_curves_has_no_picture(problem):
    with pytest.raises(
        ValueError, match="`plot` expects at least one strategy with a learning curve"
    ):
        replan.Comparison(problem, {}, {"interleaved": "diverged"}).plot()
