"""Several knobs at once: gradients of the objective, and plans against grids and pseudo-tasks."""

from functools import cache
from itertools import product

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize

from problems import after_task_one
from replan import (
    AutoModel,
    Control,
    Exhaustive,
    ForwardBackward,
    Plan,
    Problem,
    Protocol,
    evaluate,
    solve,
)
from replan.control.objective import Controls, Objective
from replan.models import LR, Curriculum, Denoising, Dropout, Knob, Schedule
from replan.models.base import with_ends
from replan.problem.ends import best_ends


def practise(state, task, lr, effort, *, fading):
    return lr * jnp.where(jnp.arange(2) == task, effort * (1 - state), 0.0) - fading * state


@cache
def skills():
    """A model by automatic differentiation, with a cost, an end knob and a parameter."""
    return AutoModel(
        practise,
        lambda x, grade, *, fading: jnp.array([jnp.sum((1 - grade * x) ** 2), fading * grade]),
        tasks=2, like=np.zeros(2), knobs=[LR, Knob("effort", 0.0, 1.0, default=0.5)],
        parameters={"fading": 0.2}, loss_names=["gap", "praise"],
        end_knobs=[Knob("grade", 0.5, 9.0, default=1.0)],
        cost=lambda x, task, lr, effort, *, fading: effort**2 * (1 + x[0] * lr),
    )  # fmt: skip


MODELS = {
    "curriculum": lambda: (Curriculum(), [1.2, 0.8, 0.5]),
    "dropout": lambda: (
        Dropout([[1.0]], hidden=2, noise=0.3),
        ([[0.5, 0.1], [0.1, 0.4]], [[0.2], [0.1]]),
    ),
    "denoising": lambda: (Denoising(mean=1.2, variance=0.3, test_noise=0.4), [0.3, 0.4, 0.2]),
    "auto": lambda: (skills(), np.array([0.2, 0.5])),
}


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("running", [0.0, 0.3])
def test_gradients_of_the_objective_match_finite_differences(kind, running):
    """By shares and all knobs, with the best end knobs, final, running and accumulated costs."""
    model, start = MODELS[kind]()
    count = len(model.loss_names)
    problem = Problem(
        model, start, 1.5, steps=4, weights=np.linspace(1.0, 0.4, count),
        running=running * np.linspace(0.5, 1.0, count),
    )  # fmt: skip
    objective, rng = Objective(problem, 4), np.random.default_rng(0)
    shares = rng.dirichlet(np.ones(model.tasks), size=4)
    controls = Controls(shares, rng.uniform(0.3, 0.7, (4, model.layout.size)))
    found = objective.gradient(controls)
    for name, columns in model.layout.columns.items():
        assert np.abs(found.by_knobs[:, columns]).max() > 1e-5, name
    ends = objective.ends(objective.roll_out(controls))
    for knob, value in zip(model.end_knobs, ends, strict=True):
        assert knob.low < value < knob.high  # else nothing would depend on it
    for _ in range(4):
        way = Controls(rng.normal(size=shares.shape), rng.normal(size=controls.knobs.shape))
        up, down = (
            objective.value(Controls(*(a + h * b for a, b in zip(controls, way, strict=True))))
            for h in (1e-5, -1e-5)
        )
        slope = np.sum(found.by_shares * way.shares) + np.sum(found.by_knobs * way.knobs)
        assert (up - down) / 2e-5 == pytest.approx(slope, rel=1e-6, abs=1e-8)


@pytest.mark.parametrize("kind", ["dropout", "auto"])
def test_gradients_by_end_knobs_match_finite_differences(kind):
    model, start = MODELS[kind]()
    x = np.append(model.pack(start), 0.8)
    cotangent = np.linspace(1.0, 0.3, len(model.loss_names))
    step = 1e-6 * np.eye(x.size)[-1]
    slope = (model.losses(x + step) - model.losses(x - step)) @ cotangent / 2e-6
    assert abs(slope) > 1e-3
    assert model.losses_vjp(x, cotangent)[-1] == pytest.approx(slope, rel=1e-7)


@pytest.mark.parametrize("size", [1.0, 1e-7])
def test_two_end_knobs_are_found_however_small_the_loss(size):
    model = AutoModel(
        lambda x, task, lr: -x,
        lambda x, a, b: size * jnp.array([(a - 0.777) ** 2 + (b - 1.234) ** 2 + 0.3 * a * b]),
        tasks=1, like=np.ones(1),
        end_knobs=[Knob(name, 0.0, 2.0, default=1.0) for name in ("a", "b")],
    )  # fmt: skip
    best = np.linalg.solve([[2.0, 0.3], [0.3, 2.0]], [2 * 0.777, 2 * 1.234])
    problem = Problem(model, np.ones(1), duration=1.0)
    np.testing.assert_allclose(best_ends(problem, np.ones((1, 1))), best, atol=1e-5)


def test_plans_of_a_model_with_end_knobs_are_read_without_it(tmp_path):
    model = AutoModel(
        lambda x, task, lr: -lr * x, lambda x, factor: (factor * x - 1.0) ** 2,
        tasks=1, like=np.ones(1), end_knobs=[Knob("factor", 0.0, 9.0, default=1.0)],
    )  # fmt: skip
    problem = Problem(model, np.ones(1), 1.0, steps=4, control=Control(tasks=False, lr=(0.5, 1.0)))
    plan = solve(problem, starts=0)
    plan.save(tmp_path / "plan.json")
    again = Plan.load(tmp_path / "plan.json")
    assert again.trajectory.best_ends == plan.trajectory.best_ends
    assert again.loss == plan.loss


def test_end_knobs_suit_running_costs_too():
    """All solvers take them; the value is that of the learning curve with its own end knobs."""
    model, start = MODELS["dropout"]()
    problem = Problem(
        model, start, 4.0, steps=6, running=[0.5], control=Control(knobs={"keep": (0.2, 1.0)})
    )
    plans = [solve(problem), solve(problem, ForwardBackward(sweeps=20))]
    for plan in plans:
        assert plan.loss == pytest.approx(evaluate(problem, plan.protocol).loss, rel=1e-6)
    assert plans[0].loss <= plans[1].loss * (1 + 1e-6)


# Two knobs, each combination of a few values in every step tried


def best_on_a_grid(problem, tasks, values):
    """Return the knobs (steps, knobs) and the value of the best combination of `values` by name.

    tasks: (steps,). End knobs are on a grid, too.
    """
    model, steps = problem.model, len(tasks)
    substeps = np.array([8])
    rows = [
        model.layout.rows(problem.knob_values | dict(zip(values, row, strict=True)), 1)
        for row in product(*values.values())
    ]
    states = problem.state[None]
    for task in tasks:
        length, share = np.array([problem.duration / steps]), np.eye(model.tasks)[[task]]
        states = np.array(
            [
                model.roll_out(x, Schedule(share, row, length, substeps))[-1]
                for x in states
                for row in rows
            ]
        )
    ends = np.array(list(product(*(np.linspace(k.low, k.high, 41) for k in model.end_knobs))))
    found = np.min([model.losses(with_ends(states, end)) @ problem.weights for end in ends], axis=0)
    leaf = np.unravel_index(np.argmin(found), [len(rows)] * steps)
    choice = np.array(list(product(*values.values())))[list(leaf)]
    return dict(zip(values, choice.T, strict=True)), found.min()


def polished(problem, shares, knobs):
    """Return the value from a grid's best on, by a general minimiser without our gradients."""
    names = list(knobs)
    low, high = np.array([problem.control.ranges[name] for name in names]).T
    columns = [problem.model.layout.columns[name] for name in names]
    objective, rows = Objective(problem, len(shares)), problem.knob_values | knobs
    rows = problem.model.layout.rows(rows, len(shares))

    def value(x):
        for column, numbers in zip(columns, x.reshape(len(names), -1), strict=True):
            rows[:, column] = numbers[:, None]
        return objective.value(Controls(shares, rows))

    bounds = np.repeat(np.stack([low, high], axis=1), len(shares), axis=0)
    return minimize(value, np.concatenate(list(knobs.values())), bounds=bounds).fun


def test_dropout_and_learning_rate_against_a_grid():
    model, start = Dropout([[1.0]], hidden=2, noise=0.3), (np.zeros((2, 2)), np.zeros((2, 1)))
    ranges = {"lr": (1.0, 3.0), "keep": (0.1, 1.0)}
    problem = Problem(model, start, 4.0, steps=4, control=Control(knobs=ranges))
    plan = solve(problem)
    knobs, grid = best_on_a_grid(problem, [0] * 4, {"lr": [1.0, 1.7, 2.5], "keep": [0.4, 0.7, 1.0]})
    assert plan.loss < grid
    assert plan.loss <= polished(problem, np.ones((4, 1)), knobs) + 1e-8
    assert np.all(plan.protocol.knobs["keep"][-2:] < 0.9)  # where the rate is still too large
    assert plan.loss < 0.99 * evaluate(problem, plan.protocol.with_knobs(keep=1.0)).loss


def test_rates_of_heads_and_features_against_a_grid():
    """After task 1, tasks fixed: task 2, then both in turn."""
    model, start = after_task_one(0.3)
    ranges = {"feature_lr": (0.0, 5.0), "head_lr": (0.0, 5.0)}
    problem = Problem(model, start, 20.0, steps=4, control=Control(tasks=False, knobs=ranges))
    tasks = [1, 1, 0, 1]
    protocol = Protocol(np.eye(2)[tasks], 20.0)
    plan = solve(problem, start=protocol)
    knobs, grid = best_on_a_grid(
        problem, tasks, {"feature_lr": [0.0, 1.0, 3.0], "head_lr": [0.0, 1.0, 3.0]}
    )
    assert plan.loss < grid
    assert plan.loss <= polished(problem, protocol.shares, knobs) * (1 + 1e-4)
    one = Problem(model, start, 20.0, steps=4, control=Control(tasks=False, lr=(0.0, 5.0)))
    assert (
        plan.loss
        < 0.95 * solve(one, start=protocol, starts=0).loss
        < evaluate(problem, protocol).loss
    )


# The same with every combination of values as a task of its own


def noisy(x, lr, keep):
    """SGD on a noisy quadratic whose gradient is kept with a probability, which costs noise."""
    return -2 * lr * keep * x + lr**2 * (0.3 * keep**2 + 0.2 * x)


def test_two_knobs_against_pseudo_tasks():
    lr, keep = (np.array(part) for part in zip(*product([0.1, 0.4, 0.9], [0.3, 1.0]), strict=True))
    pseudo = AutoModel(
        lambda x, task, unused: noisy(x, jnp.asarray(lr)[task], jnp.asarray(keep)[task]),
        lambda x: x, tasks=6, like=np.ones(1), loss_names=["loss"],
    )  # fmt: skip
    model = AutoModel(
        lambda x, task, lr, keep: noisy(x, lr, keep), lambda x: x, tasks=1, like=np.ones(1),
        knobs=[LR, Knob("keep", 0.0, 1.0, default=1.0)],
    )  # fmt: skip
    ranges = {"lr": (0.0, 2.0), "keep": (0.3, 1.0)}
    plan = solve(Problem(model, np.ones(1), 6.0, steps=3, control=Control(knobs=ranges)), starts=1)
    apart = Problem(pseudo, np.ones(1), 6.0, steps=3)
    best = solve(apart, Exhaustive())
    relaxed = solve(apart, starts=0)
    chosen = best.protocol.sequence
    same = Protocol(np.ones((3, 1)), 6.0, knobs={"lr": lr[chosen], "keep": keep[chosen]})
    assert evaluate(plan.problem, same).loss == pytest.approx(best.loss, rel=1e-9)
    assert plan.loss < best.loss
    assert relaxed.certificate.relaxed_value <= best.loss
    again = solve(plan.problem, start=same, starts=0)
    assert plan.loss <= again.loss * (1 + 1e-6)
