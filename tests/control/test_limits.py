"""Limits are kept exactly. That plans are the best within them: test_library.py."""

from itertools import product

import numpy as np
import pytest

from problems import after_task_one, keeps
from replan import Control, Flips, ForwardBackward, Limits, Problem, Protocol, solve
from replan.core.projection import Domain, project
from replan.models import Dropout
from replan.problem.discrete import allows, cheapest, nearest


@pytest.fixture(scope="module")
def make():
    def problem(steps=12, **limits):
        return Problem(*after_task_one(0.4), duration=24.0, steps=steps, limits=Limits(**limits))

    return problem


@pytest.mark.parametrize("solver", [Flips(starts=1), ForwardBackward()], ids=lambda s: s.method)
def test_other_solvers_keep_limits(make, solver):
    problem = make(steps=40, max_switches=3, max_share=[0.3, 1.0], min_dwell=2.0)
    plan = solve(problem, solver)
    assert allows(problem.step_limits, plan.protocol.sequence)


def test_limits_on_a_fine_grid(make):
    plans = {n: solve(make(steps=120, max_switches=n), starts=1) for n in (1, 4)}
    free = solve(make(steps=120), starts=1)
    assert [plan.certificate.switches for plan in plans.values()] == [1, 4]
    assert free.loss < plans[4].loss < plans[1].loss
    capped = solve(make(steps=120, max_share=[0.1, 1.0]), starts=1)
    assert np.bincount(capped.protocol.sequence)[0] == 12
    assert capped.relaxed.mean_shares[0] <= 0.1 + 1e-9
    assert capped.certificate.relaxed_value <= capped.loss
    assert 0 <= capped.certificate.pmp_residual <= 1e-2 * capped.loss


@pytest.mark.parametrize("seed", range(30))
def test_cheapest_is_the_cheapest_of_all(seed):
    rng = np.random.default_rng(seed)
    tasks, steps = (2, 9) if seed % 2 else (3, 7)
    everything = [np.array(s) for s in product(range(tasks), repeat=steps)]
    while True:
        low = rng.integers(0, 3, tasks) * rng.integers(0, 2, tasks)
        settings = {
            "min_share": low / steps,
            "max_share": np.maximum(low, rng.integers(1, steps + 1, tasks)) / steps,
            "min_dwell": float(rng.integers(0, 4)),
            "max_switches": None if rng.random() < 0.3 else int(rng.integers(0, 5)),
        }
        try:
            limits = Limits(**settings).on_grid(np.ones((steps, tasks), bool), float(steps))
        except ValueError:  # no protocol keeps them: the exhaustive list agrees
            if low.sum() <= steps and "cannot all be kept" in str(_error(settings, tasks, steps)):
                assert not any(
                    keeps(Limits(**settings), s, tasks, float(steps)) for s in everything
                )
            continue
        break
    allowed = [s for s in everything if allows(limits, s)]
    assert [keeps(Limits(**settings), s, tasks, float(steps)) for s in everything] == [
        allows(limits, s) for s in everything
    ]
    costs = rng.normal(size=(steps, tasks))
    found = cheapest(costs, limits)
    assert allows(limits, found)
    total = [costs[np.arange(steps), s].sum() for s in allowed]
    assert costs[np.arange(steps), found].sum() == pytest.approx(min(total))
    assert allows(limits, nearest(rng.dirichlet(np.ones(tasks), size=steps), limits))


def _error(settings, tasks, steps):
    with pytest.raises(ValueError) as caught:
        Limits(**settings).on_grid(np.ones((steps, tasks), bool), float(steps))
    return caught.value


@pytest.mark.parametrize("tasks", [2, 3])
def test_projection_within_budgets(tasks):
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(50, tasks))
    low, high = np.zeros(tasks), np.ones(tasks)
    low[0], high[-1] = 0.4, 0.2
    domain = Domain(
        50, np.ones((0, tasks), bool), low, high, np.zeros((0, 0)), np.zeros(0), np.zeros(0)
    )
    found = project(rows.ravel(), domain).reshape(50, tasks)
    np.testing.assert_allclose(found.sum(axis=1), 1)
    assert np.all(found.mean(axis=0) >= low - 1e-9)
    assert np.all(found.mean(axis=0) <= high + 1e-9)
    for _ in range(200):  # the projection's obtuse angles with all other points of the set
        other = project(rng.normal(size=50 * tasks), domain).reshape(50, tasks)
        assert np.sum((rows - found) * (other - found)) < 1e-6


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"max_share": [1.5, 1.0]}, "`max_share` expects shares from 0 to 1"),
        ({"max_share": [0.5]}, r"`max_share` expects an array of numbers of shape \(2,\)"),
        ({"min_share": [0.7, 0.7]}, "`min_share` expects shares that sum to at most 1, got 1.4"),
        ({"max_share": [0.2, 0.2]}, "`max_share` expects shares that sum to at least 1, got 0.4"),
        (
            {"min_share": [0.5, 0.0], "max_share": [0.2, 1.0]},
            "`min_share` expects at most `max_share`, got 0.5 and 0.2 for task 1",
        ),
        (
            {"min_share": [0.3, 0.0], "max_share": [0.3, 1.0]},
            "of task 1 leave no whole number of the 12 steps: use multiples of 1/12",
        ),
        ({"min_dwell": 25.0}, "`min_dwell` expects at most the duration 24, got 25"),
        ({"min_dwell": -1.0}, "`min_dwell` expects a finite number of at least 0"),
        ({"max_switches": -1}, "`max_switches` expects an integer of at least 0"),
        ({"max_switches": 1.5}, "`max_switches` expects an integer"),
        ({"max_switches": 0, "max_share": [0.5, 0.5]}, "`limits` cannot all be kept on 12 steps"),
        ({"min_dwell": 13.0, "min_share": [0.2, 0.2]}, "`limits` cannot all be kept on 12 steps"),
    ],
)
def test_limits_that_cannot_be_kept_are_refused(make, limits, message):
    with pytest.raises(ValueError, match=message):
        make(**limits)


def test_limits_need_free_tasks(make):
    free = make()
    with pytest.raises(ValueError, match=r"`limits` expects limits only where `control\.tasks`"):
        Problem(
            free.model, free.start, duration=24.0, control=Control(tasks=False),
            limits=Limits(max_switches=1),
        )  # fmt: skip


# Means of knobs


def dropped(**settings):
    model = Dropout([[1.0]], hidden=2, noise=0.2, rescale=1.0)
    start = np.zeros((2, 2)), np.zeros((2, 1))
    return Problem(model, start, 5.0, steps=10, **settings)


def test_the_means_of_two_knobs_are_kept_exactly():
    both = Control(lr=(0.0, 3.0), knobs={"keep": (0.1, 1.0)})
    plan = solve(dropped(control=both, limits=Limits(mean={"keep": 0.6, "lr": (0.5, 0.8)})))
    assert plan.protocol.knobs["keep"].mean() == pytest.approx(0.6, abs=1e-12)
    assert 0.5 - 1e-12 <= plan.protocol.knobs["lr"].mean() <= 0.8 + 1e-12
    assert plan.loss > solve(dropped(control=both)).loss


def test_the_mean_of_a_knob_with_a_value_for_each_task(make):
    """Each value counts for as long as its task is trained."""
    free = make()
    problem = Problem(
        free.model, free.start, duration=24.0, steps=12,
        control=Control(tasks=False, knobs={"head_lr": (0.0, 3.0)}),
        limits=Limits(mean={"head_lr": 0.7}),
    )  # fmt: skip
    plan = solve(problem, start=Protocol([[0.25, 0.75]] * 12, 24.0))
    rates = plan.protocol.by_task("head_lr")
    assert np.ptp(rates) > 0.1
    assert np.mean(rates @ [0.25, 0.75]) == pytest.approx(0.7, abs=1e-12)


@pytest.mark.parametrize("mean", [0.0, 1.0])
def test_means_at_the_ends_of_a_range(mean):
    """The weights 1/steps rarely sum to 1."""
    for steps in range(1, 51):
        weights, bound = np.full((1, steps), 1 / steps), np.array([mean])
        domain = Domain(0, np.ones((0, 1), bool), np.zeros(1), np.ones(1), weights, bound, bound)
        np.testing.assert_allclose(project(np.full(steps, 0.5), domain), mean, atol=1e-14)
    for steps in (6, 10):  # where a task must have everything
        shares = np.array([1.0, 0.0]) if mean else np.array([0.0, 1.0])
        domain = Domain(
            steps, np.ones((0, 2), bool), shares, shares, np.zeros((0, 0)), np.zeros(0), np.zeros(0)
        )
        rows = project(np.linspace(0.1, 0.9, 2 * steps), domain).reshape(steps, 2)
        np.testing.assert_allclose(rows, np.tile(shares, (steps, 1)), atol=1e-12)


@pytest.mark.parametrize(
    ("control", "mean", "message"),
    [
        (
            {"keep": (0.1, 0.5)}, {"keep": 0.6},
            "`mean` of keep expects a mean within `control.keep`, 0.1 to 0.5, got 0.6",
        ),
        ({"keep": (0.5, 0.9)}, {"keep": (0.1, 0.4)}, "0.5 to 0.9, got 0.1 to 0.4"),
        ({"keep": (0.1, 0.5)}, {"lr": 0.6}, "`mean` expects knobs that are controlled, got lr"),
        ({"keep": (0.1, 0.5)}, {"kept": 0.6}, "`mean` expects one of lr, keep; got 'kept', did"),
        ({"keep": (0.1, 0.5)}, {"keep": (0.4, 0.2)}, "`mean` of keep expects min ≤ max, got min"),
        ({"keep": (0.1, 0.5)}, {"keep": np.nan}, "`mean of keep` expects finite numbers, got nan"),
    ],
)  # fmt: skip
def test_means_that_cannot_be_kept_are_refused(control, mean, message):
    """When the problem is made, before any work."""
    with pytest.raises(ValueError) as raised:
        dropped(control=Control(knobs=control), limits=Limits(mean=mean))
    assert message in str(raised.value)


def test_the_mean_of_a_knob_of_each_task_needs_fixed_tasks(make):
    free = make()
    with pytest.raises(ValueError, match=r"`mean` of lr, .* expects `control\.tasks` to be false"):
        Problem(
            free.model, free.start, duration=24.0, control=Control(lr=(0.0, 2.0)),
            limits=Limits(mean={"lr": 1.0}),
        )  # fmt: skip
