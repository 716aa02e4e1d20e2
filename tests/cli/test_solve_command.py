import json

import pytest

from replan import strategies


def test_solve_writes_a_plan_that_evaluates(run, tmp_path):
    def value(line):
        assert run(f"evaluate problem.toml {line} --json o.json")[0] == 0
        return json.loads((tmp_path / "o.json").read_text())["value"]

    code, out, err = run("solve problem.toml --json plan.json --plot plan.png --starts 1 --seed 3")
    assert (code, err) == (0, "")
    assert "global optimum: " in out
    plan = json.loads((tmp_path / "plan.json").read_text())
    keys = "value losses duration shares lr tasks relaxed_value integrality_gap pmp_residual status"
    assert set(keys.split()) <= plan.keys()
    assert plan["statistics"]["seed"] == 3
    assert plan["settings"]["file"]["start"]["pretrain"]["seed"] == 1
    assert (tmp_path / "plan.png").exists()
    assert value("--protocol plan.json") == plan["value"]
    assert plan["value"] <= value("--strategy alternating")


def test_a_protocol_to_begin_from_and_other_problems(run, tmp_path):
    line = "solve problem.toml --starts 0 --protocol p.json --json plan.json"
    assert run(line)[::2] == (0, "")
    settings = json.loads((tmp_path / "plan.json").read_text())["settings"]
    assert (settings["starts"], settings["protocol"]) == (0, "p.json")
    assert run("solve one.toml --json plan.json")[0] == 0
    assert json.loads((tmp_path / "plan.json").read_text())["tasks"] == [1] * 8
    code, out, _ = run("solve ensemble.toml")
    assert (code, out.startswith("loss (worst of 2 members) ")) == (0, True)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ("--method relx", "--method"),
        ("--method exhaustive --starts 1", "--starts"),
        ("--starts -1", "--starts"),
        ("--tolerance 2", "--tolerance"),
        ("--max-gradients 0", "--max-gradients"),
        ("--protocol problem.toml", "--protocol"),
        ("--protocol three.json", "--protocol"),
    ],
)
def test_mistakes_name_the_option(refused, options, name):
    refused(f"solve problem.toml {options}", name)


def test_a_search_that_was_stopped_keeps_its_plan_and_says_so(run, tmp_path, monkeypatch):
    def interrupting(problem):
        raise KeyboardInterrupt

    monkeypatch.setitem(strategies.STRATEGIES, "last", strategies.Strategy(interrupting))
    code, out, err = run("solve problem.toml --json plan.json")
    assert (code, err.strip()) == (130, "replan: stopped")
    assert out.startswith("loss ")
    assert json.loads((tmp_path / "plan.json").read_text())["status"] == "stopped"
