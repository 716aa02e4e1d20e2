"""Starts on several cores: what is found does not depend on how many, to the last bit."""

import threading

import numpy as np
import pytest

from problems import fishing, reference, reference_problem, small
from replan import Control, solve

PROBLEMS = {
    "reference": lambda: reference_problem(reference("two_tasks_k2"), steps=100),
    "tasks and rates": lambda: small(0.3, steps=40, control=Control(lr=(0.0, 2.0))),
    "running costs": lambda: small(0.4, steps=40, running=[0.5, 0.5]),
    "arrivals": lambda: small(0.4, tasks=3, steps=50, arrivals=[0.0, 5.0, 12.5]),
    "fishing": lambda: fishing(100),
}


def assert_same(plan, other):
    assert other.protocol == plan.protocol
    assert other.relaxed == plan.relaxed
    assert other.certificate == plan.certificate
    assert np.array_equal(other.trajectory.losses, plan.trajectory.losses)
    assert other.status == plan.status
    work = ("starts", "gradients", "roll_outs")
    assert [other.statistics[name] for name in work] == [plan.statistics[name] for name in work]


@pytest.mark.parametrize("name", PROBLEMS)
def test_the_plan_does_not_depend_on_the_workers(name):
    problem = PROBLEMS[name]()
    plan = solve(problem, starts=4, workers=1)
    for workers in (2, 3, None):
        assert_same(plan, solve(problem, starts=4, workers=workers))


@pytest.mark.parametrize("most", [1, 3, 17, 40])
def test_a_limit_in_mid_search_is_the_same_for_any_number_of_workers(most):
    problem = PROBLEMS["reference"]()
    plan = solve(problem, starts=4, workers=1, max_gradients=most)
    assert plan.status == "limit"
    assert plan.statistics["gradients"] <= most
    for workers in (2, 3):
        assert_same(plan, solve(problem, starts=4, workers=workers, max_gradients=most))


@pytest.mark.parametrize("workers", [1, 2])
def test_a_stop_in_mid_search_keeps_the_best_and_leaves_no_thread_behind(workers):
    problem = PROBLEMS["reference"]()
    begun = solve(problem, starts=4, max_gradients=1).loss
    told = []

    def stop(progress):
        told.append(progress.done)
        if progress.done > 10:
            raise KeyboardInterrupt

    before = threading.active_count()
    plan = solve(problem, starts=4, workers=workers, progress=stop)
    assert plan.status == "stopped"
    assert plan.loss <= begun
    assert told == sorted(told)
    assert threading.active_count() == before


def test_an_error_in_a_thread_is_raised(monkeypatch):
    problem = PROBLEMS["reference"]()

    def fail(*_):
        raise ZeroDivisionError("in a step")

    monkeypatch.setattr("replan.control.relaxed_descent.RelaxedDescent.step", fail)
    with pytest.raises(ZeroDivisionError, match="in a step"):
        solve(problem, workers=2)


def test_workers_are_counted_from_one():
    with pytest.raises(ValueError, match="`workers` expects an integer of at least 1"):
        solve(PROBLEMS["reference"](), workers=0)
