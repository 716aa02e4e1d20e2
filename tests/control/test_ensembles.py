"""One protocol for many members: plans, and what they do not depend on."""

from functools import cache

import numpy as np
import pytest

from problems import small
from replan import (
    Control,
    Exhaustive,
    Flips,
    ForwardBackward,
    Limits,
    Objective,
    Plan,
    Problem,
    Protocol,
    Relax,
    TeacherStudent,
    evaluate,
    levers,
    solve,
    strategies,
)
from replan.control.discretised import Controls, DiscretisedObjective
from replan.models import stacked

RISKS = ["mean", 0.5, "worst"]


@cache
def start(seed):
    model = TeacherStudent.similar(0.3)
    return model, model.pretrain(seed=seed, duration=100.0)


def member(seed, **settings):
    return Problem(*start(seed), **{"duration": 10.0, "steps": 40} | settings)


def ensemble(seeds, risk="mean", weights=None, **settings):
    members = [member(seed, **settings) for seed in seeds]
    return Problem.ensemble(members, weights=weights, risk=risk)


@cache
def plan_of(seeds, risk="mean", weights=None):
    return solve(ensemble(seeds, risk, weights))


@pytest.mark.parametrize("risk", RISKS)
def test_an_ensemble_of_one_gives_the_plan_of_its_problem(risk):
    alone, plan = solve(member(0)), plan_of((0,), risk)
    assert np.array_equal(plan.protocol.shares, alone.protocol.shares)
    assert plan.certificate == alone.certificate
    assert plan.statistics["gradients"] == alone.statistics["gradients"]


@pytest.mark.parametrize("risk", RISKS)
def test_copies_and_the_order_of_members_change_nothing(risk):
    alone, copies = plan_of((0,)), plan_of((0, 0, 0), risk, (0.2, 0.3, 0.5))
    assert copies.loss == pytest.approx(alone.loss, rel=1e-4)
    assert copies.trajectory.member_losses == pytest.approx(np.full(3, copies.loss), rel=1e-9)
    assert plan_of((0, 1, 0, 1), risk).loss == pytest.approx(plan_of((0, 1), risk).loss, rel=2e-4)
    one, other = (
        plan_of((0, 1, 2), risk, (0.5, 0.3, 0.2)),
        plan_of((2, 1, 0), risk, (0.2, 0.3, 0.5)),
    )
    assert one.loss == pytest.approx(other.loss, rel=2e-4)


def test_risks_are_in_order_and_each_plan_is_best_at_its_own():
    plans = {risk: plan_of((0, 1, 2), risk) for risk in RISKS}
    assert plans["mean"].loss <= plans[0.5].loss <= plans["worst"].loss
    for risk, plan in plans.items():
        for other in plans.values():
            value = evaluate(ensemble((0, 1, 2), risk), other.protocol).loss
            assert plan.loss <= value * (1 + 1e-3)


def test_results_do_not_depend_on_the_number_of_threads(monkeypatch):
    results = []
    for cores in (1, 3):
        monkeypatch.setattr("replan.core.threads.free_cores", lambda cores=cores: cores)
        monkeypatch.setattr(stacked, "_SHORT", 0)
        plan = solve(ensemble((0, 1, 2), 0.5))
        results.append((plan.protocol.shares.tobytes(), plan.loss, plan.statistics["gradients"]))
    assert results[0] == results[1]


def test_bounding_the_tape_of_many_members_changes_nothing(monkeypatch):
    problem = ensemble((0, 1, 2))
    controls = Controls(np.full((40, 2), 0.5), np.ones((40, 6)))
    objective = DiscretisedObjective(problem, 40)
    whole = objective.gradient(controls)
    monkeypatch.setattr(stacked, "_KEPT", 0)
    assert np.array_equal(whole.by_shares, objective.gradient(controls).by_shares)


# Against the truth


@pytest.mark.parametrize("goal", ["final", "worst"])
@pytest.mark.parametrize("risk", RISKS)
def test_solvers_against_every_protocol(risk, goal):
    members = [small(x, steps=8, objective=Objective(goal)) for x in (0.1, 0.6)]
    problem = Problem.ensemble(members, risk=risk)
    truth = solve(problem, Exhaustive())
    assert truth.certificate.scope == "global"
    for solver, within in ((Relax(starts=1), 1e-9), (Flips(starts=0), 0.02)):
        plan = solve(problem, solver)
        assert truth.loss - 1e-12 <= plan.loss <= truth.loss * (1 + within), solver


def test_exhaustive_search_of_the_worst_case_by_hand():
    problem = Problem.ensemble([small(0.1, steps=5), small(0.6, steps=5)], risk="worst")
    values = []
    for number in range(2**5):
        tasks = [number >> i & 1 for i in range(5)]
        protocol = Protocol.from_sequence(tasks, 2, 25.0)
        values.append(max(evaluate(one, protocol).loss for one in problem.members))
    assert solve(problem, Exhaustive()).loss == pytest.approx(min(values), rel=1e-9)


def test_at_ties_the_residual_vanishes_only_where_no_mixture_gains():
    """Two members that want opposite things: at their tie neither slope alone is zero."""
    model = TeacherStudent.similar(0.3)
    starts = [model.pretrain(task, duration=100.0, seed=1) for task in (0, 1)]
    members = [Problem(model, one, duration=10.0, steps=12) for one in starts]
    problem = Problem.ensemble(members, risk="worst")
    plan = solve(problem, Relax(starts=1, tolerance=1e-5))
    relaxed = Controls(plan.relaxed.shares, problem.knob_rows(plan.relaxed))
    gradient = DiscretisedObjective(problem, 12).gradient(relaxed)
    values, slopes = gradient.surrogate.member_values, gradient.member_by_shares
    assert np.ptp(values) <= 1e-5 * values.max()
    assert values.max() == pytest.approx(plan.certificate.relaxed_value, rel=1e-5)
    assert plan.certificate.pmp_residual <= 1e-4 * plan.certificate.relaxed_value
    left = np.sum(np.sum(slopes * relaxed.shares, axis=2) - slopes.min(axis=2), axis=1)
    assert np.all(left > 0.1 * values)  # each member alone could gain much
    for one in members:
        assert solve(one, Relax(starts=1)).loss < plan.certificate.relaxed_value


@pytest.mark.parametrize("solver", [Exhaustive(), Flips(starts=0)], ids=str)
def test_the_certificate_of_a_discrete_plan_is_that_of_the_risk_itself(solver):
    problem = Problem.ensemble([small(0.1, steps=8), small(0.6, steps=8)], risk="worst")
    plan = solve(problem, solver)
    worst = problem.members[int(np.argmax(plan.trajectory.member_losses))]
    alone = solve(worst, Exhaustive())
    assert np.array_equal(plan.protocol.shares, alone.protocol.shares)
    residual = plan.certificate.pmp_residual
    assert residual <= alone.certificate.pmp_residual * (1 + 1e-6)  # a mixture may leave less
    slopes, lengths = plan.hamiltonians, plan.protocol.lengths
    own = lengths @ (np.sum(slopes * plan.protocol.shares, axis=1) - slopes.min(axis=1))
    assert own <= residual <= 1.05 * own


# Everything else works on ensembles


@pytest.mark.parametrize("risk", RISKS)
def test_limits_and_knobs_hold_for_all_members_at_once(risk):
    limits = Limits(max_share=[0.25, 1.0], max_switches=4)
    plan = solve(ensemble((0, 1), risk, limits=limits))
    assert plan.protocol.mean_shares[0] <= 0.25 + 1e-12
    assert plan.certificate.switches <= 4
    free = solve(ensemble((0, 1), risk, steps=12, control=Control(lr=(0.0, 4.0))))
    assert free.loss < solve(ensemble((0, 1), risk, steps=12)).loss
    assert free.protocol.knobs["lr"].max() <= 4.0


def test_targets_sweeps_and_levers():
    problem = ensemble((0, 1), objective=Objective(targets=[0.02, None]))
    plan = solve(problem)
    met = [one.final_losses[0] <= 0.02 for one in plan.trajectory.members]
    assert plan.trajectory.targets_met == all(met)
    assert plan.to_dict()["targets_met"] == {"1": all(met)}
    running = Objective(running=[0.1, 0.1])
    problem = ensemble((0, 1), steps=12, objective=running, control=Control(lr=(0.1, 2.0)))
    swept = solve(problem, ForwardBackward(sweeps=5))
    assert swept.loss <= evaluate(problem, strategies.interleaved(problem)).loss
    losses = levers(ensemble((0, 1), steps=8, duration=5.0), tolerance=1e-2).losses
    assert losses["all"] <= losses["share"] + 1e-12


def test_a_plan_of_an_ensemble_is_saved_and_loaded(tmp_path):
    plan = plan_of((0, 1), 0.5)
    plan.save(tmp_path / "plan.json")
    again = Plan.load(tmp_path / "plan.json")
    assert again.problem.is_ensemble
    assert again.loss == plan.loss
    content = plan.to_dict()
    for one, run in zip(content["members"], plan.trajectory.members, strict=True):
        assert one["losses"] == run.final_losses.tolist()
        assert one["value"] == run.loss
