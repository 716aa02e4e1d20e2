import json

import numpy as np
import pandas as pd
import pytest

import replan
from replan import Problem, strategies

LAST = ["lr_first", "lr_last"]


@pytest.fixture
def comparison(problem):
    return replan.compare(problem)


def test_all_strategies_best_first(comparison):
    assert set(comparison.runs) == set(strategies.STRATEGIES)
    losses = [run.loss for run in comparison.runs.values()]
    assert losses == sorted(losses)


def test_table_fits_a_terminal(comparison):
    lines = str(comparison).splitlines()
    assert len(lines) == 1 + len(strategies.STRATEGIES)
    assert max(map(len, lines)) <= 80
    assert all(name in str(comparison) for name in strategies.STRATEGIES)


def test_table_of_three_tasks_fits_too():
    model = replan.TeacherStudent.similar(0.3, tasks=3)
    problem = Problem(model, model.fresh(), duration=10.0, steps=20)
    lines = str(replan.compare(problem)).splitlines()
    assert max(map(len, lines)) <= 80


def test_table_of_ten_tasks_that_arrive():
    """The least and the largest losses stand for all, which are in the frame."""
    model = replan.TeacherStudent.stream(10, 0.5)
    problem = Problem(model, model.fresh(), duration=10.0, steps=20, arrivals=[0.0, *[4.0] * 9])
    found = replan.compare(problem, strategies=["interleaved", "no-replay"])
    head, *lines = str(found).splitlines()
    assert max(map(len, [head, *lines])) <= 100
    assert head.split()[:6] == ["strategy", "loss", "least", "of", "a", "task"]
    for line, run in zip(lines, found.runs.values(), strict=True):
        worst = int(np.argmax(run.final_losses))
        assert f" {run.final_losses[worst]:.3g} task {worst + 1} " in line
    assert len([x for x in found.to_frame() if x.startswith("loss_")]) == 10
    assert "4 to 10       0.1 each of task 1 to task 10" in str(found.runs["interleaved"])


def test_files(comparison, problem, tmp_path):
    comparison.save(tmp_path / "c.csv")
    table = pd.read_csv(tmp_path / "c.csv")
    assert list(table) == ["strategy", "value", "loss_1", "loss_2", "share_1", "share_2", *LAST]
    comparison.save(tmp_path / "c.json")
    content = json.loads((tmp_path / "c.json").read_text())
    value = content["strategies"]["interleaved"]["value"]
    assert value == replan.evaluate(problem, strategies.interleaved(problem)).loss
    comparison.plot(tmp_path / "c.png")
    assert (tmp_path / "c.png").stat().st_size > 10_000


def test_chosen_strategies_by_name_or_themselves(problem):
    result = replan.compare(problem, strategies=["no-replay", strategies.interleaved])
    assert set(result.runs) == {"no-replay", "interleaved"}
    with pytest.raises(ValueError, match=r"`strategies` expects one of .* did you mean"):
        replan.compare(problem, strategies=["no_replay"])
    with pytest.raises(ValueError, match="`strategies` expects at least one, got none"):
        replan.compare(problem, strategies=[])
    with pytest.raises(ValueError, match="`strategies` expects a list of strategies"):
        replan.compare(problem, strategies="no-replay")


def test_progress_counts_the_points_of_grids(problem):
    """Which take nearly all of the time."""
    told = []
    replan.compare(problem, strategies=["no-replay", "constant-lr"], progress=told.append)
    assert told[0] == ("runs", 1, 2, "no-replay")
    assert told[-1] == ("runs", 15, 15, "constant-lr")  # 13 points of the grid
    assert [one.done for one in told] == sorted(one.done for one in told)


def test_a_strategy_that_fails_does_not_take_the_others_along(problem):
    wild = Problem(problem.model, problem.start, duration=10.0, lr=1e9)
    result = replan.compare(wild)
    assert "diverged" in result.failures["interleaved"]
    assert "failed" in str(result)


def test_strategies_that_only_order_tasks_count_once_where_there_is_one(problem):
    model = replan.TeacherStudent([[1.0]], hidden=2)
    one = replan.Problem(model, model.fresh(0), duration=5.0, steps=10)
    found = replan.compare(one)
    assert "one-task" in found.runs
    assert not {"no-replay", "interleaved", "sequential"} & found.runs.keys()
    assert "interleaved" in replan.compare(one, strategies=["one-task", "interleaved"]).runs
    assert "no-replay" in replan.compare(problem).runs
