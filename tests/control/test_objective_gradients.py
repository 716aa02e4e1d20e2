"""The objective: its value, its gradient by everything that can be controlled, and what is left."""

from itertools import product

import numpy as np
import pytest

from problems import after_task_one, small, stream, ten_units
from problems.models import skills_model
from replan import Control, Limits, Objective, Problem, Range, TeacherStudent, evaluate, solve
from replan.control.discretised import Controls, DiscretisedObjective
from replan.control.grids import on_grid
from replan.control.quasi_newton import QuasiNewton
from replan.control.relaxed_controls import RelaxedControls
from replan.control.smoothing import Smoothing
from replan.core.projection import Domain, project
from replan.problem.risk import Risk
from replan.problem.step_limits import limits_in_steps, replay_on
from replan.strategies import interleaved

RATES = Control(lr=(0.2, 3.0))
EVERY_KNOB = Control(lr=(0.2, 3.0), feature_lr=(0.0, 3.0), head_lr=(0.0, 3.0))
PARTS = {"weights": [1, 0, 2], "running": [0.1, 0, 0.2], "targets": [0.02] * 3}


def two(control=RATES, **objective):
    return small(0.4, steps=8, control=control, objective=Objective(**objective))


def three(goal, *, arrivals=(0.0, 7.5, 15.0), **objective):
    return stream(20, control=RATES, arrivals=arrivals, objective=Objective(goal, **objective))


def both(risk, members=2, **objective):
    """Return an ensemble of similar tasks, the last member with three hidden units."""
    other = TeacherStudent.similar(0.6, hidden=3)
    models = [after_task_one(0.1), (other, other.pretrain(seed=2, duration=100.0))]
    settings = {"duration": 10.0, "steps": 8, "control": RATES, "objective": Objective(**objective)}
    return Problem.ensemble(
        [Problem(*model, **settings) for model in models], weights=[0.3, 0.7], risk=risk
    )


def activated(name):
    model = TeacherStudent.similar(0.4, activation=name)
    start = model.pretrain(seed=2, duration=5.0)
    return Problem(model, start, duration=5.0, steps=8, control=RATES)


def auto(running=None):
    return Problem(
        skills_model(), np.array([0.2, 0.5, 0.0]), 1.5, steps=8, control=Control(effort=(0.1, 0.9)),
        objective=Objective(weights=[1.0, 0.7, 0.4], running=running),
    )  # fmt: skip


# By name: the problem, the steps on which it is looked at, the size of the vector of free controls.
VARIANTS = {
    "final": (two, 8, 32),
    "every knob": (lambda: two(EVERY_KNOB), 8, 64),
    "running costs": (lambda: two(running=[0.3, 0.7]), 8, 32),
    "running costs alone": (lambda: two(weights=[0, 0], running=[1.0, 0.0]), 8, 32),
    "running costs, long steps": (lambda: two(running=[0.3, 0.7]), 2, 8),
    "target": (lambda: two(targets=[1e-3, None]), 8, 32),
    "targets, running costs": (lambda: two(targets=[0.03, 0.02], running=[0.1, 0]), 8, 32),
    "seen": (lambda: three("seen"), 20, 120),
    "seen, long steps": (lambda: three("seen"), 4, 24),
    "seen, arrivals within steps": (lambda: three("seen"), 32, 192),
    "seen, everything": (lambda: three("seen", **PARTS), 20, 120),
    "seen, late arrival": (lambda: three("seen", arrivals=[0.0, 0.0, 27.0]), 20, 120),
    "worst": (lambda: three("worst"), 20, 120),
    "worst, everything": (lambda: three("worst", **PARTS), 32, 192),
    "constant shares": (lambda: two(Control("constant")), 8, 2),
    "one number each": (
        lambda: two(Control("constant", lr=Range(0.2, 3.0, constant=True, shared=True))), 8, 3,
    ),
    "constant rate": (lambda: two(Control(lr=Range(0.2, 3.0, constant=True))), 8, 18),
    "shared rate": (lambda: two(Control("constant", lr=Range(0.2, 3.0, shared=True))), 8, 10),
    "ensemble, mean": (lambda: both("mean"), 8, 32),
    "ensemble, worst half": (lambda: both(0.5), 8, 32),
    "ensemble, worst": (lambda: both("worst", running=[0.1, 0.2]), 8, 32),
    "ensemble, worst loss": (lambda: both("worst", goal="worst"), 8, 32),
    "ensemble, targets": (lambda: both(0.5, targets=[1e-4, 0.05]), 8, 32),
    "relu": (lambda: activated("relu"), 8, 32),
    "linear": (lambda: activated("linear"), 8, 32),
    "own model": (auto, 8, 24),
    "own model, running costs": (lambda: auto([0.2, 0.1, 0.3]), 8, 24),
}  # fmt: skip


@pytest.mark.parametrize("name", VARIANTS)
def test_gradients_against_finite_differences(name):
    make, steps, size = VARIANTS[name]
    problem = make()
    objective, rng = DiscretisedObjective(problem, steps), np.random.default_rng(0)
    shares = rng.dirichlet(np.ones(problem.model.tasks), steps)
    knobs = rng.uniform(0.5, 0.9, (steps, problem.model.layout.size))
    space = RelaxedControls(problem, Controls(shares, knobs), free_tasks=True)
    x = space.join(space.fixed)
    assert x.size == size
    np.testing.assert_allclose(space.join(space.split(x)), x, atol=1e-15)

    smoothing = objective.smoothing(space.split(x))
    gradient = objective.gradient(space.split(x), smoothing)
    assert gradient.value == objective.value(space.split(x))
    assert gradient.surrogate.value <= gradient.value * (1 + 1e-12)
    assert (smoothing is None) == problem.smooth == (gradient.surrogate.value == gradient.value)
    slopes = space.slopes(x, gradient)
    for _ in range(4):
        direction = rng.normal(size=size)
        ahead, behind = (
            objective.gradient(space.split(x + h * direction), smoothing).surrogate.value
            for h in (1e-5, -1e-5)
        )
        assert slopes @ direction == pytest.approx((ahead - behind) / 2e-5, rel=1e-5, abs=1e-8)


@pytest.mark.parametrize(
    "objective", [{}, {"goal": "worst"}, {"goal": "seen"}, {"running": [1, 0]}]
)
@pytest.mark.parametrize("risk", ["mean", 0.5, "worst"])
def test_the_members_of_an_ensemble_are_as_if_alone(risk, objective):
    problem = both(risk, **objective)
    together, rng = DiscretisedObjective(problem, 8), np.random.default_rng(0)
    controls = Controls(rng.dirichlet(np.ones(2), 8), rng.uniform(0.5, 1.5, (8, 6)))
    alone = [DiscretisedObjective(member, 8) for member in problem.members]
    for one in alone:
        one.substeps = together.substeps
    values = np.array([one.value(controls) for one in alone])
    assert together.value(controls) == pytest.approx(problem.risk.of(values), rel=1e-12)
    if objective == {}:
        slopes = [one.gradient(controls).by_shares for one in alone]
        gradient = together.gradient(controls)
        np.testing.assert_allclose(gradient.member_by_shares, slopes, rtol=1e-9)
        np.testing.assert_allclose(gradient.surrogate.member_values, values, rtol=1e-12)


def test_the_value_is_that_of_the_learning_curves():
    for steps, goal in product((4, 20), ("worst", "seen", "final")):
        problem = three(goal, **PARTS).changed(steps=steps)
        run = evaluate(problem, interleaved(problem))
        controls = on_grid(problem, run.protocol, steps)
        value = DiscretisedObjective(problem, steps).value(controls)
        assert value == pytest.approx(run.loss, rel=1e-6)
        factors = problem.objective.weights / problem.objective.weights.max()
        if problem.objective.goal == "worst":
            assert run.parts["worst"] == np.max(run.final_losses * factors)


@pytest.mark.parametrize(
    "make",
    [
        lambda: two(weights=[0, 0], running=[0.3, 0.7]),
        lambda: three("seen").changed(steps=4),
        lambda: both("worst", running=[0.1, 0.2]),
        lambda: auto([0.2, 0.1, 0.3]),
    ],
    ids=["running costs", "seen", "ensemble", "own model"],
)
def test_averages_have_order_four_on_any_steps(make):
    problem = make().changed(steps=4)
    run = evaluate(problem, interleaved(problem), rtol=1e-12)
    objective, errors = DiscretisedObjective(problem, 4), []
    counts = np.array([4, 6, 8, 12, 16])
    for objective.substeps in counts.tolist():
        value = objective.value(on_grid(problem, run.protocol, 4))
        errors.append(abs(value - run.loss))
    assert np.polyfit(np.log(counts), np.log(errors), 1)[0] == pytest.approx(-4, abs=0.5)


def test_a_learned_task_asks_for_no_smaller_steps():
    """Relative to the little that its loss still changes, no error would be small enough."""
    model = TeacherStudent.similar(0.2)
    problem = Problem(model, model.pretrain(seed=7, duration=1000.0), duration=25.0)
    assert DiscretisedObjective(problem, 50).substeps == 2


# Smooth surrogates


@pytest.mark.parametrize("level", [0.0, 0.25, 0.5, 0.9])
def test_a_smooth_risk_is_below_the_risk_and_its_mixture_gives_the_slopes(level):
    rng = np.random.default_rng(0)
    risk = Risk(rng.dirichlet(np.ones(6)), level)
    x, none = rng.normal(size=6), np.zeros((6, 1))
    x[1] = x[4]  # a tie
    for temperature in (1.0, 0.1, 1e-4):
        smoothing = Smoothing(temperature, None, risk.weights, risk)
        weights = smoothing.smoothed(x, none)[0].members
        assert weights.sum() == pytest.approx(1.0, rel=1e-12)
        assert np.all(weights <= risk.caps * (1 + 1e-12))
        assert smoothing.value(x, none) <= risk.of(x) + 1e-12
        for i in range(6):
            step = 1e-6 * temperature * np.eye(6)[i]
            change = smoothing.value(x + step, none) - smoothing.value(x - step, none)
            assert weights[i] == pytest.approx(change / (2 * step[i]), abs=2e-3)
    assert smoothing.value(x, none) == pytest.approx(risk.of(x), abs=1e-3)


def test_a_smooth_goal_is_below_the_largest_loss_and_comes_close():
    rng = np.random.default_rng(0)
    for _ in range(50):
        x, prior = rng.normal(size=(1, 4)), rng.dirichlet(np.ones(4), 1)
        largest, warm = x.max(axis=1), Smoothing(float(rng.uniform(0.01, 2)), prior)
        assert warm.value(largest, x) <= largest[0]
        weights = warm.smoothed(largest, x)[0].losses
        assert weights.sum() == pytest.approx(1)
        assert warm.smoothed(largest, x)[0].gap(x) == pytest.approx(largest[0] - weights[0] @ x[0])
        assert Smoothing(1e-4, prior).value(largest, x) == pytest.approx(largest[0], abs=1e-2)
        sharper = warm.sharpened(warm.smoothed(largest, x)[0], 1.0)
        assert warm.value(largest, x) <= sharper.value(largest, x) <= largest[0]


# What is left to gain

DOMAINS = {
    "free": lambda: ten_units(steps=20),
    "shares of two": lambda: ten_units(steps=20, limits=Limits(max_share=[0.2, 1.0])),
    "least shares of two": lambda: ten_units(steps=20, limits=Limits(min_share=[0.3, 0.2])),
    "arrivals": lambda: stream(20),
    "arrivals, shares": lambda: stream(20, limits=Limits(max_share=[0.4, 1.0, 1.0])),
    "replay": lambda: stream(20, limits=Limits(max_replay=0.4)),
    "replay, shares": lambda: stream(
        20, departures=[30.0, 27.0, 30.0], limits=Limits(max_replay=0.4, max_share=[0.5, 0.4, 1.0])
    ),
    "rates": lambda: ten_units(steps=20, control=RATES),
    "mean rate": lambda: ten_units(
        steps=20, control=Control(lr=Range(0.2, 3.0, shared=True)),
        limits=Limits(mean={"lr": (0.5, 0.8)}),
    ),
    "constant": lambda: ten_units(
        steps=20, control=Control("constant"), limits=Limits(max_share=[0.2, 1.0])
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DOMAINS)
@pytest.mark.parametrize("steps", [20, 32])
def test_the_residual_is_the_best_gain_of_the_linear_model(name, steps):
    problem, rng = DOMAINS[name](), np.random.default_rng(0)
    tasks, size = problem.model.tasks, problem.model.layout.size
    fixed = Controls(rng.dirichlet(np.ones(tasks), steps), np.ones((steps, size)))
    space = RelaxedControls(problem, fixed, free_tasks=True)
    x = np.asarray(project(space.join(fixed), space.domain))
    slopes = space.slopes(x, DiscretisedObjective(problem, steps).gradient(space.split(x)))
    residual = space.residual(x, slopes)
    others = [np.asarray(project(rng.normal(size=x.size), space.domain)) for _ in range(30)]
    best = slopes @ x - min(slopes @ y for y in others)
    assert residual >= best - 1e-12 * abs(best)
    steep = np.asarray(project(-1e9 * slopes, space.domain))  # as good as a vertex
    assert residual == pytest.approx(slopes @ (x - steep), rel=1e-6)


@pytest.mark.parametrize("steps", [8, 30])
def test_the_residual_bounds_the_gain_of_the_largest_loss_itself(steps):
    """With losses linear in the shares, nothing lowers the largest by more than the residual."""
    problem = stream(steps, goal="worst", arrivals=None)
    objective, rng = DiscretisedObjective(problem, steps), np.random.default_rng(0)
    relaxed = on_grid(problem, solve(problem).relaxed, steps)
    for shares in (rng.dirichlet(np.ones(3), steps), relaxed.shares):
        controls = Controls(shares, relaxed.knobs)
        space = RelaxedControls(problem, controls, free_tasks=True)
        x, gradient = space.join(controls), objective.gradient(controls)
        residual = space.residual(x, space.slopes(x, gradient)) + gradient.surrogate.slack
        final = problem.model.losses(gradient.states[-1])
        for _ in range(100):
            y, h = np.asarray(project(2 * rng.normal(size=x.size), space.domain)), 1e-5
            states = objective.roll_out(space.split(x + h * (y - x)))
            linear = final + (problem.model.losses(states[-1]) - final) / h
            assert gradient.value - linear.max() <= residual * (1 + 1e-3) + 1e-6


# Projections


def domain(steps, tasks, first=None, shares=(0.0, 1.0), cap=None, last=None):
    """Return mixtures of tasks that arrive with the steps `first` and leave after `last`."""
    first = np.zeros(tasks, int) if first is None else np.array(first)
    last = np.full(tasks, steps) if last is None else np.array(last)
    there = (np.arange(steps)[:, None] >= first) & (np.arange(steps)[:, None] < last)
    low, high = (np.broadcast_to(share, tasks).astype(float) for share in shares)
    replay = ()
    if cap is not None:
        replay = replay_on(
            limits_in_steps(Limits(max_replay=cap), there, float(steps), first), steps
        )
    none = np.zeros(0)
    everywhere = np.ones((0, tasks), bool)
    available = everywhere if there.all() else there
    return Domain(steps, available, low, high, np.zeros((0, 0)), none, none, *replay), there


PROJECTIONS = {
    "simplex": domain(50, 4),
    "budgets of two": domain(50, 2, shares=([0.4, 0.0], [1.0, 0.2])),
    "budgets of three": domain(50, 3, shares=([0.4, 0.0, 0.0], [1.0, 1.0, 0.2])),
    "available": domain(40, 4, [0, 5, 12, 20], last=[40, 40, 25, 38]),
    "available, budget": domain(40, 4, [0, 5, 12, 20], shares=(0.0, [1, 0.3, 1, 1])),
    "no replay": domain(40, 4, [0, 0, 15, 28], cap=0.0),
    "replay": domain(40, 4, [0, 0, 15, 28], cap=0.2),
    "replay, budgets": domain(40, 4, [0, 0, 15, 28], (0.1, 0.45), cap=0.6),
    "no replay, budgets": domain(40, 4, [0, 0, 15, 24], (0.1, 0.45), cap=0.0),
}


@pytest.mark.parametrize("name", PROJECTIONS)
def test_projections_have_obtuse_angles_with_the_whole_set(name):
    bounds, there = PROJECTIONS[name]
    rng, shape = np.random.default_rng(0), there.shape
    rows = 3 * rng.normal(size=shape)
    found = project(rows.ravel(), bounds).reshape(shape)
    np.testing.assert_allclose(found.sum(axis=1), 1)
    assert np.all(found >= 0)
    assert np.all(found[~there] == 0)
    assert np.all(found.mean(axis=0) >= bounds.low - 1e-9)
    assert np.all(found.mean(axis=0) <= bounds.high + 1e-9)
    for (first, last), cap in zip(bounds.spans, bounds.caps, strict=True):
        assert (found * bounds.old)[first:last].sum() / (last - first) <= cap + 1e-9
    for _ in range(100):
        other = project(3 * rng.normal(size=rows.size), bounds).reshape(shape)
        assert np.sum((rows - found) * (other - found)) < 1e-6


@pytest.mark.parametrize("mean", [0.0, 1.0])
def test_means_at_the_ends_of_a_range(mean):
    """The weights 1/steps rarely sum to 1."""
    bound = np.array([mean])
    for steps in range(1, 51):
        weights = np.full((1, steps), 1 / steps)
        edge = Domain(0, np.ones((0, 1), bool), np.zeros(1), np.ones(1), weights, bound, bound)
        np.testing.assert_allclose(project(np.full(steps, 0.5), edge), mean, atol=1e-14)
    for steps in (6, 10):  # where a task must have everything
        shares = np.array([mean, 1.0 - mean])
        rows = project(np.linspace(0.1, 0.9, 2 * steps), domain(steps, 2, shares=[shares] * 2)[0])
        np.testing.assert_allclose(rows.reshape(steps, 2), [shares] * steps, atol=1e-12)


def test_a_step_too_long_is_cut_to_the_minimum_of_a_parabola():
    none = np.zeros(0)
    box = Domain(0, np.ones((0, 1), bool), np.zeros(1), np.ones(1), np.zeros((0, 1)), none, none)
    search = QuasiNewton(lambda x: (50 * (x[0] - 0.3) ** 2, 100 * (x - 0.3)), box, np.zeros(1))
    search.step()
    assert search.x == pytest.approx(0.3)
