"""One protocol for many members: values, gradients, plans, and what they do not depend on."""

import threading
import time
from functools import cache
from itertools import count

import numpy as np
import pytest

import replan
from problems import small
from replan import (
    Control,
    Ensemble,
    Exhaustive,
    Flips,
    ForwardBackward,
    IntegrationError,
    Limits,
    Plan,
    Problem,
    Relax,
    TeacherStudent,
    evaluate,
    solve,
    strategies,
)
from replan.control.objective import Controls, Objective
from replan.control.smoothing import Smoothing
from replan.models import Model, Schedule, _members
from replan.problem.risk import Risk

RISKS = ["mean", 0.5, "worst"]


@cache
def start(seed, similarity=0.3, hidden=2):
    model = TeacherStudent.similar(similarity, hidden=hidden)
    return model, model.pretrain(seed=seed, duration=100.0)


def problem(seed, similarity=0.3, hidden=2, **settings):
    settings = {"duration": 10.0, "steps": 12} | settings
    return Problem(*start(seed, similarity, hidden), **settings)


def some(count, **settings):
    return [problem(seed, **settings) for seed in range(count)]


def random_controls(posed, seed=0):
    rng = np.random.default_rng(seed)
    shares = rng.dirichlet(np.ones(posed.model.tasks), posed.steps)
    return Controls(shares, rng.uniform(0.5, 1.5, (posed.steps, posed.model.layout.size)))


class Growing(Model):
    """x′ = rate × x², which is infinite at 1 / (rate × x₀)."""

    kind = "growing"
    tasks = 1

    def __init__(self, rate):
        self.rate = rate

    def losses(self, states):
        return states**2

    def roll_out(self, start, pieces):
        rows = [start]
        for length in pieces.lengths:
            left = 1 - self.rate * rows[-1] * length
            if left <= 0:
                break
            rows.append(rows[-1] / left)
        return np.array(rows)


# Values and gradients


@pytest.mark.parametrize("settings", [{}, {"goal": "worst"}, {"goal": "seen"}, {"running": [1, 0]}])
@pytest.mark.parametrize("risk", RISKS)
def test_the_value_is_the_risk_of_the_members_values(risk, settings):
    posed = Ensemble(some(3, **settings), [0.5, 0.3, 0.2], risk)
    objective = Objective(posed, 12)
    controls = random_controls(posed)
    each = [Objective(one, 12) for one in posed.members]
    for one in each:
        one.substeps = objective.substeps
    values = np.array([one.value(controls) for one in each])
    assert objective.value(controls) == pytest.approx(posed.risk.of(values), rel=1e-12)


@pytest.mark.parametrize("settings", [{}, {"goal": "worst"}, {"targets": [1e-4, 0.05]}])
@pytest.mark.parametrize("risk", RISKS)
def test_gradients_against_finite_differences(risk, settings):
    posed = Ensemble([*some(2, **settings), problem(2, 0.6, hidden=3, **settings)], None, risk)
    objective = Objective(posed, 12)
    controls = random_controls(posed)
    soft = objective.smoothing(controls)
    found = objective.gradient(controls, soft)
    rng = np.random.default_rng(3)
    for by, part in ((found.by_shares, 0), (found.by_knobs, 1)):
        direction = rng.normal(size=by.shape)
        moved = []
        for size in (1e-5, -1e-5):
            parts = list(controls)
            parts[part] = parts[part] + size * direction
            moved.append(objective.gradient(Controls(*parts), soft).smooth)
        difference = (moved[0] - moved[1]) / 2e-5
        assert np.sum(by * direction) == pytest.approx(difference, rel=1e-5)


def test_the_slopes_of_each_member_are_its_own():
    posed = Ensemble(some(3), risk=0.5)
    objective = Objective(posed, 12)
    controls = random_controls(posed)
    found = objective.gradient(controls)
    for member, level, slopes in zip(
        posed.members, found.levels, found.each_by_shares, strict=True
    ):
        alone = Objective(member, 12)
        alone.substeps = objective.substeps
        mine = alone.gradient(controls)
        assert level == pytest.approx(mine.value, rel=1e-12)
        assert slopes == pytest.approx(mine.by_shares, rel=1e-9)


@pytest.mark.parametrize("level", [0.0, 0.25, 0.5, 0.9])
def test_smooth_risk_is_below_the_risk_and_its_mixture_gives_the_slopes(level):
    rng = np.random.default_rng(0)
    risk = Risk(rng.dirichlet(np.ones(6)), level)
    x = rng.normal(size=6)
    x[1] = x[4]  # a tie
    none = np.zeros((6, 1))
    for temperature in (1.0, 0.1, 1e-4):
        soft = Smoothing(temperature, None, risk.weights, risk)
        parts = soft.mixture(x, none).members
        assert parts.sum() == pytest.approx(1.0, rel=1e-12)
        assert np.all(parts <= risk.caps * (1 + 1e-12))
        assert soft.value(x, none) <= risk.of(x) + 1e-12
        for i in range(6):
            step = 1e-6 * temperature * np.eye(6)[i]
            slope = (soft.value(x + step, none) - soft.value(x - step, none)) / (2 * step[i])
            assert parts[i] == pytest.approx(slope, abs=2e-3)
    assert soft.value(x, none) == pytest.approx(risk.of(x), abs=1e-3)


def test_at_ties_the_residual_vanishes_only_where_no_mixture_gains():
    """Two members that want opposite things: at their tie neither slope alone is zero."""
    model = TeacherStudent.similar(0.3)
    starts = [model.pretrain(task, duration=100.0, seed=1) for task in (0, 1)]
    members = [Problem(model, one, duration=10.0, steps=12) for one in starts]
    posed = Ensemble(members, risk="worst")
    plan = solve(posed, Relax(starts=1, tolerance=1e-5))
    objective = Objective(posed, 12)
    relaxed = Controls(plan.relaxed.shares, posed.knob_rows(plan.relaxed))
    found = objective.gradient(relaxed)
    assert np.ptp(found.levels) <= 1e-5 * found.levels.max()
    assert plan.certificate.pmp_residual <= 1e-4 * plan.certificate.relaxed_value
    assert found.levels.max() == pytest.approx(plan.certificate.relaxed_value, rel=1e-5)
    slopes = found.each_by_shares
    left = np.sum(np.sum(slopes * relaxed.shares, axis=2) - slopes.min(axis=2), axis=1)
    assert np.all(left > 0.1 * found.levels)  # each member alone could gain much
    for one in members:
        assert solve(one, Relax(starts=1)).loss < plan.certificate.relaxed_value


@pytest.mark.parametrize("solver", [Exhaustive(), Flips(starts=0)])
def test_the_certificate_of_a_discrete_plan_is_that_of_the_risk_itself(solver):
    posed = Ensemble([small(0.1, steps=8), small(0.6, steps=8)], risk="worst")
    plan = solve(posed, solver)
    worst = posed.members[int(np.argmax(plan.trajectory.member_losses))]
    alone = solve(worst, Exhaustive())
    assert np.array_equal(plan.protocol.shares, alone.protocol.shares)
    residual = plan.certificate.pmp_residual
    assert residual <= alone.certificate.pmp_residual * (1 + 1e-6)  # a mixture may leave less
    slopes, lengths = plan.hamiltonians, plan.protocol.lengths
    own = lengths @ (np.sum(slopes * plan.protocol.shares, axis=1) - slopes.min(axis=1))
    assert own <= residual <= 1.05 * own


# What plans do not depend on


def test_an_ensemble_of_one_gives_the_plan_of_its_problem():
    alone = solve(problem(0, steps=40))
    for risk in RISKS:
        plan = solve(Ensemble([problem(0, steps=40)], risk=risk))
        assert np.array_equal(plan.protocol.shares, alone.protocol.shares)
        assert plan.certificate == alone.certificate
        assert plan.statistics["gradients"] == alone.statistics["gradients"]


@pytest.mark.parametrize("risk", RISKS)
def test_copies_change_nothing(risk):
    alone = solve(problem(0, steps=40))
    plan = solve(Ensemble([problem(0, steps=40)] * 3, [0.2, 0.3, 0.5], risk))
    assert plan.loss == pytest.approx(alone.loss, rel=1e-4)
    assert plan.trajectory.member_losses == pytest.approx(np.full(3, plan.loss), rel=1e-9)
    twice = solve(Ensemble(some(2, steps=40) * 2, risk=risk))
    assert twice.loss == pytest.approx(solve(Ensemble(some(2, steps=40), risk=risk)).loss, rel=2e-4)


@pytest.mark.parametrize("risk", RISKS)
def test_the_order_of_members_does_not_matter(risk):
    weights = [0.5, 0.3, 0.2]
    one = solve(Ensemble(some(3, steps=40), weights, risk))
    other = solve(Ensemble(some(3, steps=40)[::-1], weights[::-1], risk))
    assert one.loss == pytest.approx(other.loss, rel=2e-4)


def test_results_do_not_depend_on_the_number_of_threads(monkeypatch):
    found = []
    for cores in (1, 2, 3):
        monkeypatch.setattr(_members, "free_cores", lambda cores=cores: cores)
        monkeypatch.setattr(_members, "_SHORT", 0)
        plan = solve(Ensemble(some(3, steps=40), risk=0.5))
        found.append((plan.protocol.shares.tobytes(), plan.loss, plan.statistics["gradients"]))
    assert found[0] == found[1] == found[2]


def test_threads_hand_on_what_goes_wrong(monkeypatch):
    monkeypatch.setattr(_members, "free_cores", lambda: 2)
    tried = []

    def fail(i):
        tried.append(i)
        if i == 3:
            raise ArithmeticError("three")
        return i

    with pytest.raises(ArithmeticError, match="three"):
        _members.in_threads(fail, 1000)
    assert len(tried) < 1000


def test_threads_leave_nothing_out(monkeypatch):
    """One may end at the moment when another has just taken a number."""

    class Slow:
        """Numbers that others than the main thread get late."""

        def __init__(self):
            self.numbers = count()

        def __iter__(self):
            return self

        def __next__(self):
            number = next(self.numbers)
            if threading.current_thread() is not threading.main_thread():
                time.sleep(0.05)
            return number

    monkeypatch.setattr(_members, "free_cores", lambda: 3)
    monkeypatch.setattr(_members, "count", Slow)
    for _ in range(5):
        assert _members.in_threads(lambda i: time.sleep(0.001) or i * i, 5) == [0, 1, 4, 9, 16]


# Against the truth


@pytest.mark.parametrize("settings", [{}, {"goal": "worst"}])
@pytest.mark.parametrize("risk", RISKS)
def test_solvers_against_every_protocol(risk, settings):
    posed = Ensemble([small(0.1, steps=8, **settings), small(0.6, steps=8, **settings)], None, risk)
    truth = solve(posed, Exhaustive())
    assert truth.certificate.scope == "global"
    for solver, within in ((Relax(starts=1), 1e-9), (Flips(starts=0), 0.02)):
        found = solve(posed, solver)
        assert found.loss >= truth.loss - 1e-12
        assert found.loss <= truth.loss * (1 + within), solver


def test_exhaustive_search_of_the_worst_case_by_hand():
    posed = Ensemble([small(0.1, steps=5), small(0.6, steps=5)], risk="worst")
    values = []
    for number in range(2**5):
        tasks = [number >> i & 1 for i in range(5)]
        protocol = replan.Protocol.from_sequence(tasks, 2, 25.0)
        values.append(max(evaluate(one, protocol).loss for one in posed.members))
    assert solve(posed, Exhaustive()).loss == pytest.approx(min(values), rel=1e-9)


def test_risks_are_in_order_and_each_plan_is_best_at_its_own():
    plans = {risk: solve(Ensemble(some(3, steps=40), risk=risk)) for risk in RISKS}
    assert plans["mean"].loss <= plans[0.5].loss <= plans["worst"].loss
    for risk, plan in plans.items():
        for other in plans.values():
            value = evaluate(Ensemble(some(3, steps=40), risk=risk), other.protocol).loss
            assert plan.loss <= value * (1 + 1e-3)


# Everything else works on ensembles


@pytest.mark.parametrize("risk", RISKS)
def test_limits_are_kept_for_all_members_at_once(risk):
    limits = Limits(max_share=[0.25, 1.0], max_switches=4)
    plan = solve(Ensemble(some(2, steps=40, limits=limits), risk=risk))
    shares = plan.protocol.shares
    assert shares[:, 0].mean() <= 0.25 + 1e-12
    assert plan.certificate.switches <= 4
    assert np.all(shares.max(axis=1) == 1.0)


@pytest.mark.parametrize("risk", RISKS)
def test_knobs_are_turned_for_all_members(risk):
    posed = Ensemble(some(2, control=Control(lr=(0.0, 4.0))), risk=risk)
    fixed = solve(Ensemble(some(2), risk=risk))
    plan = solve(posed)
    assert plan.loss < fixed.loss
    assert plan.protocol.knobs["lr"].max() <= 4.0


def test_targets_hold_for_every_member():
    target = 0.02
    plan = solve(Ensemble(some(2, steps=40, targets=[target, None])))
    met = [one.final_losses[0] <= target for one in plan.trajectory.members]
    assert plan.trajectory.targets_met == all(met)
    assert plan.to_dict()["targets_met"] == {"1": all(met)}


def test_the_sweep_works_on_ensembles():
    posed = Ensemble(some(2, running=[0.1, 0.1], control=Control(lr=(0.1, 2.0))))
    plan = solve(posed, ForwardBackward(sweeps=5))
    assert plan.loss <= evaluate(posed, strategies.interleaved(posed)).loss


def test_end_knobs_are_one_for_all_members():
    model = replan.models.Dropout([[1.0]], hidden=2, noise=0.3)
    starts = [(np.eye(2) * size, [[0.01], [0.02]]) for size in (0.1, 0.5)]
    problems = [Problem(model, start, duration=2.0, steps=4) for start in starts]
    run = evaluate(Ensemble(problems), strategies.one_task(Ensemble(problems)))
    for one in run.members:
        assert np.array_equal(one.ends, run.ends)


def test_strategies_and_compare_work_on_ensembles():
    posed = Ensemble(some(2))
    result = replan.compare(posed, strategies=["interleaved", "focus-then-replay", "no-replay"])
    assert len(result.runs) == 3
    focus = strategies.focus_then_replay(posed)
    alone = [strategies.focus_then_replay(one) for one in posed.members]
    lengths = [np.sum(p.lengths[p.shares[:, 1] == 1]) for p in (focus, *alone)]
    assert min(lengths[1:]) <= lengths[0] <= max(lengths[1:])


def test_focus_then_replay_of_arrivals_works_on_ensembles():
    posed = Ensemble(some(2, arrivals=[0.0, 5.0]))
    assert strategies.focus_then_replay(posed).duration == 10.0


def test_levers_work_on_ensembles():
    found = replan.levers(Ensemble(some(2, steps=8, duration=5.0)))
    losses = found.losses
    assert losses["all"] <= losses["share"] + 1e-12


def test_members_that_diverge_are_named():
    def grow(rate):
        return Problem(Growing(rate), [1.0], duration=10.0, steps=5)

    posed = Ensemble({"tame": grow(0.01), "wild": grow(1e3), "also wild": grow(2e3)})
    run = evaluate(posed, strategies.interleaved(posed), throw=False)
    assert run.status == "diverged"
    with pytest.raises(IntegrationError, match="wild and also wild: the trajectory diverged"):
        evaluate(posed, strategies.interleaved(posed))
    assert [one["status"] for one in run.to_dict()["members"]] == ["ok", "diverged", "diverged"]
    piece = Schedule.single_steps(np.ones((1, 1)), np.ones((1, 1)), np.array([1.0]))
    assert posed.model.diverging(posed.state, piece) == "wild and also wild"


def test_a_plan_of_an_ensemble_is_saved_and_loaded(tmp_path):
    plan = solve(Ensemble({"a": problem(0), "b": problem(1)}, [0.25, 0.75], 0.5))
    plan.save(tmp_path / "plan.json")
    again = Plan.load(tmp_path / "plan.json")
    assert isinstance(again.problem, Ensemble)
    assert again.loss == plan.loss
    content = plan.to_dict()
    assert content["value"] == plan.loss
    assert [one["name"] for one in content["members"]] == ["a", "b"]
    assert [one["weight"] for one in content["members"]] == [0.25, 0.75]
    for one, run in zip(content["members"], plan.trajectory.members, strict=True):
        assert one["losses"] == run.final_losses.tolist()
        assert one["value"] == run.loss
    assert "members from" in str(plan)


def test_members_are_evaluated_as_if_alone():
    posed = Ensemble(some(3), risk=0.4)
    protocol = strategies.interleaved(posed)
    run = evaluate(posed, protocol)
    for member, one in zip(posed.members, run.members, strict=True):
        alone = evaluate(member, protocol)
        assert np.array_equal(alone.losses, one.losses)
    assert run.losses == pytest.approx(np.mean([one.losses for one in run.members], axis=0))
    assert sum(run.parts.values()) == pytest.approx(posed.risk.of(run.member_losses))
    assert run.weighted_at([10.0])[0] == pytest.approx(run.weighted_losses[-1])
    assert run.curves.losses.shape == (3, run.times.size, 2)
    assert 0 <= run.error < 1e-9


def test_the_record_of_many_members_is_bounded(monkeypatch):
    posed = Ensemble(some(3))
    objective, controls = Objective(posed, 12), random_controls(posed)
    whole = objective.gradient(controls)
    monkeypatch.setattr(_members, "_KEPT", 0)
    again = objective.gradient(controls)
    assert np.array_equal(whole.by_shares, again.by_shares)
    _, record = posed.model.record(posed.state, objective._pieces(controls, 0, 12))
    assert all(kept == () for kept in record)
