"""Pictures: what `plot` returns and writes, where it draws, in which style, and that all fits."""

import io

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

import replan
from replan import ArgumentError, Objective, Protocol, plot, strategies
from replan.comparison import Comparison
from replan.report import task_colour

PANELS = {
    "protocol": 1, "trajectory": 2, "annealed": 3, "curves": 1, "comparison": 2, "simulation": 2,
    "plan": 2, "levers": 2,
}  # fmt: skip


@pytest.fixture(scope="module")
def problem():
    model = replan.TeacherStudent.similar(0.3)
    return replan.Problem(model, model.fresh(seed=1), duration=4.0, steps=8)


@pytest.fixture(scope="module")
def results(problem):
    protocol = strategies.interleaved(problem)
    annealed = protocol.with_knobs(lr=np.linspace(2.0, 0.5, protocol.steps))
    simulation = replan.simulate(problem, protocol, dimension=50, runs=2)
    return {
        "protocol": protocol,
        "trajectory": replan.evaluate(problem, protocol),
        "annealed": replan.evaluate(problem, annealed),
        "curves": simulation.curves,
        "comparison": replan.compare(problem),
        "simulation": simulation,
        "plan": replan.solve(problem),
        "levers": replan.levers(problem, tolerance=0.1),
    }


@pytest.mark.parametrize("name", PANELS)
def test_a_figure_is_returned_and_written_where_a_path_is_given(name, results, tmp_path):
    figure = results[name].plot()
    assert len(figure.axes) == PANELS[name]
    for ending, head in ((".png", b"\x89PNG"), (".pdf", b"%PDF"), (".svg", b"<?xml")):
        results[name].plot(tmp_path / f"x{ending}")
        assert (tmp_path / f"x{ending}").read_bytes().startswith(head)
    width = imread(io.BytesIO((tmp_path / "x.png").read_bytes())).shape[1]
    assert width >= 1466  # sharp where the documentation shows it on screens of double density
    png, shown = figure._repr_png_()
    assert imread(io.BytesIO(png)).shape[1] >= 2 * shown["width"]


def test_endings_and_folders_are_checked_before_drawing(results, tmp_path):
    for path in (tmp_path / "x.jpg", tmp_path / "missing" / "x.png"):
        with pytest.raises(ArgumentError) as caught:
            results["trajectory"].plot(path)
        assert caught.value.name == "path"


def test_the_style_is_ours_and_stays_inside(results):
    before = dict(matplotlib.rcParams)
    with matplotlib.rc_context({"font.size": 30.0, "axes.spines.top": True}):
        figure = results["trajectory"].plot()
        figure.savefig(io.BytesIO())
        assert figure.axes[1].yaxis.label.get_fontsize() == 9.0
        assert not figure.axes[1].spines["top"].get_visible()
    assert dict(matplotlib.rcParams) == before


@pytest.mark.parametrize("tasks", [1, 2, 6, 9, 20])
def test_legends_fit_whatever_the_number_of_tasks(tasks):
    """Legends that have no room collide with the panels, or lose entries, with a warning."""
    model = replan.TeacherStudent.similar(0.3, tasks=tasks, hidden=1)
    targets = Objective(targets=[0.1] * tasks)
    problem = replan.Problem(model, model.fresh(seed=1), duration=2.0, steps=4, objective=targets)
    run = replan.evaluate(problem, strategies.sequential(problem))
    runs = {"sequential": run, "a-strategy-with-a-name-that-is-very-long-indeed": run}
    simulation = replan.simulate(problem, run.protocol, dimension=50, runs=2)
    comparison = Comparison(problem, runs, {}, frozenset(["sequential"]), {})
    for result, entries in (
        (run.protocol, tasks),
        (run, 2 * tasks + (tasks > 1)),  # a single loss is the objective
        (comparison, tasks + 1),
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


def test_a_comparison_shows_groups_names_and_values(results):
    comparison = results["comparison"]
    bars, points = comparison.plot().axes
    words = [text.get_text() for text in (*bars.texts, *points.texts)]
    assert {"at the given learning rate", "learning rate free", "objective"} <= set(words)
    shown = [label.get_text() for label in bars.get_yticklabels()]
    assert shown == [name for runs in comparison.groups.values() for name in runs]
    heights = bars.get_yticks().tolist()
    assert heights == sorted(heights, reverse=True)
    lines = {line.get_label(): line for line in points.lines}
    losses = [comparison.runs[name].final_losses[1] for name in shown]
    assert lines["task 2"].get_xdata().tolist() == pytest.approx(losses)
    with pytest.raises(ArgumentError):
        Comparison(comparison.problem, {}, {}, frozenset(), {}).plot()


def test_a_curve_is_smooth_however_long_its_steps():
    """A curve drawn at the edges alone would be a straight line."""
    model = replan.TeacherStudent.similar(0.9, hidden=2)
    problem = replan.Problem(model, model.fresh(seed=3), duration=40.0, steps=1)
    run = replan.evaluate(problem, Protocol([[0.5, 0.5], [1.0, 0.0]], edges=[0.0, 30.0, 40.0]))
    line = run.plot().axes[1].lines[0]
    times = line.get_xdata()
    assert np.diff(times).max() <= 40.0 / 200
    some = [7, 100, -1]
    assert line.get_ydata()[some] == pytest.approx(run.losses_at(times[some])[:, 0], rel=1e-9)
    taken, roll_out = [], type(model).roll_out  # sampling costs no more than the run itself

    def counted(self, start, pieces):
        taken.append(pieces.substeps.sum())
        return roll_out(self, start, pieces)

    again = replan.evaluate(problem, run.protocol)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(model), "roll_out", counted)
        again.plot()
    assert sum(taken) <= run.substeps.sum() + 250


def test_bars_are_stacked_in_the_colours_of_the_tasks():
    axes = Protocol([[0.3, 0.7], [1.0, 0.0]], 2.0).plot().axes[0]
    first, second = (patch.get_paths()[0].vertices for patch in axes.collections)
    assert first[:, 1].max() == 1.0
    assert 0.3 in first[:, 1].round(12)
    assert second[:, 1].min() == pytest.approx(0.3)
    colours = [matplotlib.colors.to_hex(patch.get_facecolor()[0]) for patch in axes.collections]
    assert colours == [task_colour(0).lower(), task_colour(1).lower()]


def test_twenty_tasks_have_different_colours():
    rgb = np.array([matplotlib.colors.to_rgb(task_colour(t)) for t in range(20)])
    gaps = np.linalg.norm(rgb[:, None] - rgb, axis=2) + 9 * np.eye(20)
    assert gaps.min() > 0.2


def test_rates_have_the_colour_of_their_task_or_black_where_shared():
    figure = Figure()
    for lr, colours in ((1.0, {"black"}), ([[1.0, 2.0]], {task_colour(0), task_colour(1)})):
        axes = figure.add_subplot()
        plot.draw_knob(axes, Protocol([[0.5, 0.5]], 1.0, lr=lr), "lr")
        drawn = {matplotlib.colors.to_hex(lines.get_color()[0]) for lines in axes.collections}
        assert drawn == {matplotlib.colors.to_hex(colour) for colour in colours}


@pytest.mark.parametrize(
    ("values", "ticks"),
    [([0.02, 0.3], [1e-2, 1e-1, 1]), ([0.0, 0.5], [1e-2, 1e-1, 1]), ([1e-9, 1.0], None)],
)
def test_log_scales_have_whole_decades_and_room_for_zero(values, ticks):
    axes = Figure().subplots()
    zero = plot._log_scale(axes, np.array(values))
    low, high = axes.get_xlim()
    assert zero == low <= max(min(values), low)
    assert high >= max(values)
    assert len(axes.get_xticks()) <= 7
    if ticks is not None:
        assert sorted(axes.get_xticks()) == pytest.approx(ticks)
    if 0.0 in values:
        assert axes.get_xticklabels()[-1].get_text() == "0"


def test_targets_that_are_equal_take_turns():
    axes = Figure().subplots()
    plot._draw_targets(axes, np.array([0.1, 0.1, np.inf]), ["a", "b", "c"])
    lines = [line for line in axes.lines if len(line.get_xdata())]
    assert len(lines) == 2
    assert lines[0]._dash_pattern != lines[1]._dash_pattern
