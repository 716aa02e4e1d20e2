"""Goals: the final losses, the tasks seen so far, the worst task."""

from dataclasses import replace
from functools import cache
from itertools import product

import jax.numpy as jnp
import numpy as np
import pytest

from problems import after_task_one, best_of_all, keeps, small, there
from problems.models import Averaging
from replan import (
    AutoModel,
    Control,
    Exhaustive,
    Flips,
    ForwardBackward,
    Limits,
    Overlaps,
    Plan,
    Problem,
    Protocol,
    Relax,
    TeacherStudent,
    compare,
    evaluate,
    levers,
    solve,
    strategies,
)
from replan.control.objective import Controls, Objective
from replan.core.projection import project
from replan.control.search import on_grid
from replan.control.smoothing import Smoothing
from replan.control.relaxed_controls import RelaxedControls
from replan.models import Knob
from replan.models.base import with_ends
from replan.problem.discrete import nearest

ARRIVALS = [0.0, 7.5, 15.0]


def stream(steps=60, **settings):
    """Return three tasks that arrive one after another."""
    settings = {"arrivals": ARRIVALS} | settings
    return Problem(*after_task_one(0.4, 3), duration=30.0, steps=steps, **settings)


# Values


@pytest.mark.parametrize("weights", [None, [1.0, 2.0, 3.0], [0.0, 1.0, 1.0]], ids=str)
def test_tasks_seen_so_far_against_a_fine_quadrature(weights):
    problem = stream(20, goal="seen", weights=weights)
    run = evaluate(problem, strategies.focus_then_replay(problem))
    nodes, parts = np.polynomial.legendre.leggauss(5)
    total = 0.0
    for begin, end in zip(run.times[:-1], run.times[1:], strict=True):
        losses = run.losses_at(begin + (end - begin) * (nodes + 1) / 2)
        counted = (np.ones(3) if weights is None else np.array(weights)) * (
            np.array(ARRIVALS) < end - 1e-6
        )
        if counted.any():
            total += (end - begin) / 2 * (parts @ losses @ counted) / counted.sum()
    assert run.loss == pytest.approx(total / 30.0, rel=1e-5)
    assert abs(run.loss - total / 30.0) < 3 * run.error + 1e-9


@pytest.mark.parametrize("weights", [None, [1.0, 3.0]])
def test_without_arrivals_tasks_seen_are_running_costs_of_all(weights):
    seen = small(0.3, steps=40, goal="seen", weights=weights)
    shares = np.array([0.5, 0.5]) if weights is None else np.array(weights) / np.sum(weights)
    running = small(0.3, steps=40, weights=[0.0, 0.0], running=shares)
    protocol = strategies.focus_then_replay(seen)
    assert evaluate(seen, protocol).loss == pytest.approx(evaluate(running, protocol).loss)
    assert solve(seen, starts=0).loss == pytest.approx(solve(running, starts=0).loss, rel=1e-9)


def test_a_task_that_departed_still_counts_as_seen():
    protocol = Protocol.from_sequence(np.repeat([0, 1, 2], 20), 3, 30.0)
    stays, leaves = (
        stream(goal="seen", arrivals=[0.0, 0.0, 15.0], departures=[x, np.inf, np.inf])
        for x in (np.inf, 10.0)
    )
    assert evaluate(stays, protocol).loss == evaluate(leaves, protocol).loss


def test_a_task_that_never_arrives_is_not_seen():
    problem = stream(goal="seen", arrivals=[0.0, 7.5, np.inf])
    two = replace(problem, weights=[0.5, 0.5, 0.0])
    protocol = strategies.interleaved(problem)
    assert evaluate(problem, protocol).loss == pytest.approx(evaluate(two, protocol).loss)
    worst = evaluate(replace(problem, goal="worst"), protocol)
    assert worst.loss == worst.final_losses.max() == worst.final_losses[2]  # there it counts


@pytest.mark.parametrize(
    ("weights", "factors"),
    [(None, [1, 1, 1]), ([5.0, 5.0, 5.0], [1, 1, 1]), ([0, 0.1, 0.2], [0, 0.5, 1])],
)
def test_the_worst_task_is_the_largest_loss(weights, factors):
    problem = stream(goal="worst", weights=weights, running=[0.1, 0, 0], targets=[1e-3, None, None])
    run = evaluate(problem, strategies.interleaved(problem))
    assert run.parts["worst"] == np.max(run.final_losses * np.array(factors))
    assert run.parts["running"] == pytest.approx(0.1 * run.average_losses[0])
    assert run.parts["targets"] > 0
    assert run.loss == pytest.approx(sum(run.parts.values()))
    objective = Objective(problem, 60)
    controls = on_grid(problem, run.protocol, 60)
    assert objective.value(controls) == pytest.approx(run.loss, rel=1e-5)


def test_curves_of_a_goal():
    problem = stream(goal="seen")
    run = evaluate(problem, strategies.no_replay(problem))
    first, second, third = run.weighted_losses[[0, 15, 30]]
    assert first == run.losses[0, 0]
    assert second == pytest.approx(run.losses[15, :2].mean())
    assert third == pytest.approx(run.losses[30].mean())
    worst = evaluate(replace(problem, goal="worst"), run.protocol)
    np.testing.assert_array_equal(worst.weighted_losses, worst.losses.max(axis=1))


# Gradients


@pytest.mark.parametrize(
    "settings",
    [
        {"goal": "seen"},
        {"goal": "seen", "weights": [1, 0, 2], "running": [0.1, 0, 0.2], "targets": [0.02] * 3},
        {"goal": "seen", "arrivals": [0.0, 0.0, 27.0]},
        {"goal": "worst"},
        {"goal": "worst", "weights": [1, 0, 2], "running": [0.1, 0, 0.2], "targets": [0.02] * 3},
    ],
    ids=str,
)
@pytest.mark.parametrize("steps", [20, 32])
def test_gradients_against_differences(settings, steps):
    """On 32 steps, arrivals are within steps."""
    problem = stream(20, control=Control(lr=(0.0, 2.0)), **settings)
    objective = Objective(problem, steps)
    rng = np.random.default_rng(0)
    size = problem.model.layout.size
    controls = Controls(rng.dirichlet(np.ones(3), steps), rng.uniform(0.5, 1.5, (steps, size)))
    soft = Smoothing(0.01, np.array([[0.2, 0.0, 0.8]])) if settings["goal"] == "worst" else None
    found = objective.gradient(controls, soft)
    assert found.value == objective.value(controls)
    for _ in range(5):
        way = Controls(rng.normal(size=(steps, 3)), rng.normal(size=(steps, size)))
        ahead, behind = (
            objective.gradient(
                Controls(*(a + h * b for a, b in zip(controls, way, strict=True))), soft
            ).smooth
            for h in (1e-5, -1e-5)
        )
        slope = np.sum(found.by_shares * way.shares) + np.sum(found.by_knobs * way.knobs)
        assert (ahead - behind) / 2e-5 == pytest.approx(slope, rel=1e-5, abs=1e-8)


def test_smooth_goals_are_below_the_largest_loss_and_come_close():
    rng = np.random.default_rng(0)
    for _ in range(100):
        x = rng.normal(size=(1, 4))
        top = x.max(axis=1)
        soft = Smoothing(float(rng.uniform(0.01, 2)), rng.dirichlet(np.ones(4), 1))
        assert soft.value(top, x) <= top[0]
        parts = soft.mixture(top, x).losses
        assert parts.sum() == pytest.approx(1)
        cold = Smoothing(1e-4, soft.losses)
        assert cold.value(top, x) == pytest.approx(top[0], abs=1e-2)
        assert top[0] - parts[0] @ x[0] >= 0


@pytest.mark.parametrize("steps", [8, 30])
def test_what_is_left_to_gain_bounds_the_largest_loss_itself(steps):
    """With losses linear in the shares, nothing lowers the largest by more than the residual."""
    problem = stream(steps, goal="worst", arrivals=None)
    objective, rng = Objective(problem, steps), np.random.default_rng(0)
    relaxed = on_grid(problem, solve(problem, starts=0).relaxed, steps)
    for shares in (rng.dirichlet(np.ones(3), steps), relaxed.shares):
        controls = Controls(shares, relaxed.knobs)
        space = RelaxedControls(problem, controls, free_tasks=True, free_knobs=False)
        x, found = space.join(controls), objective.gradient(controls)
        residual = space.residual(x, space.slopes(found)) + found.slack
        final = problem.model.losses(found.states[-1])
        for _ in range(100):
            y, h = np.asarray(project(2 * rng.normal(size=x.size), space.domain)), 1e-5
            states = objective.roll_out(space.split(x + h * (y - x)))
            linear = final + (problem.model.losses(states[-1]) - final) / h
            assert found.value - linear.max() <= residual * (1 + 1e-3) + 1e-6


# End knobs


@cache
def graded(knobs):
    """Two tasks whose losses depend on end knobs, in opposite ways."""
    return AutoModel(
        lambda x, task, lr: lr * jnp.where(jnp.arange(2) == task, 1.0 - x, -0.1 * x),
        lambda x, *ends: (ends[0] + jnp.array([-1.0, 1.0]) * x - jnp.array([0.0, 1.5])) ** 2
        + jnp.array([0.1 * ends[-1], (ends[-1] - 1.0) ** 2]),
        tasks=2, like=np.zeros(2),
        end_knobs=[Knob(f"grade{i}", 0.0, 2.0, default=1.0) for i in range(knobs)],
    )  # fmt: skip


@pytest.mark.parametrize("goal", ["seen", "worst"])
@pytest.mark.parametrize("knobs", [1, 2])
def test_end_knobs_suit_the_goal(goal, knobs):
    settings = {"duration": 2.0, "steps": 4, "arrivals": [0.0, 1.0], "goal": goal}
    problem = Problem(graded(knobs), np.array([0.1, 0.4]), **settings)
    objective, rng = Objective(problem, 4), np.random.default_rng(0)
    controls = Controls(rng.dirichlet(np.ones(2), 4), np.ones((4, problem.model.layout.size)))
    states = objective.roll_out(controls)

    def plainly(ends):
        losses = problem.model.losses(with_ends(states, np.array(ends)))
        return losses[-1].max() if goal == "worst" else np.sum(objective.along * losses)

    found = plainly(objective.ends(states))
    assert found == pytest.approx(objective.value(controls))
    others = [plainly(ends) for ends in product(np.linspace(0.0, 2.0, 101), repeat=knobs)]
    assert found <= min(others) + 1e-9
    assert found == pytest.approx(min(others), rel=3e-2)  # on the grid
    soft = Smoothing(0.01, np.array([[0.4, 0.6]])) if goal == "worst" else None
    found = objective.gradient(controls, soft)
    way = rng.normal(size=(4, 2))
    ahead, behind = (
        objective.gradient(Controls(controls.shares + h * way, controls.knobs), soft).smooth
        for h in (1e-4, -1e-4)
    )
    assert (ahead - behind) / 2e-4 == pytest.approx(np.sum(found.by_shares * way), rel=1e-4)


def test_plans_for_a_goal_are_read_without_their_model(tmp_path):
    problem = Problem(graded(1), np.array([0.1, 0.4]), duration=2.0, steps=4, goal="worst")
    plan = solve(problem, starts=0)
    plan.save(tmp_path / "plan.json")
    again = Plan.load(tmp_path / "plan.json")
    assert again.loss == plan.loss
    assert again.trajectory.parts == plan.trajectory.parts
    assert str(again).startswith("loss (worst task)")


# Plans

CASES = [  # tasks, steps, similarity, settings
    (2, 12, 0.1, {}),
    (2, 12, 0.6, {"arrivals": [0.0, 25 / 3], "limits": Limits(max_switches=3)}),
    (2, 12, 0.3, {"weights": [1.0, 3.0], "limits": Limits(max_share=[0.25, 1.0])}),
    (2, 12, 0.3, {"departures": [25 / 2, np.inf], "running": [0.1, 0.0]}),
    (3, 8, 0.1, {}),
    (3, 8, 0.6, {"arrivals": [0.0, 25 / 8, 25 / 4]}),
    (3, 8, 0.3, {"arrivals": [0.0, 25 / 4, np.inf], "limits": Limits(min_dwell=5.0)}),
    (3, 8, 0.3, {"arrivals": [0.0, 0.0, 25 / 4], "departures": [75 / 4, 25 / 2, np.inf],
                 "weights": [0.0, 1.0, 2.0]}),
    (4, 5, 0.3, {}),
    (4, 6, 0.1, {"arrivals": [0.0, 25 / 6, 25 / 3, 25 / 2]}),
]  # fmt: skip


@pytest.mark.parametrize("goal", ["seen", "worst"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_plans_are_the_best_of_all(case, goal):
    tasks, steps, similarity, settings = case
    problem = small(similarity, tasks, steps, goal=goal, **settings)
    best = best_of_all(problem)
    assert solve(problem, Exhaustive()).loss == pytest.approx(best, rel=1e-6)
    plan = solve(problem, Relax(1))
    assert best * (1 - 1e-5) <= plan.loss <= best * (1 + 2e-3)
    assert plan.status in ("converged", "inaccurate")
    assert plan.loss == pytest.approx(evaluate(problem, plan.protocol).loss, rel=1e-12)
    assert plan.certificate.relaxed_value <= plan.loss
    assert plan.certificate.pmp_residual >= 0
    assert there(problem, plan.protocol.sequence)
    assert keeps(problem.limits, plan.protocol.sequence, tasks, 25.0)


@pytest.mark.parametrize("goal", ["seen", "worst"])
def test_plans_on_a_fine_grid(goal):
    problem = stream(goal=goal)
    plan = solve(problem, starts=1)
    assert plan.status == "converged"
    assert plan.certificate.pmp_residual <= 2e-3 * plan.loss
    assert plan.loss < evaluate(problem, solve(stream(), starts=1).protocol).loss
    for name, strategy in strategies.STRATEGIES.items():
        if not strategy.turns and name != "one-task":
            protocol = strategy(problem)
            rounded = nearest(on_grid(problem, protocol, 60).shares, problem.step_limits)
            assert plan.loss <= evaluate(problem, Protocol.from_sequence(rounded, 3, 30.0)).loss
            assert plan.certificate.relaxed_value <= evaluate(problem, protocol).loss * (1 + 1e-3)


def test_of_the_worst_tasks_several_are_as_bad():
    relaxed = evaluate(stream(goal="worst", arrivals=None), solve(
        stream(goal="worst", arrivals=None), starts=1
    ).relaxed)  # fmt: skip
    losses = np.sort(relaxed.final_losses)
    assert losses[-1] - losses[-2] < 1e-3 * losses[-1]


@pytest.mark.parametrize("goal", ["seen", "worst"])
def test_permuted_tasks_permute_the_plan(goal):
    overlaps = np.array([[1.0, 0.2, 0.5], [0.2, 1.0, 0.3], [0.5, 0.3, 1.0]])
    model = TeacherStudent(overlaps, hidden=3)
    start = model.pretrain(seed=1, duration=100.0)
    order = [2, 0, 1]
    other = TeacherStudent(overlaps[np.ix_(order, order)], hidden=3)
    moved = Overlaps(start.Q, start.M[:, order], start.V[order])
    ends, weights = np.array([0.0, 7.5, 15.0]), np.array([1.0, 2.0, 3.0])
    for solver in (Exhaustive(), Relax(0)):
        settings = {"duration": 30.0, "steps": 8, "goal": goal, "limits": Limits(max_replay=0.5)}
        one = Problem(model, start, arrivals=ends, weights=weights, **settings)
        two = Problem(other, moved, arrivals=ends[order], weights=weights[order], **settings)
        plan, turned = solve(one, solver), solve(two, solver)
        assert turned.loss == pytest.approx(plan.loss, rel=1e-6)
        assert np.array_equal(turned.protocol.shares, plan.protocol.shares[:, order])


@pytest.mark.parametrize("goal", ["seen", "worst"])
def test_other_solvers_and_knobs(goal):
    arrivals = [0.0, 25 / 3]
    problem = small(0.4, goal=goal, arrivals=arrivals, control=Control(lr=(0.0, 3.0)))
    plan, tasks = solve(problem, starts=0), replace(problem, control=Control())
    alone = solve(tasks, starts=0)
    assert plan.loss < alone.loss
    fixed = replace(problem, control=Control(tasks=False, lr=(0.0, 3.0)))
    assert plan.loss < solve(fixed).loss < evaluate(fixed, strategies.interleaved(fixed)).loss
    assert plan.loss <= solve(problem, ForwardBackward(sweeps=10)).loss
    assert solve(tasks, Flips(0)).loss == pytest.approx(alone.loss, rel=2e-2)


@pytest.mark.parametrize("goal", ["seen", "worst"])
def test_richer_levers_are_not_worse(goal):
    found = levers(small(0.4, steps=20, goal=goal, control=Control(lr=(0.0, 1.5))))
    losses = {name: float(x[0]) for name, x in found.losses.items()}
    assert losses["all"] <= min(losses.values()) * (1 + 1e-3)
    assert losses["timing"] <= losses["share"] * (1 + 1e-3) <= losses["nothing"] * (1 + 2e-3)


def test_strategies_are_compared_by_the_goal():
    problem = stream(goal="worst", control=Control(lr=(0.1, 3.0)))
    found = compare(problem, strategies=["interleaved", "no-replay", "constant-lr"])
    values = [run.loss for run in found.runs.values()]
    assert values == sorted(values)
    assert all(run.loss == run.final_losses.max() for run in found.runs.values())
    assert found.runs["constant-lr"].loss <= found.runs["interleaved"].loss


# Results


@pytest.mark.parametrize(
    ("goal", "words"), [("seen", "mean of tasks seen so far"), ("worst", "worst task")]
)
def test_results_say_what_the_goal_is(tmp_path, goal, words):
    problem = stream(20, goal=goal, running=[0.1, 0.0, 0.0])
    plan = solve(problem, starts=0)
    assert str(plan).startswith(f"loss ({words}) {plan.loss:.6g}")
    assert f"made up of {words} " in str(plan)
    assert f"loss ({words})" in str(plan.trajectory)
    assert f"loss ({words})" in plan._repr_html_()
    axes = plan.plot().axes[1]
    assert words in [line.get_label() for line in axes.get_lines()]
    content = plan.to_dict()
    assert content["problem"]["objective"]["goal"] == goal
    assert sum(content["parts"].values()) == pytest.approx(content["value"])
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json").loss == plan.loss
    problem.save(tmp_path / "problem.toml")
    assert Problem.load(tmp_path / "problem.toml").to_dict() == problem.to_dict()


def test_the_default_goal_is_not_in_files():
    assert "goal" not in stream().to_dict()["objective"]


# What is refused


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"goal": "best"}, "`goal` expects one of final, seen, worst; got 'best'"),
        ({"goal": "sen"}, "did you mean `seen`?"),
        ({"goal": None}, "`goal` expects one of final, seen, worst; got None"),
        ({"goal": "seen", "weights": [0, 0, 1], "arrivals": [0, 0, np.inf]},
         "`weights` expects one above 0 of a task that arrives where the goal is seen"),
        ({"goal": "worst", "weights": [0, 0, 0], "running": [1, 0, 0]},
         "`weights` expects one above 0 where the goal is worst"),
    ],
)  # fmt: skip
def test_goals_that_mean_nothing_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        stream(**settings)


@pytest.mark.parametrize("goal", ["seen", "worst"])
def test_models_without_losses_of_tasks_are_refused(goal):
    class Other(Averaging):
        loss_names = ("error", "cost")

    with pytest.raises(ValueError, match=f"`goal` {goal} expects a model with a loss for each"):
        Problem(Other(2), [1.0, 0.0], duration=1.0, goal=goal)


@pytest.mark.parametrize("settings", [{"running": [0.3, 0.3]}, {"goal": "seen"}])
def test_on_many_steps_with_a_grid_in_between(settings):
    plan = solve(small(0.3, steps=128, **settings), starts=0)
    assert plan.status == "converged"
    assert plan.loss <= evaluate(plan.problem, strategies.interleaved(plan.problem)).loss


@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_the_worst_task_on_any_scale(scale):
    def rate(state, task, lr):
        speeds = jnp.array([0.5, 1.0, 2.0])
        return -state * lr * jnp.where(jnp.arange(3) == task, speeds, -0.1)

    model = AutoModel(rate, lambda state: scale * state**2, tasks=3, like=np.ones(3))
    problem = Problem(model, np.ones(3), duration=3.0, lr=1.0, steps=12, goal="worst")
    assert solve(problem, Flips()).loss == pytest.approx(0.30119421 * scale, rel=1e-6)


@pytest.mark.parametrize("solver", [Flips(), Relax()])
def test_tasks_that_do_the_same(solver):
    def rate(state, task, lr):
        other = jnp.array([1.0 - state[0], 0.0 * state[1]])
        return jnp.where(task == 2, jnp.array([-0.9 * state[0], -2.0 * state[1]]), other)

    def losses(state):
        return jnp.array([(1 - state[0]) ** 2, (1 - state[0]) ** 2, 50 * state[1] ** 2])

    model = AutoModel(rate, losses, tasks=3, like=np.ones(2))
    limits = Limits(max_share=(1, 1, 0.75))
    problem = Problem(model, np.ones(2), duration=1.0, lr=1.0, steps=8, limits=limits)
    assert solve(problem, solver).loss == pytest.approx(solve(problem, Exhaustive()).loss, rel=1e-9)
