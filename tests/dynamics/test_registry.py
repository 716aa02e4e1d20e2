"""Kinds of models in files, and what only some of them can do."""

import json
import os

import numpy as np
import pytest

import replan
from replan import (
    AutoModel,
    Plan,
    Problem,
    Protocol,
    TeacherStudent,
    evaluate,
    solve,
    strategies,
)
from replan.models import Model, _registry, find, register


@pytest.fixture(scope="module")
def decay():
    """Two losses that each decay while their task is trained."""

    def rate(state, task, lr):
        return {"x": state["x"].at[task].set(-lr * state["x"][task])}

    model = AutoModel(rate, lambda s: s["x"] ** 2, tasks=2, like={"x": np.ones(2)})
    return Problem(model, {"x": np.array([2.0, 1.0])}, duration=1.0, steps=8)


@pytest.fixture(scope="module")
def saved(decay, tmp_path_factory):
    plan = solve(decay)
    path = tmp_path_factory.mktemp("plans") / "plan.json"
    plan.save(path)
    return plan, path


def test_a_plan_of_a_model_of_ones_own_loads_wholly_with_the_model(decay, saved):
    plan, path = saved
    again = Plan.load(path, model=decay.model)
    assert again.loss == plan.loss
    assert again.protocol == plan.protocol
    assert again.trajectory.losses.tolist() == plan.trajectory.losses.tolist()
    assert again.problem.start["x"].tolist() == [2.0, 1.0]
    assert evaluate(again.problem, strategies.interleaved(again.problem)).status == "ok"


def test_without_the_model_the_plan_loads_as_far_as_it_goes(saved, tmp_path):
    plan, path = saved
    again = Plan.load(path)
    assert again.certificate == plan.certificate
    assert again.protocol == plan.protocol
    assert again.trajectory.curves.final.tolist() == plan.trajectory.curves.final.tolist()
    assert again.phases == plan.phases
    assert str(again) == str(plan)
    assert again.to_frame().equals(plan.to_frame())
    again.plot(tmp_path / "plan.png")
    for compute in (
        lambda: evaluate(again.problem, again.protocol),
        lambda: replan.compare(again.problem),
        lambda: solve(again.problem),
        lambda: again.trajectory.unpacked,
    ):
        with pytest.raises(ValueError, match="loaded without its model, of kind 'auto'"):
            compute()
    again.save(tmp_path / "again.json")
    assert json.loads((tmp_path / "again.json").read_text()) == json.loads(path.read_text())
    assert Plan.load(tmp_path / "again.json", model=plan.problem.model).loss == plan.loss


def doubled(state, task, lr):
    return {"x": 2 * state["x"].at[task].set(-lr * state["x"][task])}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda model: "auto", r"`model` expects the plan's model itself, got 'auto'"),
        (lambda model: TeacherStudent.similar(0.3), r"`model` .* with kind = 'auto', got .* 'teac"),
        (
            lambda model: AutoModel(
                doubled, model._program.losses, tasks=2, like={"x": np.ones(2)}
            ),
            r"`model` expects the plan's model, with rate = 'rate', got one with rate = 'doubled'",
        ),
        (
            lambda model: AutoModel(
                model._program.rate,
                lambda s: 2 * model._program.losses(s),
                tasks=2,
                like={"x": np.ones(2)},
            ),
            r"`model` expects the plan's model, with which its value is .*, got one with which it",
        ),
    ],
    ids=["word", "kind", "setting", "function"],
)
def test_a_plan_is_not_loaded_with_another_model(saved, make, message):
    plan, path = saved
    with pytest.raises(ValueError, match=message) as raised:
        Plan.load(path, model=make(plan.problem.model))
    assert str(raised.value).startswith(f"{path}: ")


def test_a_problem_that_no_file_can_describe_is_not_saved(decay, tmp_path):
    with pytest.raises(ValueError, match=r"`model\.kind` expects one of"):
        decay.save(tmp_path / "problem.toml")
    assert not list(tmp_path.iterdir())


def test_plans_of_a_registered_kind_name_it(tmp_path):
    model = TeacherStudent.similar(0.3)
    plan = solve(Problem(model, model.fresh(0), duration=1.0, steps=4), starts=0)
    plan.save(tmp_path / "plan.json")
    assert plan.to_dict()["problem"]["model"]["kind"] == "teacher-student"
    assert Plan.load(tmp_path / "plan.json").loss == pytest.approx(plan.loss, rel=1e-12)


def test_what_other_models_cannot_do_is_refused_clearly(decay):
    protocol = strategies.interleaved(decay)
    run = evaluate(decay, protocol)
    assert run.unpacked["x"].shape == (len(run.times), 2)
    for name in ("overlaps", "cosines"):
        with pytest.raises(
            ValueError, match=f"`{name}` needs a model with overlaps, got .* 'auto'"
        ):
            getattr(run, name)
        assert not hasattr(run, name)
    with pytest.raises(ValueError, match="`simulate` needs a model that can be simulated"):
        replan.simulate(decay, protocol)


class Rolls(Model):
    """A dynamics that only rolls out, in closed form."""

    kind = "rolls"
    tasks = 2

    def losses(self, states):
        return states**2

    def roll_out(self, start, pieces):
        decays = np.exp(-np.cumsum(pieces.shares * pieces.lengths[:, None], axis=0))
        return start * np.vstack([np.ones(2), decays])


def test_a_model_that_only_rolls_out_is_evaluated_and_compared_but_not_solved():
    problem = Problem(Rolls(), [2.0, 1.0], duration=1.0, steps=8)
    run = evaluate(problem, strategies.one_task(problem))
    np.testing.assert_allclose(run.final_losses, [4 * np.exp(-2), 1.0], rtol=1e-12)
    assert "no-replay" in replan.compare(problem).runs
    with pytest.raises(ValueError, match="`problem` expects a model that can be differentiated"):
        solve(problem)
    content = problem.to_dict()
    assert content["start"] == {"state": [2.0, 1.0]}
    again = Problem.from_dict(content, model=Rolls())
    assert again.state.tolist() == [2.0, 1.0]
    with pytest.raises(ValueError, match="expects a model that a file can describe, got 'rolls'"):
        Rolls.from_dict({})


def test_the_error_of_a_roll_out_that_ignores_its_substeps_is_not_known(tmp_path):
    problem = Problem(Rolls(), [2.0, 1.0], duration=1.0, steps=8)
    run = evaluate(problem, strategies.one_task(problem))
    assert np.isnan(run.error)
    assert str(run).startswith("loss 0.770671 ± unknown (task 1")
    assert "± unknown" in run._repr_html_()
    run.save(tmp_path / "run.json")
    assert json.loads((tmp_path / "run.json").read_text())["error"] is None
    still = Problem(Rolls(), [0.0, 0.0], duration=1.0, steps=8)
    assert evaluate(still, strategies.one_task(still)).error == 0.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"roll_out": lambda self, start, pieces: np.ones((len(pieces.lengths), 3))},
            r"`roll_out` expects to return states of shape \(17, 2\), with .* shape \(16, 3\)",
        ),
        (
            {"roll_out": lambda self, start, pieces: np.ones((len(pieces.lengths) + 2, 2))},
            r"`roll_out` expects to return states of shape \(17, 2\), .* got shape \(18, 2\)",
        ),
        (
            {"losses": lambda self, states: states.sum(axis=-1)},
            r"`losses` expects to return 2 numbers for a state, got shape \(\)",
        ),
        ({"tasks": property()}, r"`model` expects a dynamics with `tasks`, got a Wrong without"),
    ],
)
def test_a_model_that_does_not_keep_to_the_interface(changes, message):
    with pytest.raises(ValueError, match=message):
        problem = Problem(type("Wrong", (Rolls,), changes)(), [2.0, 1.0], duration=1.0, steps=8)
        evaluate(problem, strategies.one_task(problem))


def test_kinds_are_found_by_their_word(tmp_path, monkeypatch):
    assert find("teacher-student") is TeacherStudent
    with pytest.raises(
        ValueError, match=r"`model.kind` expects one of .* did you mean `teacher-st"
    ):
        find("teacher-studnt")
    with pytest.raises(ValueError, match="`kind` expects a new word, got 'teacher-student'"):
        register(type("Other", (Rolls,), {"kind": "teacher-student"}))
    for other in (3, TeacherStudent.similar(0.3), dict):
        with pytest.raises(ValueError, match="`model` expects a class of dynamics, got "):
            register(other)
    content = {
        "model": {"kind": "found-in-a-file"},
        "start": {"state": [1.0, 1.0]},
        "training": {"duration": 1.0},
    }
    with pytest.raises(ValueError, match="got 'found-in-a-file'"):
        Problem.from_dict(content)
    kinds = dict(_registry._KINDS)  # what is registered here is gone after the test
    monkeypatch.setattr(_registry, "_KINDS", kinds)
    path = tmp_path / "own_models.py"
    path.write_text(
        "from replan.models import register\n"
        "from test_registry import Rolls\n"
        "@register\nclass Found(Rolls):\n    kind = 'found-in-a-file'\n"
        "    from_dict = classmethod(lambda cls, content: cls())\n"
    )
    monkeypatch.setenv("REPLAN_IMPORT", os.pathsep.join(["", str(path)]))
    problem = Problem.from_dict(content)
    assert problem.model.kind == "found-in-a-file"
    assert problem.to_dict()["model"] == {"kind": "found-in-a-file"}


def test_a_protocol_is_stretched():
    protocol = Protocol.from_segments([(1.0, 0), (3.0, 1)], tasks=2, lr=[1.0, 2.0])
    longer = protocol.stretch(10.0)
    assert longer.edges.tolist() == [0.0, 2.5, 10.0]
    assert longer.mean_shares.tolist() == protocol.mean_shares.tolist()
    assert longer.stretch(4.0) == protocol
    with pytest.raises(ValueError, match="`duration` expects a finite number above 0, got 0"):
        protocol.stretch(0)


def test_long_pretraining_is_no_divergence():
    model = TeacherStudent.similar(0.3)
    long = model.pretrain(duration=1e5, seed=1)
    assert model.losses(long)[0] < model.losses(model.pretrain(duration=1e4, seed=1))[0]
    with pytest.raises(
        replan.IntegrationError, match=r"accuracy .* was not reached .* `max_steps`"
    ):
        model.pretrain(duration=1e6, max_steps=1000)
    rough = model.pretrain(duration=300.0, seed=1, rtol=1e-4)
    fine = model.pretrain(duration=300.0, seed=1)
    assert 0 < np.abs(rough.Q - fine.Q).max() < 1e-3
