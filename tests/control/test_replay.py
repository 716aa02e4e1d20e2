"""A limit on replay between arrivals: kept by all solvers, refused where it cannot be."""

from itertools import pairwise, product

import numpy as np
import pytest

from problems import after_task_one, best_of_all, keeps, little_replay, small, there
from replan import Exhaustive, Flips, Limits, Problem, Protocol, Relax, evaluate, solve, strategies
from replan.control.objective import Controls, Objective
from replan.core.projection import Domain, project
from replan.control.search import on_grid
from replan.control.relaxed_controls import RelaxedControls
from replan.problem.discrete import allows, cheapest, nearest
from replan.problem.limits import replay_on


def stream(steps=60, **settings):
    """Return three tasks that arrive one after another."""
    settings = {"arrivals": [0.0, 7.5, 15.0], "limits": Limits(max_replay=0.2)} | settings
    return Problem(*after_task_one(0.4, 3), duration=30.0, steps=steps, **settings)


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
def test_cheapest_and_refusals(seed):
    rng = np.random.default_rng(seed)
    tasks, steps = ((2, 9), (3, 7), (4, 5))[seed % 3]
    first, last = windows(rng, steps, tasks)
    step = np.arange(steps)[:, None]
    present = (first <= step) & (step < last)
    low = rng.integers(0, 3, tasks) * (rng.random(tasks) < 0.2)
    settings = {
        "min_share": low / max(steps, low.sum()),
        "max_share": np.maximum(low, rng.integers(2, 2 * steps, tasks).clip(max=steps)) / steps,
        "min_dwell": float(rng.choice([0, 0, 2, 3])),
        "max_switches": None if rng.random() < 0.6 else int(rng.integers(1, 5)),
        "max_replay": float(rng.choice([0.0, 0.2, 0.34, 0.5, 1.0])),
    }
    limits = Limits(**settings)
    found = [
        np.array(s)
        for s in product(range(tasks), repeat=steps)
        if present[np.arange(steps), s].all()
        and keeps(limits, s, tasks, float(steps))
        and little_replay(limits.max_replay, first, s)
    ]
    try:
        on_steps = limits.on_grid(present, float(steps), first)
    except ValueError as error:
        assert not found or np.all((first == 0) | (first == steps)), error
        return
    assert found
    costs = rng.normal(size=(steps, tasks))
    best = cheapest(costs, on_steps)
    assert allows(on_steps, best)
    least = min(costs[np.arange(steps), s].sum() for s in found)
    assert costs[np.arange(steps), best].sum() == pytest.approx(least)
    assert allows(on_steps, nearest(rng.dirichlet(np.ones(tasks), size=steps), on_steps))
    kept = {tuple(s) for s in found}
    for s in rng.integers(0, tasks, (50, steps)):
        assert allows(on_steps, s) == (tuple(s) in kept)


# The relaxed problem


def domain_of(limits, steps, first, shares=(0.0, 1.0)):
    """Return the domain of mixtures of tasks that arrive with the steps `first`."""
    present = np.arange(steps)[:, None] >= first
    none, tasks = np.zeros(0), len(first)
    low, high = (np.full(tasks, share) for share in shares)
    on_steps = limits.on_grid(present, float(steps), first)
    means = np.zeros((0, 0)), none, none
    return Domain(steps, present, low, high, *means, *replay_on(on_steps, steps))


@pytest.mark.parametrize("shares", [(0.0, 1.0), (0.1, 0.45)], ids=["free", "budgets"])
@pytest.mark.parametrize("cap", [0.0, 0.2, 0.6])
def test_the_projection_is_onto_mixtures_with_little_replay(shares, cap):
    rng = np.random.default_rng(0)
    first = np.array([0, 0, 15, 28])
    if shares[0] > 0 and cap == 0.0:
        first = np.array([0, 0, 15, 24])
    domain = domain_of(Limits(max_replay=cap), 40, first, shares)
    rows = rng.normal(size=(40, 4))
    found = project(rows.ravel(), domain).reshape(40, 4)
    np.testing.assert_allclose(found.sum(axis=1), 1)
    assert np.all(found >= 0)
    assert np.all(found[np.arange(40)[:, None] < first] == 0)
    ends = [*np.unique(first)[1:], 40]
    for begin, end in pairwise(ends):
        most = np.floor(cap * (end - begin) + 1e-6) / (end - begin)
        assert found[begin:end, first < begin].sum() / (end - begin) <= most + 1e-9
    assert np.all(found.mean(axis=0) <= shares[1] + 1e-9)
    assert np.all(found.mean(axis=0) >= shares[0] - 1e-9)
    for _ in range(200):  # the projection's obtuse angles with all other points of the set
        other = project(3 * rng.normal(size=160), domain).reshape(40, 4)
        assert np.sum((rows - found) * (other - found)) < 1e-6


@pytest.mark.parametrize("more", [{}, {"max_share": [0.3, 0.4, 1.0]}], ids=["alone", "shares"])
@pytest.mark.parametrize("steps", [20, 32])
def test_what_is_left_to_gain(more, steps):
    problem = stream(20, limits=Limits(max_replay=0.4, **more), departures=[30.0, 27.0, 30.0])
    objective = Objective(problem, steps)
    rng = np.random.default_rng(0)
    fixed = Controls(rng.dirichlet(np.ones(3), steps), np.ones((steps, problem.model.layout.size)))
    space = RelaxedControls(problem, fixed, free_tasks=True, free_knobs=False)
    x = np.asarray(project(space.join(fixed), space.domain))
    slopes = space.slopes(objective.gradient(space.split(x)))
    others = [np.asarray(project(rng.normal(size=x.size), space.domain)) for _ in range(50)]
    residual = space.residual(x, slopes)
    assert residual >= slopes @ x - min(slopes @ y for y in others)
    steep = np.asarray(project(-1e9 * slopes, space.domain))  # as good as a vertex
    assert residual == pytest.approx(slopes @ (x - steep), rel=1e-6)


@pytest.mark.parametrize("steps", [20, 60, 140])
def test_no_protocol_is_lost_on_other_steps(steps):
    """Means over 32 steps of protocols within the limit are within what it means there."""
    rng = np.random.default_rng(1)
    problem = stream(steps, limits=Limits(max_replay=0.3))
    old, spans, caps = replay_on(problem.step_limits, 32)
    assert len(caps) == 2
    for _ in range(50):
        tasks = nearest(rng.dirichlet(np.ones(3), steps), problem.step_limits)
        shares = on_grid(problem, Protocol.from_sequence(tasks, 3, 30.0), 32).shares
        for (first, last), cap in zip(spans, caps, strict=True):
            assert (shares * old)[first:last].sum() / (last - first) <= cap + 1e-9


# Plans

CASES = [  # tasks, steps, when tasks are there, limits
    (2, 12, {"arrivals": [0.0, 25 / 3]}, {"max_replay": 0.25}),
    (2, 12, {"arrivals": [0.0, 25 / 3]}, {"max_replay": 0.0}),
    (2, 12, {"arrivals": [0.0, 25 / 3], "departures": [np.inf, 75 / 4]}, {"max_replay": 0.4}),
    (2, 12, {"arrivals": [0.0, 25 / 4]}, {"max_replay": 0.3, "min_dwell": 4.0}),
    (2, 12, {"arrivals": [0.0, 25 / 4]}, {"max_replay": 0.5, "max_switches": 2}),
    (2, 12, {"arrivals": [0.0, 25 / 4]}, {"max_replay": 0.5, "min_share": [0.5, 0.0]}),
    (3, 8, {"arrivals": [0.0, 25 / 4, 25 / 2]}, {"max_replay": 0.5}),
    (3, 8, {"arrivals": [0.0, 25 / 8, 25 / 2]}, {"max_replay": 0.34, "max_switches": 4}),
    (3, 8, {"arrivals": [0.0, 0.0, 25 / 4]}, {"max_replay": 0.2, "max_share": [0.25, 1.0, 1.0]}),
    (3, 8, {"arrivals": [0.0, 25 / 4, 25 / 2], "departures": [75 / 4, 25.0, 25.0]},
     {"max_replay": 0.5, "min_dwell": 6.0}),
    (4, 6, {"arrivals": [0.0, 0.0, 25 / 3, 50 / 3]}, {"max_replay": 0.5}),
]  # fmt: skip


@pytest.mark.parametrize("goal", ["final", "seen", "worst"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_plans_are_the_best_of_all(case, goal):
    tasks, steps, when, limits = case
    problem = small(0.3, tasks, steps, goal=goal, limits=Limits(**limits), **when)
    best = best_of_all(problem)
    assert solve(problem, Exhaustive()).loss == pytest.approx(best, rel=1e-6)
    for solver in (Relax(1), Flips(2)):
        plan = solve(problem, solver)
        sequence = plan.protocol.sequence
        assert best * (1 - 1e-5) <= plan.loss <= best * (1 + 2e-3)
        assert there(problem, sequence)
        assert keeps(problem.limits, sequence, tasks, 25.0)
        first = np.rint(np.array(when["arrivals"]) / 25 * steps)
        assert little_replay(limits["max_replay"], first, sequence)


@pytest.mark.parametrize("steps", [60, 61 * 4])
def test_relaxed_plans_replay_no_more(steps):
    plan = solve(stream(steps), starts=1)
    assert plan.status == "converged"
    most = [np.floor(0.2 * n + 1e-6) / n for n in (steps / 4, steps / 2)]
    for protocol in (plan.protocol, plan.relaxed):
        quarter, half = steps // 4, steps // 2
        assert protocol.shares[quarter:half, 0].mean() <= most[0] + 1e-9
        assert protocol.shares[half:, :2].sum(axis=1).mean() <= most[1] + 1e-9
    assert plan.certificate.relaxed_value <= plan.loss
    assert plan.certificate.pmp_residual <= 1e-3 * plan.loss
    free = solve(stream(steps, limits=Limits()), starts=1)
    assert free.loss < plan.loss  # so the limit is one


def test_no_plan_is_worse_than_a_strategy_that_keeps_the_limit():
    problem = stream(limits=Limits(max_replay=0.4))
    plan = solve(problem, starts=1)
    compared = 0
    for name, strategy in strategies.STRATEGIES.items():
        if strategy.turns or name == "one-task":
            continue
        protocol = strategy(problem)
        shares = on_grid(problem, protocol, 60).shares
        assert (
            plan.loss
            <= evaluate(
                problem, Protocol.from_sequence(nearest(shares, problem.step_limits), 3, 30.0)
            ).loss
        )
        if np.all(shares.max(axis=1) == 1) and allows(problem.step_limits, shares.argmax(axis=1)):
            compared += 1
            assert plan.loss <= evaluate(problem, protocol).loss
    assert compared > 0


def test_a_limit_that_does_not_bind_changes_nothing():
    free, given = (solve(stream(40, limits=Limits(max_replay=x)), starts=1) for x in (None, 1.0))
    assert free.protocol == given.protocol
    assert free.statistics["gradients"] == given.statistics["gradients"]


# What is refused, and files


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"arrivals": None}, "`max_replay` expects tasks that arrive during the training, got "
         "none: give `arrivals`, or limit old tasks by `max_share`"),
        ({"arrivals": [0.0, 0.0, np.inf]}, "`max_replay` expects tasks that arrive during"),
        ({"departures": [30.0, 12.0, 30.0]}, "`max_replay` expects at least 0.4 here, got 0.2: "
         "tasks that arrive at 7.5 are away for that part of the time until 15, which leaves"),
        ({"limits": Limits(max_replay=0.2, max_share=[1, 1, 0.3])}, "`limits` cannot all be kept "
         "on 60 steps: .*, replay of at most 0.2, each task only while it is there"),
        ({"limits": Limits(max_replay=0.2, min_share=[0.6, 0, 0])}, "`limits` cannot all be kept"),
        ({"limits": Limits(max_replay=0.2, max_switches=1)}, "`limits` cannot all be kept"),
    ],
)  # fmt: skip
def test_what_cannot_be_kept_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        stream(**settings)


@pytest.mark.parametrize("value", [-0.1, 1.5, np.nan, "x", True])
def test_what_is_no_share_is_refused(value):
    with pytest.raises(ValueError, match="`max_replay` expects"):
        Limits(max_replay=value)


def test_files_hold_it(tmp_path):
    problem = stream()
    problem.save(tmp_path / "problem.toml")
    assert "max_replay = 0.2" in (tmp_path / "problem.toml").read_text()
    assert Problem.load(tmp_path / "problem.toml").to_dict() == problem.to_dict()
    assert "max_replay" not in stream(limits=Limits()).to_dict()["limits"]
