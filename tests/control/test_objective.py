"""Running costs and targets: their values, their gradients, and what solve makes of them."""

from dataclasses import replace

import numpy as np
import pytest

from problems import after_task_one
from replan import (
    Control,
    ForwardBackward,
    Plan,
    Problem,
    Protocol,
    TeacherStudent,
    evaluate,
    solve,
    strategies,
)
from replan.control.objective import Controls, Objective


@pytest.fixture(scope="module")
def parts():
    return after_task_one(0.4)


def make(parts, **settings):
    return Problem(*parts, duration=20.0, **({"steps": 40} | settings))


def test_average_losses_against_a_fine_quadrature(parts):
    problem = make(parts)
    run = evaluate(problem, strategies.focus_then_replay(problem))
    nodes, weights = np.polynomial.legendre.leggauss(5)
    edges = run.times
    times = edges[:-1, None] + np.diff(edges)[:, None] * (nodes + 1) / 2
    losses = run.losses_at(times.ravel()).reshape(*times.shape, 2)
    exact = np.einsum("i,j,ijt->t", np.diff(edges), weights / 2, losses) / problem.duration
    np.testing.assert_allclose(run.average_losses, exact, rtol=2e-6)


def test_the_average_converges_at_order_four(parts):
    exact = evaluate(make(parts, steps=1280), strategies.no_replay(make(parts))).average_losses
    steps = np.array([20, 40, 80])
    errors = [
        np.abs(evaluate(make(parts, steps=int(n)), strategies.one_task(make(parts, steps=int(n)),
               task=1)).average_losses - exact).max()
        for n in steps
    ]  # fmt: skip
    assert np.polyfit(np.log(steps), np.log(errors), 1)[0] < -3.5


@pytest.mark.parametrize(
    "settings",
    [
        {"running": [0.3, 0.7]},
        {"weights": [0.0, 0.0], "running": [1.0, 0.0]},
        {"targets": [1e-3, None]},
        {"targets": [0.03, 0.02], "running": [0.1, 0.0]},
    ],
)
def test_gradients_against_differences(parts, settings):
    problem = make(parts, steps=10, control=Control(lr=(0.0, 2.0)), **settings)
    objective = Objective(problem, 10)
    rng = np.random.default_rng(0)
    controls = Controls(rng.dirichlet(np.ones(2), size=10), rng.uniform(0.5, 1.5, (10, 6)))
    found = objective.gradient(controls)
    assert found.value == objective.value(controls)
    for _ in range(5):
        way = Controls(rng.normal(size=(10, 2)), rng.normal(size=(10, 6)))
        ahead, behind = (
            objective.value(Controls(*(a + h * b for a, b in zip(controls, way, strict=True))))
            for h in (1e-5, -1e-5)
        )
        slope = np.sum(found.by_shares * way.shares) + np.sum(found.by_knobs * way.knobs)
        assert (ahead - behind) / 2e-5 == pytest.approx(slope, rel=1e-6, abs=1e-9)


def test_running_costs_change_the_plan(parts):
    final = solve(make(parts), starts=0)
    running = solve(make(parts, weights=[0, 0], running=[0.5, 0.5]), starts=0)
    assert running.trajectory.average_losses.mean() < final.trajectory.average_losses.mean()
    assert running.loss == pytest.approx(running.trajectory.average_losses.mean())
    assert final.loss < running.trajectory.final_losses.mean()
    assert running.certificate.discretisation_error < 1e-4 * running.loss


def test_targets_are_met_where_they_can_be(parts, tmp_path):
    free = solve(make(parts), starts=0)
    target = 0.7 * free.trajectory.final_losses[0]
    plan = solve(make(parts, targets=[target, None]), starts=0)
    assert plan.trajectory.targets_met
    assert 0.9 * target < plan.trajectory.final_losses[0] <= target
    assert ": met" in str(plan)
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json").problem.targets.tolist() == [target, np.inf]
    hard = solve(make(parts, targets=[1e-9, None]), starts=0)
    assert not hard.trajectory.targets_met
    assert ": not met" in str(hard)
    assert "a target was not met" in hard.advice
    assert hard.trajectory.final_losses[0] < free.trajectory.final_losses[0]


def test_what_already_meets_its_target_pays_nothing(parts):
    problem = make(parts)
    loose = make(parts, targets=[10.0, 10.0])
    protocol = strategies.interleaved(problem)
    assert evaluate(loose, protocol).loss == evaluate(problem, protocol).loss


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"running": [1.0]}, r"`running` expects an array of numbers of shape \(2,\)"),
        ({"running": [-1.0, 0.0]}, "`running` expects numbers of at least 0"),
        ({"weights": [0.0, 0.0]}, "`weights` expects numbers not all 0"),
        ({"targets": [0.1]}, "`targets` expects 2 numbers or None, got 1"),
        ({"targets": [0.0, None]}, "`targets` expects a finite number above 0"),
        ({"targets": 0.1}, "`targets` expects a list of 2 numbers or None"),
        ({"limits": 3}, "`limits` expects a Limits"),
    ],
)
def test_bad_input_is_refused(parts, settings, message):
    with pytest.raises(ValueError, match=message):
        make(parts, **settings)


def test_the_sweep_controls_learning_rates(parts):
    """Close to the relaxed optimum for a convex choice; it never ends above its start."""
    problem = make(parts, steps=15, control=Control(tasks=False, lr=(0.0, 4.0)))
    start = strategies.alternating(problem)
    swept, best = solve(problem, ForwardBackward(), start=start), solve(problem, start=start)
    assert best.loss * (1 - 1e-4) <= swept.loss <= 1.05 * best.loss
    assert swept.loss < evaluate(problem, start).loss
    both = make(parts, steps=15, control=Control(lr=(0.0, 4.0)))
    joint = solve(both, ForwardBackward())
    assert joint.loss < evaluate(both, strategies.interleaved(both)).loss
    curves = joint.learning_rates
    assert curves.shape == (15, 2)
    assert np.array_equal(np.isnan(curves), joint.protocol.shares == 0)


def test_phases_of_mixtures(parts):
    problem = make(parts, control=Control(tasks=False, lr=(0.5, 2.0)))
    plan = solve(problem, start=strategies.focus_then_replay(problem, focus=5.0))
    assert plan.phases == [
        "focus on task 2 for 5",
        "mixture (task 1 50%, task 2 50%) for 15",
    ]


def described(parts, rows, **settings):
    problem = make(parts, steps=100, **settings)
    protocol = Protocol(np.eye(2)[rows], problem.duration)
    return replace(solve(problem, max_gradients=1), protocol=protocol).phases


def test_phases_name_long_stays_among_many_short_ones(parts):
    rows = [1] * 20 + [0, 1] * 15 + [0] * 10 + [1, 0] * 15 + [1] * 10
    assert described(parts, rows) == [
        "focus on task 2 for 4",
        "revision for 6 (task 1 50%, task 2 50%)",
        "task 1 alone for 2",
        "revision for 6 (task 1 50%, task 2 50%)",
        "task 2 alone for 2",
    ]


def test_phases_begin_where_tasks_arrive(parts):
    rows = [0] * 50 + [1, 0] * 25
    phases = described(parts, rows, arrivals=[0.0, 10.0])
    assert phases[0] == "task 1 alone for 10"  # not by choice
    assert phases[1:] == ["revision for 9.8 (task 1 49%, task 2 51%)", "task 1 alone for 0.2"]


def test_a_task_that_training_leaves_as_it_is_asks_for_no_smaller_steps():
    """Relative to the little that its loss still changes, no error would be small enough."""
    model = TeacherStudent.similar(0.2)
    start = model.pretrain(seed=7, duration=1000.0)
    assert Objective(Problem(model, start, duration=25.0), 50).substeps == 2
