"""Learning curves: exact to the accuracy asked for; statistics over runs; forgetting, transfer."""

import json
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import solve_ivp

import replan
from replan import Objective, Overlaps, Problem, Protocol, TeacherStudent, evaluate, strategies
from replan.curves import Curves, rough_loss, transfer
from replan.models import Schedule

sys.path.insert(0, str(Path(__file__).parent / "dynamics"))
import plain

PLAIN = {
    "task 1 only": lambda p: strategies.one_task(p, task=0),
    "task 2 only": strategies.no_replay,
    "shares 1/2, 1/2": strategies.interleaved,
    "alternating every step, task 1 first": strategies.alternating,
}


def reference_problem(reference, **changes):
    model = TeacherStudent(reference["teacher_overlaps"], hidden=reference["hidden"])
    settings = {"duration": reference["duration"], "steps": reference["steps"]} | changes
    return Problem(model, Overlaps(**reference["start"]), **settings)


@pytest.mark.parametrize("name", PLAIN)
def test_reference_instances(reference, name):
    problem = reference_problem(reference)
    run = evaluate(problem, PLAIN[name](problem))
    expected = reference["final_losses_per_task"][name]
    np.testing.assert_allclose(run.final_losses, expected, rtol=1e-8)
    assert run.loss == pytest.approx(np.mean(expected), rel=1e-8)
    assert run.substeps.max() <= 16  # work, not seconds


def independent(problem, protocol, rtol):
    """Return the last state, and the integrals of the losses (steps, T) beside it.

    DOP853 of scipy on the printed equations: neither the rate nor the stepping is shared.
    """
    model, T = problem.model, problem.model.tasks
    S, A, settings = model.teacher_overlaps, model.teacher_heads, {"activation": model.activation}

    def slope(_, x, shares, lr):
        parts, total = model.unpack(x[:-T]), 0.0
        for task in np.flatnonzero(shares).tolist():
            Q, M, V = parts.Q, parts.M, parts.V
            rate = plain.rate(Q, M, V, S, A, task, lr, noise=model.noise, **settings)
            total += shares[task] * np.concatenate([part.ravel() for part in rate])
        return np.append(total, model.losses(x[:-T]))

    x, integrals = problem.state, []
    for row in zip(protocol.shares, protocol.lr, strict=True):
        start, span = np.append(x, np.zeros(T)), (0, protocol.lengths[len(integrals)])
        end = solve_ivp(slope, span, start, "DOP853", args=row, rtol=rtol, atol=rtol / 100)
        x, integral = np.split(end.y[:, -1], [-T])
        integrals.append(integral)
    return x, np.array(integrals)


def test_an_independent_integrator_of_the_plain_equations_agrees():
    model = TeacherStudent(
        [[1, 0.5], [0.5, 1]], hidden=2, teacher_heads=[[1, 0.3], [0, 1]], noise=0.4
    )
    start = model.fresh(seed=0, weight_variance=0.3, head_variance=0.5)
    problem = Problem(model, start, duration=4.0, steps=2, lr=1.2)
    protocol = Protocol([[1, 0], [0.25, 0.75]], duration=4.0, lr=[1.2, 0.7])
    x, integrals = independent(problem, protocol, 1e-11)
    run = evaluate(problem, protocol)
    np.testing.assert_allclose(run.states[-1], x, atol=2e-9)
    np.testing.assert_allclose(run.final_losses, model.losses(x), rtol=2e-9)
    np.testing.assert_allclose(run.average_losses, integrals.sum(axis=0) / 4, rtol=2e-9)


@pytest.mark.parametrize("steps", [1, 2, 5, 10, 20, 50])
@pytest.mark.parametrize("goal", ["final", "seen"])
def test_losses_and_averages_are_as_accurate_as_reported_on_any_steps(steps, goal):
    rng = np.random.default_rng(steps)
    model = TeacherStudent.similar(0.4, activation=str(rng.choice(["erf", "linear"])), noise=0.2)
    running = [0.0, 0.0] if goal == "seen" else rng.uniform(0.1, 1.0, 2)
    top = 2.0 if model.activation == "erf" else 0.5
    problem = Problem(
        model, model.fresh(seed=steps), duration=float(rng.uniform(2, 20)), steps=steps, lr=top,
        objective=Objective(goal, running=running),
    )  # fmt: skip
    shares = np.eye(2)[rng.integers(0, 2, steps)]
    protocol = Protocol(shares, problem.duration, lr=rng.uniform(0.1, top, steps))
    x, integrals = independent(problem, protocol, 1e-10)
    means, final = integrals.sum(axis=0) / problem.duration, model.losses(x)
    value = means.mean() if goal == "seen" else final.mean() + means @ running
    for rtol in (1e-3, 1e-6):
        run = evaluate(problem, protocol, rtol=rtol)
        assert abs(run.loss - value) <= run.error <= 20 * rtol * value
        assert np.all(np.abs(run.average_losses - means) <= run.average_errors)
        assert np.all(np.abs(run.final_losses - final) <= run.errors[-1])


def test_averages_do_not_depend_on_the_length_of_the_steps(problem, monkeypatch):
    """Nor on how many steps the integrator looks at together."""
    fast = problem.changed(duration=20.0, steps=10, lr=2.0, objective=Objective(running=[1, 1]))
    protocol = strategies.sequential(fast)
    runs = [evaluate(fast.changed(steps=n), protocol) for n in (10, 400)]
    monkeypatch.setattr("replan.models.integrator._KEPT", 500)
    runs.append(evaluate(fast, protocol))
    for run in runs[1:]:
        np.testing.assert_allclose(run.average_losses, runs[0].average_losses, rtol=1e-9)
        assert abs(run.loss - runs[0].loss) <= run.error + runs[0].error
    np.testing.assert_allclose(runs[2].losses, runs[0].losses, rtol=1e-12)


def test_the_integrator_has_order_four(reference):
    problem = reference_problem(reference)
    rough = Protocol.from_segments([(5.0, 1), (10.0, [0.3, 0.7]), (10.0, [0.6, 0.4])], tasks=2)

    def final(substeps):
        counts = np.full(3, substeps)
        pieces = Schedule(rough.shares, problem.knob_rows(rough), rough.lengths, counts)
        return problem.model.roll_out(problem.state, pieces)[-1]

    counts = np.array([8, 12, 16, 24, 32])
    exact = final(1024)
    errors = [np.abs(final(n) - exact).max() for n in counts]
    assert np.polyfit(np.log(counts), np.log(errors), 1)[0] == pytest.approx(-4, abs=0.35)


@pytest.mark.parametrize("rtol", [1e-4, 1e-8])
def test_the_error_estimate_holds_and_the_accuracy_is_reached(problem, rtol):
    protocol = strategies.focus_then_replay(problem)
    run = evaluate(problem, protocol, rtol=rtol)
    exact = evaluate(problem, protocol, rtol=1e-12)
    true = np.abs(run.losses - exact.losses)
    assert np.all(true <= run.errors)
    assert np.all(true <= rtol * exact.losses + 1e-14)
    assert run.error == pytest.approx(run.errors[-1].mean())


def test_overlaps_too_reach_the_accuracy():
    """Near a perfect student losses hardly depend on the overlaps, which are checked as well."""
    model = TeacherStudent.similar(0.3)
    S = model.teacher_overlaps
    problem = Problem(model, Overlaps(S, S, np.eye(2) + 1e-3), duration=30.0, steps=3, lr=3.0)
    protocol = strategies.one_task(problem)
    run, exact = (evaluate(problem, protocol, rtol=rtol) for rtol in (1e-8, 1e-12))
    assert np.abs(run.states - exact.states).max() <= 3e-8


def test_work_per_time_does_not_grow_with_the_number_of_steps(reference):
    work = {}
    for steps in (250, 1000, 4000):
        problem = reference_problem(reference, steps=steps)
        work[steps] = evaluate(problem, strategies.interleaved(problem)).substeps.sum()
    assert work[1000] <= max(2 * work[250], 8 * 1000)
    assert work[4000] <= 8 * 4000


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000), hidden=st.integers(1, 4), tasks=st.integers(1, 3))
def test_overlaps_stay_symmetric_and_positive_semidefinite(seed, hidden, tasks):
    model = TeacherStudent.similar(0.4, tasks=tasks, hidden=hidden, noise=0.1)
    problem = Problem(model, model.fresh(seed), duration=20.0, steps=20, lr=2.0)
    run = evaluate(problem, strategies.random_order(problem, seed=seed))
    x = run.unpacked
    assert np.array_equal(x.Q, np.swapaxes(x.Q, -1, -2))
    S = np.broadcast_to(model.teacher_overlaps, (len(x.Q), tasks, tasks))
    joint = np.block([[x.Q, x.M], [np.swapaxes(x.M, -1, -2), S]])
    assert np.linalg.eigvalsh(joint).min() > -1e-9
    assert run.losses.min() >= 0


def test_permuting_units_and_tasks_permutes_the_result():
    S = np.array([[1, 0.5, 0], [0.5, 1, 0.2], [0, 0.2, 1]])
    order, units = [1, 2, 0], [2, 0, 1]
    model = TeacherStudent(S, hidden=3)
    renamed = TeacherStudent(S[np.ix_(order, order)], hidden=3)
    x = model.fresh(seed=2, weight_variance=0.2)
    y = Overlaps(x.Q[np.ix_(units, units)], x.M[np.ix_(units, order)], x.V[np.ix_(order, units)])
    a, b = (Problem(m, s, duration=5.0, steps=9) for m, s in ((model, x), (renamed, y)))
    protocol = strategies.random_order(a, shares=[0.5, 0.3, 0.2])
    one, other = evaluate(a, protocol), evaluate(b, Protocol(protocol.shares[:, order], 5.0))
    np.testing.assert_allclose(one.losses[:, order], other.losses, rtol=1e-10)
    ends = one.unpacked[-1].Q[np.ix_(units, units)], other.unpacked[-1].Q
    np.testing.assert_allclose(*ends, atol=1e-11)


def test_alternation_on_a_fine_grid_is_the_mixed_share(problem):
    """Order one: alternating at scale h deviates from shares (½, ½) in proportion to h."""
    mixed = evaluate(problem, strategies.interleaved(problem)).final_losses
    steps = np.array([100, 200, 400, 800])
    gaps = []
    for n in steps.tolist():
        fine = problem.changed(steps=n)
        gaps.append(np.abs(evaluate(fine, strategies.alternating(fine)).final_losses - mixed).max())
    assert np.polyfit(np.log(steps), np.log(gaps), 1)[0] == pytest.approx(-1, abs=0.1)


def test_a_very_short_step_counts(problem):
    protocol = Protocol([[1, 0], [1, 0]], edges=[0, 1e-11, 10], lr=[3e6, 1.0])
    plain_run = evaluate(problem, Protocol([[1, 0]], 10.0))
    assert abs(evaluate(problem, protocol).loss - plain_run.loss) > 0.1 * plain_run.loss


def test_losses_at_any_time_are_integrated(problem):
    protocol = strategies.focus_then_replay(problem, focus=3.3)
    run = evaluate(problem, protocol)
    times = [0.0, 1.234, 3.3, 9.99, 10.0 * (1 + 1e-12)]
    finer = evaluate(problem.changed(steps=1), protocol.split(times))
    expected = [finer.losses[np.argmin(np.abs(finer.times - t))] for t in times]
    np.testing.assert_allclose(run.losses_at(times), expected, rtol=1e-8)
    np.testing.assert_allclose(run.weighted_at(times), np.mean(expected, axis=1), rtol=1e-8)


def test_per_task_learning_rates_act_on_their_task(problem):
    both = Protocol(np.full((40, 2), 0.5), 10.0, lr=np.tile([1.0, 0.0], (40, 1)))
    run = evaluate(problem, both)
    start, end = run.unpacked[0], run.unpacked[-1]
    assert np.all(start.V[1] == end.V[1])  # task 2 was shown but nothing learned from it
    assert np.any(start.V[0] != end.V[0])
    slow = Protocol.from_sequence([0] * 40, 2, 5.0)  # half the share is half the time
    short = problem.changed(duration=5.0)
    np.testing.assert_allclose(run.final_losses, evaluate(short, slow).final_losses, rtol=1e-8)


def test_the_objective_and_its_error(problem):
    weighted = problem.changed(objective=Objective(weights=[2.0, 0.5]))
    run = evaluate(weighted, strategies.interleaved(weighted))
    assert run.loss == pytest.approx(run.final_losses @ [2.0, 0.5])
    assert run.error == pytest.approx(run.errors[-1] @ [2.0, 0.5])
    assert run.weighted_at(run.times)[-1] == run.loss
    counted = problem.changed(objective=Objective(running=[0.5, 0.5], targets=[1e-4, None]))
    protocol = strategies.one_task(problem, task=1)
    coarse = evaluate(counted, protocol)
    assert coarse.parts["running"] == pytest.approx(coarse.average_losses.mean())
    assert coarse.parts["targets"] > 0
    assert not coarse.targets_met


def test_divergence_says_when_and_what_to_try(problem):
    protocol = Protocol.from_segments([(5.0, 0), (5.0, 1)], tasks=2, lr=[1.0, 1e8])
    with pytest.raises(replan.IntegrationError, match=r"after time 5 .*`lr`"):
        evaluate(problem, protocol)
    run = evaluate(problem, protocol, throw=False)
    assert (run.status, run.times[-1], run.to_dict()["value"]) == ("diverged", 5.0, None)
    assert np.all(np.isfinite(run.losses))
    with pytest.raises(replan.IntegrationError):
        run.loss  # noqa: B018
    rough = evaluate(problem, Protocol([[0.5, 0.5]], 10.0, lr=2e4), throw=False, rtol=1e-12)
    assert rough.status != "ok"
    assert "try" in rough.advice


def test_errors_are_fought_where_they_arise(problem):
    """Leaving a plateau, early errors grow and show late; a large rate makes them infinite."""
    model = TeacherStudent.similar(0.3)
    plateau = Problem(model, model.fresh(seed=0), duration=100.0)
    assert evaluate(plateau, strategies.one_task(plateau)).substeps.sum() < 20_000
    fast = problem.changed(duration=5.0, steps=50, lr=100.0)
    run = evaluate(fast, strategies.sequential(fast), max_steps=2**14)
    again = evaluate(fast, strategies.sequential(fast).refine(8))
    assert run.loss == pytest.approx(again.loss, rel=1e-8)


def test_an_ensemble_is_the_mean_of_its_members_and_its_risk(problem):
    other = problem.changed(start=problem.model.pretrain(duration=60.0, seed=2))
    both = Problem.ensemble([problem, other], weights=[0.25, 0.75], risk="worst")
    protocol = strategies.interleaved(both)
    runs = [evaluate(member, protocol) for member in (problem, other)]
    run = evaluate(both, protocol)
    np.testing.assert_allclose(run.losses, 0.25 * runs[0].losses + 0.75 * runs[1].losses)
    assert run.loss == max(one.loss for one in runs)
    assert run.member_losses.tolist() == [one.loss for one in runs]
    assert run.curves.losses.shape == (2, 41, 2)
    assert [entry["weight"] for entry in run.to_dict()["members"]] == [0.25, 0.75]


def test_files_of_a_trajectory(problem, tmp_path):
    run = evaluate(problem, strategies.interleaved(problem))
    run.save(tmp_path / "run.json")
    content = json.loads((tmp_path / "run.json").read_text())
    assert content["replan"] == replan.__version__
    assert content["value"] == run.loss
    assert content["losses"] == run.final_losses.tolist()
    assert np.shape(content["curves"]) == (41, 2)
    assert np.shape(content["shares"]) == (40, 2)
    assert content["problem"]["start"]["Q"] == problem.start.Q.tolist()
    assert content["end"]["V"] == run.unpacked.V[-1].tolist()
    run.save(tmp_path / "run.csv")
    table = pd.read_csv(tmp_path / "run.csv")
    assert list(table) == ["time", "loss_1", "loss_2", "weighted"]
    assert table["weighted"].iloc[-1] == run.loss


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("protocol", {"protocol": Protocol([[1, 0, 0]], 10.0)}),
        ("protocol", {"protocol": Protocol([[1, 0]], 9.0)}),
        ("protocol", {"protocol": 3}),
        ("problem", {"problem": 3}),
        ("max_steps", {"max_steps": 0}),
        ("rtol", {"rtol": 0.0}),
        ("throw", {"throw": 1}),
    ],
)
def test_bad_arguments_of_evaluate(problem, name, arguments):
    with pytest.raises(replan.ArgumentError) as caught:
        evaluate(**{"problem": problem, "protocol": strategies.interleaved(problem)} | arguments)
    assert caught.value.name == name


# Curves of several runs

TIMES = [0.0, 1.0, 2.0]


def losses(runs=5, seed=0):
    return np.random.default_rng(seed).uniform(0.1, 1.0, (runs, 3, 2))


def with_a_diverged_run():
    values = losses()
    values[3, 1:] = np.nan
    return Curves(TIMES, values)


def test_statistics_are_over_the_runs():
    values = losses()
    curves = Curves(TIMES, values)
    np.testing.assert_allclose(curves.mean, values.mean(axis=0))
    np.testing.assert_allclose(curves.standard_error, values.std(axis=0, ddof=1) / np.sqrt(5))
    np.testing.assert_allclose(curves.quantiles([0.5])[0], np.median(values, axis=0))
    assert (curves.failures, curves.tasks) == ({}, 2)


def test_runs_that_did_not_finish_are_left_out_and_named():
    curves = with_a_diverged_run()
    others = losses()[[0, 1, 2, 4]]
    np.testing.assert_allclose(curves.mean, others.mean(axis=0))
    np.testing.assert_allclose(curves.quantiles([0.5])[0], np.median(others, axis=0))
    assert curves.failures == {3: "no finite losses at the end"}
    values = losses()
    values[0, -1] = np.inf
    reasons = {0: "it diverged", 2: "it was stopped"}
    assert Curves(TIMES, values, failures=reasons).failures == reasons
    nothing = Curves(TIMES, np.full((2, 3, 2), np.nan))
    for x in (nothing.mean, nothing.standard_error, *nothing.quantiles([0.5])):
        assert x.shape == (3, 2)
        assert np.all(np.isnan(x))
    single = Curves(TIMES, losses(1))
    assert np.all(np.isnan(single.standard_error))


def test_a_task_not_measured_yet_is_unknown_and_no_failure():
    values = losses()
    values[:, 0, 1] = np.nan
    curves = Curves(TIMES, values)
    assert not curves.failures
    assert np.isnan(curves.mean[0, 1])
    np.testing.assert_allclose(curves.mean[1:], values.mean(axis=0)[1:])


def test_files_of_curves(tmp_path):
    curves = with_a_diverged_run()
    curves.save(tmp_path / "x.csv")
    table = pd.read_csv(tmp_path / "x.csv")
    assert list(table) == ["run", "time", "loss_1", "loss_2"]
    row = table[(table["run"] == 1) & (table["time"] == 2.0)]
    assert row[["loss_1", "loss_2"]].to_numpy()[0].tolist() == curves.losses[1, 2].tolist()
    curves.save(tmp_path / "x.json")
    content = json.loads((tmp_path / "x.json").read_text())
    assert content["losses"][3][2] == [None, None]
    assert content["failures"] == {"3": "no finite losses at the end"}


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("times", ([1.0, 0.0, 2.0], losses())),
        ("times", ([], np.empty((1, 0, 2)))),
        ("losses", ([0.0, 1.0], losses())),
        ("losses", (TIMES, losses()[0])),
        ("failures", (TIMES, losses(), {9: "why"})),
    ],
)
def test_bad_arguments_of_curves(name, arguments):
    with pytest.raises(replan.ArgumentError) as caught:
        Curves(*arguments)
    assert caught.value.name == name


# Forgetting and transfer, against their definitions


@pytest.fixture(scope="module")
def stream():
    model = TeacherStudent.stream(3, 0.6)
    start = model.pretrain(seed=1, duration=50.0)
    return Problem(model, start, duration=20.0, steps=20, arrivals=[0, 5, 10])


def test_the_definitions(stream):
    run = evaluate(stream, strategies.focus_then_replay(stream))
    t, x = run.transfer, run.losses_at([0.0, 5.0, 10.0, 20.0])
    np.testing.assert_allclose(t.backward, [x[1, 0] - x[3, 0], x[2, 1] - x[3, 1], np.nan])
    np.testing.assert_allclose(t.forward, [np.nan, x[0, 1] - x[1, 1], x[0, 2] - x[2, 2]])
    for task, arrival in enumerate([0.0, 5.0, 10.0]):
        since = run.losses[run.times >= arrival, task]
        assert t.forgetting[task] == x[3, task] - since.min() >= 0
    assert t.means["forward"] == pytest.approx(np.mean(t.forward[1:]))
    assert t.forgetting[0] > 0 > t.backward[0]
    assert run.to_dict()["transfer"]["backward"][2] is None


def test_tasks_that_never_arrive_or_that_depart(stream):
    never = stream.changed(arrivals=[0, 5, np.inf])
    t = evaluate(never, strategies.interleaved(never)).transfer
    assert np.isnan([t.forgetting[2], t.backward[2], t.backward[1]]).all()
    assert np.isfinite(t.forward[2])
    gone = stream.changed(arrivals=None, departures=[5, 20, 20])
    t = evaluate(gone, strategies.interleaved(gone)).transfer
    assert t.forgetting[0] > 0
    assert np.isnan([*t.backward, *t.forward]).all()
    always = stream.changed(arrivals=None)
    assert evaluate(always, strategies.interleaved(always)).transfer is None


def test_transfer_between_known_times(stream):
    times, values = np.array([0.0, 4.0, 8.0, 20.0]), np.zeros((2, 4, 3))
    values[:, :, 1] = [[4.0, 3.0, 1.0, 0.5], [4.0, 2.0, 2.0, 3.0]]
    t = transfer(stream, times, values)
    np.testing.assert_allclose(t.forward[:, 1], [1.5, 2.0])
    np.testing.assert_allclose(t.forgetting[:, 1], [0.0, 1.0])


@pytest.mark.parametrize(
    "objective",
    [
        Objective(weights=[0.2, 0.8], targets=[1e-3, None]),
        Objective(goal="worst"),
        Objective(goal="seen", running=[0.5, 0.0]),
    ],
)
def test_rough_losses_have_four_digits_at_a_fraction_of_the_work(objective, monkeypatch):
    model = TeacherStudent.similar(0.3)
    settings = {"duration": 10.0, "steps": 50, "arrivals": [0, 2], "objective": objective}
    members = [Problem(model, model.pretrain(seed=seed), **settings) for seed in range(3)]
    problem = Problem.ensemble(members, risk="worst")
    work = []
    roll_out = TeacherStudent.roll_out

    def counted(self, start, schedule):
        work.append(int(schedule.substeps.sum()))
        return roll_out(self, start, schedule)

    monkeypatch.setattr(TeacherStudent, "roll_out", counted)
    protocol = strategies.sequential(problem)
    exact = evaluate(problem, protocol).loss, sum(work)
    work.clear()
    rough = rough_loss(problem, protocol), sum(work)
    assert rough[0] == pytest.approx(exact[0], rel=1e-4)
    assert rough[1] <= exact[1] / 2
    assert rough_loss(problem, protocol.with_knobs(lr=1e9)) == np.inf


def test_training_in_single_samples_is_not_refined_for_its_averages():
    """A loss that falls in jumps has an average of order 1: its error is reported, not chased."""

    class Jumps(replan.Model):
        kind, tasks = "jumps", 1

        def roll_out(self, start, schedule):
            ends = start[0] + np.append(0.0, np.cumsum(schedule.lengths))
            return ends[:, None]

        def losses(self, states):
            return 1.0 / (1.0 + np.floor(7 * states + 1e-9))

    run = evaluate(Problem(Jumps(), np.zeros(1), 2.0, steps=4), Protocol([[1.0]] * 4, 2.0))
    exact = np.mean(1.0 / (1.0 + np.arange(14)))
    assert run.status == "ok"
    assert 1e-6 < abs(run.average_losses[0] - exact) <= run.average_errors[0]
