"""What the page says, without a page: states, drawings, links, texts and what follows from them."""

import json
import subprocess
import sys
import threading

import numpy as np
import pytest

import replan
from replan._common.progress import Progress
from replan.dynamics import Dial, find
from replan.explorer import State
from replan.explorer import _results as results
from replan.explorer._drawing import Drawing
from replan.explorer._jobs import Background, Workers
from replan.explorer._state import explorable, showable
from replan.explorer._texts import ahead, command_line, merged, python

KINDS = explorable()


@pytest.fixture
def state():
    return State.of_kind()


def small(state):
    """A state that is quickly computed."""
    return state.turn("start.pretrain.duration", 20.0).turn("training.steps", 20)


def test_kinds_with_dials_are_explored_and_those_that_read_files_are_not():
    assert {"curriculum", "denoising", "dropout", "teacher-student"} <= set(KINDS)
    assert "network" not in KINDS
    with pytest.raises(ValueError, match=r"`kind` expects one of .* got 'network'"):
        State.of_kind("network")


@pytest.mark.parametrize("kind", KINDS)
def test_every_dial_turns_within_its_range_and_nowhere_else(kind):
    state = State.of_kind(kind)
    own = {dial.key for dial in find(kind).dials}
    knobs = {f"training.{name}" for name in state.problem.model.panel.knobs}
    assert knobs <= set(state.values)
    for dial in state.dials:
        if dial.key not in state.values:
            assert dial.beside or dial.default is None
            continue
        for value in (dial.low, dial.high):
            assert state.turn(dial.key, value).values[dial.key] == value
        for bad in (dial.low - 1, dial.high + 1, float("nan"), "1", None, True):
            with pytest.raises(ValueError, match=f"`{dial.key}` expects"):
                state.turn(dial.key, bad)
    assert own & set(state.values)


def test_the_problem_is_that_of_its_file(state, tmp_path):
    turned = state.turn("model.similarity", 0.6).turn("model.tasks", 3).turn("training.lr", 0.5)
    (tmp_path / "problem.toml").write_text(turned.text, encoding="utf-8")
    loaded = replan.Problem.load(tmp_path / "problem.toml")
    assert loaded.to_dict() == turned.problem.to_dict()
    assert np.array_equal(loaded.state, turned.problem.state)


def test_what_may_be_turned(state):
    free = state.release(["tasks", "lr"])
    assert free.free == ("tasks", "lr")
    assert free.problem.control.ranges == {"lr": (0.0, 5.0)}
    assert free.release([]).problem.control.tasks is False
    given = State.from_text(state.text.replace("lr = false", "lr = { min = 0.5, max = 2.0 }"))
    assert given.release([]).release(["lr"]).problem.control.ranges == {"lr": (0.5, 2.0)}
    with pytest.raises(ValueError, match="`control` expects one of"):
        state.release(["nonsense"])


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("steps = 250", "steps = 100000", "`training.steps` expects at most 1000"),
        ("duration = 25.0", "duration = 1e6", "`training.duration` expects at most 1000"),
        ("hidden = 2", "hidden = 5000", "`model.hidden` expects an integer"),
        ("duration = 1000.0", "duration = 1e15", "`start.pretrain.duration` expects"),
        ("hidden = 2", "hidden = '2'", "`model.hidden` expects an integer"),
        ("hidden = 2", "hiden = 2", "`model.hiden` is not a known key"),
        ('kind = "teacher-student"', 'kind = "network"', "`model.kind` expects one of"),
        ("[start]", "[sweep]", "`sweep` makes this a study"),
        ("seed = 1", "seeds = [0, 1]", "`problem` expects one problem to explore, got an ensemble"),
        ("[start]", "[ensemble]\nsimilarity = [0.2]\n[start]", "to explore, got an ensemble"),
        ("[start]", "[start", "not a TOML file"),
        ("[start]", "[start]\n" + "# x\n" * 40_000, "expects at most 100,000 characters"),
    ],
)
def test_files_that_ask_for_too_much_or_nonsense_are_refused_before_any_work(
    state, old, new, words
):
    text = state.text.replace(old, new, 1)
    with pytest.raises(ValueError, match=words.replace("(", r"\(")):
        State.from_text(text)


def test_too_many_tasks_are_refused(state):
    overlaps = np.eye(9).tolist()
    text = state.text.replace("similarity = 0.3", f"teacher_overlaps = {overlaps}")
    with pytest.raises(ValueError, match="`tasks` expects at most 8"):
        State.from_text(text)


# Drawings


def test_painting(state):
    own = small(state).own
    painted = own.paint(0.25, 0.4999, 0, 0.7)
    assert np.allclose(painted.shares[5:10], [0.7, 0.3])
    assert np.array_equal(painted.shares[:5], own.shares[:5])
    assert np.array_equal(painted.shares[10:], own.shares[10:])
    assert np.array_equal(own.paint(0.4999, 0.25, 0, 0.7).shares, painted.shares)
    beyond = own.paint(-3.0, 7.0, 1, 1.0)
    assert np.array_equal(beyond.shares, np.tile([0.0, 1.0], (20, 1)))


def test_bending_a_knob(state):
    state = small(state)
    bent = state.own.bend(state.problem, "lr", (0.0, 0.0), (1.0, 2.0))
    assert bent.knobs["lr"] == pytest.approx(np.linspace(0.05, 1.95, 20), abs=1e-4)
    point = bent.bend(state.problem, "lr", (0.5, 3.0), (0.5, 3.0))
    assert point.knobs["lr"][10] == 3.0
    assert np.count_nonzero(point.knobs["lr"] != bent.knobs["lr"]) == 1
    with pytest.raises(ValueError, match="`knob` expects one of"):
        state.own.bend(state.problem, "nonsense", (0.0, 0.0), (1.0, 1.0))


def test_a_drawing_follows_the_problem(state):
    state = small(state)
    drawn = state.draw(state.own.paint(0.0, 0.4, 0, 1.0))
    assert drawn.turn("training.steps", 40).own.shares.shape == (40, 2)
    longer = drawn.turn("training.duration", 50.0)
    assert longer.own.protocol(longer.problem).duration == 50.0
    three = drawn.turn("model.tasks", 3)
    assert three.own.shares.shape == (20, 3)  # of a strategy: the drawing has other tasks


def test_a_strategy_can_be_drawn_over(state):
    state = small(state)
    problem = state.problem
    for name in ("interleaved", "focus-then-replay", "alternating"):
        protocol = results.protocol_of(state, name)
        drawing = Drawing.of(problem, protocol)
        again = replan.evaluate(problem, drawing.protocol(problem)).loss
        assert again == pytest.approx(replan.evaluate(problem, protocol).loss, rel=0.05)


# Links


def test_a_link_carries_everything(state):
    state = small(state).turn("model.tasks", 3).show(["interleaved"]).release(["tasks", "lr"])
    drawn = state.own.paint(0.1, 0.6, 2, 0.55).bend(state.problem, "lr", (0.2, 1.0), (0.9, 0.1))
    state = state.draw(drawn)
    again = State.from_query(state.to_query())
    assert again.to_query() == state.to_query()
    assert again.problem.to_dict() == state.problem.to_dict()
    assert again.own.protocol(again.problem) == state.own.protocol(state.problem)


@pytest.mark.parametrize(
    "query",
    [
        {"problem": "{"},
        {"problem": "[" * 50_000},
        {"problem": "3"},
        {"problem": "{}"},
        {"problem": '{"model": {"kind": ["x"]}}'},
        {"show": "no-replay,nonsense"},
        {"show": "exponential-lr"},
        {"drawing": "{}"},
        {"drawing": '{"shares": [[250, [2.0, -1.0]]]}'},
        {"drawing": '{"shares": [[1000000000000, [1.0, 0.0]]]}'},
        {"drawing": '{"shares": [[250, [1.0, 0.0]]], "knobs": {"lr": [[250, -1.0]]}}'},
        {"drawing": '{"shares": [[250, [1.0, 0.0]]], "knobs": {"x": [[250, 1.0]]}}'},
        {"drawing": '{"shares": [[250, [1.0, NaN]]]}'},
    ],
)
def test_bad_links_are_refused_in_one_line(query):
    with pytest.raises(ValueError) as error:
        State.from_query(query)
    assert len(str(error.value).splitlines()) == 1
    assert len(str(error.value)) < 450


# Texts


def test_the_texts_reproduce_the_page(state, tmp_path):
    state = small(state).show(["interleaved", "no-replay"])
    state = state.draw(state.own.paint(0.0, 0.5, 0, 1.0))
    own = results.curves(state).runs[results.OWN].loss
    main = f'"{sys.executable}" -c "from replan.cli import main; main()"'
    script = command_line(state).replace("\nreplan ", f"\n{main} ")
    done = subprocess.run(["sh", "-ec", script], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert f"loss {own:.6g} " in done.stdout
    assert (tmp_path / "plan.png").exists()
    program = tmp_path / "mine.py"
    program.write_text(python(state), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(program)], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert f"loss {own:.6g} " in done.stdout


def test_merged_steps_are_the_same_protocol(state):
    problem = small(state).problem
    protocol = replan.strategies.sequential(problem)
    short = merged(protocol)
    assert short.steps == 2
    assert short.split(protocol.edges) == protocol


def test_how_far_the_optimum_is_ahead():
    assert "ahead by 75.0% of yours (4 times lower)" in ahead(0.4, 0.1)
    assert "yours is better" in ahead(0.1, 0.4)
    assert "by 3" in ahead(1.0, -2.0)


# What is computed


def test_curves_are_those_of_the_library(state):
    state = small(state)
    shown = results.curves(state)
    assert list(shown.runs) == [*state.shown, results.OWN]
    for name in state.shown:
        protocol = replan.strategies.STRATEGIES[name](state.problem)
        assert shown.runs[name].loss == replan.evaluate(state.problem, protocol).loss


def test_what_has_no_curve_says_why(state):
    state = State.of_kind("dropout").show(["focus-then-replay", "one-task"])
    shown = results.curves(state)
    assert "a loss for each task" in shown.failures["focus-then-replay"]
    assert "one-task" in shown.runs


def test_gains_are_those_of_small_changes(state):
    """Hamiltonians against finite differences: a little more of a task in one step."""
    state = small(state).show(["interleaved"])
    problem, protocol = state.problem, replan.strategies.interleaved(state.problem)
    found = results.changes(problem, protocol)
    base = replan.evaluate(problem, protocol, rtol=1e-11).loss
    step, h = 7, 1e-4
    shares = protocol.split(problem.edges).shares.copy()
    shares[step] += [h, -h]
    moved = replan.Protocol(shares, problem.duration, protocol.lr[0])
    slope = (replan.evaluate(problem, moved, rtol=1e-11).loss - base) / h
    length = problem.duration / problem.steps
    expected = (found.hamiltonians[step, 0] - found.hamiltonians[step, 1]) * length
    assert slope == pytest.approx(expected, rel=1e-2)
    assert found.gains.min() >= -1e-15
    faster = protocol.split(problem.edges)
    rates = faster.lr.copy()
    rates[step] += h
    slope = (replan.evaluate(problem, faster.with_knobs(lr=rates), rtol=1e-11).loss - base) / h
    assert slope == pytest.approx(found.slopes["lr"][step] * length, rel=1e-2)


def test_the_optimum_from_ones_own(state):
    state = small(state)
    drawn = state.own.paint(0.0, 0.3, 0, 1.0).bend(state.problem, "lr", (0.0, 3.0), (1.0, 0.5))
    state = state.draw(drawn)
    alone, with_own = (
        results.optimum(state, False, from_own=given).statistics["starts"]
        for given in (False, True)
    )
    assert with_own == alone + 1


def test_bands_over_seeds(state):
    state = small(state)
    told = []
    curves = results.band(state, "interleaved", 3, told.append)
    assert curves.losses.shape[0] == len(told) == 3
    for i, seed in enumerate((1, 2, 3)):
        one = state.turn("start.pretrain.seed", seed)
        run = replan.evaluate(one.problem, replan.strategies.interleaved(one.problem))
        assert curves.losses[i, -1] == pytest.approx(run.final_losses, rel=1e-12)
    with pytest.raises(ValueError, match="expects a start with a seed"):
        results.band(State.of_kind("curriculum"), "interleaved", 3, told.append)


@pytest.mark.parametrize("kind", KINDS)
def test_series_have_the_names_of_the_start(kind):
    state = State.of_kind(kind)
    run = next(iter(results.curves(state).runs.values()))
    times, groups = results.series(run)
    for lines in groups.values():
        for values in lines.values():
            assert values.shape == times.shape
            assert np.all(np.isfinite(values))
    assert json.dumps({name: list(lines) for name, lines in groups.items()})


def test_too_much_sgd_is_refused(state):
    problem = small(state).problem
    with pytest.raises(ValueError, match="`dimension` expects at most"):
        results.simulated(problem, replan.strategies.interleaved(problem), 10**9, 16, False)


def test_only_strategies_that_do_not_search_are_shown():
    assert "exponential-lr" not in showable()
    assert "interleaved" in showable()


# Jobs


class Desk:
    """Calls what is delivered, in the thread of the test."""

    def __init__(self):
        self.calls, self.there = [], threading.Condition()

    def deliver(self, call):
        with self.there:
            self.calls.append(call)
            self.there.notify()

    def work(self):
        with self.there:
            assert self.there.wait_for(lambda: self.calls, timeout=600)
            call = self.calls.pop(0)
        call()


@pytest.fixture
def desk():
    return Desk()


@pytest.fixture
def workers():
    found = Workers()
    yield found
    found.close()


def test_results_and_mistakes_are_delivered(desk, workers):
    jobs, got = Background(workers, desk.deliver), []
    jobs.run("a", lambda watch: 3, got.append, got.append)
    desk.work()

    def bad(watch):
        raise ValueError("no\ngood")

    jobs.run("a", bad, got.append, got.append)
    desk.work()
    assert got == [3, "no good"]


def test_a_cancelled_job_ends_at_its_next_report_and_says_nothing(desk, workers):
    jobs, got = Background(workers, desk.deliver), []
    begun, ended = threading.Event(), threading.Event()

    def endless(watch):
        try:
            while True:
                begun.set()
                watch(Progress("x", 1, None))
        finally:
            ended.set()

    jobs.run("a", endless, got.append, got.append)
    assert begun.wait(600)
    assert jobs.cancel("a")
    assert ended.wait(600)
    jobs.run("a", lambda watch: "next", got.append, got.append)
    desk.work()
    assert got == ["next"]
    assert not jobs.cancel("b")


def test_a_search_is_cancelled(desk, workers, state):
    """As the page does it: the solver hears of it by its report of progress."""
    state = state.turn("model.tasks", 5).turn("model.hidden", 6).release(["tasks", "lr"])
    jobs, got, begun = Background(workers, desk.deliver), [], threading.Event()
    ended = threading.Event()

    def work(watch):
        def told(progress):
            begun.set()
            watch(progress)

        try:
            return results.optimum(state, told)
        finally:
            ended.set()

    jobs.run("optimum", work, got.append, got.append)
    assert begun.wait(600)
    jobs.cancel("optimum")
    assert ended.wait(600)
    assert got == []


def test_a_newer_job_takes_the_place_of_an_older_one(desk, workers):
    jobs, got = Background(workers, desk.deliver), []
    for i in range(20):
        jobs.run("a", lambda watch, i=i: i, got.append, got.append, quick=True)
    while not got:
        desk.work()
    assert got == [19]


def test_results_keep_coming_while_a_slider_is_dragged(desk, workers):
    jobs, got = Background(workers, desk.deliver), []
    for i in range(20):
        jobs.follow("a", lambda watch, i=i: i, got.append, got.append)
    while not got or got[-1] != 19:
        desk.work()
    assert got == [0, 19]  # the first, and the newest of those that waited


def test_strategies_are_not_computed_again_where_only_the_drawing_changes(state):
    state = small(state)
    first = results.curves(state)
    drawn = state.draw(state.own.paint(0.0, 0.5, 0, 1.0))
    second = results.curves(drawn, (state, first))
    assert all(second.runs[name] is first.runs[name] for name in state.shown)
    assert second.runs[results.OWN].loss != first.runs[results.OWN].loss
    other = results.curves(state.turn("training.lr", 0.7), (state, first))
    assert other.runs["interleaved"].loss != first.runs["interleaved"].loss


def test_dials_refuse_what_is_no_range():
    for bad in (
        {"key": "noise"},
        {"low": 1.0, "high": 1.0},
        {"step": 0.0},
        {"default": 7.0},
    ):
        with pytest.raises(ValueError):
            Dial(**({"key": "model.x", "label": "x", "low": 0.0, "high": 1.0} | bad))
