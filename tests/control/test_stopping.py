"""When a search ends: relative to what the controls can change, and not below the rounding."""

from functools import partial

import numpy as np
import pytest

from replan import (
    Exhaustive,
    Flips,
    ForwardBackward,
    Plan,
    Problem,
    Relax,
    SolveError,
    TeacherStudent,
    evaluate,
    solve,
    strategies,
)


@pytest.fixture(scope="module")
def learnt():
    """The paper's problem, but for its duration and learning rate."""
    model = TeacherStudent.similar(0.3)
    return model, model.pretrain(duration=1000.0, seed=1)


def test_the_integrator_follows_a_learning_rate_that_is_too_large_for_it(learnt):
    """At lr = 30 the error of the first integrator is a fifth of the loss."""
    plan = solve(Problem(*learnt, duration=5.0, steps=50, lr=30.0))
    assert plan.certificate.discretisation_error < 1e-3 * plan.loss
    assert np.isfinite(plan.certificate.multistart_spread)
    assert plan.status == "converged"


def test_a_plan_that_the_integrator_limits_says_so(learnt, monkeypatch):
    monkeypatch.setattr("replan.control.objective._MOST_SUBSTEPS", 1)
    problem = Problem(*learnt, duration=5.0, steps=10, lr=10.0)
    plan = solve(problem)
    assert plan.status == "inaccurate"
    assert "the integrator, not the search, limits this plan" in str(plan)
    with pytest.raises(SolveError, match="inaccurate: the integrator") as caught:
        solve(problem, throw=True)
    assert caught.value.plan.loss == plan.loss


def test_a_plan_is_kept_where_the_integrator_cannot_reach_its_accuracy(
    learnt, monkeypatch, tmp_path
):
    monkeypatch.setattr("replan.control.certificate.evaluate", partial(evaluate, max_steps=300))
    problem = Problem(*learnt, duration=5.0, steps=10)
    plan = solve(problem)
    assert plan.trajectory.rtol == 1e-5
    assert (plan.status, plan.trajectory.status) == ("inaccurate", "ok")
    assert plan.certificate.discretisation_error >= plan.trajectory.error
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json").trajectory.rtol == 1e-5


def test_losses_at_the_rounding_are_not_worth_a_search(learnt):
    """After 1,000 units the losses are about 1e-11, a billionth of what the controls change."""
    plan = solve(Problem(*learnt, duration=1000.0))
    assert plan.loss < 1e-10
    assert plan.status == "converged"
    assert plan.statistics["gradients"] < 200


def test_a_smaller_tolerance_leaves_less_on_the_table(learnt):
    problem = Problem(*learnt, duration=10.0, steps=40)
    rough, fine = solve(problem, tolerance=1e-1), solve(problem, Relax(tolerance=1e-7))
    assert fine.certificate.pmp_residual < 0.1 * rough.certificate.pmp_residual
    assert fine.certificate.relaxed_value <= rough.certificate.relaxed_value
    assert fine.statistics["gradients"] > rough.statistics["gradients"]


def test_no_starts_besides_a_given_one_means_that_one_alone(learnt):
    problem = Problem(*learnt, duration=10.0, steps=40)
    given = strategies.sequential(problem)
    plan = solve(problem, start=given, starts=0)
    assert plan.statistics["starts"] == 1
    assert plan.loss <= evaluate(problem, given).loss


def test_settings_go_into_the_solver_where_one_is_given(learnt):
    problem = Problem(*learnt, duration=10.0, steps=8)
    with pytest.raises(ValueError, match="`tolerance` goes into the solver where one is given"):
        solve(problem, Flips(), tolerance=1e-3)
    with pytest.raises(ValueError, match="`solver` expects a solver such as Relax"):
        solve(problem, "relax")
    for bad, message in (
        (lambda: Relax(tolerance=0), "`tolerance` expects a finite number above 0"),
        (lambda: Relax(starts=-1), "`starts` expects an integer of at least 0"),
        (lambda: ForwardBackward(damping=1.5), "`damping` expects a finite number above 0 and at"),
        (lambda: Flips(failures=0), "`failures` expects an integer of at least 1"),
    ):
        with pytest.raises(ValueError, match=message):
            bad()


def test_the_undamped_sweep_cycles_and_says_so(learnt):
    plan = solve(Problem(*learnt, duration=25.0, steps=50), ForwardBackward(damping=1.0))
    assert plan.status == "cycled"
    assert "try a smaller `damping`" in plan.advice


def test_progress_is_told_while_starts_are_gathered_and_grids_are_searched(learnt):
    from replan import Control

    problem = Problem(*learnt, duration=2.0, steps=4, control=Control(lr=(0.0, 2.0)))
    told = []
    solve(problem, progress=told.append, max_gradients=30)
    notes = [progress.note for progress in told]
    assert any("exponential-lr: 5 of" in note for note in notes)
    assert any(note.startswith("best ") for note in notes)
    assert [progress.done for progress in told] == sorted(progress.done for progress in told)


def test_ctrl_c_while_starts_are_gathered_keeps_the_best_of_them(learnt, monkeypatch):
    problem = Problem(*learnt, duration=2.0, steps=4)

    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setitem(strategies.STRATEGIES, "sequential", strategies.Strategy(interrupt))
    plan = solve(problem)
    assert plan.status == "stopped"
    monkeypatch.setitem(strategies.STRATEGIES, "one-task", strategies.Strategy(interrupt))
    with pytest.raises(KeyboardInterrupt):
        solve(problem, Exhaustive())
