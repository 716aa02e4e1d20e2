"""The problem file: every key arrives, mistakes name their key, what is saved loads again."""

import json
import tomllib
from pathlib import Path

import numpy as np
import pytest

import replan
from replan import ArgumentError, Control, Limits, Objective, Problem, Range, TeacherStudent
from replan.problem.template import problem_template

EXAMPLES = [
    path
    for path in sorted((Path(__file__).parents[2] / "examples").glob("*.toml"))
    if path.stem != "study"
]
MODEL = "[model]\nhidden = 2\nsimilarity = 0.3\n"
START = "[start]\nfresh = { seed = 3 }\n"
TRAINING = "[training]\nduration = 25.0\n"


def load(tmp_path, text):
    path = tmp_path / "problem.toml"
    path.write_text(text)
    return Problem.load(path)


def test_the_commented_example_is_the_papers_problem(tmp_path):
    problem = load(tmp_path, problem_template())
    start = TeacherStudent.similar(0.3, tasks=2, hidden=2).pretrain(task=0, seed=1)
    assert problem.start.Q.tolist() == start.Q.tolist()
    assert (problem.duration, problem.steps, problem.knobs["lr"]) == (25.0, 250, 1.0)
    assert problem.objective.weights.tolist() == [0.5, 0.5]
    assert problem.control == Control()


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_load_and_evaluate(path):
    problem = Problem.load(path)
    assert replan.evaluate(problem, replan.strategies.interleaved(problem)).status == "ok"


def test_every_key_arrives(tmp_path):
    problem = load(
        tmp_path,
        """
        [model]
        hidden = 3
        teacher_overlaps = [[1.0, 0.3], [0.3, 1.0]]
        teacher_heads = [[1.0, 0.5], [0.0, 2.0]]
        activation = "erf"
        noise = 0.2
        train_heads = [true, false]
        head_lr = 0.5
        [start]
        Q = [[1, 0, 0], [0, 1, 0], [0, 0, 1]]
        M = [[0.1, 0], [0, 0.1], [0, 0]]
        V = [[1, 2, 3], [4, 5, 6]]
        [training]
        duration = 5
        steps = 50
        lr = 2
        arrivals = [0.0, 1.0]
        departures = [4.0, inf]
        [control]
        tasks = true
        lr = { min = 0.0, max = 5.0, constant = true, shared = true }
        [objective]
        goal = "worst"
        weights = [1.0, 0.5]
        running = [0.1, 0.2]
        targets = { 1 = 0.01 }
        [limits]
        min_share = [0.1, 0.0]
        max_share = [0.5, 1.0]
        min_dwell = 0.5
        max_switches = 5
        max_replay = 0.5
        mean = { lr = { min = 1.0, max = 2.0 } }
        """,
    )
    model = problem.model
    assert (model.hidden, model.noise, model.head_lr) == (3, 0.2, 0.5)
    assert model.train_heads == (True, False)
    assert model.teacher_heads.tolist() == [[1, 0.5], [0, 2]]
    assert problem.start.M.tolist() == [[0.1, 0], [0, 0.1], [0, 0]]
    assert (problem.duration, problem.steps, problem.knobs["lr"]) == (5.0, 50, 2.0)
    assert problem.control == Control(lr=Range(0.0, 5.0, constant=True, shared=True))
    assert problem.availability.departures.tolist() == [4, 5]
    assert problem.objective.goal == "worst"
    assert problem.objective.running.tolist() == [0.1, 0.2]
    assert problem.objective.targets.tolist() == [0.01, np.inf]
    assert problem.step_limits.high.tolist() == [25, 50]
    assert (problem.step_limits.dwell, problem.step_limits.switches) == (5, 5)
    assert problem.limits.mean == {"lr": (1.0, 2.0)}
    again = Problem.from_dict(json.loads(json.dumps(problem.to_dict())))
    assert again.to_dict() == problem.to_dict()


def test_tasks_count_from_one(tmp_path):
    start = "[start]\npretrain = { task = 2, duration = 50.0, seed = 4, dimension = 100 }\n"
    problem = load(tmp_path, MODEL + start + TRAINING)
    begin = problem.model.fresh(4, dimension=100)
    expected = problem.model.pretrain(task=1, duration=50.0, start=begin)
    assert problem.start.Q.tolist() == expected.Q.tolist()


def test_a_saved_problem_is_loaded_again(tmp_path):
    model = TeacherStudent(np.eye(3), hidden=2, teacher_heads=[[1, 0.5, 0], [0, 1, 1]], noise=1e-7)
    problem = Problem(
        model,
        model.fresh(4),
        duration=7.0,
        objective=Objective(running=[0.1, 0.2], targets=[None, 0.3]),
        control=Control(lr=(0.5, 3.0)),
        limits=Limits(max_share=[0.2, 1.0], max_switches=3),
    )
    problem.save(tmp_path / "saved.toml")
    assert Problem.load(tmp_path / "saved.toml").to_dict() == problem.to_dict()
    with pytest.raises(ArgumentError) as caught:
        problem.save("saved.json")
    assert caught.value.name == "path"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("model.hiden", MODEL + "hiden = 2\n" + START + TRAINING),
        ("axes", MODEL + START + TRAINING + "[axes]\n"),
        ("objectiv", MODEL + START + TRAINING + "[objectiv]\n"),
        ("training.zzz", MODEL + START + TRAINING + "zzz = 1\n"),
        ("start.pretrain.tsk", MODEL + "[start]\npretrain = { tsk = 1 }\n" + TRAINING),
        ("model", START + TRAINING),
        ("training", MODEL + START),
        ("training.duration", MODEL + START + "[training]\nsteps = 3\n"),
        ("training.duration", MODEL + START + "[training]\nduration = -1.0\n"),
        ("training.duration", MODEL + START + "[training]\nduration = nan\n"),
        ("training.duration", MODEL + START + "[training]\nduration = {}\n"),
        ("training.lr", MODEL + START + TRAINING + "lr = -0.5\n"),
        ("training.lr", MODEL + START + TRAINING + "lr = true\n"),
        ("training.steps", MODEL + START + TRAINING + 'steps = "many"\n'),
        ("training.steps", MODEL + START + TRAINING + "steps = 2.5\n"),
        ("training.arrivals", MODEL + START + TRAINING + "arrivals = [0.0, 5.03]\n"),
        ("training.arrivals", MODEL + START + TRAINING + "arrivals = 5.0\n"),
        ("training.departures", MODEL + START + TRAINING + "departures = [1.0, nan]\n"),
        ("model", "[model]\nhidden = 2\n" + START + TRAINING),
        ("model", MODEL + "teacher_overlaps = [[1.0]]\n" + START + TRAINING),
        ("model", "model = 3\n" + START + TRAINING),
        ("training", "training = 3\n" + MODEL + START),
        ("model.similarity", MODEL.replace("0.3", "3.0") + START + TRAINING),
        (
            "model.teacher_overlaps",
            "[model]\nhidden = 2\nteacher_overlaps = 3\n" + START + TRAINING,
        ),
        (
            "model.teacher_overlaps",
            "[model]\nhidden = 2\nteacher_overlaps = [[1, 2], [2, 1]]\n" + START + TRAINING,
        ),
        ("model.noise", MODEL + "noise = -1\n" + START + TRAINING),
        ("model.activation", MODEL + 'activation = "tanh"\n' + START + TRAINING),
        ("model.train_heads", MODEL + "train_heads = 3\n" + START + TRAINING),
        ("model.kind", '[model]\nkind = "teacher"\n' + START + TRAINING),
        ("start.fresh.dimension", MODEL + "[start]\nfresh = { dimension = 3 }\n" + TRAINING),
        ("start", MODEL + "[start]\nfresh = {}\npretrain = {}\n" + TRAINING),
        ("start", MODEL + "[start]\n" + TRAINING),
        ("start", MODEL + "[start]\nQ = [[1.0]]\n" + TRAINING),
        ("start.Q", MODEL + "[start]\nQ = [[1, 0]]\nM = [[0, 0]]\nV = [[0, 0]]\n" + TRAINING),
        ("start.fresh", MODEL + "[start]\nfresh = 3\n" + TRAINING),
        ("start.pretrain.task", MODEL + "[start]\npretrain = { task = 3 }\n" + TRAINING),
        ("start.pretrain.task", MODEL + "[start]\npretrain = { task = 0 }\n" + TRAINING),
        ("control.lr", MODEL + START + TRAINING + "[control]\nlr = 3\n"),
        ("control.lr.max", MODEL + START + TRAINING + "[control]\nlr = { min = 1.0 }\n"),
        ("control.lr.min", MODEL + START + TRAINING + "[control]\nlr = { min = 3.0, max = 1.0 }\n"),
        ("control.tasks", MODEL + START + TRAINING + '[control]\ntasks = "sometimes"\n'),
        ("control.task", MODEL + START + TRAINING + "[control]\ntask = true\n"),
        ("objective.weights", MODEL + START + TRAINING + '[objective]\nweights = [1.0, "a"]\n'),
        ("objective.running", MODEL + START + TRAINING + "[objective]\nrunning = 3\n"),
        ("objective.targets", MODEL + START + TRAINING + "[objective]\ntargets = [0.1]\n"),
        ("objective.targets", MODEL + START + TRAINING + "[objective]\ntargets = { 3 = 0.1 }\n"),
        ("objective.targets", MODEL + START + TRAINING + "[objective]\ntargets = { one = 0.1 }\n"),
        ("limits.max_switch", MODEL + START + TRAINING + "[limits]\nmax_switch = 3\n"),
        ("limits.min_share", MODEL + START + TRAINING + "[limits]\nmin_share = [0.2]\n"),
        ("limits.mean.lr", MODEL + START + TRAINING + '[limits]\nmean = { lr = "high" }\n'),
        ("ensemble", MODEL + START + TRAINING + "[ensemble]\n"),
        (
            "ensemble.risk",
            MODEL + START + TRAINING + '[ensemble]\nrisk = "bad"\n'
            '[ensemble.axes]\n"model.similarity" = [0.3]\n',
        ),
        (
            "ensemble.axes.model.similarity",
            MODEL + START + TRAINING + '[ensemble.axes]\n"model.similarity" = 0.3\n',
        ),
    ],
)
def test_mistakes_name_the_key_and_the_file(tmp_path, name, text):
    with pytest.raises(ArgumentError) as caught:
        load(tmp_path, text)
    assert caught.value.name == name
    assert caught.value.source.endswith("problem.toml")
    assert "\n" not in str(caught.value)
    assert "`high`" not in str(caught.value)  # in files it is `max`


def test_what_is_no_toml_is_said_in_a_line(tmp_path):
    with pytest.raises(ValueError, match=r"problem\.toml: not a TOML file"):
        load(tmp_path, "[model")


def test_hints_name_the_nearest_key(tmp_path):
    with pytest.raises(ArgumentError) as caught:
        load(tmp_path, MODEL + START + TRAINING + "step = 3\n")
    assert "`steps`" in caught.value.got


def test_the_example_mentions_every_key():
    lines = [line.removeprefix("# ") for line in problem_template().splitlines() if "=" in line]
    keys = {line.split("=")[0].strip() for line in lines}
    tomllib.loads(problem_template())
    assert {"hidden", "similarity", "tasks", "teacher_overlaps", "teacher_heads", "noise"} <= keys
    assert {"train_heads", "head_lr", "activation", "pretrain", "fresh", "Q", "M", "V"} <= keys
    assert {"duration", "steps", "lr", "weights", "arrivals", "max_replay", "goal"} <= keys


# Ensembles


def test_axes_span_the_members(tmp_path):
    text = MODEL + START + TRAINING + "[ensemble]\nrisk = 0.5\n[ensemble.axes]\n"
    text += '"model.similarity" = [0.1, 0.5]\n"start.fresh.seed" = [1, 2]\n'
    problem = load(tmp_path, text)
    assert len(problem.members) == 4
    assert problem.names[1] == "model.similarity 0.1, start.fresh.seed 2"
    assert problem.members[3].model.teacher_overlaps[0, 1] == 0.5
    assert problem.risk.level == 0.5
    problem.save(tmp_path / "again.toml")
    assert Problem.load(tmp_path / "again.toml").to_dict() == problem.to_dict()
