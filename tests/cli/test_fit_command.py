"""replan fit, and replan solve on the law that it writes."""

import json
import sys
from pathlib import Path

import pandas as pd
import pytest

import replan

sys.path.append(str(Path(__file__).parents[1] / "pilots"))
import made


@pytest.fixture
def pilots(run, tmp_path):
    """A folder with pilots, other runs, and a running training."""
    made.table(rows=60).to_csv(tmp_path / "pilots.csv", index=False)
    made.table(["50"], rows=60).to_csv(tmp_path / "other.csv", index=False)
    running = made.table(["constant"], steps=15_000, rows=60).assign(run="long")
    running.to_csv(tmp_path / "run.csv", index=False)
    running.assign(run="constant").to_csv(tmp_path / "constant.csv", index=False)
    return tmp_path


def test_from_pilots_to_a_schedule(run, pilots):
    code, out, err = run("fit pilots.csv --out law.toml --json law.json --plot law.png")
    assert (code, err) == (0, "")
    assert "5 of 5 starts agree" in out and "what this law does not know" in out
    content = json.loads((pilots / "law.json").read_text())
    assert content["fit"]["starts_agree"] == [5, 5] and "version" in content["fit"]
    assert len(content["fit"]["left_out"]) == 3
    code, out, _ = run("solve law.toml --duration 20000 --csv s.csv --json plan.json --plot s.png")
    assert code == 0
    assert out.startswith("recommended for steps 200 to 20200: ")
    assert "WARNING: THE HORIZON IS 2.0 TIMES THE PILOTS'" in out
    table = pd.read_csv(pilots / "s.csv")
    plan = json.loads((pilots / "plan.json").read_text())
    assert plan["recommended"]["lr"] == pytest.approx(table.lr.tolist())
    assert {"value", "shares", "lr", "candidates", "settings"} <= set(plan)
    for name in ("law.toml", "law.json"):
        assert replan.Problem.load(pilots / name).model.kind == "rate-law"


def test_other_runs_are_predicted_without_their_losses(run, pilots):
    code, out, _ = run("fit pilots.csv --predict other.csv --json out.json")
    assert code == 0 and "50: predicted loss 2." in out and "at 10000, 90 % interval" in out
    found = json.loads((pilots / "out.json").read_text())["predictions"]["50"]
    other = pd.read_csv(pilots / "other.csv")
    assert found["step"] == other.step.tolist()
    late = other.step > 1000
    inside = (other.loss >= found["low"]) & (other.loss <= found["high"])
    assert inside[late].mean() > 0.8
    other.drop(columns="loss").to_csv(pilots / "other.csv", index=False)
    assert run("fit pilots.csv --predict other.csv --json again.json")[0] == 0
    assert json.loads((pilots / "again.json").read_text())["predictions"]["50"] == found


def test_the_next_pilot_is_a_file_that_can_be_predicted(run, pilots):
    made.table(["constant", "20"], rows=60).to_csv(pilots / "pilots.csv", index=False)
    code, out, _ = run("fit pilots.csv --next next.csv --json out.json")
    assert code == 0 and "wrote next.csv" in out
    told = json.loads((pilots / "out.json").read_text())["fit"]["next_pilot"]
    assert told["question"] == "decay" and told["after"] < told["before"]
    assert f"next pilot: {told['name']}; it would narrow" in out
    table = pd.read_csv(pilots / "next.csv")
    assert list(table) == ["run", "step", "lr"]
    assert run("fit pilots.csv --predict next.csv --json out.json")[0] == 0
    predictions = json.loads((pilots / "out.json").read_text())["predictions"]
    assert predictions[told["name"]]["step"] == table.step.tolist()


def test_a_running_training_is_planned_on(run, pilots):
    assert run("fit pilots.csv --continue run.csv --out law.toml")[0] == 0
    code, out, _ = run("solve law.toml --duration 5000")
    assert code == 0
    assert out.startswith("recommended for steps 15000 to 20000: ")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("fit none.csv", "none.csv: `PILOTS` must be a file that can be read"),
        ("fit pilots.csv --predict none.csv --json o.json", "`--predict` must be a file"),
        ("fit pilots.csv --predict other.csv", "`--json` must be given"),
        ("fit pilots.csv --lr rate", "`--lr` must be"),
        ("fit pilots.csv --loss rate", "`--loss` must be"),
        ("fit pilots.csv --warmup -1", "`--warmup` must be"),
        ("fit other.csv", "two or more runs"),
        ("fit pilots.csv --continue constant.csv", "`--continue` must be a run with another name"),
        ("fit pilots.csv --continue pilots.csv", "`--continue` must be the log of one training"),
        ("fit problem.toml", ".csv"),
        ("fit pilots.csv --out law.yaml", ".toml"),
        ("solve pilots.csv", "such as `replan fit --out` writes"),
        ("solve problem.toml --lift rates", "`--lift` must be absent"),
        ("solve problem.toml --duration -1", "`--duration` must be"),
    ],
)
def test_mistakes_are_named(run, pilots, line, words):
    code, out, err = run(line)
    assert code == 2 and out == "" and words in err and "Traceback" not in err, err


def test_other_commands_take_a_law(run, pilots):
    assert run("fit pilots.csv --out law.toml")[0] == 0
    for line in ("levers", "compare", "evaluate --strategy interleaved", "study"):
        command, *options = line.split()
        code, out, err = run(" ".join([command, "law.toml", *options]))
        assert code == 0 and out, err
    code, _, err = run("simulate law.toml --strategy interleaved")
    assert code == 2 and "Traceback" not in err, err


def test_a_far_horizon_is_refused_and_lifted(run, pilots):
    assert run("fit pilots.csv --out law.toml")[0] == 0
    code, _, err = run("solve law.toml --duration 100000")
    assert code == 2 and "`--duration` must be" in err and "`horizon`" in err
    assert run("solve law.toml --duration 100000 --lift horizon")[0] == 0
    assert "`--lift` must be one of" in run("solve law.toml --lift none")[2]
    for option in ("--method flips", "--seed 3", "--effort normal", "--max-gradients 10"):
        name = option.split()[0]
        assert f"`{name}` must be absent" in run(f"solve law.toml {option}")[2]


def test_columns_of_other_names_are_read_from_the_running_log_too(run, pilots):
    for name in ("pilots", "run"):
        table = pd.read_csv(pilots / f"{name}.csv").rename(columns={"lr": "speed"})
        table.to_csv(pilots / f"{name}.csv", index=False)
    assert run("fit pilots.csv --lr speed --continue run.csv --out law.toml")[0] == 0
