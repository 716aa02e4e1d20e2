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
from replan import Overlaps, Problem, Protocol, TeacherStudent, evaluate, strategies
from replan.models import Curriculum, Schedule

sys.path.insert(0, str(Path(__file__).parents[1] / "dynamics"))
import plain


def reference_problem(reference, **changes):
    model = TeacherStudent(reference["teacher_overlaps"], hidden=reference["hidden"])
    settings = {"duration": reference["duration"], "steps": reference["steps"]} | changes
    return Problem(model, Overlaps(**reference["start"]), **settings)


PLAIN = {
    "task 1 only": lambda p: strategies.one_task(p, task=0),
    "task 2 only": strategies.no_replay,
    "shares 1/2, 1/2": strategies.interleaved,
    "alternating every step, task 1 first": strategies.alternating,
}


@pytest.mark.parametrize("name", PLAIN)
def test_reference_instances(reference, name):
    problem = reference_problem(reference)
    run = evaluate(problem, PLAIN[name](problem))
    expected = reference["final_losses_per_task"][name]
    np.testing.assert_allclose(run.final_losses, expected, rtol=1e-8)
    assert run.loss == pytest.approx(np.mean(expected), rel=1e-8)
    assert run.substeps.max() <= 16  # work, not seconds


def test_an_independent_integrator_of_the_plain_equations_agrees():
    """DOP853 of scipy on the printed equations: neither the rate nor the stepping is shared."""
    model = TeacherStudent(
        [[1, 0.5], [0.5, 1]], hidden=2, teacher_heads=[[1, 0.3], [0, 1]], noise=0.4
    )
    start = model.fresh(seed=0, weight_variance=0.3, head_variance=0.5)
    problem = Problem(model, start, duration=4.0, steps=2, lr=1.2)
    protocol = Protocol([[1, 0], [0.25, 0.75]], duration=4.0, lr=[1.2, 0.7])
    x = problem.state
    for shares, lr in zip(protocol.shares, protocol.lr, strict=True):

        def slope(_, x, shares=shares, lr=lr):
            parts = model.unpack(x)
            rates = [
                plain.rate(parts.Q, parts.M, parts.V, model.teacher_overlaps, model.teacher_heads,
                           task, lr, noise=0.4)
                for task in range(2)
            ]  # fmt: skip
            return sum(
                share * np.concatenate([part.ravel() for part in rate])
                for share, rate in zip(shares, rates, strict=True)
            )

        x = solve_ivp(slope, (0, 2.0), x, method="DOP853", rtol=1e-11, atol=1e-13).y[:, -1]
    run = evaluate(problem, protocol)
    np.testing.assert_allclose(run.states[-1], x, atol=2e-9)
    np.testing.assert_allclose(run.final_losses, model.losses(x), rtol=2e-9)


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
    slope = np.polyfit(np.log(counts), np.log(errors), 1)[0]
    assert slope == pytest.approx(-4, abs=0.35)


@pytest.mark.parametrize("rtol", [1e-4, 1e-6, 1e-8])
def test_the_error_estimate_holds_and_the_asked_accuracy_is_reached(problem, rtol):
    protocol = strategies.focus_then_replay(problem)
    run = evaluate(problem, protocol, rtol=rtol)
    exact = evaluate(problem, protocol, rtol=1e-12)
    true = np.abs(run.losses - exact.losses)
    assert np.all(true <= 3 * run.errors + 1e-14)
    assert np.all(true <= rtol * exact.losses + 1e-14)
    assert run.error == pytest.approx(run.errors[-1].mean())


def test_overlaps_too_reach_the_asked_accuracy():
    """Near a perfect student losses hardly feel the overlaps: these have a check of their own."""
    model = TeacherStudent.similar(0.3)
    S = model.teacher_overlaps
    start = Overlaps(S, S, np.eye(2) + 1e-3)
    problem = Problem(model, start, duration=30.0, steps=3, lr=3.0)
    protocol = strategies.one_task(problem)
    run, exact = (evaluate(problem, protocol, rtol=rtol) for rtol in (1e-8, 1e-12))
    assert np.abs(run.states - exact.states).max() <= 3e-8
    assert run.losses[-1, 0] < 1e-7


def test_work_is_linear_in_the_number_of_steps(reference):
    """Integration steps per unit of time do not grow with the protocol's resolution."""
    work = []
    for steps in (250, 1000, 4000):
        problem = reference_problem(reference, steps=steps)
        work.append(evaluate(problem, strategies.interleaved(problem)).substeps.sum())
    assert work[1] <= 2 * work[0] or work[1] <= 8 * 1000  # two runs over quarters of the steps
    assert work[2] <= 8 * 4000


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000), hidden=st.integers(1, 4), tasks=st.integers(1, 3))
def test_overlaps_stay_symmetric_and_positive_semidefinite(seed, hidden, tasks):
    model = TeacherStudent.similar(0.4, tasks=tasks, hidden=hidden, noise=0.1)
    problem = Problem(model, model.fresh(seed), duration=20.0, steps=20, lr=2.0)
    run = evaluate(problem, strategies.random_order(problem, seed=seed))
    x = run.overlaps
    assert np.array_equal(x.Q, np.swapaxes(x.Q, -1, -2))
    S = np.broadcast_to(model.teacher_overlaps, (len(x.Q), tasks, tasks))
    joint = np.block([[x.Q, x.M], [np.swapaxes(x.M, -1, -2), S]])
    assert np.linalg.eigvalsh(joint).min() > -1e-9
    assert run.losses.min() >= 0
    cosines = run.cosines
    assert cosines.shape == (run.times.size, hidden, tasks)
    assert np.all(cosines <= 1 + 1e-9)


def test_permuting_hidden_units_permutes_the_result():
    model = TeacherStudent.similar(0.3, tasks=2, hidden=3)
    x = model.fresh(seed=2, weight_variance=0.2)
    order = [2, 0, 1]
    y = Overlaps(x.Q[np.ix_(order, order)], x.M[order], x.V[:, order])
    runs = []
    for start in (x, y):
        problem = Problem(model, start, duration=5.0, steps=10)
        runs.append(evaluate(problem, strategies.alternating(problem)))
    np.testing.assert_allclose(runs[0].losses, runs[1].losses, rtol=1e-10)
    a, b = runs[0].overlaps[-1], runs[1].overlaps[-1]
    np.testing.assert_allclose(a.Q[np.ix_(order, order)], b.Q, atol=1e-11)
    np.testing.assert_allclose(a.V[:, order], b.V, atol=1e-11)


def test_relabelling_tasks_permutes_the_result():
    S = np.array([[1, 0.5, 0], [0.5, 1, 0.2], [0, 0.2, 1]])
    order = [1, 2, 0]
    model = TeacherStudent(S, hidden=3)
    renamed = TeacherStudent(S[np.ix_(order, order)], hidden=3)
    x = model.fresh(seed=2, weight_variance=0.2)
    y = Overlaps(x.Q, x.M[:, order], x.V[order])
    a, b = (Problem(m, s, duration=5.0, steps=9) for m, s in ((model, x), (renamed, y)))
    protocol = strategies.random_order(a, shares=[0.5, 0.3, 0.2])
    turned = Protocol(protocol.shares[:, order], 5.0)
    run, run_turned = evaluate(a, protocol), evaluate(b, turned)
    np.testing.assert_allclose(run.losses[:, order], run_turned.losses, rtol=1e-10)


def test_alternation_on_a_fine_grid_is_the_mixed_share(problem):
    """Order one: alternating at scale h deviates from shares (½, ½) in proportion to h."""
    mixed = evaluate(problem, strategies.interleaved(problem)).final_losses
    steps = np.array([100, 200, 400, 800])
    gaps = []
    for n in steps:
        fine = Problem(problem.model, problem.start, duration=10.0, steps=int(n))
        gaps.append(np.abs(evaluate(fine, strategies.alternating(fine)).final_losses - mixed).max())
    assert np.polyfit(np.log(steps), np.log(gaps), 1)[0] == pytest.approx(-1, abs=0.1)


def test_a_very_short_step_counts(problem):
    protocol = Protocol([[1, 0], [1, 0]], edges=[0, 1e-11, 10], lr=[3e6, 1.0])
    plain_run = evaluate(problem, Protocol([[1, 0]], 10.0))
    assert abs(evaluate(problem, protocol).loss - plain_run.loss) > 0.1 * plain_run.loss


def test_the_end_can_be_asked_for_whatever_the_rounding():
    model = TeacherStudent.similar(0.1, tasks=7, hidden=1)
    problem = Problem(model, model.fresh(), duration=35.5, steps=7)
    run = evaluate(problem, strategies.sequential(problem))
    assert run.losses_at([35.5]).tolist() == [run.final_losses.tolist()]
    assert run.times[-1] == 35.5


def test_losses_at_any_time_are_integrated_there(problem):
    protocol = strategies.focus_then_replay(problem, focus=3.3)
    run = evaluate(problem, protocol)
    times = [0.0, 1.234, 3.3, 9.99, 10.0]
    finer = evaluate(
        Problem(problem.model, problem.start, duration=10.0, steps=1),
        protocol.split(times),
    )
    at = [finer.losses[np.argmin(np.abs(finer.times - t))] for t in times]
    np.testing.assert_allclose(run.losses_at(times), at, rtol=1e-8)
    with pytest.raises(ValueError, match="`times` expects times from 0 to 10"):
        run.losses_at([10.5])


def test_per_task_learning_rates_act_on_their_task(problem):
    shares = np.full((40, 2), 0.5)
    both = Protocol(shares, 10.0, lr=np.tile([1.0, 0.0], (40, 1)))
    run = evaluate(problem, both)
    start, end = run.overlaps[0], run.overlaps[-1]
    assert np.all(start.V[1] == end.V[1])  # task 2 was shown but nothing learned from it
    assert np.any(start.V[0] != end.V[0])
    slow = Protocol.from_sequence([0] * 40, 2, 5.0)  # half the share is half the time
    short = Problem(problem.model, problem.start, duration=5.0, steps=40)
    np.testing.assert_allclose(run.final_losses, evaluate(short, slow).final_losses, rtol=1e-8)


def test_the_objective_weighs_the_losses(problem):
    weighted = Problem(problem.model, problem.start, duration=10.0, weights=[2.0, 0.5])
    run = evaluate(weighted, strategies.interleaved(weighted))
    assert run.loss == pytest.approx(run.final_losses @ [2.0, 0.5])
    assert run.error == pytest.approx(run.errors[-1] @ [2.0, 0.5])
    assert run.weighted_losses[-1] == run.loss


def test_divergence_says_when_and_what_to_try(problem):
    protocol = Protocol.from_segments([(5.0, 0), (5.0, 1)], tasks=2, lr=[1.0, 1e8])
    with pytest.raises(replan.IntegrationError, match=r"diverged after time 5 .* smaller `lr`"):
        evaluate(problem, protocol)
    run = evaluate(problem, protocol, throw=False)
    assert run.status == "diverged"
    assert run.times[-1] == 5.0
    assert np.all(np.isfinite(run.losses))
    with pytest.raises(replan.IntegrationError, match="diverged"):
        run.loss  # noqa: B018
    assert run.to_dict()["value"] is None
    assert "diverged" in str(run)


def test_accuracy_out_of_reach_is_a_status(problem):
    protocol = Protocol([[0.5, 0.5]], 10.0, lr=2e4)
    run = evaluate(problem, protocol, throw=False, rtol=1e-12)
    assert run.status != "ok"
    assert "try" in run.advice


def test_a_single_task_works(tmp_path):
    model = TeacherStudent([[1.0]], hidden=1)
    problem = Problem(model, model.fresh(), duration=20.0, steps=20)
    losses = {}
    for name, strategy in strategies.STRATEGIES.items():
        losses[name] = evaluate(problem, strategy(problem)).loss
    assert losses["no-replay"] == pytest.approx(losses["interleaved"], rel=1e-9)
    evaluate(problem, strategies.no_replay(problem)).plot(tmp_path / "one.png")


def test_files_and_text(problem, tmp_path):
    run = evaluate(problem, strategies.interleaved(problem))
    run.save(tmp_path / "run.json")
    content = json.loads((tmp_path / "run.json").read_text())
    assert content["value"] == run.loss
    assert content["losses"] == run.final_losses.tolist()
    assert np.shape(content["curves"]) == (41, 2)
    assert np.shape(content["shares"]) == (40, 2)
    assert content["problem"]["start"]["Q"] == problem.start.Q.tolist()
    assert content["replan"] == replan.__version__
    assert content["end"]["V"] == run.overlaps.V[-1].tolist()
    assert len(repr(run)) < 80
    run.save(tmp_path / "run.csv")
    table = pd.read_csv(tmp_path / "run.csv")
    assert list(table) == ["time", "loss_1", "loss_2", "weighted"]
    assert table["weighted"].iloc[-1] == run.loss
    run.plot(tmp_path / "run.pdf")
    assert "task 2" in str(run)
    assert max(map(len, str(run).splitlines())) <= 80


def test_protocols_for_another_problem_are_refused(problem):
    with pytest.raises(ValueError, match="`protocol` expects a protocol of 2 tasks, got 3"):
        evaluate(problem, Protocol([[1, 0, 0]], 10.0))
    with pytest.raises(ValueError, match="`protocol` expects a protocol of duration 10, got 9"):
        evaluate(problem, Protocol([[1, 0]], 9.0))
    with pytest.raises(ValueError, match="`protocol` expects a Protocol, got 3"):
        evaluate(problem, 3)
    with pytest.raises(ValueError, match="`problem` expects a Problem, got"):
        evaluate(strategies.interleaved(problem), problem)
    with pytest.raises(ValueError, match="`max_steps` expects an integer"):
        evaluate(problem, strategies.interleaved(problem), max_steps=0)
    with pytest.raises(ValueError, match="`rtol` expects"):
        evaluate(problem, strategies.interleaved(problem), rtol=0.0)


def test_errors_are_fought_where_they_are_made():
    """On the way out of a plateau early errors grow and show late."""
    model = TeacherStudent.similar(0.3)
    problem = Problem(model, model.fresh(seed=0), duration=100.0)
    run = evaluate(problem, strategies.one_task(problem))
    assert run.status == "ok"
    assert run.substeps.sum() < 20_000


def test_numbers_become_infinite_long_after_the_error_that_makes_them(problem):
    """A rate so large that a coarse step leads to where the equations diverge, steps later."""
    fast = Problem(problem.model, problem.start, duration=5.0, steps=50, lr=100.0)
    run = evaluate(fast, strategies.sequential(fast), max_steps=2**14)
    again = evaluate(fast, strategies.sequential(fast).refine(8))
    assert run.loss == pytest.approx(again.loss, rel=1e-8)


def test_the_error_of_averages_is_known(problem):
    counted = [
        Problem(problem.model, problem.start, duration=10.0, steps=n, running=[0.5, 0.5])
        for n in (4, 400)
    ]
    coarse, fine = (evaluate(p, strategies.one_task(counted[0], task=1)) for p in counted)
    gap = abs(coarse.loss - fine.loss)
    assert 1e-9 < gap <= 3 * coarse.error
    assert fine.error < 1e-3 * coarse.error
    assert coarse.parts["running"] == pytest.approx(coarse.average_losses.mean())


def test_tasks_that_have_names_are_called_by_them():
    model = Curriculum()
    problem = replan.Problem(model, [1.0, 1.0, 0.0], duration=1.0, steps=4)
    shown = str(evaluate(problem, strategies.interleaved(problem)))
    assert "easy 50.0%, hard 50.0%" in shown
    assert "0.5 easy + 0.5 hard" in shown
