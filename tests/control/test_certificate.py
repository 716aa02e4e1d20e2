"""What a certificate says is true: convergence, tolerance, starts, scope, Ctrl-C."""

import os
import signal

import numpy as np
import pytest

import replan
from problems import ten_units
from replan import Control, Exhaustive, Limits, Problem, Relax, TeacherStudent, solve
from replan.control import _solve
from replan.control.discretised import Controls, DiscretisedObjective
from replan.control.search import EFFORTS
from replan.control.stays import StayLengths


def rates_free(similarity=0.3, seed=1, **settings):
    """Return a problem whose plan ends orders of magnitude below typical starts."""
    model = TeacherStudent.similar(similarity)
    control = Control(head_lr=(0.0, 3.0), feature_lr=(0.0, 3.0))
    return Problem(model, model.pretrain(seed=seed), control=control, **settings)


def test_converged_means_that_little_of_the_plans_own_loss_is_left():
    plan = solve(rates_free(duration=20.0, steps=50), Relax(starts=0))
    assert plan.status == "converged"
    assert plan.certificate.residual_over_loss <= 1e-3
    assert plan.certificate.pmp_residual == plan.certificate.residual_over_loss * plan.loss


@pytest.mark.parametrize(
    "problem",
    [ten_units(), ten_units(control=Control(lr=(0.1, 4.0))), rates_free(duration=10.0, steps=20)],
    ids=["tasks", "tasks and rates", "heads and features"],
)
def test_a_tighter_tolerance_never_ends_with_a_worse_plan(problem):
    tolerances = [1e-2, 1e-3, 1e-4, 1e-5]
    losses = [solve(problem, Relax(starts=1, tolerance=x)).loss for x in tolerances]
    for old, looser, tighter in zip(tolerances, losses, losses[1:], strict=False):
        assert tighter <= looser * (1 + old)


def test_switching_times_have_the_right_slopes():
    problem = ten_units(limits=Limits(max_switches=4, min_dwell=0.5))
    rng = np.random.default_rng(0)
    tasks = np.repeat([0, 1, 0, 1], [8, 12, 4, 16])
    objective = DiscretisedObjective(problem, problem.steps)
    controls = Controls(np.eye(2)[tasks], np.ones((40, 6)))
    space = StayLengths(problem, controls)
    x = space.join(controls)
    np.testing.assert_allclose(space.split(x).shares, controls.shares, atol=1e-14)
    x = rng.dirichlet(np.full(4, 5.0))
    slopes = space.slopes(x, objective.gradient(space.split(x)))
    for _ in range(4):
        move = 1e-6 * rng.normal(size=4)
        move -= move.mean()
        ahead, behind = (objective.value(space.split(x + sign * move)) for sign in (1, -1))
        assert slopes @ move == pytest.approx((ahead - behind) / 2, rel=1e-5)


def test_the_best_value_is_found_again_and_again():
    plan = solve(ten_units())
    certificate = plan.certificate
    assert EFFORTS["normal"].again <= certificate.found <= certificate.starts
    assert 1 <= certificate.basins <= certificate.starts
    words = f"found from {certificate.found} of {certificate.starts} starts"
    assert words in str(plan) and "curves are accurate to" in str(plan)
    more = solve(ten_units(), effort="high")
    assert more.certificate.found >= EFFORTS["high"].again
    assert more.loss <= plan.loss * (1 + 1e-3)


@pytest.mark.parametrize("limits", [{}, {"max_switches": 2}, {"min_dwell": 2.0}], ids=str)
def test_few_protocols_are_all_tried(limits, monkeypatch):
    problem = ten_units(steps=20 if limits else 9, limits=Limits(**limits))
    plan = solve(problem)
    assert plan.certificate.scope == "global" and "all protocols" in str(plan)
    assert plan.loss == solve(problem, Exhaustive()).loss
    monkeypatch.setitem(EFFORTS, "normal", EFFORTS["normal"]._replace(all=0))
    searched = solve(problem)
    assert searched.certificate.scope == "local"
    assert plan.loss * (1 - 1e-9) <= searched.loss <= plan.loss * (1 + 2e-3)


def test_ctrl_c_while_a_plan_is_certified_loses_nothing(monkeypatch):
    certified = _solve._certified

    def interrupted(*arguments):
        os.kill(os.getpid(), signal.SIGINT)
        return certified(*arguments)

    monkeypatch.setattr(_solve, "_certified", interrupted)
    assert solve(ten_units(), Relax(starts=0)).status == "converged"
    with pytest.raises(KeyboardInterrupt):  # as before
        signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("high", [6.0, 60.0, 600.0])
def test_a_wide_range_of_rates_does_not_hide_good_plans(high):
    """The largest rates diverge with any integrator; smaller ones must be resolved anyhow."""
    model = TeacherStudent.similar(0.3, activation="relu")
    start = model.pretrain(seed=3, duration=30.0, lr=0.3)
    problem = Problem(model, start, 10.0, steps=16, lr=0.5, control=Control(lr=(0.0, high)))
    fast = Controls(np.full((16, 2), 0.5), model.layout.rows(problem.knobs | {"lr": 4.0}, 16))
    known = replan.evaluate(problem, replan.Protocol([[0.5, 0.5]] * 16, 10.0, lr=4.0)).loss
    assert DiscretisedObjective(problem, 16).value(fast) == pytest.approx(known, rel=1e-3)


def test_the_limit_on_gradients_keeps_what_the_coarse_grid_reached():
    problem = rates_free(duration=20.0, steps=60)
    little, more = (solve(problem, max_gradients=most) for most in (5, 100))
    assert more.loss < 0.9 * little.loss
