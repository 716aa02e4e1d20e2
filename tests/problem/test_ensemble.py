"""Ensembles: what one protocol is for; risks; what is refused."""

import numpy as np
import pytest

from problems import after_task_one, small
from problems.models import Averaging
from replan import Control, Ensemble, Problem, TeacherStudent
from replan.problem.risk import Risk


def members(*similarities, **settings):
    return [small(similarity, **settings) for similarity in similarities]


# Risk


def test_risk_is_the_mean_of_the_worst_part():
    x = np.array([3.0, 1.0, 2.0, 0.0])
    weights = np.full(4, 0.25)
    assert Risk(weights, 1.0).of(x) == pytest.approx(1.5)
    assert Risk(weights, 0.0).of(x) == 3.0
    assert Risk(weights, 0.25).of(x) == pytest.approx(3.0)
    assert Risk(weights, 0.5).of(x) == pytest.approx(2.5)
    assert Risk(weights, 0.75).of(x) == pytest.approx(2.0)
    assert Risk(weights, 0.375).of(x) == pytest.approx((3.0 + 2.0 / 2) / 1.5)


def test_risk_against_its_other_definition():
    """CVaR is the least c + mean of max(x − c, 0) / level over all c, one of the numbers x."""
    rng = np.random.default_rng(0)
    for level in (0.05, 0.3, 0.77, 1.0):
        x, weights = rng.normal(size=7), rng.dirichlet(np.ones(7))
        least = min(c + weights @ np.maximum(x - c, 0.0) / level for c in x)
        assert Risk(weights, level).of(x) == pytest.approx(least, rel=1e-12)


def test_risk_lies_between_mean_and_worst_and_falls_with_its_level():
    rng = np.random.default_rng(1)
    x, weights = rng.normal(size=(9, 5)), rng.dirichlet(np.ones(9))
    levels = [0.0, 0.01, 0.1, 0.4, 0.8, 1.0]
    values = np.array([Risk(weights, level).of(x) for level in levels])
    assert np.all(np.diff(values, axis=0) <= 1e-12)
    assert values[0] == pytest.approx(x.max(axis=0))
    assert values[-1] == pytest.approx(weights @ x)


def test_risk_of_diverged_members_is_infinite():
    for level in (0.0, 0.2, 0.5, 1.0):
        assert Risk(np.full(3, 1 / 3), level).of(np.array([1.0, np.inf, 2.0])) == np.inf


def test_quantiles_count_weights():
    x = np.array([3.0, 1.0, 2.0])
    risk = Risk(np.array([0.5, 0.2, 0.3]))
    levels = (0.1, 0.2, 0.3, 0.5, 0.6, 1.0)
    assert [risk.quantile(x, level) for level in levels] == [1.0, 1.0, 2.0, 2.0, 3.0, 3.0]
    copies = Risk(np.full(10, 0.1))  # as many of each member as its weight says
    many = np.repeat(x, [5, 2, 3])
    assert [copies.quantile(many, level) for level in levels] == [1.0, 1.0, 2.0, 2.0, 3.0, 3.0]


# What an ensemble is


def test_losses_are_weighted_means_of_the_members():
    problems = members(0.1, 0.5)
    ensemble = Ensemble(problems, member_weights=[0.25, 0.75])
    each = [one.model.losses(one.state) for one in problems]
    assert ensemble.model.losses(ensemble.state) == pytest.approx(0.25 * each[0] + 0.75 * each[1])
    assert isinstance(ensemble, Problem)
    assert ensemble.members == tuple(problems)
    assert ensemble.names == ("member 1", "member 2")
    assert Ensemble({"a": problems[0], "b": problems[1]}).names == ("a", "b")
    assert "mean of 2 members" in repr(ensemble)


def test_members_may_have_different_numbers_of_units():
    problems = []
    for hidden in (2, 3):
        model = TeacherStudent.similar(0.3, hidden=hidden)
        problems.append(Problem(model, model.fresh(seed=0), duration=2.0, steps=4))
    ensemble = Ensemble(problems)
    assert ensemble.state.size == sum(one.state.size for one in problems)
    unpacked = ensemble.model.unpack(ensemble.state)
    assert [start.Q.shape for start in unpacked] == [(2, 2), (3, 3)]


def test_arguments_of_all_members_can_be_changed():
    ensemble = Ensemble({"a": small(0.1), "b": small(0.5)}, [0.25, 0.75], "worst")
    changed = ensemble.changed(control=Control(tasks=False, lr=(0.0, 2.0)), duration=5.0)
    assert [one.duration for one in changed.members] == [5.0, 5.0]
    assert changed.control.lr == (0.0, 2.0)
    assert (changed.names, changed.risk.level) == (("a", "b"), 0.0)
    assert changed.risk.weights.tolist() == [0.25, 0.75]
    starts = [one.model.fresh(seed=7) for one in ensemble.members]
    moved = ensemble.changed(start=starts)
    assert np.array_equal(moved.members[1].state, ensemble.members[1].model.pack(starts[1]))


def test_an_ensemble_goes_through_its_sections(tmp_path):
    problems = {"a": small(0.1), "b": small(0.5)}
    unseen = Ensemble({"c": small(0.3), "d": small(0.4)}, [0.1, 0.9])
    ensemble = Ensemble(problems, [0.25, 0.75], 0.5, unseen=unseen)
    ensemble.save(tmp_path / "ensemble.toml")
    for again in (
        Problem.from_dict(ensemble.to_dict()),
        Problem.load(tmp_path / "ensemble.toml"),
    ):
        assert isinstance(again, Ensemble)
        assert again.state == pytest.approx(ensemble.state, rel=1e-15)
        assert (again.names, again.risk.level) == (ensemble.names, 0.5)
        assert again.risk.weights.tolist() == [0.25, 0.75]
        assert again.unseen.names == ("c", "d")
        assert again.unseen.risk.weights.tolist() == [0.1, 0.9]
        assert again.to_dict() == ensemble.to_dict()


# What is refused


def test_no_members_are_refused():
    with pytest.raises(ValueError, match="`problems` expects at least one problem, got none"):
        Ensemble([])
    with pytest.raises(ValueError, match="`problems` expects problems, got 3"):
        Ensemble([small(0.1), 3])
    with pytest.raises(ValueError, match="`problems` expects problems with one member each"):
        Ensemble([Ensemble([small(0.1)])])


@pytest.mark.parametrize(
    ("unseen", "message"),
    [
        (3, "`unseen` expects a list of problems, got 3"),
        ([3], "`unseen` expects problems, got 3"),
        ([], "`unseen` expects at least one problem, got none"),
        ([small(0.3, steps=6)], "same steps, got 12 and, in member 1 of `unseen`, 6"),
    ],
)
def test_what_cannot_be_tested_on_is_refused(unseen, message):
    with pytest.raises(ValueError, match=message):
        Ensemble(members(0.1, 0.5), unseen=unseen)


def test_members_to_test_on_have_weights_where_the_others_have():
    with pytest.raises(ValueError, match="`unseen` expects an Ensemble with `member_weights`"):
        Ensemble(members(0.1, 0.5), [0.25, 0.75], unseen=members(0.3))
    unseen = Ensemble(members(0.3, 0.4), [0.1, 0.9])
    assert Ensemble(members(0.1, 0.5), [0.25, 0.75], unseen=unseen).unseen is unseen
    assert Ensemble(members(0.1, 0.5), unseen=None).unseen is None
    assert small(0.1).unseen is None


def test_as_many_starts_as_members_are_needed():
    ensemble = Ensemble(members(0.1, 0.5))
    with pytest.raises(ValueError, match="`start` expects 2 starts, one for each member, got 1"):
        ensemble.changed(start=ensemble.start[:1])


@pytest.mark.parametrize(
    ("other", "what"),
    [
        (lambda: small(0.3, tasks=3), "tasks, got 2 and, in member 2, 3"),
        (lambda: small(0.3, steps=6), "steps, got 12 and, in member 2, 6"),
        (lambda: small(0.3, goal="worst"), "goal"),
        (lambda: small(0.3, lr=2.0), "settings"),
        (lambda: small(0.3, control=Control(tasks="constant")), "control"),
        (lambda: small(0.3, weights=[0.1, 0.9]), "weights"),
        (lambda: small(0.3, targets=[0.1, None]), "targets"),
        (lambda: small(0.3, running=[0.1, 0.0]), "running"),
        (
            lambda: Problem(*after_task_one(0.3), duration=20.0, steps=12),
            "duration, got 25.0 and, in member 2, 20.0",
        ),
        (
            lambda: Problem(*after_task_one(0.3), duration=25.0, steps=12, arrivals=[0, 12.5]),
            "arrivals",
        ),
    ],
)
def test_members_that_differ_in_more_than_start_and_model_are_refused(other, what):
    with pytest.raises(ValueError, match=f"`problems` expects members with the same {what}"):
        Ensemble([small(0.3), other()])


def test_members_with_other_knobs_are_refused():
    class Other(Averaging):
        knobs = ()

    first = Problem(Averaging(2), [1.0, 0.0], duration=1.0, steps=4)
    other = Problem(Other(2), [1.0, 0.0], duration=1.0, steps=4)
    with pytest.raises(ValueError, match="members with the same knobs"):
        Ensemble([first, other])


@pytest.mark.parametrize("weights", [[0.5, 0.6], [1.0, 0.0], [-0.5, 1.5], [0.5, 0.25, 0.25], "x"])
def test_weights_that_are_no_weights_are_refused(weights):
    with pytest.raises(ValueError, match="`member_weights` expects"):
        Ensemble(members(0.1, 0.5), member_weights=weights)


@pytest.mark.parametrize("risk", [0.0, -0.1, 1.1, float("nan"), True, None, "max"])
def test_risk_levels_outside_their_range_are_refused(risk):
    with pytest.raises(ValueError, match='`risk` expects "mean", "worst" or a number above 0'):
        Ensemble(members(0.1, 0.5), risk=risk)
