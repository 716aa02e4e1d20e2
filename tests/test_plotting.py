"""Pictures: what `plot` returns and writes, where it draws, and in which style."""

import io
import tempfile
from types import SimpleNamespace

import matplotlib
import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

import replan
from replan import Protocol, strategies
from replan._common import plotting
from replan.paper import _make


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
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # where the picture is kept
    with pytest.raises(FileNotFoundError):
        Protocol([[1.0]], 1.0).plot(tmp_path / "nowhere" / "x.png")


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


def test_a_figure_of_the_paper_is_drawn_once_and_saved_twice(tmp_path):
    drawn = []

    def draw(tables):
        drawn.append(tables)
        return Protocol([[0.3, 0.7]], 1.0).plot()

    tables = {"steps": pd.DataFrame({"x": [1, 2], "y": [0.1, 1e-5], "name": ["a", "b"]})}
    made = _make._write(
        tmp_path, "one", SimpleNamespace(draw=draw, claims=lambda tables: []), tables
    )
    assert len(drawn) == 1
    assert [path.name for path in made.files] == ["one.png", "one.pdf", "one.csv"]
    assert (tmp_path / "one.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "one.pdf").read_bytes().startswith(b"%PDF")
    assert (tmp_path / "one.csv").read_text() == "x,y,name\n1,0.1,a\n2,1e-05,b\n"
