"""Levers: exact on grids, nested, within limits."""

import json
from functools import cache
from itertools import product

import numpy as np
import pytest

from problems import after_task_one, best_of_all
from problems.models import noisy_model
from replan import (
    ArgumentError,
    AutoModel,
    Control,
    IntegrationError,
    Limits,
    Objective,
    Problem,
    Protocol,
    TeacherStudent,
    evaluate,
    levers,
    solve,
)
from replan.control._levers import Ablation
from replan.models import Knob


def short(similarity=0.3, tasks=2, steps=8, **settings):
    """Return a problem with few steps that are short even at its largest rate."""
    settings = {"control": Control(lr=(0.0, 2.0))} | settings
    return Problem(*after_task_one(similarity, tasks), duration=8.0, steps=steps, **settings)


def noisy(**settings):
    return Problem(noisy_model(), np.ones(1), 3.0, steps=6, lr=0.6, **settings)


PROBLEMS = {
    "two tasks": short,
    "three tasks": lambda: short(0.4, tasks=3, steps=4),
    "running costs": lambda: short(0.4, steps=4, objective=Objective(running=[0.2, 0.0])),
    "seen": lambda: short(0.4, objective=Objective("seen")),
    "worst": lambda: short(0.4, objective=Objective("worst")),
    "budget": lambda: short(0.4, limits=Limits(max_share=[1.0, 0.25])),
    "mean rate": lambda: short(
        control=Control(False, lr=(0.0, 2.0)), limits=Limits(mean={"lr": (0.5, 0.8)})
    ),
    "knob": noisy,
    "mean of a knob": lambda: noisy(
        keep=0.8, control=Control(lr=(0.0, 2.0), keep=(0.3, 1.0)),
        limits=Limits(mean={"keep": (0.6, 0.7)}),
    ),
}  # fmt: skip


@cache
def pulled(name):
    problem = PROBLEMS[name]()
    return problem, levers(problem)


def solved(result):
    """Return all that was solved for, by name."""
    alone = [item for each in result.alone for item in each.items()]
    return alone + [(f"without {name}", x) for each in result.rest for name, x in each.items()]


# Against what is known


def test_constant_shares_against_all_of_them():
    problem, result = pulled("two tasks")
    shares = [[share, 1 - share] for share in np.linspace(0, 1, 101)]
    values = [evaluate(problem, Protocol([row], 8.0)).loss for row in shares]
    assert min(values) * (1 - 3e-3) <= result.losses["share"][0] <= min(values) * (1 + 1e-7)
    problem, result = pulled("three tasks")
    rows = [(a, b, 16 - a - b) for a in range(17) for b in range(17 - a)]
    values = [evaluate(problem, Protocol([np.array(row) / 16], 8.0)).loss for row in rows]
    assert min(values) * (1 - 3e-2) <= result.losses["share"][0] <= min(values) * (1 + 1e-7)


@pytest.mark.parametrize("name", ["two tasks", "knob"])
def test_a_constant_rate_against_all_of_them(name):
    problem, result = pulled(name)
    equal = [np.full(problem.model.tasks, 1 / problem.model.tasks)]
    values = [
        evaluate(problem, Protocol(equal, problem.duration, lr=lr)).loss
        for lr in np.linspace(*result.ranges["lr"], 101)
    ]
    assert min(values) * (1 - 3e-3) <= result.losses["rate"][0] <= min(values) * (1 + 1e-6)


def test_timing_against_all_sequences_and_all_mixtures():
    problem, result = pulled("two tasks")
    timing = result.alone[0]["timing"]
    assert timing.certificate.value <= best_of_all(problem) * (1 + 2e-3)
    assert timing.loss <= best_of_all(problem)
    problem = short(0.3, steps=3)
    values = [
        evaluate(problem, Protocol([[s, 1 - s] for s in row], 8.0), rtol=1e-4).loss
        for row in product(np.linspace(0, 1, 11), repeat=3)
    ]
    loss = levers(problem).losses["timing"][0]
    assert 0.97 * min(values) <= loss <= min(values) * (1 + 1e-4)


def test_all_is_what_solve_finds():
    problem, result = pulled("two tasks")
    assert result.losses["all"][0] <= solve(problem).certificate.relaxed_value * (1 + 1e-3)
    assert result.ranges == {"lr": (0.0, 2.0)}
    for name, lever in result.alone[0].items():
        assert evaluate(problem, lever.protocol).loss == pytest.approx(lever.loss, rel=1e-5), name


@pytest.mark.parametrize("name", PROBLEMS)
def test_more_freedom_is_never_worse(name):
    problem, result = pulled(name)
    ablation = Ablation(problem)
    losses = {free: result.losses[name][0] for name, free in ablation.levers.items()}
    losses |= {free: result.without[name][0] for name, free in ablation.without.items()}
    errors = [lever.certificate.discretisation_error for _, lever in solved(result)]
    within = 1e-3 if problem.objective.goal == "worst" else 1e-6
    for poor, rich in product(losses, repeat=2):
        if poor < rich:
            room = max(errors) + within * abs(losses[poor])
            assert losses[rich] <= losses[poor] + room, (sorted(poor), sorted(rich))
    assert losses[ablation.levers["all"]] < losses[frozenset()]


@pytest.mark.parametrize("name", ["budget", "mean rate", "mean of a knob"])
def test_limits_hold_for_every_lever(name):
    problem, result = pulled(name)
    for word, lever in solved(result):
        most = problem.limits.max_share or 1.0
        assert np.all(lever.protocol.mean_shares <= np.asarray(most) + 1e-9), word
        for knob, (low, high) in problem.limits.mean.items():
            assert low - 1e-9 <= lever.protocol.knobs[knob].mean() <= high + 1e-9, word
    nothing = result.alone[0]["nothing"].protocol
    if name == "mean rate":
        assert list(result.without) == ["share", "timing", "rate", "curve"]
        assert nothing.knobs["lr"].tolist() == [0.8] * 8
    if name == "budget":
        np.testing.assert_allclose(nothing.shares[0], [0.75, 0.25])
        assert any("0.75, 0.25" in note for note in result.notes)


def test_a_single_task_has_no_shares():
    _, result = pulled("knob")
    assert result.names == ["nothing", "rate", "curve", "keep", "all"]
    assert list(result.without) == ["rate", "curve", "keep"]
    assert result.ranges == {"lr": (0.0, 3.0), "keep": (0.0, 1.0)}
    assert len(result.notes) == 2
    assert result.alone[0]["keep"].protocol.knobs["lr"].tolist() == [0.6] * 6


def test_knobs_without_a_range_are_left_out_unless_it_is_given():
    model = AutoModel(
        lambda x, task, rate, effort: rate * (task - effort - x),
        lambda x: x**2,
        tasks=2, like=np.zeros(1), loss_names=["x"],
        knobs=[Knob("rate", 0.0, np.inf, 1.0, rate=True), Knob("effort", -np.inf, np.inf, 0.5)],
    )  # fmt: skip
    result = levers(Problem(model, np.array([1.0]), duration=1.0, steps=3))
    assert result.ranges == {"rate": (0.0, 5.0)}
    assert any(note.startswith("effort is left out") for note in result.notes)
    control = Control(effort=(0.0, 1.0))
    result = levers(Problem(model, np.array([1.0]), duration=1.0, steps=3, control=control))
    assert result.ranges == {"rate": (0.0, 5.0), "effort": (0.0, 1.0)}
    assert result.losses["all"][0] <= 1e-6
    assert str(result)  # losses of zero


# The result


def test_several_starts(tmp_path):
    model, _ = after_task_one(0.3)
    starts = [model.pretrain(seed=seed, duration=100.0) for seed in (0, 1, 2)]
    result = levers([Problem(model, start, duration=5.0, steps=4) for start in starts])
    content = result.to_dict()
    names = ["nothing", "share", "rate", "timing", "curve", "rates", "all"]
    assert result.names == list(content["levers"]) == names
    for name in names:
        each = [start["levers"][name] for start in content["starts"]]
        losses = np.array([lever["loss"] for lever in each])
        nothing = np.array([start["levers"]["nothing"]["loss"] for start in content["starts"]])
        assert content["levers"][name] == pytest.approx(losses.mean())
        assert content["gains"][name]["median"] == pytest.approx(np.median(1 - losses / nothing))
        certificates = [alone[name].certificate for alone in result.alone]
        assert [lever["pmp_residual"] for lever in each] == [x.pmp_residual for x in certificates]
    without = np.array([start["without"]["timing"]["loss"] for start in content["starts"]])
    np.testing.assert_allclose(result.additions["timing"], 1 - result.losses["all"] / without)
    frame = result.to_frame()
    assert len(frame) == 21
    assert frame.query("lever == 'share'")["loss"].tolist() == result.losses["share"].tolist()
    result.save(tmp_path / "levers.json")
    saved = json.loads((tmp_path / "levers.json").read_text())
    assert saved | json.loads(json.dumps(content)) == saved


def test_ctrl_c_ends_levers():
    """`solve` returns a plan by then: only some of the levers would say nothing."""

    def stop(progress):
        if progress.note.startswith("timing: best"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        levers(short(0.3), progress=stop)


def test_nothing_to_control():
    model = TeacherStudent([[1.0]], hidden=1)
    problem = Problem(model, model.fresh(0), 2.0, steps=2, control=Control(True, lr=(1.0, 1.0)))
    result = levers(problem)
    assert result.names[0] == "nothing"
    assert result.names[-1] == "all"


@pytest.mark.parametrize(
    ("problems", "name"),
    [
        (lambda: [], "problem"),
        (lambda: 3, "problem"),
        (lambda: [3], "problem"),
        (lambda: [short(), noisy()], "problem"),
        (lambda: [short(), short().changed(duration=16.0)], "problem"),
        (lambda: [short(), short().changed(lr=0.5)], "problem"),
        (lambda: short(limits=Limits(min_dwell=5.0)), "problem"),
        (lambda: short(arrivals=[0.0, 1.0]), "problem"),
    ],
)
def test_mistakes_are_named(problems, name):
    with pytest.raises(ArgumentError) as caught:
        levers(problems())
    assert caught.value.name == name


def test_a_problem_that_diverges_says_so():
    with pytest.raises(IntegrationError):
        levers(short(lr=1e9, control=Control()))
    with pytest.raises(ArgumentError):
        levers(short(), tolerance=0.0)
