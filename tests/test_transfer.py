"""Forgetting and transfer against their definitions, written plainly, and where they are shown."""

import json

import numpy as np
import pytest

import replan
from replan import Plan, Problem, TeacherStudent, evaluate, simulate, strategies
from replan.transfer import transfer


@pytest.fixture(scope="module")
def stream():
    model = TeacherStudent.stream(3, 0.6)
    start = model.pretrain(seed=1, duration=50.0)
    return Problem(model, start, duration=20.0, steps=20, arrivals=[0, 5, 10])


def test_the_definitions(stream):
    run = evaluate(stream, strategies.focus_then_replay(stream))
    found, losses = run.transfer, run.losses_at([0.0, 5.0, 10.0, 20.0])
    np.testing.assert_allclose(found.backward[:2], [losses[1, 0] - losses[3, 0],
                                                    losses[2, 1] - losses[3, 1]])  # fmt: skip
    np.testing.assert_allclose(found.forward[1:], [losses[0, 1] - losses[1, 1],
                                                   losses[0, 2] - losses[2, 2]])  # fmt: skip
    assert np.isnan(found.backward[2])
    assert np.isnan(found.forward[0])
    for task, arrival in enumerate([0.0, 5.0, 10.0]):
        since = run.losses[run.times >= arrival, task]
        assert found.forgetting[task] == losses[3, task] - since.min() >= 0
    assert found.means["forward"] == pytest.approx(np.mean(found.forward[1:]))
    assert found.forgetting[0] > 0 > found.backward[0]


def test_tasks_that_never_arrive_and_departures_alone(stream):
    never = Problem(stream.model, stream.start, duration=20.0, steps=20, arrivals=[0, 5, np.inf])
    found = evaluate(never, strategies.interleaved(never)).transfer
    assert np.isnan([found.forgetting[2], found.backward[2], found.backward[1]]).all()
    assert np.isfinite(found.forward[2])
    gone = Problem(stream.model, stream.start, duration=20.0, steps=20, departures=[5, 20, 20])
    found = evaluate(gone, strategies.interleaved(gone)).transfer
    assert found.forgetting[0] > 0
    assert np.isnan([*found.backward, *found.forward]).all()
    assert found.text.startswith("means over tasks: forgetting ")
    assert "transfer" not in found.text


def test_none_where_all_tasks_are_there(stream):
    plain = Problem(stream.model, stream.start, duration=20.0, steps=20)
    run = evaluate(plain, strategies.interleaved(plain))
    assert run.transfer is None
    assert "transfer" not in run.to_dict()
    assert "forgetting" not in replan.compare(plain, strategies=["interleaved"]).to_frame()


def test_between_known_times(stream):
    times, losses = np.array([0.0, 4.0, 8.0, 20.0]), np.zeros((2, 4, 3))
    losses[:, :, 1] = [[4.0, 3.0, 1.0, 0.5], [4.0, 2.0, 2.0, 3.0]]
    found = transfer(stream, times, losses)
    np.testing.assert_allclose(found.forward[:, 1], [1.5, 2.0])
    np.testing.assert_allclose(found.forgetting[:, 1], [0.0, 1.0])


def test_where_it_is_shown(stream, tmp_path):
    run = evaluate(stream, strategies.no_replay(stream))
    assert run.transfer.text in str(run)
    assert "forgetting" in run._repr_html_()
    assert json.loads(json.dumps(run.to_dict()))["transfer"]["backward"][2] is None
    table = replan.compare(stream, strategies=["no-replay", "interleaved"])
    assert "forgetting   backward    forward" in str(table)
    row = table.to_frame().set_index("strategy").loc["no-replay"]
    assert row["forgetting"] == run.transfer.means["forgetting"]
    assert "forgetting" in table._repr_html_()
    plan = replan.solve(stream, starts=0)
    assert plan.trajectory.transfer.text in str(plan)
    plan.save(tmp_path / "plan.json")
    assert (
        Plan.load(tmp_path / "plan.json").trajectory.transfer.text == plan.trajectory.transfer.text
    )
    runs = simulate(stream, plan.protocol, dimension=500, seeds=3)
    assert {5.0, 10.0} <= set(runs.times)
    assert runs.transfer.forgetting.shape == (3, 3)
    assert runs.transfer.text in str(runs)
    assert np.shape(runs.to_dict()["transfer"]["forward"]) == (3, 3)
