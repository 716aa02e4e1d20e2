"""Results in a notebook: HTML, pandas frames, pictures in a real kernel, progress bars."""

import csv
import io
import re
import sys
from base64 import b64decode
from types import ModuleType, SimpleNamespace
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest

import replan
from replan import Protocol, strategies
from replan._common import html
from replan.progress import Meter

NAMES = ["protocol", "rates", "trajectory", "comparison", "simulation", "plan"]


@pytest.fixture(scope="module")
def problem():
    model = replan.TeacherStudent.similar(0.3)
    return replan.Problem(model, model.fresh(seed=1), duration=4.0, steps=8)


@pytest.fixture(scope="module")
def results(problem):
    protocol = strategies.interleaved(problem)
    return {
        "protocol": Protocol([[0.3, 0.7], [1 / 3, 2 / 3]], lr=[1.0, 1e-5], edges=[0, 1 / 3, 2]),
        "rates": Protocol([[0.3, 0.7], [0.9, 0.1]], 2.0, lr=[[1.0, 0.1], [1e22, 3.0]]),
        "trajectory": replan.evaluate(problem, protocol),
        "comparison": replan.compare(problem),
        "simulation": replan.simulate(problem, protocol, dimension=50, seeds=2),
        "plan": replan.solve(problem),
    }


# HTML


def parse(page):
    """Return the tree of a piece of HTML, which must be well-formed and refer to nothing."""
    assert not re.search(r"https?:|src=|href=|url\(|<script|<style", page)
    return ElementTree.fromstring(page)


def words(page):
    return " ".join(" ".join(parse(page).itertext()).split())


@pytest.mark.parametrize("name", NAMES)
def test_results_show_numbers_and_a_colour_bar(name, results):
    page = results[name]._repr_html_()
    tree = parse(page)
    bars = [svg for svg in tree.iter("svg") if svg.get("role") == "img"]
    assert len(bars) == (len(results[name].runs) if name == "comparison" else 1)
    assert all("task 1" in bar.get("aria-label") for bar in bars)
    assert "task 2" in words(page)
    assert len(page) < 40_000


def test_a_plan_shows_losses_phases_and_certificate(results):
    plan = results["plan"]
    shown = words(plan._repr_html_())
    assert f"Plan: loss {plan.loss:.6g}, {plan.status}" in shown
    for loss in plan.trajectory.final_losses:
        assert f"{loss:.4g}" in shown
    assert "; ".join(plan.phases) in shown
    assert f"pmp residual {plan.certificate.pmp_residual:.4g}" in shown
    assert plan.advice in shown


def test_targets_are_shown_where_there_are_any(problem, results):
    bound = replan.Problem(problem.model, problem.start, duration=4.0, targets=[None, 1e-9])
    run = replan.evaluate(bound, strategies.interleaved(bound))
    assert "target" in words(run._repr_html_())
    assert "1e-09" in words(run._repr_html_())
    assert "target" not in words(results["trajectory"]._repr_html_())


def test_a_diverged_trajectory_shows_why(problem):
    protocol = Protocol([[0.5, 0.5]], 4.0, lr=1e9)
    run = replan.evaluate(problem, protocol, throw=False)
    assert run.status in words(run._repr_html_())
    assert run.advice in words(run._repr_html_())


def test_a_simulation_shows_what_its_text_says(results):
    simulation = results["simulation"]
    shown = words(simulation._repr_html_())
    assert "2 runs of SGD, N = 50" in shown
    assert f"{simulation.curves.mean[-1, 0]:.4g}" in shown


def test_words_are_escaped(problem):
    failed = replan.Comparison(problem, {}, {"<i>name</i>": 'because a < b & "c"'})
    page = failed._repr_html_()
    assert "<i>" not in page
    assert '<i>name</i> failed: because a < b & "c"' in words(page)


def boxes(protocol):
    """Return the rectangles (left, right, top, height) of every task in the colour bar."""
    tree = parse(html.colour_bar(protocol))
    number = r"([-+.e\d]+)"
    box = re.compile(rf"M{number} {number}H{number}v{number}H{number}z")
    found = []
    for path in tree.iter("path"):
        rows = np.array(box.findall(path.get("d")), dtype=float).reshape(-1, 5)
        found.append(rows[:, [0, 2, 1, 3]])
    return found


@pytest.mark.parametrize(
    ("protocol", "count"),
    [
        (Protocol([[0.0, 1.0]] * 250, 25.0), [0, 1]),
        (Protocol([[0.25, 0.75]] * 3 + [[1.0, 0.0]], edges=[0, 1, 2, 3, 7]), [2, 1]),
        (Protocol.from_sequence([0, 1] * 150, 2, 25.0), [150, 150]),
        (Protocol.from_sequence([0, 1, 1] * 200, 2, 25.0), [200, 300]),
        (Protocol.from_sequence([0, 1, 1, 2] * 5000, 3, 1e-3), [300, 300, 300]),
    ],
)
def test_equal_neighbours_are_one_box_and_many_are_averaged(protocol, count):
    found = boxes(protocol)
    assert [len(rows) for rows in found] == count
    areas = [np.sum((rows[:, 1] - rows[:, 0]) * rows[:, 3]) / 1e5 for rows in found]
    np.testing.assert_allclose(areas, protocol.mean_shares, atol=1e-4)
    assert ("averaged" in words(html.colour_bar(protocol))) == (protocol.steps > 300)


def test_the_bar_is_stacked_from_the_bottom_as_in_pictures():
    first, second = boxes(Protocol([[0.25, 0.75]], 1.0))
    assert first.tolist() == [[0, 1000, 75, 25]]
    assert second.tolist() == [[0, 1000, 0, 75]]


# Frames


def old_csv(header, rows):
    """Return what files had before there were frames: floats in full, whatever pandas does."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows([[repr(x) if isinstance(x, float) else x for x in row] for row in rows])
    return text.getvalue()


def old_rows(name, result):
    if name in ("protocol", "rates"):
        rates = ["lr"] if name == "protocol" else ["lr_1", "lr_2"]
        columns = [result.edges[:-1], result.edges[1:], result.shares, result.lr]
        return ["start", "end", "share_1", "share_2", *rates], np.column_stack(columns).tolist()
    if name == "trajectory":
        columns = [result.times, result.losses, result.weighted_losses]
        return ["time", "loss_1", "loss_2", "weighted"], np.column_stack(columns).tolist()
    if name == "simulation":
        return ["run", "time", "loss_1", "loss_2"], [
            [run, time, *losses]
            for run, curves in enumerate(result.losses.tolist())
            for time, losses in zip(result.times.tolist(), curves, strict=True)
        ]
    header = ["strategy", "value", "loss_1", "loss_2", "share_1", "share_2", "lr_first", "lr_last"]
    return header, [
        [name, run.loss, *run.final_losses.tolist(), *run.protocol.mean_shares.tolist(),
         *run.protocol.lr[[0, -1]].tolist()]
        for name, run in result.runs.items()
    ]  # fmt: skip


@pytest.mark.parametrize("name", NAMES[:-1])
def test_csv_files_are_the_frame_and_what_they_were(name, results, tmp_path):
    results[name].save(tmp_path / "x.csv")
    assert (tmp_path / "x.csv").read_text() == old_csv(*old_rows(name, results[name]))
    frame = results[name].to_frame()
    header, rows = old_rows(name, results[name])
    assert list(frame) == header
    assert frame.to_numpy(dtype=object).tolist() == rows


def test_runs_that_diverged_are_nan_in_frame_and_file(problem, tmp_path):
    states = np.full((1, 2, problem.state.size), np.nan)
    states[0, 0] = problem.state
    settings = {"dimension": 50, "seeds": 1, "engine": "reduced"}
    simulation = replan.Simulation(
        problem, strategies.interleaved(problem), np.array([0.0, 4.0]), states, [None],
        {0: "diverged"}, settings,
    )  # fmt: skip
    assert simulation.to_frame()["loss_1"].isna().tolist() == [False, True]
    simulation.save(tmp_path / "x.csv")
    assert (tmp_path / "x.csv").read_text().splitlines()[-1] == "0,4.0,nan,nan"


def test_a_plan_gives_its_steps_and_the_losses_at_their_ends(results):
    plan = results["plan"]
    frame = plan.to_frame()
    steps = plan.protocol.to_frame()
    pd.testing.assert_frame_equal(frame[list(steps)], steps)
    assert list(frame)[len(steps.columns) :] == ["loss_1", "loss_2", "weighted"]
    assert frame["loss_2"].iloc[-1] == plan.trajectory.final_losses[1]
    assert frame["weighted"].iloc[-1] == pytest.approx(plan.loss, rel=1e-12)


def test_a_comparison_without_curves_has_an_empty_frame(problem, results):
    empty = replan.Comparison(problem, {}, {"interleaved": "diverged"}).to_frame()
    assert len(empty) == 0
    assert list(empty) == list(results["comparison"].to_frame())


# Progress


@pytest.fixture
def notebook(monkeypatch):
    """A shell as a notebook's kernel has it, without widgets."""
    shell = SimpleNamespace(config={"IPKernelApp": {}})
    ipython = ModuleType("IPython")
    ipython.get_ipython = lambda: shell
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    monkeypatch.setattr("replan.progress.find_spec", sys.modules.get)
    return shell


def work(watch):
    with Meter(watch, "steps", 3) as meter:
        meter.advance(2)
        meter.advance(1, expect=2, note="more")
        meter.advance(2)
    return meter


def test_nobody_sees_a_bar_without_a_terminal(capsys):
    assert work(True).done == 5
    assert capsys.readouterr() == ("", "")


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_the_time_left_is_told_from_what_took_time(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with Meter(True, "cases") as meter:
        meter.advance(90, expect=100, known=True, note="90 from the cache")
        meter._bar._time = lambda: meter._bar.start_t + 10
        meter.advance(5, note="90 from the cache")
    shown = terminal.getvalue()
    assert re.search(r"90.0/100 \[00:00<\?, \?it/s, 90 from the cache\]", shown)
    assert re.search(r"95.0/100 \[00:10<00:(09|10), 2\.00s/it, 90 from the cache\]", shown)
    assert "-" not in shown


def test_a_terminal_shows_text(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    work(True)
    shown = terminal.getvalue()
    assert "steps:   0%" in shown
    assert "3.00/5.00" in shown
    assert shown.endswith("\r")  # gone at the end


def test_a_terminal_of_ipython_is_no_notebook(notebook, capsys):
    notebook.config = {"TerminalIPythonApp": {}}
    work(True)
    assert capsys.readouterr() == ("", "")


def test_a_notebook_without_widgets_shows_text_in_the_cell(notebook, capsys):
    work(True)
    out, errors = capsys.readouterr()
    assert "steps:   0%" in out
    assert "3.00/5.00" in out
    assert not errors
    work(False)
    assert capsys.readouterr() == ("", "")


def test_a_notebook_with_widgets_shows_widgets(notebook, monkeypatch):
    import tqdm.notebook

    said = []

    class Widget:
        start_t = 0.0

        def __init__(self, **settings):
            said.append(settings)

        def __getattr__(self, name):
            return lambda *args, **kwargs: said.append((name, *args))

    monkeypatch.setitem(sys.modules, "ipywidgets", ModuleType("ipywidgets"))
    monkeypatch.setattr(tqdm.notebook, "tqdm", Widget)
    work(True)
    assert said[0] == {"desc": "steps", "total": 3, "unit_scale": True, "leave": False}
    assert ("reset", 5) in said  # a widget that is only given a new `total` keeps its old length
    assert said[-1] == ("close",)


def test_a_function_is_told(notebook, capsys):
    told = []
    work(told.append)
    assert [(p.done, p.total, p.note) for p in told] == [(2, 3, ""), (3, 5, "more"), (5, 5, "")]
    assert capsys.readouterr() == ("", "")


# A real kernel

CELLS = [
    "import sys, replan\nprotocol = replan.Protocol([[0.3, 0.7], [1.0, 0.0]], 2.0)\nprotocol",
    "protocol.plot()",
    "'matplotlib.pyplot' in sys.modules",
    "from matplotlib import pyplot\n_, axes = pyplot.subplots()\nprotocol.plot(axes=axes)",
    "protocol.plot()",
]


def test_a_kernel_shows_every_result_once():
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    from nbformat import v4

    book = v4.new_notebook(cells=[v4.new_code_cell(cell) for cell in CELLS])
    nbclient.NotebookClient(book, timeout=None).execute()  # it ends the kernel, whatever happens
    shown = [[output.data for output in cell.outputs] for cell in book.cells]
    assert [len(outputs) for outputs in shown] == [1] * len(CELLS)
    assert "<svg" in shown[0][0]["text/html"]
    for outputs in (shown[1], shown[3], shown[4]):
        assert b64decode(outputs[0]["image/png"]).startswith(b"\x89PNG")
    assert shown[2][0]["text/plain"] == "False"
