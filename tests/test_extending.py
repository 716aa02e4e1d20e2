"""Models, strategies and solvers of a user's own, in Python and on the command line."""

import json
import subprocess
import sys

import numpy as np
import pytest

import replan
from replan import ArgumentError, Model, Problem
from replan.control import METHODS, Solver
from replan.models.registry import KINDS

FILE = """
[model]
kind = "decay"
speed = 0.5
[start]
state = [1.0, 0.5]
[training]
duration = 4.0
steps = 8
"""


def command_line(folder, *words):
    program = "from replan.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-c", program, *words], cwd=folder, capture_output=True, text=True
    )


def test_a_model_and_a_strategy_in_a_file_are_like_any_other(decay, tmp_path):
    (tmp_path / "problem.toml").write_text(FILE)
    problem = Problem.load(tmp_path / "problem.toml")
    run = replan.evaluate(problem, replan.strategies.interleaved(problem))
    expected = np.exp(-0.5 * 0.5 * 4.0) * np.array([1.0, 0.5])
    np.testing.assert_allclose(run.final_losses, expected, rtol=1e-12)
    assert Problem.from_dict(problem.to_dict()).to_dict() == problem.to_dict()
    words = ("--import", str(decay), "evaluate", "problem.toml", "--strategy", "half-way")
    done = command_line(tmp_path, *words, "--json", "out.json")
    assert done.returncode == 0, done.stderr
    losses = json.loads((tmp_path / "out.json").read_text())["losses"]
    np.testing.assert_allclose(losses, np.exp(-1.0) * np.array([1.0, 0.5]), rtol=1e-12)


def test_mistakes_of_the_users_code_are_one_line(decay, tmp_path):
    (tmp_path / "problem.toml").write_text(FILE.replace("0.5\n[start]", "3.0\n[start]"))
    words = ("--import", str(decay), "evaluate", "problem.toml", "--strategy", "half-way")
    done = command_line(tmp_path, *words)
    assert done.returncode != 0
    assert "ZeroDivisionError: three is too much" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    done = command_line(tmp_path, "--import", "nowhere.py", "new")
    assert done.returncode == 2
    assert "nowhere.py" in done.stderr


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [("model.speed", "speed = 0.5", "speed = 1"), ("model.sped", "speed = 0.5", "sped = 0.5"),
     ("start.state", "state = [1.0, 0.5]", "state = 3"), ("model.kind", "decay", "decoy")],
)  # fmt: skip
def test_mistakes_in_the_file_name_the_key(decay, tmp_path, name, old, new):
    (tmp_path / "problem.toml").write_text(FILE.replace(old, new))
    with pytest.raises(ArgumentError) as caught:
        Problem.load(tmp_path / "problem.toml")
    assert caught.value.name == name


def test_a_model_that_only_rolls_out_cannot_be_planned(decay, tmp_path):
    (tmp_path / "problem.toml").write_text(FILE)
    with pytest.raises(ArgumentError) as caught:
        replan.solve(Problem.load(tmp_path / "problem.toml"))
    assert caught.value.name == "problem"


def test_a_word_is_that_of_one_class_alone(registries):
    class Other(Model):
        kind, tasks = "teacher-student", 1

        def losses(self, states): ...

        def roll_out(self, start, schedule): ...

    class Relax(Solver):
        method = "relax"

        def run(self, search): ...

    def no_replay(problem): ...

    for new, name in ((Other, "kind"), (Relax, "method"), (no_replay, "name")):
        with pytest.raises(ArgumentError) as caught:
            replan.register(new)
        assert caught.value.name == name
    Other.kind, Relax.method = "other", "other"
    assert replan.register(Other) is replan.register(Other) is KINDS["other"]  # as on a reload
    assert replan.register(Relax) is METHODS["other"]
    assert METHODS["relax"] is replan.Relax


def test_models_that_return_other_shapes_are_refused():
    class Wrong(Model):
        kind, tasks = "wrong", 2

        def losses(self, states):
            return np.ones((*states.shape[:-1], 3))

        def roll_out(self, start, schedule):
            return np.tile(start, (len(schedule.lengths) + 1, 1))

    with pytest.raises(ArgumentError) as caught:
        Problem(Wrong(), [0.0], 1.0)
    assert caught.value.name == "losses of the model"


def test_a_solver_of_ones_own(problem):
    class Best(Solver):
        """The best of all strategies, with one task per step."""

        method = "best"

        def run(self, search):
            search.seed()
            return "converged"

    plan = replan.solve(problem, Best())
    runs = replan.compare(problem).runs
    assert plan.protocol.is_discrete
    assert plan.loss <= min(run.loss for run in runs.values() if run.protocol.is_discrete)
