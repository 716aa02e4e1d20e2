import json

import pandas as pd
import pytest

from replan import strategies


@pytest.fixture(autouse=True)
def short(run, tmp_path):
    """Make the problems short: a comparison searches grids of learning rates."""
    for path in (tmp_path / "problem.toml", tmp_path / "one.toml"):
        text = path.read_text().replace("duration = 10.0", "duration = 1.0")
        path.write_text(text.replace("steps = 40", "steps = 4"))


def test_compare_shows_a_table_and_draws(run, tmp_path):
    code, out, err = run("compare problem.toml --json c.json --csv c.csv")
    assert (code, err) == (0, "")
    assert all(name in out for name in strategies.STRATEGIES)
    assert max(len(line) for line in out.splitlines()) <= 80
    assert out.endswith("\nwrote c.json, c.csv, problem-compare.png\n")
    assert (tmp_path / "problem-compare.png").exists()
    assert len(pd.read_csv(tmp_path / "c.csv")) == len(strategies.STRATEGIES)


def test_chosen_strategies(run, tmp_path):
    code, _, err = run(
        "compare problem.toml --strategy no-replay --strategy interleaved --json c.json"
    )
    assert (code, err) == (0, "")
    content = json.loads((tmp_path / "c.json").read_text())
    assert set(content["strategies"]) == {"no-replay", "interleaved"}
    assert content["failures"] == {}
    assert content["settings"]["strategy"] == ["no-replay", "interleaved"]
    assert content["settings"]["file"]["training"]["steps"] == 4
    code, _, err = run("compare problem.toml --strategy nothing")
    assert code == 2
    assert err.startswith("replan: `--strategy` expects one of one-task, no-replay")


def test_a_single_task(run):
    assert run("compare one.toml")[0] == 0


def test_comparing_nothing_but_divergence_fails(run):
    code, out, err = run("compare wild.toml --json c.json")
    assert code == 1
    assert "failed" in out
    assert out.endswith("\nwrote c.json\n")
    assert err == "replan: no strategy has a learning curve: try a smaller `lr`\n"
