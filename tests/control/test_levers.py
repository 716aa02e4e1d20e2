"""Constant and shared controls, and levers: exact on grids, nested, within limits."""

import json
import re
from dataclasses import replace
from functools import cache
from itertools import product

import numpy as np
import pytest

from problems import after_task_one, best_of_all
from replan import (
    Control,
    Exhaustive,
    Flips,
    ForwardBackward,
    IntegrationError,
    Levers,
    Limits,
    Plan,
    Problem,
    Protocol,
    TeacherStudent,
    evaluate,
    levers,
    solve,
    strategies,
)
from replan.control import _levers
from replan.control.objective import Controls, Objective
from replan.control.relaxed_controls import RelaxedControls
from replan.models import Curriculum, Dropout, Knob
from replan.models.auto import AutoModel


def dropout(**settings):
    model = Dropout([[1.0]], hidden=2, noise=0.3)
    start = [[0.5, 0.1], [0.1, 0.4]], [[0.2], [0.1]]
    return Problem(model, start, duration=3.0, lr=0.6, steps=6, **settings)


def short(similarity=0.3, tasks=2, steps=8, **settings):
    """Return a problem with few steps that are short even at its largest rate."""
    settings = {"control": Control(lr=(0.0, 2.0))} | settings
    return Problem(*after_task_one(similarity, tasks), duration=8.0, steps=steps, **settings)


PROBLEMS = {
    "two tasks": short,
    "three tasks": lambda: short(0.4, tasks=3, steps=4),
    "many steps": lambda: short(0.6, steps=40),
    "running costs": lambda: short(0.4, steps=4, running=[0.2, 0.0]),
    "budget": lambda: short(0.4, limits=Limits(max_share=[1.0, 0.25])),
    "mean rate": lambda: short(
        control=Control(False, lr=(0.0, 2.0)), limits=Limits(mean={"lr": (0.5, 0.8)})
    ),
    "curriculum": lambda: Problem(
        Curriculum(), [1.0, 1.0, 0.0], duration=6.0, lr=3.0, steps=12,
        limits=Limits(min_share=[0.5, 0.5], max_share=[0.5, 0.5]),
    ),
    "dropout": dropout,
    "dropout, mean": lambda: dropout(
        knobs={"keep": 0.8}, control=Control(lr=(0.0, 2.0), knobs={"keep": (0.3, 1.0)}),
        limits=Limits(mean={"keep": (0.6, 0.7)}),
    ),
}  # fmt: skip


@cache
def pulled(name):
    problem = PROBLEMS[name]()
    return problem, levers(problem)


# The map from vectors to controls


@pytest.mark.parametrize("control", [
    Control("constant"),
    Control("constant", lr=(0.2, 3.0), constant=["lr"], shared=["lr"]),
    Control(True, lr=(0.2, 3.0), constant=["lr"]),
    Control("constant", lr=(0.2, 3.0), shared=["lr"]),
])  # fmt: skip
def test_gradients_by_tied_controls_match_finite_differences(control):
    problem = short(0.3, steps=4, control=control)
    objective = Objective(problem, 4)
    rng = np.random.default_rng(0)
    rows = np.tile(rng.dirichlet([1, 1]), (4, 1))
    space = RelaxedControls(
        problem, Controls(rows, np.full((4, problem.model.layout.size), 1.0)),
        free_tasks=True, free_knobs=control.lr is not None,
    )  # fmt: skip
    x = space.join(space.fixed) + 0.0
    sizes = {"shares": 2 if control.tasks == "constant" else 8}
    sizes["lr"] = 0
    if control.lr is not None:
        sizes["lr"] = (1 if control.constant else 4) * (1 if control.shared else 2)
    assert x.size == sum(sizes.values())
    np.testing.assert_allclose(space.join(space.split(x)), x, atol=1e-15)
    slopes, step = space.slopes(objective.gradient(space.split(x))), 1e-5

    def value(i, change):
        moved = x.copy()
        moved[i] += change
        return objective.value(space.split(moved))

    found = [(value(i, step) - value(i, -step)) / (2 * step) for i in range(x.size)]
    np.testing.assert_allclose(slopes, found, rtol=1e-5, atol=1e-9)


def test_what_is_tied_stays_tied():
    control = Control("constant", lr=(0.0, 3.0), constant=["lr"], shared=["lr"])
    plan = solve(short(0.3, control=control), tolerance=1e-6)
    assert np.ptp(plan.protocol.shares, axis=0).max() == 0
    assert plan.protocol.knobs["lr"].shape == (8,)
    assert np.ptp(plan.protocol.knobs["lr"]) == 0
    assert plan.certificate.switches == 0
    assert abs(plan.certificate.integrality_gap) <= 1e-9 * plan.loss
    assert plan.status == "converged"
    assert "mixture" in str(plan)
    values = [
        evaluate(plan.problem, Protocol([[s, 1 - s]], 8.0, lr)).loss
        for s, lr in product(np.linspace(0.0, 0.5, 16), np.linspace(0.2, 3.0, 15))
    ]
    assert 0.97 * min(values) <= plan.loss <= min(values) * (1 + 1e-6)


def test_a_curve_that_tasks_share_with_tasks_of_their_own():
    """One task per step and one rate curve: rounding keeps the curve."""
    plan = solve(short(0.3, control=Control(lr=(0.0, 3.0), shared=["lr"])))
    assert plan.protocol.is_discrete
    assert plan.protocol.knobs["lr"].ndim == plan.relaxed.knobs["lr"].ndim == 1
    free = solve(short(0.3, control=Control(lr=(0.0, 3.0))))
    assert free.certificate.relaxed_value <= plan.certificate.relaxed_value * (1 + 1e-3)


def test_problem_files_hold_ties(tmp_path):
    control = Control("constant", lr=(0.0, 3.0), constant=["lr"], shared=["lr"])
    short(0.3, control=control).save(tmp_path / "p.toml")
    text = (tmp_path / "p.toml").read_text()
    assert 'tasks = "constant"' in text
    assert "constant = true, shared = true" in text
    again = Problem.load(tmp_path / "p.toml")
    assert again.control == control
    plan = solve(again, starts=0)
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json").problem.control == control


@pytest.mark.parametrize("solver", [Exhaustive(), Flips(), ForwardBackward()])
def test_solvers_of_sequences_refuse_constant_shares(solver):
    with pytest.raises(ValueError, match=f"`{type(solver).__name__}` expects"):
        solve(short(0.3, control=Control("constant")), solver)


@pytest.mark.parametrize(("make", "message"), [
    (lambda: Control("sometimes"), '`tasks` expects true, false or "constant", got \'sometimes\''),
    (lambda: Control(constant=["lr"]), "`constant` expects knobs that are controlled, got 'lr'"),
    (lambda: Control(lr=(0, 1), shared="lr"), "`shared` expects a list of names of knobs"),
    (lambda: dropout(control=Control(knobs={"keep": (0, 1)}, shared=["keep"])),
     "`shared` expects knobs with a value for each task, got keep"),
    (lambda: short(0.3, control=Control("constant"), limits=Limits(max_switches=2)),
     "`limits` expects no limits on stays and switches"),
    (lambda: levers(short(0.3, limits=Limits(min_dwell=5.0))),
     "`problem` expects limits that mixtures of tasks can keep"),
    (lambda: levers([]), "`problem` expects at least one, got none"),
    (lambda: levers(3), "`problem` expects a list of problems, got 3"),
    (lambda: levers([3]), "`problem` expects a Problem, or several, got 3"),
    (lambda: levers([short(0.3), dropout()]), "`problem` expects problems that differ in"),
    (lambda: levers(short(0.3), tolerance=0.0), "`tolerance` expects"),
    (lambda: solve(short(0.3), start=["a"]), "`start` expects a Protocol, got 'a'"),
    (lambda: solve(short(0.3, control=Control(False, lr=(0, 2))),
                   start=[strategies.no_replay(short(0.3)), strategies.interleaved(short(0.3))]),
     "`start` expects protocols with the same shares"),
])  # fmt: skip
def test_mistakes(make, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        make()


# Levers against what is known


def test_constant_shares_against_all_of_them():
    problem, found = pulled("two tasks")
    values = [
        evaluate(problem, Protocol([[share, 1 - share]], 8.0)).loss
        for share in np.linspace(0, 1, 101)
    ]
    assert found.losses["share"][0] <= min(values) * (1 + 1e-7)
    assert found.losses["share"][0] >= min(values) * (1 - 3e-3)
    problem, found = pulled("three tasks")
    parts = [(a, b, 16 - a - b) for a in range(17) for b in range(17 - a)]
    values = [evaluate(problem, Protocol([np.array(p) / 16], 8.0)).loss for p in parts]
    assert found.losses["share"][0] <= min(values) * (1 + 1e-7)
    assert found.losses["share"][0] >= min(values) * (1 - 3e-2)


@pytest.mark.parametrize("name", ["two tasks", "dropout", "curriculum"])
def test_a_constant_rate_against_all_of_them(name):
    problem, found = pulled(name)
    tasks = problem.model.tasks
    low, high = found.ranges["lr"]
    values = [
        evaluate(problem, Protocol([np.full(tasks, 1 / tasks)], problem.duration, lr)).loss
        for lr in np.linspace(low, high, 101)
    ]
    assert found.losses["rate"][0] <= min(values) * (1 + 1e-6)
    assert found.losses["rate"][0] >= min(values) * (1 - 3e-3)


def test_timing_against_all_sequences_and_all_mixtures():
    problem, found = pulled("two tasks")
    timing = found.alone[0]["timing"]
    assert timing.certificate.value <= best_of_all(problem) * (1 + 2e-3)
    assert timing.loss <= best_of_all(problem)
    problem = short(0.3, steps=3)
    shares = np.linspace(0, 1, 11)
    values = [
        evaluate(problem, Protocol([[s, 1 - s] for s in row], 8.0), rtol=1e-4).loss
        for row in product(shares, repeat=3)
    ]
    loss = levers(problem).losses["timing"][0]
    assert 0.97 * min(values) <= loss <= min(values) * (1 + 1e-4)


@pytest.mark.parametrize("name", PROBLEMS)
def test_more_freedom_is_never_worse(name):
    problem, found = pulled(name)
    ladder = _levers.Ladder(problem)
    losses = {free: found.losses[name][0] for name, free in ladder.levers.items()}
    losses |= {free: found.without[name][0] for name, free in ladder.without.items()}
    errors = [x.certificate.discretisation_error for _, x in found._found()]
    for poor, rich in product(losses, repeat=2):
        if poor < rich:
            room = max(errors) + 1e-6 * abs(losses[poor])
            assert losses[rich] <= losses[poor] + room, (sorted(poor), sorted(rich))
    assert losses[ladder.levers["all"]] < losses[frozenset()]


def test_all_is_what_solve_finds():
    problem, found = pulled("two tasks")
    plan = solve(problem)
    assert found.losses["all"][0] <= plan.certificate.relaxed_value * (1 + 1e-3)
    assert found.ranges == {"lr": (0.0, 2.0)}
    for name, lever in found.alone[0].items():
        assert evaluate(problem, lever.protocol).loss == pytest.approx(lever.loss, rel=1e-5), name


@pytest.mark.parametrize("name", ["budget", "mean rate", "curriculum", "dropout, mean"])
def test_limits_hold_for_every_lever(name):
    problem, found = pulled(name)
    for word, lever in found._found():
        shares, limits = lever.protocol.mean_shares, problem.limits
        least, most = (0 if x is None else x for x in (limits.min_share, limits.max_share or 1))
        assert np.all(shares >= np.asarray(least) - 1e-9), word
        assert np.all(shares <= np.asarray(most) + 1e-9), word
        for knob, (low, high) in limits.mean.items():
            mean = lever.protocol.knobs[knob].mean()
            assert low - 1e-9 <= mean <= high + 1e-9, word
    if name == "mean rate":
        assert list(found.without) == ["share", "timing", "rate", "curve"]
        assert found.alone[0]["nothing"].protocol.knobs["lr"].tolist() == [0.8] * 8
        assert "lr is 0.8 where fixed: its mean is limited" in found.notes
    if name == "budget":
        np.testing.assert_allclose(found.alone[0]["nothing"].protocol.shares[0], [0.75, 0.25])
        assert any("0.75, 0.25" in note for note in found.notes)


def test_a_single_task_has_no_shares():
    _, found = pulled("dropout")
    assert found.names == ["nothing", "rate", "curve", "keep", "all"]
    assert list(found.without) == ["rate", "curve", "keep"]
    assert "keep from 0 to 1: all that makes sense" in found.notes
    assert "lr from 0 to 3: up to 5 times the problem's" in found.notes
    assert found.alone[0]["keep"].protocol.knobs["lr"].tolist() == [0.6] * 6


def test_knobs_without_a_range_are_left_out_unless_it_is_given():
    model = AutoModel(
        lambda x, task, rate, effort: rate * (task - effort - x),
        lambda x: x**2,
        tasks=2, like=np.zeros(1), loss_names=["x"],
        knobs=[Knob("rate", 0.0, np.inf, 1.0, rate=True), Knob("effort", -np.inf, np.inf, 0.5)],
    )  # fmt: skip
    found = levers(Problem(model, np.array([1.0]), duration=1.0, steps=3))
    assert found.ranges == {"rate": (0.0, 5.0)}
    assert "effort is left out: it has no finite range, and none is given" in found.notes
    assert list(found.without) == ["share", "timing", "rate", "curve"]
    given = Control(knobs={"effort": (0.0, 1.0)})
    found = levers(Problem(model, np.array([1.0]), duration=1.0, steps=3, control=given))
    assert found.ranges == {"rate": (0.0, 5.0), "effort": (0.0, 1.0)}
    assert found.losses["all"][0] <= 1e-6
    assert str(found)  # losses of zero


# The result


@cache
def several():
    model, _ = after_task_one(0.3)
    starts = [model.pretrain(seed=seed, duration=100.0) for seed in (0, 1, 2)]
    return levers([Problem(model, start, duration=5.0, steps=4) for start in starts])


def test_several_starts():
    found = several()
    content = found.to_dict()
    assert json.dumps(content, allow_nan=False)
    names = ["nothing", "share", "rate", "timing", "curve", "rates", "all"]
    assert found.names == list(content["levers"]) == list(content["certificates"]) == names
    for name in names:
        losses = [one["levers"][name]["loss"] for one in content["starts"]]
        assert content["levers"][name] == pytest.approx(np.mean(losses))
        parts = [1 - loss / one["levers"]["nothing"]["loss"]
                 for loss, one in zip(losses, content["starts"], strict=True)]  # fmt: skip
        assert content["gains"][name]["median"] == pytest.approx(np.median(parts))
        residuals = [one["levers"][name]["pmp_residual"] for one in content["starts"]]
        assert content["certificates"][name]["pmp_residual"] == max(residuals)
    rest = np.array([one["without"]["timing"]["loss"] for one in content["starts"]])
    last = [one["levers"]["all"]["loss"] for one in content["starts"]]
    np.testing.assert_allclose(found.additions["timing"], 1 - np.array(last) / rest)
    frame = found.to_frame()
    assert len(frame) == 21
    assert frame.query("lever == 'share'")["loss"].tolist() == found.losses["share"].tolist()
    assert str(found).startswith("medians of 3 starts, quartiles in brackets\nlever ")
    assert max(map(len, str(found).splitlines())) <= 90
    assert "timing" in found._repr_html_()


def test_levers_survive_a_file(tmp_path):
    found = several()
    found.save(tmp_path / "l.json")
    again = Levers.load(tmp_path / "l.json")
    assert str(again) == str(found)
    for name in found.names:  # but for rounding errors of shares that sum to 1
        lever, kept = found.alone[2][name], again.alone[2][name]
        assert kept._replace(protocol=lever.protocol) == lever
        np.testing.assert_allclose(kept.protocol.shares, lever.protocol.shares, rtol=1e-14)
        np.testing.assert_allclose(kept.protocol.knobs["lr"], lever.protocol.knobs["lr"])
    found.save(tmp_path / "l.csv")
    (tmp_path / "other.json").write_text('{"starts": [1]}')
    with pytest.raises(ValueError, match="expects levers that were saved"):
        Levers.load(tmp_path / "other.json")


@pytest.mark.parametrize("name", ["several", "dropout"])
def test_the_picture_shows_all_levers(name, tmp_path):
    found = several() if name == "several" else pulled(name)[1]
    figure = found.plot(tmp_path / "l.png")
    losses, gains = figure.axes
    labels = [label.get_text().split("\n")[0] for label in losses.get_yticklabels()]
    assert labels == found.names
    assert len(gains.patches) == len(found.names) - 1 + len(found.without)
    assert max(bar.get_width() for bar in gains.patches) <= 100
    widths = [bar.get_width() for bar in gains.patches]
    assert any(np.isclose(widths, 100 * np.median(found.gains["all"])))


def test_a_problem_that_diverges_says_so():
    with pytest.raises(IntegrationError):
        levers(short(lr=1e9, control=Control()))


def test_ctrl_c_ends_levers():
    """`solve` returns what it has by then: a part of the levers would say nothing."""

    def stop(progress):
        if progress.note.startswith("timing: best"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        levers(short(0.3), progress=stop)


def test_several_starts_of_solve_are_all_begun_from():
    problem = short(0.3)
    best = solve(problem)
    others = [strategies.no_replay(problem), best.relaxed]
    plan = solve(problem, start=others, starts=0)
    assert plan.statistics["starts"] == 2
    assert plan.certificate.relaxed_value <= best.certificate.relaxed_value * (1 + 1e-9)


def test_problems_differ_in_their_start_alone():
    first = short()
    for other in (replace(first, duration=2 * first.duration), replace(first, lr=0.5)):
        with pytest.raises(ValueError, match="`problem` expects problems that differ in their"):
            levers([first, other])


def test_nothing_to_control_has_a_picture():
    model = TeacherStudent([[1.0]], hidden=1)
    problem = Problem(model, model.fresh(0), 2.0, steps=2, control=Control(True, lr=(1.0, 1.0)))
    found = levers(problem)
    assert found.names == ["nothing", "all"]
    assert found.plot() is not None
