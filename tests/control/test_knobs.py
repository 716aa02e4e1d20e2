"""Knobs: plans against grids of values, against pseudo-tasks, and controls that are tied."""

from itertools import product

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize

from problems import after_task_one, small, ten_units
from problems.models import noisy, noisy_model, skills_model
from replan import (
    ArgumentError,
    AutoModel,
    Control,
    Exhaustive,
    ForwardBackward,
    Limits,
    Objective,
    Problem,
    Protocol,
    Range,
    Relax,
    evaluate,
    solve,
    strategies,
)
from replan.control.discretised import Controls, DiscretisedObjective
from replan.models import Schedule


def best_on_a_grid(problem, tasks, values):
    """Return the knobs by name, and the value, of the best combination of values in all steps."""
    model, steps = problem.model, len(tasks)
    length, substeps = np.array([problem.duration / steps]), np.array([8])
    choices = np.array(list(product(*values.values())))
    rows = [
        model.layout.rows(problem.knobs | dict(zip(values, choice, strict=True)), 1)
        for choice in choices
    ]
    states = problem.state[None]
    for task in tasks:
        share = np.eye(model.tasks)[[task]]
        pieces = [Schedule(share, row, length, substeps) for row in rows]
        states = np.array([model.roll_out(x, piece)[-1] for x in states for piece in pieces])
    losses = model.losses(states) @ problem.objective.weights
    leaf = np.unravel_index(np.argmin(losses), [len(rows)] * steps)
    return dict(zip(values, choices[list(leaf)].T, strict=True)), losses.min()


def polished(problem, shares, knobs):
    """Return the value from a grid's best on, by a general minimiser without our gradients."""
    columns = [problem.model.layout.columns[name] for name in knobs]
    objective = DiscretisedObjective(problem, len(shares))
    rows = problem.model.layout.rows(problem.knobs | knobs, len(shares))

    def value(x):
        for column, numbers in zip(columns, x.reshape(len(knobs), -1), strict=True):
            rows[:, column] = numbers[:, None]
        return objective.value(Controls(shares, rows))

    ranges = [(problem.control.knobs[x].low, problem.control.knobs[x].high) for x in knobs]
    bounds = np.repeat(ranges, len(shares), axis=0)
    return minimize(value, np.concatenate(list(knobs.values())), bounds=bounds).fun


def test_two_knobs_of_one_task_against_a_grid():
    control = Control(lr=(0.0, 2.0), keep=(0.1, 1.0))
    problem = Problem(noisy_model(), np.ones(1), 4.0, steps=4, control=control)
    plan = solve(problem)
    values = {"lr": [0.2, 0.5, 1.0], "keep": [0.4, 0.7, 1.0]}
    knobs, grid = best_on_a_grid(problem, [0] * 4, values)
    assert plan.loss < grid
    assert plan.loss <= polished(problem, np.ones((4, 1)), knobs) + 1e-8
    swept = solve(problem, ForwardBackward(sweeps=20))
    assert plan.loss * (1 - 1e-6) <= swept.loss


def test_rates_of_heads_and_features_against_a_grid():
    """After task 1, tasks fixed: task 2, then both in turn."""
    model, start = after_task_one(0.3)
    tasks, protocol = [1, 1, 0, 1], Protocol(np.eye(2)[[1, 1, 0, 1]], 20.0)

    def posed(**knobs):
        return Problem(model, start, 20.0, steps=4, control=Control(tasks=False, **knobs))

    problem = posed(feature_lr=(0.0, 5.0), head_lr=(0.0, 5.0))
    plan = solve(problem, initial=protocol)
    values = {"feature_lr": [0.0, 1.0, 3.0], "head_lr": [0.0, 1.0, 3.0]}
    knobs, grid = best_on_a_grid(problem, tasks, values)
    assert plan.loss < grid
    assert plan.loss <= polished(problem, protocol.shares, knobs) * (1 + 1e-4)
    one = solve(posed(lr=(0.0, 5.0)), Relax(0), initial=protocol)
    assert plan.loss < 0.95 * one.loss < evaluate(problem, protocol).loss


def test_two_knobs_against_pseudo_tasks():
    """Every combination of values is a task of its own."""
    lr, keep = (np.array(x) for x in zip(*product([0.1, 0.4, 0.9], [0.3, 1.0]), strict=True))
    pseudo = AutoModel(
        lambda x, task, unused: noisy(x, jnp.asarray(lr)[task], jnp.asarray(keep)[task]),
        lambda x: x, tasks=6, like=np.ones(1), loss_names=["loss"],
    )  # fmt: skip
    control = Control(lr=(0.0, 2.0), keep=(0.3, 1.0))
    plan = solve(Problem(noisy_model(), np.ones(1), 6.0, steps=3, control=control), Relax(1))
    apart = Problem(pseudo, np.ones(1), 6.0, steps=3)
    best, relaxed = solve(apart, Exhaustive()), solve(apart, Relax(0))
    chosen = best.protocol.sequence
    same = Protocol(np.ones((3, 1)), 6.0, lr=lr[chosen], keep=keep[chosen])
    assert evaluate(plan.problem, same).loss == pytest.approx(best.loss, rel=1e-9)
    assert plan.loss < best.loss
    assert relaxed.certificate.relaxed_value <= best.loss
    assert plan.loss <= solve(plan.problem, Relax(0), initial=same).loss * (1 + 1e-6)


def test_the_learning_rate_alone():
    problem = ten_units(control=Control(tasks=False, lr=(0.1, 4.0)))
    tasks = strategies.alternating(problem)
    plan = solve(problem, initial=tasks)
    assert plan.protocol.shares.tolist() == tasks.shares.tolist()
    assert plan.loss <= evaluate(problem, strategies.exponential_lr(problem, protocol=tasks)).loss
    swept = solve(problem, ForwardBackward(sweeps=100), initial=tasks)
    assert plan.loss * (1 - 1e-4) <= swept.loss <= 1.05 * plan.loss
    assert swept.loss < evaluate(problem, tasks).loss


def test_the_sweep_gives_each_task_its_own_rates():
    problem = small(0.4, steps=15, control=Control(lr=(0.0, 4.0)))
    plan = solve(problem, ForwardBackward(sweeps=50))
    assert plan.loss < evaluate(problem, strategies.interleaved(problem)).loss
    assert plan.learning_rates.shape == (15, 2)
    assert np.array_equal(np.isnan(plan.learning_rates), plan.protocol.shares == 0)


def test_the_residual_counts_learning_rates_too():
    problem = ten_units(control=Control(tasks=False, lr=(0.1, 2.0)))
    plan = solve(problem, ForwardBackward(sweeps=2))
    assert plan.status == "stalled"
    assert plan.certificate.pmp_residual > 0.1 * (plan.loss - solve(problem).loss) > 0


# Tied controls


def test_constant_shares_and_one_rate_against_a_grid():
    control = Control("constant", lr=Range(0.0, 3.0, constant=True, shared=True))
    problem = Problem(*after_task_one(0.3), duration=8.0, steps=8, control=control)
    plan = solve(problem, Relax(tolerance=1e-6))
    assert np.ptp(plan.protocol.shares, axis=0).max() == 0
    assert plan.protocol.knobs["lr"].shape == (8,)
    assert np.ptp(plan.protocol.knobs["lr"]) == 0
    assert plan.certificate.switches == 0
    assert abs(plan.certificate.integrality_gap) <= 1e-9 * plan.loss
    assert plan.status == "converged"
    values = [
        evaluate(problem, Protocol([[s, 1 - s]], 8.0, lr=lr)).loss
        for s, lr in product(np.linspace(0.0, 0.5, 16), np.linspace(0.2, 3.0, 15))
    ]
    assert 0.97 * min(values) <= plan.loss <= min(values) * (1 + 1e-6)


def test_a_shared_curve_stays_one_curve_when_tasks_are_rounded():
    def plan(**knobs):
        settings = {"duration": 8.0, "steps": 8, "control": Control(**knobs)}
        return solve(Problem(*after_task_one(0.3), **settings))

    shared, free = plan(lr=Range(0.0, 3.0, shared=True)), plan(lr=(0.0, 3.0))
    assert shared.protocol.is_discrete
    assert shared.protocol.knobs["lr"].ndim == shared.relaxed.knobs["lr"].ndim == 1
    bound = shared.certificate.relaxed_value * (1 + 1e-3)
    assert free.certificate.relaxed_value <= bound


def test_a_knob_with_one_value_for_all_tasks():
    """Each task may use it, and its mean may be limited, whatever the shares."""
    problem = Problem(
        skills_model(), np.array([0.2, 0.5, 0.0]), 1.5, steps=8, control=Control(effort=(0.2, 0.9)),
        objective=Objective(weights=[1.0, 0.7, 0.4]),
    )  # fmt: skip
    plan = solve(problem)
    assert solve(problem, ForwardBackward()).loss == pytest.approx(plan.loss, rel=2e-3)
    least = plan.protocol.knobs["effort"].mean() + 0.05
    limited = solve(problem.changed(limits=Limits(mean={"effort": (least, 0.9)})))
    assert limited.protocol.knobs["effort"].mean() == pytest.approx(least, abs=1e-9)
    with pytest.raises(ArgumentError) as caught:
        evaluate(problem, Protocol([[1.0, 0.0]], 1.5, effort=[[0.3, 0.4]]))
    assert caught.value.name == "protocol"
