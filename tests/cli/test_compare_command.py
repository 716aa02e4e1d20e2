import json

import pandas as pd

from replan import strategies


def test_compare_shows_a_table_and_draws(run, tmp_path):
    code, out, err = run("compare problem.toml --optimum --json c.json --csv c.csv")
    assert (code, err) == (0, "")
    names = {*strategies.STRATEGIES, "optimum", "optimum-lr"}
    assert all(name in out for name in names)
    assert max(len(line) for line in out.splitlines()) <= 100
    assert out.endswith("\nwrote c.json, c.csv, problem-compare.png\n")
    assert (tmp_path / "problem-compare.png").exists()
    assert set(pd.read_csv(tmp_path / "c.csv")["strategy"]) == names
    content = json.loads((tmp_path / "c.json").read_text())
    assert content["settings"]["optimum"] is True
    assert content["strategies"]["optimum"]["status"] == "converged"


def test_chosen_strategies(run, refused, tmp_path):
    line = "compare problem.toml --strategy no-replay --strategy interleaved --json c.json"
    assert run(line)[::2] == (0, "")
    content = json.loads((tmp_path / "c.json").read_text())
    assert set(content["strategies"]) == {"no-replay", "interleaved"}
    assert content["settings"]["strategy"] == ["no-replay", "interleaved"]
    assert content["settings"]["file"]["training"]["steps"] == 8
    refused("compare problem.toml --strategy nothing", "--strategy")
    assert run("compare one.toml")[0] == 0
    assert run("compare ensemble.toml --strategy no-replay --strategy interleaved")[0] == 0


def test_comparing_nothing_but_divergence_fails(run):
    code, out, err = run("compare wild.toml --strategy interleaved --json c.json")
    assert (code, err) == (1, "replan: no strategy has a learning curve: try a smaller `lr`\n")
    assert "failed" in out
    assert out.endswith("\nwrote c.json\n")
