import tomllib
from pathlib import Path

import numpy as np
import pytest

import replan
from replan import Control, Limits, Overlaps, Problem, TeacherStudent
from replan.problem import example

EXAMPLE = example()
EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("[!s]*.toml"))  # not the study

MODEL = "[model]\nhidden = 2\nsimilarity = 0.3\n"
START = "[start]\nfresh = { seed = 3 }\n"
TRAINING = "[training]\nduration = 25.0\n"


def load(tmp_path, text):
    path = tmp_path / "problem.toml"
    path.write_text(text)
    return Problem.load(path)


def test_the_commented_example_is_the_papers_problem(tmp_path):
    problem = load(tmp_path, EXAMPLE)
    model = TeacherStudent.similar(0.3, tasks=2, hidden=2)
    start = model.pretrain(task=0, duration=1000.0, lr=1.0, seed=1)
    assert problem.start.Q.tolist() == start.Q.tolist()
    assert (problem.duration, problem.steps, problem.lr) == (25.0, 250, 1.0)
    assert problem.weights.tolist() == [0.5, 0.5]
    assert problem.control == Control(tasks=True, lr=None)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_load_and_evaluate(path):
    problem = Problem.load(path)
    run = replan.evaluate(problem, replan.strategies.interleaved(problem))
    assert run.status == "ok"


def test_only_model_start_and_training_are_needed(tmp_path):
    problem = load(tmp_path, MODEL + START + TRAINING)
    assert problem.model.tasks == 2
    assert problem.start.V.tolist() == problem.model.fresh(3).V.tolist()
    assert problem.weights.tolist() == [0.5, 0.5]


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
        [control]
        tasks = false
        lr = { min = 0.0, max = 5.0 }
        [objective]
        weights = [0.25, 0.75]
        """,
    )
    model = problem.model
    assert (model.hidden, model.noise, model.head_lr) == (3, 0.2, 0.5)
    assert model.train_heads == (True, False)
    assert model.teacher_heads.tolist() == [[1, 0.5], [0, 2]]
    assert problem.start.M.tolist() == [[0.1, 0], [0, 0.1], [0, 0]]
    assert (problem.duration, problem.steps, problem.lr) == (5.0, 50, 2.0)
    assert problem.control == Control(tasks=False, lr=(0.0, 5.0))
    assert problem.weights.tolist() == [0.25, 0.75]


def test_pretraining_counts_tasks_from_one(tmp_path):
    start = "[start]\npretrain = { task = 2, duration = 50.0, seed = 4, dimension = 100 }\n"
    problem = load(tmp_path, MODEL + start + TRAINING)
    begin = problem.model.fresh(4, dimension=100)
    expected = problem.model.pretrain(task=1, duration=50.0, start=begin)
    assert problem.start.Q.tolist() == expected.Q.tolist()


def test_one_task_with_several_teacher_units(tmp_path):
    text = (
        "[model]\nhidden = 2\nteacher_overlaps = [[1, 0], [0, 1]]\nteacher_heads = [1, 1]\n"
        "train_heads = false\n[start]\nfresh = { heads = [[1, 1]] }\n" + TRAINING
    )
    problem = load(tmp_path, text)
    assert problem.model.tasks == 1
    assert problem.start.V.tolist() == [[1, 1]]


def test_to_dict_gives_the_same_problem_back(problem):
    model = TeacherStudent(
        np.eye(3), hidden=2, teacher_heads=[[1, 0.5, 0], [0, 1, 1]], noise=0.2,
        train_heads=[True, False], head_lr=0.3,
    )  # fmt: skip
    rich = Problem(
        model, model.fresh(4), duration=7.0, lr=2.0, steps=30, weights=[0.2, 0.8],
        control=Control(tasks=False, lr=(0.5, 3.0)),
    )  # fmt: skip
    for one in (problem, rich):
        again = Problem.from_dict(one.to_dict())
        assert again.state.tolist() == one.state.tolist()
        assert again.to_dict() == one.to_dict()


def test_a_saved_problem_is_loaded_again(tmp_path):
    model = TeacherStudent(np.eye(3), hidden=2, teacher_heads=[[1, 0.5, 0], [0, 1, 1]], noise=1e-7)
    problem = Problem(
        model, model.fresh(4), duration=7.0, running=[0.1, 0.2], targets=[None, 0.3],
        control=Control(lr=(0.5, 3.0)), limits=Limits(max_share=[0.2, 1.0], max_switches=3),
    )  # fmt: skip
    problem.save(tmp_path / "saved.toml")
    assert Problem.load(tmp_path / "saved.toml").to_dict() == problem.to_dict()
    with pytest.raises(ValueError, match=r"ends in .toml, got 'saved.json'"):
        problem.save("saved.json")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (MODEL + "hiden = 2\n" + START + TRAINING, "`model.hiden` is not a known key, .* `hidden`"),
        (
            MODEL + START + TRAINING + "[axes]\n",
            "`axes` makes this a study: `replan study FILE` runs it",
        ),
        (
            MODEL + START + TRAINING + "[objectiv]\n",
            "`objectiv` is not .* did you mean `objective`",
        ),
        (
            MODEL + START + TRAINING + "zzz = 1\n",
            "`training.zzz` is not .* expects duration, steps",
        ),
        (
            MODEL + "[start]\npretrain = { tsk = 1 }\n" + TRAINING,
            r"`start\.pretrain\.tsk` is not a known key, did you mean `task`",
        ),
        (START + TRAINING, "`model` is missing"),
        (MODEL + START, "`training` is missing"),
        (MODEL + START + "[training]\nsteps = 3\n", r"`training\.duration` is missing"),
        (MODEL + START + "[training]\nduration = -1.0\n", r"`training\.duration` .* got -1.0"),
        (
            MODEL + START + "[training]\nduration = nan\n",
            r"`training\.duration` .*finite.* got nan",
        ),
        (MODEL + START + TRAINING + "lr = -0.5\n", r"`training\.lr` .* got -0.5"),
        (MODEL + START + TRAINING + "lr = true\n", r"`training\.lr` expects a number, got true$"),
        (MODEL + START + TRAINING + 'steps = "many"\n', r'`training\.steps` .* got "many"$'),
        (MODEL + START + TRAINING + "steps = 2.5\n", r"`training\.steps` .* got 2.5"),
        (
            "[model]\nhidden = 2\n" + START + TRAINING,
            "`model` expects `similarity` or `teacher_overlaps`, got neither",
        ),
        (
            MODEL + "teacher_overlaps = [[1.0]]\n" + START + TRAINING,
            "`model` expects `similarity` or `teacher_overlaps`, got both",
        ),
        (
            "[model]\nhidden = 2\ntasks = 2\nteacher_overlaps = [[1.0]]\n" + START + TRAINING,
            "`model` expects `tasks` only with `similarity`, got it with `teacher_overlaps`",
        ),
        ("model = 3\n" + START + TRAINING, "`model` expects a table, got 3"),
        (MODEL + START + "[training]\nduration = {}\n", r"`training\.duration` .* got \{\}"),
        ("training = 3\n" + MODEL + START, "`training` expects a table, got 3"),
        (
            MODEL.replace("0.3", "3.0") + START + TRAINING,
            r"`model\.similarity` expects a finite number of at least -1 and at most 1, got 3.0",
        ),
        (
            MODEL.replace("0.3", "-0.7") + "tasks = 3\n" + START + TRAINING,
            r"`model\.similarity` expects .* at least -0.5 and at most 1, got -0.7",
        ),
        *(
            (
                f"[model]\nhidden = 2\nteacher_overlaps = {overlaps}\n" + START + TRAINING,
                rf"`model\.teacher_overlaps` expects a matrix such as .*, got {got}",
            )
            for overlaps, got in (("3", "3"), ("[1.0, 0.3]", r"\[1.0, 0.3\]"))
        ),
        (
            '[model]\nhidden = 2\nteacher_overlaps = [[1, 0], [0, "x"]]\n' + START + TRAINING,
            r'`model\.teacher_overlaps\[1\]\[1\]` expects a number, got "x"',
        ),
        (
            "[model]\nhidden = 2\nteacher_overlaps = [[1, 0]]\n" + START + TRAINING,
            r"`model\.teacher_overlaps` expects a square matrix, got shape \(1, 2\)",
        ),
        (
            MODEL + "[start]\nfresh = { dimension = 3 }\n" + TRAINING,
            r"`start\.fresh\.dimension` expects an integer of at least 4, got 3",
        ),
        (
            MODEL + "[start]\nfresh = {}\npretrain = {}\n" + TRAINING,
            "`start` expects one of .*, got `pretrain`, `fresh`",
        ),
        (MODEL + START + TRAINING + "steps = 2000000\n", r"`training\.steps` .* got 2000000"),
        (
            MODEL + START + TRAINING + "lr = 1.0\n[control]\nlr = { min = 2.0, max = 3.0 }\n",
            r"`training\.lr` expects a rate within `control.lr`, 2 to 3, got 1",
        ),
        (
            MODEL + START + TRAINING + '[objective]\nweights = [1.0, "a"]\n',
            r'`objective\.weights\[1\]` expects a number, got "a"',
        ),
        (
            MODEL + START + TRAINING + "[objective]\nrunning = 3\n",
            r"`objective\.running` expects a list of numbers, one for each task, got 3",
        ),
        (
            MODEL + START + TRAINING + "[objective]\ntargets = [0.1]\n",
            r"`objective\.targets` expects a table such as \{ 1 = 0.01 \}, got \[0.1\]",
        ),
        (
            "[model]\nhidden = 2\nteacher_overlaps = [[1, 0.5], [0.4, 1]]\n" + START + TRAINING,
            r"`model\.teacher_overlaps` expects a symmetric matrix",
        ),
        (
            "[model]\nhidden = 2\nteacher_overlaps = [[1, 2], [2, 1]]\n" + START + TRAINING,
            r"`model\.teacher_overlaps` expects a positive semi-definite matrix",
        ),
        (MODEL + "noise = -1\n" + START + TRAINING, r"`model\.noise` .* got -1"),
        (MODEL + 'activation = "tanh"\n' + START + TRAINING, r'`model\.activation` .* got "tanh"'),
        (
            MODEL + 'teacher_activation = "relu"\n' + START + TRAINING,
            r"`model\.teacher_activation` expects the same activation .*, 'erf'",
        ),
        (
            MODEL + "train_heads = 3\n" + START + TRAINING,
            r"`model\.train_heads` expects true, false",
        ),
        (
            MODEL + "[start]\n" + TRAINING,
            "`start` expects one of `pretrain`, `fresh`, or all of .*, got none of them",
        ),
        (MODEL + "[start]\nQ = [[1.0]]\n" + TRAINING, "`start` expects one of .*, got `Q`$"),
        (
            MODEL + "[start]\nQ = [[1, 0]]\nM = [[0, 0]]\nV = [[0, 0]]\n" + TRAINING,
            r"`start\.Q` expects an array of numbers of shape \(2, 2\), got shape \(1, 2\)",
        ),
        (
            MODEL + "[start]\nQ = [[1, 0], [0]]\nM = [[0, 0]]\nV = [[0, 0]]\n" + TRAINING,
            r"`start\.Q` expects an array of numbers",
        ),
        (
            MODEL + "[start]\npretrain = { task = 3 }\n" + TRAINING,
            r"`start\.pretrain\.task` expects a task from 1 to 2, got 3",
        ),
        (
            MODEL + "[start]\npretrain = { task = 0 }\n" + TRAINING,
            r"`start\.pretrain\.task` .* got 0",
        ),
        (
            MODEL + "[start]\nfresh = { weight_variance = -1.0 }\n" + TRAINING,
            r"`start\.fresh\.weight_variance` .* got -1.0",
        ),
        (
            MODEL + START + TRAINING + "[control]\nlr = { min = 3.0, max = 1.0 }\n",
            r"`control\.lr` expects min ≤ max, got min 3 and max 1",
        ),
        (
            MODEL + START + TRAINING + "[control]\nlr = 3\n",
            r"`control\.lr` expects false or \{ min",
        ),
        (
            MODEL + START + TRAINING + "[objective]\nweights = [1.0]\n",
            r"`objective\.weights` expects an array of numbers of shape \(2,\), got shape \(1,\)",
        ),
        (
            MODEL + START + TRAINING + "[objective]\nweights = [-1.0, 2.0]\n",
            r"`objective\.weights` expects numbers of at least 0",
        ),
        (
            MODEL + "[start]\nfresh = 3\n" + TRAINING,
            r"`start\.fresh` expects a table, got 3",
        ),
        ("[model", "not a TOML file"),
    ],
)
def test_mistakes_in_the_file_are_one_line_that_names_the_key(tmp_path, text, message):
    with pytest.raises(ValueError, match=message) as caught:
        load(tmp_path, text)
    assert "problem.toml: " in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_example_mentions_every_key():
    """Also those commented out."""
    uncommented = [
        line.removeprefix("# ") if line.startswith("# ") and "=" in line else line
        for line in EXAMPLE.splitlines()
    ]
    keys = {line.split("=")[0].strip() for line in uncommented if "=" in line}
    tomllib.loads(EXAMPLE)
    assert {"hidden", "similarity", "tasks", "teacher_overlaps", "teacher_heads", "noise"} <= keys
    assert {"train_heads", "head_lr", "activation", "pretrain", "fresh", "Q", "M", "V"} <= keys
    assert {"duration", "steps", "lr", "weights"} <= keys


def test_bad_problems_are_refused():
    model = TeacherStudent.similar(0.3)
    start = model.fresh()
    with pytest.raises(ValueError, match="`model` expects a dynamics"):
        Problem("model", start, duration=1.0)
    with pytest.raises(ValueError, match="`control` expects a Control"):
        Problem(model, start, duration=1.0, control=3)
    with pytest.raises(
        ValueError, match=r"`lr` expects a rate within `control\.lr`, 2 to 3, got 1"
    ):
        Problem(model, start, duration=1.0, lr=1.0, control=Control(lr=(2.0, 3.0)))
    with pytest.raises(ValueError, match="`start` expects Overlaps"):
        Problem(model, None, duration=1.0)
    with pytest.raises(ValueError, match="`duration` expects a finite number above 0, got nan"):
        Problem(model, start, duration=np.nan)
    with pytest.raises(
        ValueError, match="`steps` expects an integer of at least 1 and at most 1000000, got 0"
    ):
        Problem(model, start, duration=1.0, steps=0)
    with pytest.raises(ValueError, match=r"`Q` expects .* shape \(2, 2\), got shape \(1, 1\)"):
        Problem(model, Overlaps([[1.0]], [[0.0, 0.0]], [[1.0], [1.0]]), duration=1.0)


def test_limits_running_costs_and_targets_from_a_file(tmp_path):
    text = EXAMPLE.replace("# running = [0.0, 0.0]", "running = [0.1, 0.2]")
    text = text.replace("# targets", "targets").replace("# [limits]", "[limits]")
    for key in ("min_share", "max_share", "min_dwell", "max_switches"):
        text = text.replace(f"# {key}", key)
    path = tmp_path / "problem.toml"
    path.write_text(text)
    problem = Problem.load(path)
    assert problem.running.tolist() == [0.1, 0.2]
    assert problem.targets.tolist() == [0.01, np.inf]
    limits = problem.step_limits
    assert limits.high.tolist() == [50, 250]
    assert (limits.dwell, limits.switches) == (5, 10)
    described = problem.to_dict()
    assert described["limits"]["max_switches"] == 10
    assert described["objective"]["targets"] == {"1": 0.01}
    again = Problem.from_dict(described)
    assert again.to_dict() == described


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("# targets = { 1 = 0.01 }", "targets = { 3 = 0.01 }", "a task from 1 to 2, got 3"),
        ("# targets = { 1 = 0.01 }", "targets = { one = 0.01 }", "expects tasks as keys"),
        (
            "# targets = { 1 = 0.01 }",
            "targets = { 1 = -1.0 }",
            r"`objective\.targets` expects a finite",
        ),
        ("# [limits]", "[limits]\nmax_switch = 3\n#", "did you mean `?max_switches"),
        ("# [limits]", "[limits]\nmax_share = [0.2, 0.2]\n#", "sum to at least 1, got 0.4"),
        ("# [limits]", "[limits]\nmin_dwell = 30.0\n#", r"`limits\.min_dwell` .* 25, got 30"),
        ("# [limits]", "[limits]\nmin_share = [0.2]\n#", r"`limits\.min_share` .* shape \(1,\)"),
    ],
)
def test_mistakes_in_limits_and_targets_are_one_line(tmp_path, old, new, message):
    assert old in EXAMPLE
    path = tmp_path / "problem.toml"
    path.write_text(EXAMPLE.replace(old, new))
    with pytest.raises(ValueError, match=message) as caught:
        Problem.load(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("keys", "settings"),
    [
        ('teachers = "drift"\ntasks = 4', {"tasks": 4}),
        ('teachers = "random"\nseed = 3', {"tasks": 2, "teachers": "random", "seed": 3}),
        (
            'teachers = "blocks"\ntasks = 5\nblocks = 2\nbetween = 0.1',
            {"tasks": 5, "teachers": "blocks", "blocks": 2, "between": 0.1},
        ),
    ],
)
def test_streams_of_teachers_from_a_file(tmp_path, keys, settings):
    problem = load(tmp_path, MODEL + keys + "\n" + START + TRAINING)
    expected = TeacherStudent.stream(similarity=0.3, hidden=2, **settings)
    assert problem.model.to_dict() == expected.to_dict()


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ("seed = 1", "`model` expects `seed` only with `teachers`, got it without"),
        ('teachers = "drift"\nblocks = 2', "`model.blocks` expects other `teachers`, got it with"),
        ('teachers = "drifts"', "`model.teachers` expects one of drift, random, blocks; got"),
    ],
)
def test_mistakes_in_streams_are_one_line(tmp_path, keys, message):
    with pytest.raises(ValueError) as raised:
        load(tmp_path, MODEL + keys + "\n" + START + TRAINING)
    assert message in str(raised.value)


# Tasks that arrive and depart


def test_arrivals_from_a_file_and_back(tmp_path):
    more = "arrivals = [0.0, 5.0]\ndepartures = [20.0, inf]\n"
    problem = load(tmp_path, MODEL + START + TRAINING + more)
    assert problem.presence.arrivals.tolist() == [0, 5]
    assert problem.presence.departures.tolist() == [20, 25]
    assert problem.presence.changes.tolist() == [5, 20]
    content = problem.to_dict()
    assert content["training"]["arrivals"] == [0, 5]
    assert content["training"]["departures"] == [20, 25]  # JSON has no inf
    problem.save(tmp_path / "again.toml")
    assert Problem.load(tmp_path / "again.toml").to_dict() == content
    assert "arrivals" not in load(tmp_path, MODEL + START + TRAINING).to_dict()["training"]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            "arrivals = [0.0, 5.03]",
            "`training.arrivals` expects times between steps, multiples of 0.1, got 5.03 for task "
            "2: use 5 or 5.1, or other `steps`",
        ),
        ("arrivals = 5.0", "`training.arrivals` expects a list of numbers, one for each task"),
        ("arrivals = [0.0]", "`training.arrivals` expects an array of numbers of shape (2,)"),
        ("departures = [1.0, nan]", "`training.departures` expects times of at least 0, or inf"),
        (
            "departures = [1.0, 2.0]",
            "`training.arrivals` and `departures` expect a task that is there at any "
            "time, got none from 2",
        ),
        ("arival = [0.0, 0.0]", "`training.arival` is not a known key, did you mean `arrivals`?"),
    ],
)
def test_mistakes_in_arrivals_are_one_line(tmp_path, more, message):
    with pytest.raises(ValueError) as raised:
        load(tmp_path, MODEL + START + TRAINING + more)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)
