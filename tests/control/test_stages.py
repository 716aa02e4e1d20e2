"""Few constant stages: within the limits, never worse with more of them, and local optima."""

import numpy as np
import pytest

from problems import half_learned, stream, ten_units
from replan import ArgumentError, Control, Limits, Objective, Problem, Range, evaluate, solve
from replan.control.discretised import DiscretisedObjective
from replan.control.stages import _Stages


def planned(**options):
    return solve(ten_units(steps=20, **options))


def test_more_stages_lose_less_and_few_lose_little():
    plan = planned()
    runs = plan.stages(3)
    assert [run.protocol.steps for run in runs][:2] == [1, 2]
    losses = [run.loss for run in runs]
    assert sorted(losses, reverse=True) == losses
    assert losses[0] > plan.loss
    assert losses[-1] < plan.loss  # stages may mix tasks
    assert runs[1].loss == evaluate(plan.problem, runs[1].protocol).loss


def test_stages_lose_less_than_the_nearest_to_the_plan():
    plan = planned(control=Control(lr=(0.0, 5.0)))
    nearest = [evaluate(plan.problem, p).loss for p in plan.relaxed.stages(3)]
    assert all(run.loss < loss for run, loss in zip(plan.stages(3), nearest, strict=True))


def test_a_single_stage_is_the_best_constant_share():
    plan = planned()
    constant = solve(plan.problem.changed(control=Control("constant")))
    run = plan.stages(1)[0]
    assert run.loss == pytest.approx(constant.certificate.relaxed_value, rel=1e-4)


@pytest.mark.parametrize("goal", ["final", "worst"])
@pytest.mark.parametrize("tasks", [True, "constant", False, "arriving"])
def test_slopes_are_those_of_the_value(goal, tasks):
    arrivals = [5.0, 0.0] if tasks == "arriving" else None
    tasks = True if arrivals else tasks
    control = Control(tasks, lr=Range(0.0, 5.0, shared=tasks is True))
    problem = ten_units(
        steps=20, control=control, objective=Objective(goal=goal, running=[0.1, 0.2])
    )
    objective = DiscretisedObjective(problem, problem.steps)
    start = solve(problem, max_gradients=40).relaxed.stages(3)[-1]
    space = _Stages(problem, start, problem.steps)
    smoothing = objective.smoothing(space.split(space.start))

    def value(z):
        return objective.gradient(space.split(z), smoothing).surrogate.value

    rng = np.random.default_rng(0)
    z = space.start.copy()
    z[:3] = [0.313, 0.329, 0.358]  # no switch at an edge, where slopes jump
    slopes = space.slopes(z, objective.gradient(space.split(z), smoothing))
    for _ in range(5):
        move = rng.normal(size=z.size)
        move[:3] -= move[:3].mean()
        numeric = (value(z + 1e-6 * move) - value(z - 1e-6 * move)) / 2e-6
        assert slopes @ move == pytest.approx(numeric, rel=1e-5)


def test_limits_are_kept():
    limits = Limits(min_share=[0.4, 0.0], max_share=[0.4, 1.0], mean={"lr": 1.0}, min_dwell=2.0)
    control = Control(lr=Range(0.0, 5.0, shared=True))
    plan = planned(control=control, limits=limits)
    runs = plan.stages(10)
    assert len(runs) == 5  # of at least 2 of 10 units
    for run in runs:
        protocol = run.protocol
        assert protocol.mean_shares[0] == pytest.approx(0.4, abs=1e-4)
        assert protocol.lengths @ protocol.lr / protocol.duration == pytest.approx(1.0, abs=1e-3)
        assert protocol.lengths.min() > 2.0 - 1e-6


def test_ties_are_kept():
    plan = planned(control=Control("constant", lr=Range(0.0, 5.0, shared=True)))
    run = plan.stages(3)[-1]
    assert np.ptp(run.protocol.shares, axis=0).max() < 1e-9
    assert np.ptp(run.protocol.lr) > 0.1


def test_ensembles_have_stages():
    model, start = half_learned()
    other = model.pretrain(duration=60.0, seed=2)
    members = [Problem(model, x, duration=10.0, steps=20) for x in (start, other)]
    plan = solve(Problem.ensemble(members, risk="worst"))
    assert plan.stages(2)[-1].loss < plan.stages(1)[0].loss


@pytest.mark.parametrize("most", [None, 0.25])
def test_tasks_that_arrive_join_a_stage(most):
    problem = stream(20, limits=Limits(max_replay=most))
    plan = solve(problem, max_gradients=300)
    runs = plan.stages(3)
    assert runs[2].loss < 0.95 * runs[0].loss
    for run in runs:
        edges, shares = run.protocol.edges, run.protocol.shares
        assert set(problem.availability.changes) <= set(edges)
        for begin, end in ((7.5, 15.0), (15.0, 30.0)) if most else ():
            inside = (edges[:-1] >= begin) & (edges[1:] <= end)
            old = shares[:, : 1 if begin == 7.5 else 2].sum(axis=1)
            assert run.protocol.lengths[inside] @ old[inside] <= most * (end - begin) + 1e-2


def test_refused():
    with pytest.raises(ArgumentError) as caught:
        planned().stages(0)
    assert caught.value.name == "most"
