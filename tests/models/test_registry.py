"""Kinds of models, and models that only keep to the interface."""

import os

import numpy as np
import pytest

import replan
from replan import ArgumentError, Problem, TeacherStudent, evaluate, register, solve, strategies
from replan.models import Knob, Model, registry


class Rolls(Model):
    """A model that only rolls out, in closed form."""

    kind, tasks = "rolls", 2

    def losses(self, states):
        return states**2

    def roll_out(self, start, schedule):
        decays = np.exp(-np.cumsum(schedule.shares * schedule.lengths[:, None], axis=0))
        return start * np.vstack([np.ones(2), decays])


def test_a_model_that_only_rolls_out_is_evaluated_but_not_solved():
    problem = Problem(Rolls(), [2.0, 1.0], duration=1.0, steps=8)
    run = evaluate(problem, strategies.one_task(problem))
    np.testing.assert_allclose(run.final_losses, [4 * np.exp(-2), 1.0], rtol=1e-12)
    assert 0 < run.error < 1e-12  # although it ignores its substeps
    np.testing.assert_allclose(run.average_losses, [2 - 2 * np.exp(-2), 1.0], rtol=1e-9)
    for refused in (lambda: solve(problem), lambda: replan.simulate(problem, run.protocol)):
        with pytest.raises(ArgumentError) as error:
            refused()
        assert error.value.name == "problem"
    content = problem.to_dict()
    assert content["start"] == {"state": [2.0, 1.0]}
    assert Problem.from_dict(content, model=Rolls()).state.tolist() == [2.0, 1.0]
    assert isinstance(Rolls.from_dict({}), Rolls)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        (
            "roll_out of the model",
            {"roll_out": lambda self, start, schedule: np.ones((len(schedule.lengths), 3))},
        ),
        (
            "roll_out of the model",
            {"roll_out": lambda self, start, schedule: np.ones((len(schedule.lengths) + 2, 2))},
        ),
        ("losses of the model", {"losses": lambda self, states: states.sum(axis=-1)}),
        (
            "losses of the model",
            {"losses": lambda self, x: x if np.min(x) > 0.9 else x[..., :1]},
        ),
    ],
)
def test_a_model_that_does_not_keep_to_the_interface(name, changes):
    with pytest.raises(ArgumentError) as error:
        problem = Problem(type("Wrong", (Rolls,), changes)(), [2.0, 1.0], duration=1.0, steps=8)
        evaluate(problem, strategies.one_task(problem))
    assert error.value.name == name


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("name", ("keep prob", 0.0, 1.0, 0.5)),
        ("name", ("shares", 0.0, 1.0, 0.5)),
        ("name", ("keep_2", 0.0, 1.0, 0.5)),
        ("high of keep", ("keep", 1.0, 1.0, 1.0)),
        ("low of keep", ("keep", np.nan, 1.0, 1.0)),
        ("default", ("keep", 0.0, 1.0, 2.0)),
        ("per_task of keep", ("keep", 0.0, 1.0, 0.5, 1)),
    ],
)
def test_knobs_that_make_no_sense(name, arguments):
    with pytest.raises(ArgumentError) as error:
        Knob(*arguments)
    assert error.value.name == name


def test_kinds_are_found_by_their_word(tmp_path, monkeypatch, registries):
    assert registry.find("teacher-student") is TeacherStudent
    assert {"curriculum", "denoising", "dropout"} < set(registry.KINDS)
    for bad in ("teacher-studnt", "", 3, None):
        with pytest.raises(ArgumentError) as error:
            registry.find(bad)
        assert error.value.name == "model.kind"
    with pytest.raises(ArgumentError) as error:
        register(type("Other", (Rolls,), {"kind": "teacher-student"}))
    assert error.value.name == "kind"
    for other in (3, TeacherStudent.similar(0.3), dict):
        with pytest.raises(ArgumentError) as error:
            register(other)
        assert error.value.name == "recipe"
    path = tmp_path / "own_models.py"
    path.write_text(
        "from replan import register\n"
        "from test_registry import Rolls\n"
        "@register\nclass Found(Rolls):\n    kind = 'found-in-a-file'\n"
        "    from_dict = classmethod(lambda cls, content: cls())\n"
    )
    monkeypatch.setenv("REPLAN_IMPORT", os.pathsep.join(["", str(path)]))
    content = {
        "model": {"kind": "found-in-a-file"},
        "start": {"state": [1.0, 1.0]},
        "training": {"duration": 1.0},
    }
    problem = Problem.from_dict(content)
    assert problem.to_dict()["model"] == {"kind": "found-in-a-file"}
    monkeypatch.setenv("REPLAN_IMPORT", "nowhere_to_be_found")
    with pytest.raises(ArgumentError) as error:
        registry.find("teacher-student")
    assert error.value.name == "REPLAN_IMPORT"
