"""Ensembles and rules on the command line."""

import json

import pytest

import replan


@pytest.fixture
def file(run, tmp_path):
    (tmp_path / "ensemble.toml").write_text(
        """
[model]
hidden = 2

[start]
pretrain = { duration = 5.0, seeds = [1, 2] }

[training]
duration = 2.0
steps = 4

[ensemble]
similarity = [0.2, 0.6]
risk = 0.5
test_seeds = 1
"""
    )
    return "ensemble.toml"


def test_solve_reports_members_and_the_price_of_not_knowing(run, file, tmp_path):
    code, out, err = run(f"solve {file} --json plan.json --plot plan.png")
    assert (code, err) == (0, "")
    assert out.startswith("loss (mean of the worst 50 % of 4 members) ")
    assert "plan, 2 unseen" in out
    content = json.loads((tmp_path / "plan.json").read_text())
    assert [one["name"] for one in content["members"]] == [
        "similarity 0.2, seed 1", "similarity 0.2, seed 2",
        "similarity 0.6, seed 1", "similarity 0.6, seed 2",
    ]  # fmt: skip
    values = sorted(one["value"] for one in content["members"])
    assert content["value"] == pytest.approx(sum(values[2:]) / 2)
    assert set(content["regret"]) == {"seen", "unseen"}
    assert len(content["regret"]["unseen"]["members"]) == 2
    assert content["settings"]["file"]["ensemble"]["test_seeds"] == 1
    assert replan.Plan.load(tmp_path / "plan.json").loss == content["value"]
    assert (tmp_path / "plan.png").exists()


def test_solve_without_regret(run, file, tmp_path):
    code, out, _ = run(f"solve {file} --no-regret --json plan.json")
    assert code == 0
    assert "regret" not in out
    assert "regret" not in json.loads((tmp_path / "plan.json").read_text())


def test_evaluate_and_compare(run, file, tmp_path):
    code, out, err = run(f"evaluate {file} --strategy interleaved --json out.json")
    assert (code, err) == (0, "")
    assert "members from " in out
    content = json.loads((tmp_path / "out.json").read_text())
    assert all(len(one["losses"]) == 2 for one in content["members"])
    code, out, err = run(f"compare {file} --strategy interleaved --strategy no-replay")
    assert (code, err) == (0, "")


def test_simulate_refuses_an_ensemble(run, file):
    code, _, err = run(f"simulate {file} --strategy interleaved")
    assert code == 2
    assert "expects one problem to simulate, got an ensemble of 4" in err
