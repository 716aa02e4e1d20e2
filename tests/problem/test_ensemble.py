"""Ensembles: what one protocol is for; risks; what is refused."""

import numpy as np
import pytest

from replan import ArgumentError, Control, Objective, Problem, TeacherStudent
from replan.problem.risk import Risk


def small(similarity=0.3, **settings):
    model = TeacherStudent.similar(similarity, tasks=settings.pop("tasks", 2))
    return Problem(model, model.fresh(seed=0), **{"duration": 25.0, "steps": 12} | settings)


def members(*similarities):
    return [small(similarity) for similarity in similarities]


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
    ensemble = Problem.ensemble(problems, weights=[0.25, 0.75])
    first, second = (problem.model.losses(problem.state) for problem in problems)
    assert ensemble.model.losses(ensemble.state) == pytest.approx(0.25 * first + 0.75 * second)
    assert ensemble.is_ensemble
    assert ensemble.members == tuple(problems)
    assert ensemble.names == ("member 1", "member 2")
    assert Problem.ensemble({"a": problems[0], "b": problems[1]}).names == ("a", "b")


def test_members_may_have_different_numbers_of_units():
    models = [TeacherStudent.similar(0.3, hidden=hidden) for hidden in (2, 3)]
    problems = [Problem(model, model.fresh(seed=0), duration=2.0, steps=4) for model in models]
    ensemble = Problem.ensemble(problems)
    assert ensemble.state.size == sum(problem.state.size for problem in problems)
    unpacked = ensemble.model.unpack(ensemble.state)
    assert [start.Q.shape for start in unpacked] == [(2, 2), (3, 3)]


def test_arguments_of_all_members_can_be_changed():
    ensemble = Problem.ensemble(
        {"a": small(0.1), "b": small(0.5)}, weights=[0.25, 0.75], risk="worst"
    )
    changed = ensemble.changed(control=Control(tasks=False, lr=(0.0, 2.0)), duration=5.0)
    assert [member.duration for member in changed.members] == [5.0, 5.0]
    assert changed.control.knobs["lr"].high == 2.0
    assert (changed.names, changed.risk.level) == (("a", "b"), 0.0)
    assert changed.risk.weights.tolist() == [0.25, 0.75]
    starts = [member.model.fresh(seed=7) for member in ensemble.members]
    moved = ensemble.changed(start=starts)
    assert np.array_equal(moved.members[1].state, ensemble.members[1].model.pack(starts[1]))


# What is refused


@pytest.mark.parametrize(
    "problems",
    [
        [],
        [small(), 3],
        [Problem.ensemble([small()])],
        [small(), small(tasks=3)],
        [small(), small(steps=6)],
        [small(), small(lr=2.0)],
        [small(), small(duration=20.0)],
        [small(), small(arrivals=[0, 12.5])],
        [small(), small(control=Control("constant"))],
        [small(), small(objective=Objective("worst"))],
        [small(), small(objective=Objective(weights=[0.1, 0.9]))],
        [small(), small(objective=Objective(targets=[0.1, None]))],
    ],
)
def test_members_that_cannot_have_one_protocol_are_refused(problems):
    with pytest.raises(ArgumentError) as caught:
        Problem.ensemble(problems)
    assert caught.value.name == "problems"


@pytest.mark.parametrize("weights", [[0.5, 0.6], [1.0, 0.0], [-0.5, 1.5], [0.5, 0.25, 0.25], "x"])
def test_weights_that_are_no_weights_are_refused(weights):
    with pytest.raises(ArgumentError) as caught:
        Problem.ensemble(members(0.1, 0.5), weights=weights)
    assert caught.value.name == "weights"


@pytest.mark.parametrize("risk", [0.0, -0.1, 1.1, float("nan"), True, None, "max"])
def test_risk_levels_outside_their_range_are_refused(risk):
    with pytest.raises(ArgumentError) as caught:
        Problem.ensemble(members(0.1, 0.5), risk=risk)
    assert caught.value.name == "risk"


def test_a_start_for_each_member_is_needed():
    ensemble = Problem.ensemble(members(0.1, 0.5))
    with pytest.raises(ArgumentError) as caught:
        ensemble.changed(start=ensemble.start[:1])
    assert caught.value.name == "start"
