"""Limits, arrivals and goals: kept by every plan. That plans are the best: test_library.py."""

from functools import cache
from itertools import product

import numpy as np
import pytest

from problems import after_task_one, fits, keeps, little_replay, small, stream
from problems.models import noisy_model
from replan import (
    ArgumentError,
    Control,
    Exhaustive,
    Flips,
    ForwardBackward,
    Limits,
    Objective,
    Overlaps,
    Problem,
    Protocol,
    Relax,
    TeacherStudent,
    evaluate,
    solve,
    strategies,
)
from replan.control.grids import interpolated, on_grid
from replan.problem.discrete import allows, cheapest, nearest
from replan.problem.step_limits import limits_in_steps, replay_on

# The discrete programme


def windows(rng, steps, tasks):
    """Return first and last steps of tasks (T,) of which one is always there."""
    while True:
        first = np.where(rng.random(tasks) < 0.4, 0, rng.integers(0, steps + 1, tasks))
        last = np.where(rng.random(tasks) < 0.6, steps, rng.integers(1, steps + 1, tasks))
        step = np.arange(steps)[:, None]
        if np.any((first <= step) & (step < last), axis=1).all() and np.all(
            (first < last) | (first == steps)
        ):
            return first, last


@pytest.mark.parametrize("seed", range(90))
def test_cheapest_is_the_cheapest_of_all(seed):
    rng = np.random.default_rng(seed)
    tasks, steps = ((2, 9), (3, 7), (4, 5))[seed % 3]
    first, last = windows(rng, steps, tasks)
    if seed % 5 == 0:
        first, last = np.zeros(tasks, int), np.full(tasks, steps)
    step = np.arange(steps)[:, None]
    available = (first <= step) & (step < last)
    low = rng.integers(0, 3, tasks) * (rng.random(tasks) < (0.2 if seed % 2 else 0.5))
    limits = Limits(
        min_share=low / max(steps, low.sum()),
        max_share=np.maximum(low, rng.integers(2, 2 * steps, tasks).clip(max=steps)) / steps,
        min_dwell=float(rng.choice([0, 0, 2, 3])),
        max_switches=None if rng.random() < 0.6 else int(rng.integers(0, 5)),
        max_replay=None if seed % 5 == 0 else float(rng.choice([0.0, 0.2, 0.34, 0.5, 1.0])),
    )
    allowed = [
        np.array(s)
        for s in product(range(tasks), repeat=steps)
        if available[np.arange(steps), s].all()
        and keeps(limits, s, tasks, float(steps))
        and little_replay(limits.max_replay, first, s)
    ]
    try:
        on_steps = limits_in_steps(limits, available, float(steps), first)
    except ValueError as error:
        assert not allowed or np.all((first == 0) | (first == steps)), error
        return
    assert allowed
    costs = rng.normal(size=(steps, tasks))
    best = cheapest(costs, on_steps)
    assert allows(on_steps, best)
    least = min(costs[np.arange(steps), s].sum() for s in allowed)
    assert costs[np.arange(steps), best].sum() == pytest.approx(least)
    assert allows(on_steps, nearest(rng.dirichlet(np.ones(tasks), size=steps), on_steps))
    kept = {tuple(s) for s in allowed}
    for s in rng.integers(0, tasks, (50, steps)):
        assert allows(on_steps, s) == (tuple(s) in kept)


def test_a_task_with_less_time_than_a_stay_needs_is_left_out():
    given = Limits(max_share=[1 / 3, 2 / 3, 1.0], min_dwell=3.0)
    limits = limits_in_steps(given, np.ones((6, 3), bool), 6.0, np.zeros(3, np.int64))
    assert cheapest(np.tile([0.0, 2.0, 1.0], (6, 1)), limits).tolist() == [2] * 6


def test_controls_on_more_steps_are_linear_between_middles_of_steps():
    rows = np.array([[0.0, 1.0, 3.0], [4.0, 1.0, 1.0]])
    assert interpolated(rows, 4).tolist() == [[0, 1, 3], [1, 1, 2.5], [3, 1, 1.5], [4, 1, 1]]


def test_a_task_that_has_departed_does_not_catch_up():
    limits = limits_in_steps(
        Limits(), np.array([[True, True]] * 3 + [[False, True]] * 3), 6.0, np.zeros(2, np.int64)
    )
    rounded = nearest(np.array([[0.5, 0.5]] * 3 + [[0.0, 1.0]] * 3), limits)
    assert rounded.tolist() == [0, 1, 0, 1, 1, 1]
    shares = np.array([[0.3, 0.7]] * 3 + [[0.0, 1.0]] * 3)
    assert nearest(shares, limits)[3:].tolist() == [1, 1, 1]


@pytest.mark.parametrize("steps", [20, 60, 140])
def test_no_protocol_is_lost_on_other_steps(steps):
    """Means over 32 steps of protocols with little replay are within what it means there."""
    rng = np.random.default_rng(1)
    problem = stream(steps, limits=Limits(max_replay=0.3))
    old, spans, caps = replay_on(problem.step_limits, 32)
    assert len(caps) == 2
    for _ in range(50):
        tasks = nearest(rng.dirichlet(np.ones(3), steps), problem.step_limits)
        shares = on_grid(problem, Protocol.from_sequence(tasks, 3, 30.0), 32).shares
        for (first, last), cap in zip(spans, caps, strict=True):
            assert (shares * old)[first:last].sum() / (last - first) <= cap + 1e-9


# Plans on fine grids

LEAVING = {"arrivals": [0.0, 0.0, 10.0], "departures": [20.0, np.inf, np.inf]}
PROBLEMS = {
    "free": lambda: small(0.4, steps=60),
    "1 switch": lambda: small(0.4, steps=60, limits=Limits(max_switches=1)),
    "4 switches": lambda: small(0.4, steps=60, limits=Limits(max_switches=4)),
    "share": lambda: small(0.4, steps=60, limits=Limits(max_share=[0.1, 1.0])),
    "all limits": lambda: small(
        0.4, steps=60, limits=Limits(max_switches=3, max_share=[0.3, 1.0], min_dwell=2.0)
    ),
    "leaving": lambda: stream(60, **LEAVING),
    "leaving, middle grid": lambda: stream(183, **LEAVING),
    "leaving, 2 switches": lambda: stream(60, **LEAVING, limits=Limits(max_switches=2)),
    "leaving, 5 switches": lambda: stream(60, **LEAVING, limits=Limits(max_switches=5)),
    "stream": lambda: stream(60),
    "seen": lambda: stream(60, goal="seen"),
    "worst": lambda: stream(60, goal="worst"),
    "worst, all there": lambda: stream(60, goal="worst", arrivals=None),
    "replay": lambda: stream(60, limits=Limits(max_replay=0.2)),
    "replay, middle grid": lambda: stream(244, limits=Limits(max_replay=0.2)),
    "seen, middle grid": lambda: small(0.3, steps=130, objective=Objective("seen")),
    "running, middle grid": lambda: small(0.3, steps=130, objective=Objective(running=[0.3] * 2)),
}


@cache
def plan_of(name):
    return solve(PROBLEMS[name](), Relax(starts=1))


@pytest.mark.parametrize("name", PROBLEMS)
def test_plans_on_fine_grids(name):
    plan = plan_of(name)
    problem, certificate = plan.problem, plan.certificate
    assert plan.status == "converged"
    assert certificate.relaxed_value <= plan.loss
    assert 0 <= certificate.pmp_residual <= 1e-2 * plan.loss
    assert fits(problem, plan.protocol.sequence)
    relaxed, tasks = plan.relaxed.shares, problem.model.tasks
    assert np.all(relaxed[~problem.availability.on(problem.edges)] == 0)
    if problem.limits.max_share is not None:
        assert np.all(relaxed.mean(axis=0) <= np.array(problem.limits.max_share) + 1e-9)
    if problem.limits.max_replay is not None:
        old, spans, caps = replay_on(problem.step_limits, problem.steps)
        for (first, last), cap in zip(spans, caps, strict=True):
            assert (relaxed * old)[first:last].sum() / (last - first) <= cap + 1e-9
    for strategy in strategies.STRATEGIES.values():
        if strategy.turns or (strategy.name == "one-task" and not problem.availability.always):
            continue
        shares = on_grid(problem, strategy(problem), problem.steps).shares
        rounded = nearest(shares, problem.step_limits)
        protocol = Protocol.from_sequence(rounded, tasks, problem.duration)
        assert plan.loss <= evaluate(problem, protocol).loss * (1 + 1e-6), strategy.name


def test_each_limit_costs_something():
    assert plan_of("free").loss < plan_of("4 switches").loss < plan_of("1 switch").loss
    assert plan_of("4 switches").certificate.switches == 4
    assert plan_of("free").loss < plan_of("share").loss
    assert np.bincount(plan_of("share").protocol.sequence)[0] == 6
    assert plan_of("leaving").loss < plan_of("leaving, 5 switches").loss
    assert plan_of("leaving, 5 switches").loss < plan_of("leaving, 2 switches").loss
    assert plan_of("stream").loss < plan_of("replay").loss
    for goal in ("seen", "worst"):
        assert plan_of(goal).loss < evaluate(PROBLEMS[goal](), plan_of("stream").protocol).loss


def test_of_the_worst_tasks_several_are_equally_bad():
    plan = plan_of("worst, all there")
    losses = np.sort(evaluate(plan.problem, plan.relaxed).final_losses)
    assert losses[-1] - losses[-2] < 1e-3 * losses[-1]


@pytest.mark.parametrize("name", ["all limits", "leaving"])
@pytest.mark.parametrize("solver", [Flips(starts=1), ForwardBackward(sweeps=100)], ids=str)
def test_other_solvers_keep_limits(name, solver):
    plan = solve(PROBLEMS[name](), solver)
    assert fits(plan.problem, plan.protocol.sequence)


def work(plan):
    return plan.protocol, plan.statistics["gradients"], plan.statistics["roll_outs"]


def test_limits_that_do_not_bind_change_neither_the_plan_nor_the_work():
    solver = Relax(starts=1)
    free, loose = (solve(stream(40, limits=Limits(max_replay=x)), solver) for x in (None, 1.0))
    assert work(free) == work(loose)
    times = {"arrivals": [0, 0, 0], "departures": [25, 30, np.inf]}
    plain, always = (solve(small(0.3, 3, 40, **x), solver) for x in ({}, times))
    assert work(plain) == work(always)


@pytest.mark.parametrize("goal", ["final", "seen", "worst"])
@pytest.mark.parametrize("solver", [Exhaustive(), Relax(0)], ids=str)
def test_permuted_tasks_permute_the_plan(goal, solver):
    overlaps = np.array([[1.0, 0.2, 0.5], [0.2, 1.0, 0.3], [0.5, 0.3, 1.0]])
    model = TeacherStudent(overlaps, hidden=3)
    start = model.pretrain(seed=1, duration=100.0)
    order = [2, 0, 1]
    other = TeacherStudent(overlaps[np.ix_(order, order)], hidden=3)
    moved = Overlaps(start.Q, start.M[:, order], start.V[order])
    arrivals, weights = np.array([0.0, 7.5, 15.0]), np.array([1.0, 2.0, 3.0])
    limits = Limits(max_replay=0.5)

    def plan(model, start, order):
        objective = Objective(goal, weights=weights[order])
        settings = {"objective": objective, "arrivals": arrivals[order], "limits": limits}
        return solve(Problem(model, start, duration=30.0, steps=8, **settings), solver)

    one, two = plan(model, start, [0, 1, 2]), plan(other, moved, order)
    assert two.loss == pytest.approx(one.loss, rel=1e-6)
    assert np.array_equal(two.protocol.shares, one.protocol.shares[:, order])


@pytest.mark.parametrize("goal", ["seen", "worst"])
def test_goals_with_knobs(goal):
    settings = {"arrivals": [0.0, 25 / 3], "objective": Objective(goal)}
    problem = small(0.4, control=Control(lr=(0.0, 3.0)), **settings)
    plan, alone = solve(problem, Relax(0)), solve(small(0.4, **settings), Relax(0))
    fixed = problem.changed(control=Control(tasks=False, lr=(0.0, 3.0)))
    assert plan.loss < alone.loss
    assert plan.loss < solve(fixed).loss < evaluate(fixed, strategies.interleaved(fixed)).loss
    assert plan.loss <= solve(problem, ForwardBackward(sweeps=10)).loss


def test_a_task_that_never_arrives_still_counts():
    problem = stream(20, arrivals=[0.0, 0.0, np.inf])
    plan = solve(problem, Relax(0))
    assert np.all(plan.protocol.shares[:, 2] == 0)
    assert plan.trajectory.final_losses[2] > 0
    seen = stream(20, goal="seen", arrivals=[0.0, 7.5, np.inf])
    two = seen.changed(objective=Objective("seen", weights=[0.5, 0.5, 0.0]))
    protocol = strategies.interleaved(seen)
    assert evaluate(seen, protocol).loss == pytest.approx(evaluate(two, protocol).loss)


def test_knobs_alone_with_arrivals():
    problem = stream(20, control=Control(tasks=False, lr=(0.0, 3.0)))
    expected, plan = strategies.interleaved(problem), solve(problem)
    np.testing.assert_array_equal(plan.protocol.shares, expected.shares)
    assert plan.loss < evaluate(problem, expected).loss


def test_without_arrivals_tasks_seen_are_running_costs_of_all():
    seen = small(0.3, steps=20, objective=Objective("seen", weights=[1.0, 3.0]))
    running = small(0.3, steps=20, objective=Objective(weights=[0, 0], running=[0.25, 0.75]))
    assert solve(seen).loss == pytest.approx(solve(running).loss, rel=1e-9)


def test_running_costs_and_targets_change_the_plan():
    def plan(**objective):
        return solve(small(0.4, steps=40, objective=Objective(**objective)), Relax(0))

    final, running = plan(), plan(weights=[0, 0], running=[0.5, 0.5])
    assert running.trajectory.average_losses.mean() < final.trajectory.average_losses.mean()
    assert running.loss == pytest.approx(running.trajectory.average_losses.mean())
    assert final.loss < running.trajectory.final_losses.mean()
    target = 0.7 * final.trajectory.final_losses[0]
    met, missed = plan(targets=[target, None]), plan(targets=[1e-9, None])
    assert met.trajectory.targets_met
    assert 0.9 * target < met.trajectory.final_losses[0] <= target
    assert not missed.trajectory.targets_met
    assert missed.advice
    assert missed.trajectory.final_losses[0] < final.trajectory.final_losses[0]
    assert plan(targets=[10.0, 10.0]).loss == final.loss


# Means of knobs


def test_the_means_of_two_knobs_are_kept_exactly():
    def plan(**means):
        control = Control(lr=(0.0, 2.0), keep=(0.1, 1.0))
        settings = {"steps": 10, "control": control, "limits": Limits(mean=means)}
        return solve(Problem(noisy_model(), np.ones(1), 5.0, **settings))

    limited, free = plan(keep=0.6, lr=(0.5, 0.8)), plan()
    assert limited.protocol.knobs["keep"].mean() == pytest.approx(0.6, abs=1e-12)
    assert 0.5 - 1e-12 <= limited.protocol.knobs["lr"].mean() <= 0.8 + 1e-12
    assert limited.loss > free.loss


def test_the_mean_of_a_knob_with_a_value_for_each_task():
    """Each value counts for as long as its task is trained."""
    problem = Problem(
        *after_task_one(0.4), duration=24.0, steps=12,
        control=Control(tasks=False, head_lr=(0.0, 3.0)), limits=Limits(mean={"head_lr": 0.7}),
    )  # fmt: skip
    plan = solve(problem, initial=Protocol([[0.25, 0.75]] * 12, 24.0))
    rates = plan.protocol.by_task("head_lr")
    assert np.ptp(rates) > 0.1
    assert np.mean(rates @ [0.25, 0.75]) == pytest.approx(0.7, abs=1e-12)


def test_protocols_that_train_unavailable_tasks_are_refused():
    early = Protocol.from_segments([(6.0, 1), (24.0, [0.0, 0.5, 0.5])], 3)
    with pytest.raises(ArgumentError) as caught:
        solve(stream(20), initial=early)
    assert caught.value.name == "initial"
    with pytest.raises(ArgumentError) as caught:
        solve(stream(), Exhaustive())
    assert caught.value.name == "steps"
