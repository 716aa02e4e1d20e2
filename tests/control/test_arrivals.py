"""Tasks that arrive and depart. That plans are the best of all there: test_library.py."""

from itertools import product

import numpy as np
import pytest

from problems import after_task_one, keeps, small, there
from replan import (
    Control,
    Exhaustive,
    Flips,
    Limits,
    Overlaps,
    Problem,
    Protocol,
    Relax,
    TeacherStudent,
    evaluate,
    levers,
    solve,
    strategies,
)
from replan.control.objective import Controls, Objective
from replan.core.projection import Domain, project
from replan.control.search import on_grid
from replan.control.relaxed_controls import RelaxedControls
from replan.problem.discrete import allows, cheapest, nearest


def stream(steps=60, **settings):
    """Return three tasks, the last of which arrives after the first has departed."""
    model, start = after_task_one(0.4, 3)
    windows = {"arrivals": [0.0, 0.0, 12.0], "departures": [18.0, np.inf, np.inf]}
    return Problem(model, start, duration=30.0, steps=steps, **windows | settings)


# The discrete programme


def windows(rng, steps, tasks):
    """Return when tasks are there (steps, T), each without a gap, at least one always."""
    while True:
        ends = np.sort(rng.integers(0, steps + 1, (2, tasks)), axis=0)
        found = (np.arange(steps)[:, None] >= ends[0]) & (np.arange(steps)[:, None] < ends[1])
        if found.any(axis=1).all():
            return found


@pytest.mark.parametrize("seed", range(60))
def test_cheapest_and_refusals_while_tasks_are_there(seed):
    rng = np.random.default_rng(seed)
    tasks, steps = ((2, 8), (3, 6), (4, 5))[seed % 3]
    present = windows(rng, steps, tasks)
    low = rng.integers(0, 3, tasks) * rng.integers(0, 2, tasks)
    settings = {
        "min_share": low / max(steps, low.sum()),
        "max_share": np.maximum(low, rng.integers(1, steps + 1, tasks)) / steps,
        "min_dwell": float(rng.choice([0, 0, 2, 3])),
        "max_switches": None if rng.random() < 0.5 else int(rng.integers(0, 4)),
    }
    found = [
        np.array(s)
        for s in product(range(tasks), repeat=steps)
        if present[np.arange(steps), s].all() and keeps(Limits(**settings), s, tasks, float(steps))
    ]
    try:
        limits = Limits(**settings).on_grid(present, float(steps))
    except ValueError:
        assert not found
        return
    assert found
    costs = rng.normal(size=(steps, tasks))
    best = cheapest(costs, limits)
    assert allows(limits, best)
    least = min(costs[np.arange(steps), s].sum() for s in found)
    assert costs[np.arange(steps), best].sum() == pytest.approx(least)
    assert allows(limits, nearest(rng.dirichlet(np.ones(tasks), size=steps), limits))


def test_a_task_that_has_departed_does_not_catch_up():
    limits = Limits().on_grid(np.array([[True, True]] * 3 + [[False, True]] * 3), 6.0)
    rounded = nearest(np.array([[0.5, 0.5]] * 3 + [[0.0, 1.0]] * 3), limits)
    assert rounded.tolist() == [0, 1, 0, 1, 1, 1]
    shares = np.array([[0.3, 0.7]] * 3 + [[0.0, 1.0]] * 3)
    assert nearest(shares, limits)[3:].tolist() == [1, 1, 1]


# The relaxed problem


@pytest.mark.parametrize("budget", [False, True])
def test_the_projection_is_onto_tasks_that_are_there(budget):
    rng = np.random.default_rng(0)
    present = windows(rng, 40, 4)
    high = np.array([1.0, 0.3, 1.0, 1.0]) if budget else np.ones(4)
    none = np.zeros(0)
    domain = Domain(40, present, np.zeros(4), high, np.zeros((0, 0)), none, none)
    rows = rng.normal(size=(40, 4))
    found = project(rows.ravel(), domain).reshape(40, 4)
    assert np.all(found[~present] == 0)
    np.testing.assert_allclose(found.sum(axis=1), 1)
    assert np.all(found.mean(axis=0) <= high + 1e-9)
    for _ in range(200):  # the projection's obtuse angles with all other points of the set
        other = project(rng.normal(size=160), domain).reshape(40, 4)
        assert np.sum((rows - found) * (other - found)) < 1e-6


@pytest.mark.parametrize("limits", [Limits(), Limits(max_share=[0.1, 1.0, 1.0])], ids=str)
def test_gradients_and_what_is_left_to_gain(limits):
    problem = stream(steps=20, limits=limits)
    objective = Objective(problem, 20)
    rng = np.random.default_rng(0)
    fixed = Controls(rng.dirichlet(np.ones(3), 20), np.ones((20, problem.model.layout.size)))
    space = RelaxedControls(problem, fixed, free_tasks=True, free_knobs=False)
    x = np.asarray(project(space.join(fixed), space.domain))
    slopes = space.slopes(objective.gradient(space.split(x)))
    best = np.inf
    for _ in range(50):  # directions that stay where tasks are there
        y = np.asarray(project(rng.normal(size=x.size), space.domain))
        best = min(best, slopes @ y)
        ends = [objective.value(space.split(x + h * (y - x))) for h in (1e-4, -1e-4)]
        assert (ends[0] - ends[1]) / 2e-4 == pytest.approx(slopes @ (y - x), rel=1e-5, abs=1e-10)
    residual = space.residual(x, slopes)
    assert residual >= slopes @ x - best
    steep = np.asarray(project(-1e9 * slopes, space.domain))  # as good as a vertex
    assert residual == pytest.approx(slopes @ (x - steep), rel=1e-6)


@pytest.mark.parametrize("steps", [60, 61 * 3])
def test_plans_train_only_what_is_there(steps):
    ends = {"arrivals": [0.0, 0.0, 10.0], "departures": [20.0, 30.0, 30.0]}
    plan = solve(stream(steps=steps, **ends), starts=1)
    assert plan.status == "converged"
    for protocol in (plan.protocol, plan.relaxed):
        middles = (protocol.edges[1:] + protocol.edges[:-1]) / 2
        assert np.all(protocol.shares[middles < 10, 2] == 0)
        assert np.all(protocol.shares[middles > 20, 0] == 0)
    assert plan.certificate.relaxed_value <= plan.loss
    assert plan.certificate.pmp_residual <= 1e-3 * plan.loss


def test_limits_and_arrivals_on_a_fine_grid():
    plans = {n: solve(stream(limits=Limits(max_switches=n)), starts=1) for n in (2, 5)}
    free = solve(stream(), starts=1)
    assert free.loss < plans[5].loss < plans[2].loss
    assert [plan.certificate.switches for plan in plans.values()] == [2, 5]
    for plan in (free, *plans.values()):
        assert there(plan.problem, plan.protocol.sequence)


@pytest.mark.parametrize("solver", [Relax(1), Flips(1)], ids=str)
def test_no_plan_is_worse_than_a_strategy(solver):
    problem = stream()
    plan = solve(problem, solver)
    for name, strategy in strategies.STRATEGIES.items():
        if not strategy.turns and name != "one-task":  # task 1 departs
            protocol = strategy(problem)
            rounded = nearest(on_grid(problem, protocol, 60).shares, problem.step_limits)
            assert plan.loss <= evaluate(problem, Protocol.from_sequence(rounded, 3, 30.0)).loss
            assert plan.loss <= evaluate(problem, protocol).loss * (1 + 2e-3), name


def test_permuted_tasks_permute_the_plan():
    overlaps = np.array([[1.0, 0.2, 0.5], [0.2, 1.0, 0.3], [0.5, 0.3, 1.0]])
    model = TeacherStudent(overlaps, hidden=3)
    start = model.pretrain(seed=1, duration=100.0)
    order = [2, 0, 1]  # which of the tasks stands where
    other = TeacherStudent(overlaps[np.ix_(order, order)], hidden=3)
    moved = Overlaps(start.Q, start.M[:, order], start.V[order])
    ends = np.array([0.0, 7.5, 15.0]), np.array([22.5, np.inf, np.inf])

    def plans(steps, solver):
        settings = {"duration": 30.0, "steps": steps}
        one = Problem(model, start, arrivals=ends[0], departures=ends[1], **settings)
        two = Problem(other, moved, arrivals=ends[0][order], departures=ends[1][order], **settings)
        return solve(one, solver), solve(two, solver)

    for steps, solver in ((8, Exhaustive()), (80, Relax(0))):
        plan, turned = plans(steps, solver)
        assert turned.loss == pytest.approx(plan.loss, rel=1e-6)
        assert np.array_equal(turned.protocol.shares, plan.protocol.shares[:, order])


def test_knobs_alone_with_arrivals():
    problem = stream(control=Control(tasks=False, lr=(0.0, 3.0)))
    plan = solve(problem)
    expected = strategies.interleaved(problem)
    np.testing.assert_array_equal(plan.protocol.shares, expected.shares)
    assert plan.loss < evaluate(problem, expected).loss


def test_without_arrivals_nothing_changes():
    """Neither the plan nor the work."""
    plain, given = (
        small(0.3, 3, 40),
        small(0.3, 3, 40, arrivals=[0, 0, 0], departures=[25, 30, np.inf]),
    )
    one, two = solve(plain, starts=1), solve(given, starts=1)
    assert one.protocol == two.protocol
    assert [one.statistics[x] for x in ("gradients", "roll_outs")] == [
        two.statistics[x] for x in ("gradients", "roll_outs")
    ]


# What is refused


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"arrivals": [0.0, 1.0]}, r"`arrivals` expects an array of numbers of shape \(3,\)"),
        ({"arrivals": [0, -1, 0]}, "`arrivals` expects times of at least 0, or inf, got"),
        ({"departures": [np.nan, 1, 1]}, "`departures` expects times of at least 0, or inf"),
        (
            {"arrivals": [0.0, 3.2, 0.0]},
            "`arrivals` expects times between steps, multiples of 0.5, got 3.2 for task 2: use "
            "3 or 3.5, or other `steps`",
        ),
        (
            {"arrivals": [0, 5, 0], "departures": [30, 5, 30]},
            "`departures` expects times after the `arrivals`, got 5 and 5 for task 2",
        ),
        (
            {"arrivals": [5, 5, 10], "departures": None},
            "`arrivals` and `departures` expect a task that is there at any time, got none from 0",
        ),
        (
            {"arrivals": [0, 20, 20], "departures": [10, 30, 30]},
            "`arrivals` and `departures` expect a task that is there at any time, got none from 10",
        ),
        (
            {"limits": Limits(min_share=[0.7, 0, 0])},
            "`min_share` of task 1 expects at most 0.6, as long as it is there, got 0.7",
        ),
        (
            {"limits": Limits(min_share=[0.6, 0.1, 0.4]), "departures": None},
            "`min_share` expects shares that sum to at most 1, got 1.1",
        ),
        (
            {"limits": Limits(max_share=[1.0, 0.3, 0.05])},
            "`limits` cannot all be kept on 60 steps: .*, each task only while it is there",
        ),
        (
            {"limits": Limits(max_switches=0), "departures": [18, 12, 30]},
            "`limits` cannot all be kept on 60 steps: .* at most 0 switches, each task only while",
        ),
        (
            {"control": Control("constant")},
            "`control.tasks` expects true or false where tasks arrive or depart",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        stream(**settings)


@pytest.mark.parametrize(
    ("protocol", "message"),
    [
        (
            Protocol.from_segments([(6.0, 1), (24.0, [0.0, 0.5, 0.5])], 3),
            "expects task 3 only while it is there, from 12 to 30, got a share of it from 6 to 30",
        ),
        (
            Protocol.from_segments([(19.0, 0), (11.0, 1)], 3),
            "expects task 1 only while it is there, from 0 to 18, got a share of it from 0 to 19",
        ),
    ],
    ids=["early", "late"],
)
def test_protocols_that_train_what_is_away_are_refused(protocol, message):
    problem = stream()
    with pytest.raises(ValueError, match=f"`protocol` {message}"):
        evaluate(problem, protocol)
    with pytest.raises(ValueError, match=f"`start` {message}"):
        solve(problem, start=protocol)


def test_a_task_that_never_arrives():
    problem = stream(arrivals=[0.0, 0.0, np.inf], departures=None)
    assert not problem.availability.always
    plan = solve(problem, starts=0)
    assert np.all(plan.protocol.shares[:, 2] == 0)
    assert plan.trajectory.final_losses[2] > 0  # it counts all the same
    with pytest.raises(ValueError, match="expects task 3 only while it is there, at no time"):
        evaluate(problem, Protocol.from_segments([(29.0, 1), (1.0, 2)], 3))


def test_levers_need_tasks_that_are_there_throughout():
    with pytest.raises(ValueError, match="`problem` expects tasks that are there throughout"):
        levers(stream())


def test_exhaustive_search_counts_only_what_is_there():
    with pytest.raises(ValueError, match=r"at most 4194304 protocols, got 2\^24 × 3\^12 × 2\^24"):
        solve(stream(), Exhaustive())
