"""Print and notebooks: what results say, that it fits a screen, and the colour bar in HTML."""

import re
from base64 import b64decode
from xml.etree import ElementTree

import numpy as np
import pytest

import replan
from replan import Exhaustive, Objective, Protocol, report, strategies

NAMES = ["protocol", "trajectory", "plan", "simulation", "comparison", "levers"]


@pytest.fixture(scope="module")
def problem():
    model = replan.TeacherStudent.similar(0.3)
    return replan.Problem(model, model.pretrain(seed=1, duration=60.0), duration=10.0, steps=20)


@pytest.fixture(scope="module")
def results(problem):
    protocol = strategies.focus_then_replay(problem)
    return {
        "protocol": protocol,
        "trajectory": replan.evaluate(problem, protocol),
        "plan": replan.solve(problem),
        "simulation": replan.simulate(problem, protocol, dimension=100, runs=3),
        "comparison": replan.compare(problem, optimum=True),
        "levers": replan.levers(problem, tolerance=0.1),
    }


def parse(page):
    """Return the elements of an HTML fragment; it must be well-formed."""
    return ElementTree.fromstring(f"<root>{page}</root>")


@pytest.mark.parametrize("name", NAMES)
def test_text_fits_a_screen(name, results):
    lines = str(results[name]).splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= (150 if name == "plan" else 120)
    assert len(repr(results[name])) <= 160
    assert "\n" not in repr(results[name])


@pytest.mark.parametrize("name", NAMES)
def test_html_is_well_formed_and_says_the_numbers(name, results):
    result = results[name]
    root = parse(result._repr_html_())
    words = " ".join(root.itertext())
    if name != "levers":
        assert root.findall(".//svg")
    if hasattr(result, "final_losses") and name != "simulation":
        assert all(f"{loss:.6g}" in words for loss in result.final_losses)


def test_a_table_is_as_wide_as_its_cells():
    table = report.Table(["", "value"], [["heading"], ["a", "1"], ["long", "22.5"]], "l")
    assert table.lines() == ["      value", "heading", "a         1", "long   22.5"]


def test_a_protocol_in_words():
    many = Protocol.from_sequence([0, 1] * 100, tasks=2, duration=25.0)
    assert "192 more" in str(many).splitlines()[-1]
    equal = Protocol(np.full((1, 10), 0.1), 1.0)
    assert "0.1 each of task 1 to task 10" in str(equal)
    for lr, words in (
        (1.0, "1"),
        ([3.0, 2.0, 2.0], "3 to 2"),
        ([1.0, 3.0, 2.0], "1 … 3"),
        ([[1, 2]] * 3, "1 … 2"),
    ):
        assert f"learning rate {words}\n" in str(Protocol([[0.5, 0.5]] * 3, 3.0, lr=lr))


def test_a_plan_says_in_two_sentences_how_good_it_is(problem, results):
    plan = results["plan"]
    first, *lines = str(plan).splitlines()
    assert first.startswith(f"loss {plan.loss:.6g} (task 1 ")
    assert lines[0].startswith("phases: focus on task 2")
    assert lines[1] == "learning rate 1, 1 switch"
    part = 100 * plan.certificate.pmp_residual / plan.loss
    assert lines[2].startswith(f"local optimum: at most {part:.2g} % of the loss is left to gain")
    assert lines[3].startswith("the curves are accurate to ")
    assert lines[4].startswith("relax: ")
    assert len(lines) == 5
    limited = replan.solve(problem, max_gradients=1)
    assert "best found (limit)" in str(limited)
    assert str(limited).splitlines()[-1] == limited.advice
    tiny = problem.changed(steps=4)
    assert "global optimum" in str(replan.solve(tiny, Exhaustive()))


def test_targets_running_costs_and_members_are_reported(problem):
    objective = Objective(running=[0.1, 0.1], targets=[1e-9, None])
    plan = replan.solve(problem.changed(objective=objective))
    text = str(plan)
    assert "running costs" in text
    assert "task 1 ends at" in text
    assert "target" in plan._repr_html_()
    both = replan.Problem.ensemble({"a": problem, "b": problem.changed(lr=1.0)}, risk="worst")
    text = str(replan.evaluate(both, strategies.interleaved(both)))
    assert "worst of 2 members" in text
    assert "members from" in text


def test_transfer_is_reported_where_tasks_arrive(problem):
    late = problem.changed(arrivals=[0, 5])
    run = replan.evaluate(late, strategies.no_replay(late))
    means = run.transfer.means
    assert f"forgetting {means['forgetting']:.4g}" in str(run)
    assert "forgetting" in run._repr_html_()
    comparison = replan.compare(late, ["no-replay", "interleaved"])
    assert {"forgetting", "backward", "forward"} <= set(str(comparison).split())
    runs = replan.simulate(late, run.protocol, dimension=50, runs=2)
    assert "means over tasks" in str(runs)


def test_divergence_is_reported(problem):
    run = replan.evaluate(problem, Protocol([[0.5, 0.5]], 10.0, lr=1e9), throw=False)
    for text in (str(run), run._repr_html_()):
        assert "diverged" in text
    failed = replan.Curves([0.0, 1.0], np.full((10, 2, 1), np.nan))
    assert "runs 0, 1, 2, 3, 4, 5, 6, 7 and 2 more: no finite" in str(failed)
    assert "inf" not in str(replan.Curves([0.0, 1.0], np.ones((1, 2, 1))))
    wild = replan.compare(problem.changed(lr=1e9), ["interleaved"])
    for text in (str(wild), wild._repr_html_()):
        assert "interleaved failed" in text


def test_a_comparison_has_headings_where_there_are_groups(problem, results):
    lines = str(results["comparison"]).splitlines()
    at = [lines.index(line) for line in ("at the given learning rate", "learning rate free")]
    assert lines[at[1] + 1].split()[0] == "optimum-lr"
    coarse = lines[at[0] + 1].split()[0] == "focus-then-replay"  # which changes within a step
    assert coarse == lines[-1].startswith("focus-then-replay mixes tasks")
    single = str(replan.compare(problem, ["interleaved"]))
    assert "given" not in single
    model = replan.TeacherStudent.stream(10, 0.5)
    many = replan.Problem(model, model.fresh(), duration=10.0, steps=20)
    comparison = replan.compare(many, ["interleaved"])
    worst = int(np.argmax(comparison.runs["interleaved"].final_losses))
    assert f"task {worst + 1}" in str(comparison)
    assert max(map(len, str(comparison).splitlines())) <= 80


def test_words_are_escaped():
    assert "&lt;b&gt;" in report.html(["<b>"])
    assert report.Table(["<b>", ""], [["<b>", ""]]).html().count("&lt;b&gt;") == 2


def boxes(protocol):
    """Return left, top, right, height of every box of the colour bar, by task."""
    root = parse(report.colour_bar(protocol))
    pattern = r"M([\d.e-]+) ([\d.e-]+)H([\d.e-]+)v([\d.e-]+)"
    return [
        np.array(re.findall(pattern, path.get("d")), dtype=float)
        for path in root.findall(".//path")
    ]


@pytest.mark.parametrize(
    ("protocol", "count"),
    [
        (Protocol([[0.3, 0.7]] * 50, 5.0), 1),
        (Protocol.from_sequence([0, 1] * 100, 2, 5.0), 100),
    ],
)
def test_equal_neighbours_are_one_box(protocol, count):
    drawn = boxes(protocol)
    assert [len(rows) for rows in drawn] == [count] * 2
    areas = [((rows[:, 2] - rows[:, 0]) * rows[:, 3]).sum() / 1e5 for rows in drawn]
    np.testing.assert_allclose(areas, protocol.mean_shares, atol=1e-3)


def test_the_bar_is_stacked_from_the_bottom_as_in_pictures():
    first, second = boxes(Protocol([[0.25, 0.75]], 1.0))
    assert first.tolist() == [[0, 75, 1000, 25]]
    assert second.tolist() == [[0, 0, 1000, 75]]


CELLS = [
    "import sys, replan\nprotocol = replan.Protocol([[0.3, 0.7], [1.0, 0.0]], 2.0)\nprotocol",
    "protocol.plot()",
    "'matplotlib.pyplot' in sys.modules",
    "from matplotlib import pyplot\n_ = pyplot.plot([1.0, 2.0])",
    "protocol.plot()",
]


@pytest.mark.slow
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
