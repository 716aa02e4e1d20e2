import inspect
import json
from functools import partial

import numpy as np
import pandas as pd
import pytest

import replan
from replan import Overlaps, Problem, TeacherStudent, evaluate, strategies


def test_evaluate_writes_what_the_library_computes(run, tmp_path):
    code, out, err = run(
        "evaluate problem.toml --strategy interleaved --json o.json --at 1,2.5,10 "
        "--csv o.csv --plot o.png --set shares=0.5,0.5"
    )
    assert (code, err) == (0, "")
    assert "loss" in out
    assert "\nlosses at 2.5: " in out
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
    settings = content["settings"]
    assert settings.pop("file")["start"]["pretrain"]["seed"] == 1
    assert settings == {
        "strategy": "interleaved", "set": ["shares=0.5,0.5"], "protocol": None
    }  # fmt: skip
    assert len(pd.read_csv(tmp_path / "o.csv")) == 41
    assert (tmp_path / "o.png").exists()


def test_a_task_that_stays_for_ever_is_kept_in_results(run, tmp_path):
    file = tmp_path / "problem.toml"
    times = "[training]\narrivals = [0, inf]\ndepartures = [inf, inf]"
    file.write_text(file.read_text().replace("[training]", times))
    code, _, err = run("evaluate problem.toml --strategy interleaved --json o.json")
    assert (code, err) == (0, "")
    content = json.loads((tmp_path / "o.json").read_text())["settings"]["file"]
    again = Problem.from_dict(content)
    assert again.to_dict() == Problem.load("problem.toml").to_dict()
    assert again.availability.arrivals.tolist() == [0, 10]


def test_a_problem_file_may_begin_with_a_byte_order_mark(run, tmp_path):
    file = tmp_path / "problem.toml"
    file.write_text(file.read_text(), encoding="utf-8-sig")
    code, _, err = run("evaluate problem.toml --strategy interleaved --json o.json")
    assert (code, err) == (0, "")
    assert json.loads((tmp_path / "o.json").read_text())["settings"]["file"]["model"]["hidden"] == 2


def test_a_saved_result_is_a_protocol(run, tmp_path):
    run("evaluate problem.toml --strategy alternating --json a.json")
    run("evaluate problem.toml --protocol a.json --json b.json")
    a, b = (json.loads((tmp_path / name).read_text()) for name in ("a.json", "b.json"))
    assert a["value"] == b["value"]
    assert a["tasks"][:4] == [1, 2, 1, 2]
    assert b["settings"]["protocol"] == "a.json"
    code, _, _ = run("evaluate problem.toml --strategy shuffled --protocol a.json --set seed=3")
    assert code == 0


def test_explicit_overlaps_in_a_file(run, tmp_path):
    model = TeacherStudent.similar(0.3)
    start = model.fresh(5, weight_variance=0.2)
    text = (tmp_path / "problem.toml").read_text()
    text = text.replace(
        "pretrain = { task = 1, duration = 60.0, seed = 1 }",
        "\n".join(f"{key} = {value}" for key, value in model.start_to_dict(start).items()),
    )
    (tmp_path / "explicit.toml").write_text(text)
    assert run("evaluate explicit.toml --strategy no-replay --json o.json")[0] == 0
    problem = Problem(model, Overlaps(start.Q, start.M, start.V), duration=10.0, steps=40)
    value = json.loads((tmp_path / "o.json").read_text())["value"]
    assert value == evaluate(problem, strategies.no_replay(problem)).loss


def test_a_single_task(run, tmp_path):
    assert run("evaluate one.toml --strategy interleaved --at 1,2 --json o.json")[0] == 0
    content = json.loads((tmp_path / "o.json").read_text())
    assert np.shape(content["losses_at"]) == (2, 1)
    assert np.shape(content["shares"]) == (40, 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--at 1,x", "`--at` expects numbers separated by commas, got '1,x'"),
        ("--at 11", "`--at` expects a finite number of at least 0 and at most 10"),
        ("--rtol 7", "`--rtol` expects a finite number"),
    ],
)
def test_mistakes_are_refused(run, options, message):
    code, _, err = run(f"evaluate problem.toml --strategy no-replay {options}")
    assert code == 2
    assert len(err.splitlines()) == 1
    assert message in err


def test_the_help_tells_the_default_accuracy(run):
    default = inspect.signature(evaluate).parameters["rtol"].default
    assert f"losses.  [default: {default}]" in run("evaluate --help")[1]


def test_divergence_is_reported_and_what_there_is_is_kept(run, tmp_path):
    code, _, err = run("evaluate wild.toml --strategy interleaved --json o.json")
    assert code == 1
    assert "diverged" in err
    assert "try a smaller `lr`" in err
    content = json.loads((tmp_path / "o.json").read_text())
    assert content["status"] == "diverged"
    assert content["value"] is None


@pytest.mark.parametrize("lr", ["1e4", "1e5", "1e6"])
def test_a_rate_that_only_a_finer_step_survives_is_reported_too(run, tmp_path, monkeypatch, lr):
    """Coarse runs leave the finite numbers, finer ones do not, and none is accurate."""
    monkeypatch.setattr(replan, "evaluate", partial(evaluate, max_steps=2**16))
    path = tmp_path / "wild.toml"
    path.write_text(path.read_text().replace("1e9", lr))
    code, out, err = run("evaluate wild.toml --strategy interleaved")
    assert (code, out) == (1, "")
    assert len(err.splitlines()) == 1
    assert "accuracy 1e-09 was not reached" in err
    assert "try a smaller `lr`" in err
