import json
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from replan import Overlaps, Problem, TeacherStudent, cli, evaluate, strategies

PROBLEM = """
[model]
hidden = 2
similarity = 0.3
[start]
pretrain = { task = 1, duration = 60.0, seed = 1 }
[training]
duration = 10.0
steps = 40
"""


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    """Run `replan …` in a folder with a problem file; give exit code, output and errors."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "problem.toml").write_text(PROBLEM)
    (tmp_path / "p.json").write_text('{"duration": 10, "shares": [[1, 0]], "lr": [1]}')

    def run(line):
        monkeypatch.setattr(sys, "argv", ["replan", *line.split()])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        shown = capsys.readouterr()
        return stopped.value.code or 0, shown.out, shown.err

    return run


def test_evaluate_writes_what_the_library_computes(run, tmp_path):
    code, out, err = run(
        "evaluate problem.toml --strategy interleaved --json o.json --at 1,2.5,10 "
        "--csv o.csv --plot o.png"
    )
    assert (code, err) == (0, "")
    assert "loss" in out
    content = json.loads((tmp_path / "o.json").read_text())
    problem = Problem.load("problem.toml")
    expected = evaluate(problem, strategies.interleaved(problem))
    assert content["value"] == expected.loss
    assert content["losses"] == expected.final_losses.tolist()
    assert content["duration"] == 10.0
    assert np.shape(content["shares"]) == (40, 2)
    assert np.shape(content["lr"]) == (40,)
    assert content["losses_at"] == expected.losses_at([1, 2.5, 10]).tolist()
    assert content["status"] == "ok"
    assert content["settings"]["strategy"] == "interleaved"
    assert content["settings"]["file"]["start"]["pretrain"]["seed"] == 1
    assert len(pd.read_csv(tmp_path / "o.csv")) == 41
    assert (tmp_path / "o.png").exists()


def test_a_saved_result_is_a_protocol(run, tmp_path):
    run("evaluate problem.toml --strategy alternating --json a.json")
    run("evaluate problem.toml --protocol a.json --json b.json")
    a, b = (json.loads((tmp_path / name).read_text()) for name in ("a.json", "b.json"))
    assert a["value"] == b["value"]
    assert a["tasks"][:4] == [1, 2, 1, 2]
    code, _, _ = run("evaluate problem.toml --strategy shuffled --protocol a.json --set seed=3")
    assert code == 0


@pytest.mark.parametrize(
    ("setting", "build"),
    [
        ("one-task --set task=2", lambda p: strategies.one_task(p, task=1)),
        ("no-replay --set new-task=1", lambda p: strategies.no_replay(p, new_task=0)),
        (
            "interleaved --set shares=0.2,0.8",
            lambda p: strategies.interleaved(p, shares=[0.2, 0.8]),
        ),
        ("sequential --set order=2,1", lambda p: strategies.sequential(p, order=[1, 0])),
        ("focus-then-revise --set focus=3", lambda p: strategies.focus_then_revise(p, focus=3)),
        (
            "exponential-lr --set initial=2 --set scale=5",
            lambda p: strategies.exponential_lr(p, initial=2, scale=5),
        ),
    ],
)
def test_settings_of_strategies_count_tasks_from_one(run, tmp_path, setting, build):
    code, _, err = run(f"evaluate problem.toml --strategy {setting} --json o.json")
    assert (code, err) == (0, "")
    problem = Problem.load("problem.toml")
    value = json.loads((tmp_path / "o.json").read_text())["value"]
    assert value == evaluate(problem, build(problem)).loss


def test_compare_shows_a_table_and_draws(run, tmp_path):
    code, out, err = run("compare problem.toml --json c.json --csv c.csv")
    assert (code, err) == (0, "")
    assert all(name in out for name in strategies.STRATEGIES)
    assert max(len(line) for line in out.splitlines()) <= 80
    assert (tmp_path / "problem-compare.png").exists()
    assert len(pd.read_csv(tmp_path / "c.csv")) == len(strategies.STRATEGIES)


def test_new_writes_a_problem_that_loads_and_keeps_what_exists(run):
    code, out, _ = run("new fresh.toml")
    assert code == 0
    assert "replan compare fresh.toml" in out
    assert Problem.load("fresh.toml").duration == 25.0
    code, _, err = run("new fresh.toml")
    assert code == 2
    assert "exists" in err


def test_explicit_overlaps_in_a_file(run, tmp_path):
    model = TeacherStudent.similar(0.3)
    start = model.fresh(5, weight_variance=0.2)
    text = PROBLEM.replace(
        "pretrain = { task = 1, duration = 60.0, seed = 1 }",
        "\n".join(f"{key} = {value}" for key, value in model.start_to_dict(start).items()),
    )
    (tmp_path / "explicit.toml").write_text(text)
    assert run("evaluate explicit.toml --strategy no-replay --json o.json")[0] == 0
    problem = Problem(model, Overlaps(start.Q, start.M, start.V), duration=10.0, steps=40)
    value = json.loads((tmp_path / "o.json").read_text())["value"]
    assert value == evaluate(problem, strategies.no_replay(problem)).loss


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("evaluate nope.toml --strategy no-replay", "nope.toml: No such file"),
        ("evaluate problem.toml --strategy interleavd", "did you mean `interleaved`?"),
        ("evaluate problem.toml", "`--strategy` or `--protocol` is missing"),
        (
            "evaluate problem.toml --strategy no-replay --set shares=1,0",
            "expects KEY=VALUE with a key",
        ),
        (
            "evaluate problem.toml --strategy one-task --set task=3",
            "`task` expects a task from 1 to 2",
        ),
        ("evaluate problem.toml --strategy one-task --set task=x", "`task` expects an integer"),
        (
            "evaluate problem.toml --strategy interleaved --set shares=0.2,0.2",
            "sum to 1, got a sum",
        ),
        (
            "evaluate problem.toml --strategy interleaved --set shares=a",
            "expects numbers with commas",
        ),
        ("evaluate problem.toml --strategy interleaved --set shares", "expects KEY=VALUE"),
        ("evaluate problem.toml --strategy one-task --set task=1 --set task=2", "each key once"),
        ("evaluate problem.toml --set task=1", "`--set` goes with `--strategy`"),
        ("evaluate problem.toml --strategy no-replay --at 1,x", "`--at` expects numbers"),
        (
            "evaluate problem.toml --strategy no-replay --at 11",
            "`--at` expects a finite number of at least 0 and at most 10",
        ),
        ("evaluate problem.toml --strategy no-replay --json no/o.json", "a folder that exists"),
        ("evaluate problem.toml --strategy no-replay --json o.txt", "ends in .json, got 'o.txt'"),
        ("evaluate problem.toml --strategy no-replay --rtol 7", "`rtol` expects a finite number"),
        ("evaluate problem.toml --protocol problem.toml", "ends in .json or .csv"),
        ("evaluate problem.toml --protocol nope.json", "nope.json: No such file"),
        (
            "evaluate problem.toml --strategy no-replay --protocol p.json",
            "`--protocol` does not go with `--strategy no-replay`",
        ),
        ("compare problem.toml --plot picture.xyz", "ends in .png or .pdf or .svg"),
        ("compare .", "directory"),
        ("conpare problem.toml", "conpare"),
        ("evaluate problem.toml --strategi x", "--strategi"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(run, line, message):
    code, _, err = run(line)
    assert code == 2
    assert len(err.splitlines()) == 1
    assert err.startswith("replan: ")
    assert message in err


def test_a_mistake_in_the_file_names_the_key(run, tmp_path):
    (tmp_path / "bad.toml").write_text(PROBLEM.replace("hidden", "hiden"))
    code, _, err = run("evaluate bad.toml --strategy no-replay")
    assert code == 2
    assert err == ("replan: bad.toml: `model.hiden` is not a known key, did you mean `hidden`?\n")


def test_divergence_is_reported_and_what_there_is_is_kept(run, tmp_path):
    (tmp_path / "wild.toml").write_text(PROBLEM + "lr = 1e9\n")
    code, _, err = run("evaluate wild.toml --strategy interleaved --json o.json")
    assert code == 1
    assert "diverged" in err
    assert "try a smaller `lr`" in err
    content = json.loads((tmp_path / "o.json").read_text())
    assert content["status"] == "diverged"
    assert content["value"] is None


def test_a_rate_that_only_a_finer_step_survives_is_reported_too(run, tmp_path):
    """Coarse runs diverge, fine ones do not, and none is accurate."""
    for lr in ("1e4", "1e5", "1e6"):
        (tmp_path / "wild.toml").write_text(PROBLEM + f"lr = {lr}\n")
        code, out, err = run("evaluate wild.toml --strategy interleaved")
        assert (code, out) == (1, "")
        assert len(err.splitlines()) == 1
        assert "try a smaller `lr`" in err


def test_stopping_a_compiled_kernel_is_stopping(run, monkeypatch):
    def interrupted(*args, **settings):
        inner = SystemError("returned a result with an exception set")
        inner.__cause__ = KeyboardInterrupt()
        raise SystemError("returned a result with an exception set") from inner

    monkeypatch.setattr(cli, "evaluate", interrupted)
    assert run("evaluate problem.toml --strategy no-replay")[::2] == (130, "replan: stopped\n")


def test_a_single_task_works_throughout(run, tmp_path):
    text = PROBLEM.replace("similarity = 0.3", "teacher_overlaps = [[1.0]]")
    (tmp_path / "one.toml").write_text(text)
    assert run("evaluate one.toml --strategy interleaved --at 1,2 --json o.json")[0] == 0
    content = json.loads((tmp_path / "o.json").read_text())
    assert np.shape(content["losses_at"]) == (2, 1)
    assert np.shape(content["shares"]) == (40, 1)
    assert run("compare one.toml")[0] == 0
    assert run("solve one.toml --json plan.json")[0] == 0
    assert json.loads((tmp_path / "plan.json").read_text())["tasks"] == [1] * 40


def test_solve_writes_a_plan_that_evaluates(run, tmp_path):
    code, out, err = run("solve problem.toml --json plan.json --plot plan.png --starts 1 --seed 3")
    assert (code, err) == (0, "")
    assert "focus on task" in out
    plan = json.loads((tmp_path / "plan.json").read_text())
    assert plan["statistics"]["seed"] == 3
    run("evaluate problem.toml --protocol plan.json --json o.json")
    assert json.loads((tmp_path / "o.json").read_text())["value"] == plan["value"]
    best = min(
        json.loads((tmp_path / "o.json").read_text())["value"]
        for name in ("interleaved", "no-replay", "focus-then-revise")
        if run(f"evaluate problem.toml --strategy {name} --json o.json")[0] == 0
    )
    assert plan["value"] < best


def test_comparing_nothing_but_divergence_fails(run, tmp_path):
    (tmp_path / "wild.toml").write_text(PROBLEM + "lr = 1e9\n")
    code, out, err = run("compare wild.toml")
    assert code == 1
    assert "failed" in out
    assert len(err.splitlines()) == 1


def test_help_and_version(run):
    for line in ("--help", "", "evaluate --help", "solve --help", "compare --help", "new -h"):
        code, out, err = run(line)
        assert (code, err) == (0, "")
        assert "Example" in out
        assert "\\b" not in out
        assert "\n  replan " in out.replace("\n    ", "\n  ")  # a line an example
        assert max(len(text) for text in out.splitlines()) <= 80
    assert run("--version")[1].startswith("replan ")


def test_an_internal_error_shows_no_traceback(run, monkeypatch):
    monkeypatch.setattr(cli, "evaluate", lambda *args, **settings: 1 / 0)
    code, _, err = run("evaluate problem.toml --strategy no-replay")
    assert code == 70
    assert err.startswith("replan: internal error, a bug in replan: ZeroDivisionError")


def test_importing_replan_is_light():
    program = (
        "import sys, replan, replan.cli; "
        "print([name for name in ('numba', 'matplotlib', 'scipy', 'jax') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


def test_simulate_beside_the_theory(run, tmp_path):
    code, out, err = run(
        "simulate problem.toml --strategy interleaved --dimension 200 --seeds 3 "
        "--json sgd.json --csv sgd.csv --plot sgd.png"
    )
    assert (code, err) == (0, "")
    assert "3 runs of SGD, N = 200" in out
    content = json.loads((tmp_path / "sgd.json").read_text())
    assert np.shape(content["losses"]) == (3, 2)
    assert len(content["ode_losses"]) == 2
    assert content["settings"]["strategy"] == "interleaved"
    code, _, err = run("simulate problem.toml --strategy interleaved --dimension 3")
    assert code == 2
    assert "`dimension` expects at least 4 dimensions" in err
    assert len(err.strip().splitlines()) == 1


def test_simulate_reports_that_every_run_diverged_and_writes_what_there_is(run, tmp_path):
    (tmp_path / "wild.toml").write_text(PROBLEM + "lr = 1e9\n")
    code, out, err = run(
        "simulate wild.toml --strategy interleaved --dimension 50 --seeds 2 --json o.json"
    )
    assert (code, err) == (1, "replan: every run diverged: try a smaller `lr`\n")
    assert "run 0, 1: diverged at sample" in out or "run 0: diverged at sample" in out
    content = json.loads((tmp_path / "o.json").read_text())
    assert content["losses"] == [[None, None], [None, None]]
    assert content["mean"] == content["ode_losses"] == [None, None]


def test_a_figure_with_its_claims(run, tmp_path):
    code, out, err = run("figure readout --quick --out made --workers 1")
    assert (code, err) == (0, "")
    assert out.startswith("readout: wrote made/readout.png, made/readout.pdf, made/readout.csv\n")
    assert "\n  holds (1 of 1): " in out
    assert (tmp_path / "made" / "claims.md").exists()
    content = json.loads((tmp_path / "made" / "claims.json").read_text())
    assert content["figures"]["readout"]["command"] == "replan figure readout --quick"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("figure similarty", "`NAME` expects one of dynamics, similarity"),
        ("figure multitask --seeds 0", "`seeds` expects an integer of at least 1, got 0"),
        ("figure readout --quick --workers 0", "`workers` expects an integer of at least 1, got 0"),
        ("figure readout --set gamma=1", "`set` expects one of similarities; got 'gamma'"),
        ("figure readout --set gamma", "`--set` expects KEY=VALUE, got 'gamma'"),
        (
            "figure readout --set similarities=0.5,2 --workers 1",
            "`similarity` expects a number from",
        ),
        ("data fetch mnist", "`name` expects one of fashion-mnist, cifar10"),
    ],
)
def test_mistakes_in_a_figure_are_refused(run, words, message):
    code, _, err = run(words)
    assert code == 2
    assert message in err
