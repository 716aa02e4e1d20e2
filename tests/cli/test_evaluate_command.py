"""replan evaluate, and what it shares with others: settings and protocols."""

import json

import numpy as np
import pandas as pd
import pytest

from replan import ArgumentError, Problem, evaluate, strategies
from replan.cli._options import parse_settings


def read(tmp_path, name="o.json"):
    return json.loads((tmp_path / name).read_text())


def test_evaluate_writes_what_the_library_computes(run, tmp_path):
    code, out, err = run(
        "evaluate problem.toml --strategy interleaved --json o.json --at 1,1.5,2 "
        "--csv o.csv --plot o.png --set shares=0.5,0.5"
    )
    assert (code, err) == (0, "")
    assert "\nlosses at 1.5: " in out
    assert "\nwrote o.json, o.csv, o.png\n" in out
    content, problem = read(tmp_path), Problem.load("problem.toml")
    expected = evaluate(problem, strategies.interleaved(problem))
    assert content["value"] == expected.loss
    assert content["losses"] == expected.final_losses.tolist()
    assert content["losses_at"] == expected.losses_at([1, 1.5, 2]).tolist()
    assert (content["duration"], content["status"]) == (2.0, "ok")
    assert (np.shape(content["shares"]), np.shape(content["lr"])) == ((8, 2), (8,))
    options = content["settings"]
    assert options.pop("file")["start"]["pretrain"]["seed"] == 1
    assert options == {"strategy": "interleaved", "set": ["shares=0.5,0.5"], "protocol": None}
    assert len(pd.read_csv(tmp_path / "o.csv")) == 9
    assert (tmp_path / "o.png").exists()


def test_a_saved_result_is_a_protocol(run, tmp_path):
    run("evaluate problem.toml --strategy alternating --json a.json")
    run("evaluate problem.toml --protocol a.json --json b.json")
    a, b = read(tmp_path, "a.json"), read(tmp_path, "b.json")
    assert a["value"] == b["value"]
    assert a["tasks"][:4] == [1, 2, 1, 2]
    assert b["settings"]["protocol"] == "a.json"
    assert run("evaluate problem.toml --strategy shuffled --protocol a.json --set seed=3")[0] == 0


def test_times_without_end_are_kept_in_results(run, tmp_path):
    file = tmp_path / "problem.toml"
    times = "[training]\narrivals = [0, inf]\ndepartures = [inf, inf]"
    file.write_text(file.read_text().replace("[training]", times))
    assert run("evaluate problem.toml --strategy interleaved --json o.json")[::2] == (0, "")
    again = Problem.from_dict(read(tmp_path)["settings"]["file"])
    assert again.to_dict() == Problem.load("problem.toml").to_dict()


def test_other_problems(run, tmp_path):
    assert run("evaluate one.toml --strategy interleaved --at 1,2 --json o.json")[0] == 0
    assert np.shape(read(tmp_path)["losses_at"]) == (2, 1)
    code, out, _ = run("evaluate ensemble.toml --strategy interleaved --json o.json")
    assert (code, "members from " in out) == (0, True)
    values = [member["value"] for member in read(tmp_path)["members"]]
    assert read(tmp_path)["value"] == max(values)


def test_divergence_is_reported_and_the_rest_is_kept(run, tmp_path):
    code, out, err = run("evaluate wild.toml --strategy interleaved --json o.json")
    assert (code, out) == (1, "wrote o.json\n")
    assert "diverged" in err
    assert (read(tmp_path)["status"], read(tmp_path)["value"]) == ("diverged", None)


@pytest.mark.parametrize(
    ("setting", "build"),
    [
        ("one-task --set task=2", lambda p: strategies.one_task(p, task=1)),
        ("no-replay --set new-task=1", lambda p: strategies.no_replay(p, new_task=0)),
        ("sequential --set order=2,1", lambda p: strategies.sequential(p, order=[1, 0])),
        ("focus-then-replay --set focus=1", lambda p: strategies.focus_then_replay(p, focus=1)),
    ],
)
def test_settings_count_tasks_from_one(run, tmp_path, setting, build):
    assert run(f"evaluate problem.toml --strategy {setting} --json o.json")[::2] == (0, "")
    problem = Problem.load("problem.toml")
    assert read(tmp_path)["value"] == evaluate(problem, build(problem)).loss


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3), ("1e-3", 1e-3), ("0.2,0.8", [0.2, 0.8]), ("[1, 3]", [1, 3]),
        ("true", True), ("null", None), ("unit", "unit"), ("a,b", "a,b"), ("1,", "1,"),
        ("a=b", "a=b"), ("", ""), ("[" * 9999, "[" * 9999),
    ],
)  # fmt: skip
def test_a_value_is_json_or_numbers_or_a_word(text, value):
    parsed = parse_settings([f"new-task={text}"])["new_task"]
    assert (parsed, type(parsed)) == (value, type(value))


@pytest.mark.parametrize("texts", [["seed"], ["=3"], [""], ["a=1", "a=2"]])
def test_settings_without_key_or_value_or_given_twice(texts):
    with pytest.raises(ArgumentError) as caught:
        parse_settings(texts)
    assert caught.value.name == "--set"


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ("--strategy interleavd", "--strategy"),
        ("", "--strategy"),
        ("--set task=1", "--set"),
        ("--strategy no-replay --set shares=1,0", "--set"),
        ("--strategy shuffled --set protocol=p.json", "--set"),
        ("--strategy one-task --set task=3", "--set task"),
        ("--strategy one-task --set task=0", "--set task"),
        ("--strategy one-task --set task=x", "--set task"),
        ("--strategy sequential --set order=1,1.5", "--set order"),
        ("--strategy interleaved --set shares=0.2,0.2", "--set shares"),
        ("--strategy interleaved --set shares=a", "--set shares"),
        ("--strategy focus-then-replay --set focus=x", "--set focus"),
        ("--strategy random-order --set seed=1.5", "--set seed"),
        ("--strategy no-replay --protocol p.json", "--protocol"),
        ("--protocol problem.toml", "--protocol"),
        ("--protocol three.json", "--protocol"),
        ("--strategy no-replay --at 1,x", "--at"),
        ("--strategy no-replay --at 11", "--at"),
        ("--strategy no-replay --rtol 7", "--rtol"),
    ],
)
def test_mistakes_name_the_option(refused, options, name):
    refused(f"evaluate problem.toml {options}", name)
