"""compare: strategies and the optimum side by side, in groups."""

import json

import numpy as np
import pandas as pd
import pytest

import replan
from replan import Control, Problem, Range, levers, strategies

GIVEN, FREE = "at the given learning rate", "learning rate free"


@pytest.fixture(scope="module")
def comparison():
    model = replan.TeacherStudent.similar(0.3)
    start = model.pretrain(task=0, duration=60.0, seed=1)
    return replan.compare(Problem(model, start, duration=10.0, steps=40), optimum=True)


def test_all_strategies_best_first_in_two_groups(comparison):
    assert set(comparison.runs) == {*strategies.STRATEGIES, "optimum", "optimum-lr"}
    losses = [run.loss for run in comparison.runs.values()]
    assert losses == sorted(losses)
    free = {"constant-lr", "exponential-lr", "power-law-lr", "optimum-lr"}
    assert set(comparison.groups[FREE]) == free
    assert set(comparison.groups[GIVEN]) == comparison.runs.keys() - free


def test_the_optimum_is_best_of_its_group_and_like_is_compared_with_like(comparison):
    assert [next(iter(runs)) for runs in comparison.groups.values()] == ["optimum", "optimum-lr"]
    plan, free = comparison.plans["optimum"], comparison.plans["optimum-lr"]
    assert np.ptp(plan.protocol.lr) == 0
    low, high = comparison.problem.free_range("lr")  # also that of the levers, and of the grids
    assert plan.problem.control.knobs == {}
    assert free.problem.control.knobs == {"lr": Range(low, high)}
    assert (low, high) == levers(comparison.problem, tolerance=0.1).ranges["lr"]
    rates = strategies.lr_grid(comparison.problem)
    assert low <= rates.min() < comparison.problem.knobs["lr"] < rates.max() <= high
    assert comparison.runs["optimum"].loss == plan.loss


def test_a_rate_that_the_problem_frees_keeps_its_range(problem):
    free = problem.changed(control=Control(lr=(0.5, 1.5)))
    result = replan.compare(free, ["interleaved"], optimum=True)
    assert np.ptp(result.plans["optimum"].protocol.lr) == 0
    assert result.plans["optimum-lr"].protocol.lr.max() <= 1.5
    fixed = problem.changed(control=Control(tasks=False))
    assert set(replan.compare(fixed, ["interleaved"], optimum=True).plans) == {"optimum-lr"}


def test_files(comparison, problem, tmp_path):
    comparison.save(tmp_path / "c.csv")
    table = pd.read_csv(tmp_path / "c.csv")
    columns = "strategy group value loss_1 loss_2 share_1 share_2 lr_first lr_last"
    assert list(table) == columns.split()
    assert set(table["group"]) == {GIVEN, FREE}
    comparison.save(tmp_path / "c.json")
    content = json.loads((tmp_path / "c.json").read_text())["strategies"]
    value = replan.evaluate(problem, strategies.interleaved(problem)).loss
    assert content["interleaved"]["value"] == value
    assert content["optimum"]["pmp_residual"] >= 0
    assert content["optimum-lr"]["group"] == FREE


def test_strategies_by_name_or_themselves(problem):
    result = replan.compare(problem, ["no-replay", strategies.interleaved])
    assert set(result.runs) == {"no-replay", "interleaved"}
    for bad in (["no_replay"], [], "no-replay", [3]):
        with pytest.raises(replan.ArgumentError) as caught:
            replan.compare(problem, bad)
        assert caught.value.name == "strategies"


def test_progress_counts_the_runs(problem):
    told = []
    replan.compare(problem, ["no-replay", "constant-lr"], progress=told.append)
    assert told[-1] == ("runs", 2, 2, "constant-lr")


def test_a_strategy_that_fails_does_not_stop_the_others(problem):
    result = replan.compare(problem.changed(lr=1e9), ["interleaved", "constant-lr"], optimum=True)
    assert "diverged" in result.failures["interleaved"]
    assert "optimum" in result.failures
    late = problem.changed(arrivals=[0, 5])
    assert "one-task" not in replan.compare(late, [strategies.no_replay]).failures
    assert "one-task" in replan.compare(problem.changed(arrivals=[5, 0]), ["one-task"]).failures


def test_with_a_single_task_each_protocol_counts_once(problem):
    model = replan.TeacherStudent([[1.0]], hidden=2)
    one = replan.Problem(model, model.fresh(0), duration=5.0, steps=10)
    names = replan.compare(one).runs.keys()
    assert "one-task" in names
    assert not {"no-replay", "interleaved", "sequential"} & names
    assert "interleaved" in replan.compare(one, ["one-task", "interleaved"]).runs
