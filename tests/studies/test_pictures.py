"""The first picture of a study: which axes it shows, and what a reader sees."""

import numpy as np
import pytest

from replan.studies import Study
from replan.studies._axes import Axis, points

SIMILARITY = ("model.similarity", [round(0.1 * k, 1) for k in range(1, 10)])
SEED = ("start.fresh.seed", list(range(20)))
FEW = ("training.lr", [0.5, 1.0, 2.0])
MANY = ("training.lr", [0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0])
WORDS = ("model.activation", ["erf", "linear"])
STRATEGIES = ["no-replay", "interleaved"]


def study(*axes, names=(*STRATEGIES, "relax"), simulated=False, value=None, groups=None):
    """A study whose values follow a formula: value(name, cells), None where a run failed."""
    groups = range(len(axes)) if groups is None else groups
    made = [
        Axis(tuple(path.split(".")), values, path.rpartition(".")[2], group)
        for (path, values), group in zip(axes, groups, strict=True)
    ]
    rows = []
    for point in points(made):
        cells = {axis.name: axis.cells[i] for axis, i in zip(made, point, strict=True)}
        for k, name in enumerate(names):
            what = "solver" if name == "relax" else "strategy"
            found = (
                (k + 1) * 0.01 * (1 + 0.01 * sum(point)) if value is None else value(name, cells)
            )
            row = cells | {"name": name, "status": "ok", "advice": "", "shares": [1.0]}
            row |= (
                {"value": found, "losses": [found]} if found is not None else {"status": "failed"}
            )
            rows.append(row | {"what": what})
            if simulated:
                rows.append(row | {"what": "simulation"})
    return Study(made, rows)


def labels(figure):
    """What stands below and to the left of every panel that is seen."""
    seen = [axes for axes in figure.axes if axes.get_visible() and axes.get_label() != "<colorbar>"]
    return [(axes.get_xlabel(), axes.get_ylabel(), axes.get_title()) for axes in seen]


def legend(figure):
    [found] = [axes.get_legend() for axes in figure.axes if axes.get_legend() is not None]
    return [text.get_text() for text in found.get_texts()], found.get_title().get_text()


def lines(axes):
    """The lines of a panel that are drawn, as x and y."""
    return [line.get_data() for line in axes.get_lines() if len(line.get_xdata())]


def test_one_axis_gives_lines_with_bands_over_the_seeds():
    figure = study(SEED, SIMILARITY).plot()
    assert labels(figure) == [("similarity", "objective", "")]
    assert legend(figure) == ([*STRATEGIES, "relax"], "median, 10 to 90 %\nover seed")
    [axes] = figure.axes
    assert axes.get_yscale() == "log"
    x, y = lines(axes)[0]
    np.testing.assert_allclose(x, SIMILARITY[1])
    np.testing.assert_allclose(y, 0.01 * (1 + 0.01 * (9.5 + np.arange(9))))
    low, high = np.array([[0.01 * (1 + 0.01 * (s + i)) for s in (1.9, 17.1)] for i in range(9)]).T
    band = axes.collections[0].get_paths()[0].vertices
    assert band[:, 1].min() == pytest.approx(low.min()) and band[:, 1].max() == pytest.approx(
        high.max()
    )


def test_few_values_of_a_second_axis_have_panels():
    assert labels(study(SIMILARITY, FEW, SEED).plot()) == [
        ("similarity", "objective", "lr = 0.5"),
        ("similarity", "", "lr = 1"),
        ("similarity", "", "lr = 2"),
    ]
    assert [title for *_, title in labels(study(WORDS, SEED, SIMILARITY).plot())] == [
        "activation = erf", "activation = linear",
    ]  # fmt: skip


def test_two_long_axes_give_maps():
    figure = study(SIMILARITY, MANY, SEED).plot()
    assert labels(figure) == [
        ("similarity", "lr", "no-replay"),
        ("similarity", "", "interleaved"),
        ("similarity", "", "relax"),
    ]
    shown = figure.axes[0].collections[0].get_array()
    assert shown.shape == (7, 9)
    assert shown[2, 3] == pytest.approx(0.01 * (1 + 0.01 * (2 + 3 + 9.5)))
    assert figure.axes[-1].get_ylabel() == "objective, median over seed"


def test_axes_can_be_chosen():
    three = study(SIMILARITY, MANY, SEED)
    assert labels(three.plot(x="lr")) == [("lr", "objective", "")]
    assert legend(three.plot(x="lr"))[1] == "median, 10 to 90 %\nover similarity, seed"
    assert labels(three.plot(x="seed", y="lr"))[0] == ("seed", "lr", "no-replay")
    assert labels(three.plot(y="similarity"))[0] == ("lr", "similarity", "no-replay")
    assert labels(study(SIMILARITY, FEW).plot(x="similarity", y="lr"))[0][:2] == (
        "similarity",
        "lr",
    )
    with pytest.raises(ValueError, match=r"^`x` expects one of similarity, lr, seed; got 'l'"):
        three.plot(x="l")


def test_axes_that_move_together_are_one():
    figure = study(SIMILARITY, ("training.lr", SIMILARITY[1]), SEED, groups=[0, 0, 2]).plot()
    assert labels(figure) == [("similarity", "objective", "")]
    assert legend(figure)[1] == "median, 10 to 90 %\nover seed"


def test_words_have_places_of_their_own():
    figure = study(WORDS, SEED, simulated=True).plot()
    assert labels(figure) == [("activation", "objective", "")]
    assert [text.get_text() for text in figure.axes[0].get_xticklabels()] == ["erf", "linear"]
    assert legend(figure)[0] == [*STRATEGIES, "relax", "SGD"]
    places = np.sort(np.concatenate([x for x, _ in lines(figure.axes[0])[::2]]))
    assert len(set(places)) == 6  # none hides another
    assert np.all(np.abs(places - np.round(places)) < 0.5)


@pytest.mark.parametrize("axes", [(), (SEED,)])
def test_where_only_seeds_vary_every_value_is_a_point(axes):
    figure = study(*axes, simulated=True).plot()
    [panel] = figure.axes
    assert [text.get_text() for text in panel.get_yticklabels()] == [*STRATEGIES, "relax"]
    assert legend(figure)[0] == ["median"] * len(axes) + ["SGD"]
    assert panel.get_xscale() == "log"
    count = 20 if axes else 1
    assert len(lines(panel)[0][0]) == count


def test_a_seed_can_be_asked_for():
    assert labels(study(SEED).plot(x="seed")) == [("seed", "objective", "")]


def test_ten_strategies_are_told_apart():
    names = [f"strategy {k}" for k in range(11)] + ["relax"]
    figure = study(SIMILARITY, SEED, names=names).plot()
    [axes] = figure.axes
    assert legend(figure) == (names, "median\nover seed")
    assert len(axes.collections) == 0  # bands would hide one another
    looks = {
        (line.get_color(), line.get_marker(), line.get_linestyle()) for line in axes.get_lines()
    }
    assert len(looks) == 12
    figure.draw_without_rendering()
    box = axes.get_legend().get_window_extent()
    assert box.x1 <= figure.bbox.x1 and box.y0 >= 0 and box.y1 <= figure.bbox.y1


def test_long_names_have_room():
    names = ["interleaved (shares=[0.2, 0.8], and=[more, of, that])", "relax"]
    for made in (study(SIMILARITY, SEED, names=names), study(SEED, names=names)):
        figure = made.plot()
        figure.draw_without_rendering()
        [axes] = figure.axes
        assert axes.get_window_extent().width > 2.5 * figure.dpi


def test_failed_runs_are_worse_than_any():
    """The luckiest third of the seeds survives at the larger rates: no median, not a good one."""

    def value(name, cells):
        return None if cells["lr"] > 1 and cells["seed"] % 3 else 0.1 / (1 + cells["lr"])

    figure = study(FEW, SEED, names=["no-replay"], value=value).plot()
    [axes] = figure.axes
    _, y = lines(axes)[0]
    np.testing.assert_array_equal(np.isnan(y), [False, False, True])
    assert legend(figure)[1] == "median, 10 to 90 %\nover seed\nfailed runs are worst"
    figure = study(SIMILARITY, MANY, SEED, names=["no-replay"], value=value).plot()
    mask = np.ma.getmaskarray(figure.axes[0].collections[0].get_array())
    np.testing.assert_array_equal(mask.all(axis=1), np.array(MANY[1]) > 1)
    assert figure.axes[-1].get_ylabel() == "objective, median over seed (grey: failed)"


def test_values_below_zero_have_a_place():
    figure = study(SIMILARITY, value=lambda name, cells: cells["similarity"] - 0.5).plot()
    assert figure.axes[0].get_yscale() == "linear"
    figure = study(SIMILARITY, MANY, value=lambda name, cells: cells["similarity"] - 0.5).plot()
    assert len(labels(figure)) == 3


def test_rates_over_decades_are_on_a_log_scale():
    [axes] = study(MANY).plot().axes
    assert axes.get_xscale() == "log"
    assert [text.get_text() for text in axes.get_xticklabels()][:3] == ["0.1", "0.2", "0.5"]
    assert study(SIMILARITY).plot().axes[0].get_xscale() == "linear"


def test_a_file_is_written_where_told(tmp_path):
    study(SIMILARITY).plot(tmp_path / "picture.svg")
    assert (tmp_path / "picture.svg").stat().st_size
    with pytest.raises(ValueError, match="`path` expects a file name that ends in"):
        study(SIMILARITY).plot(tmp_path / "picture.xyz")
