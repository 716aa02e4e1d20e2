import json

import numpy as np
import pandas as pd
import pytest

import replan

NAMES = ["nothing", "share", "rate", "timing", "curve", "rates", "all"]


@pytest.fixture(autouse=True)
def short(run, tmp_path):
    """Make the problems short: each of a dozen is solved."""
    for path in tmp_path.glob("*.toml"):
        text = path.read_text().replace("duration = 10.0", "duration = 2.0")
        path.write_text(text.replace("steps = 40", "steps = 3"))


def test_levers_shows_a_table_and_draws(run, tmp_path):
    code, out, err = run("levers problem.toml --json l.json --csv l.csv")
    assert (code, err) == (0, "")
    assert [line.split()[0] for line in out.splitlines()[1:8]] == NAMES
    assert max(len(line) for line in out.splitlines()) <= 80
    assert "lr from 0 to 5: up to 5 times the problem's" in out
    assert out.endswith("\nwrote l.json, l.csv, problem-levers.png\n")
    assert (tmp_path / "problem-levers.png").exists()
    assert pd.read_csv(tmp_path / "l.csv")["lever"].tolist() == NAMES
    content = json.loads((tmp_path / "l.json").read_text())
    assert list(content["levers"]) == list(content["certificates"]) == NAMES
    assert content["levers"]["all"] <= min(content["levers"].values()) * (1 + 1e-6)
    assert content["levers"]["timing"] <= content["levers"]["share"] * (1 + 1e-6)
    assert list(content["without"]) == ["share", "timing", "rate", "curve", "rates"]
    assert content["ranges"] == {"lr": [0.0, 5.0]}
    assert content["settings"] | {"file": {}} == {"file": {}, "seeds": 1, "tolerance": 1e-4}
    assert content["settings"]["file"]["training"]["steps"] == 3
    assert content["replan"] == replan.__version__
    assert replan.Levers.load(tmp_path / "l.json").names == NAMES


def test_several_seeds(run, tmp_path):
    code, out, err = run("levers problem.toml --seeds 2 --json l.json --tolerance 0.01")
    assert (code, err) == (0, "")
    assert out.startswith("medians of 2 starts, quartiles in brackets\n")
    content = json.loads((tmp_path / "l.json").read_text())
    assert content["settings"]["seeds"] == len(content["starts"]) == 2
    model = replan.TeacherStudent.similar(0.3)
    for seed, one in zip((1, 2), content["starts"], strict=True):
        start = model.pretrain(duration=60.0, seed=seed)
        assert one["problem"]["start"]["V"] == start.V.tolist()


def test_a_single_task(run):
    code, out, err = run("levers one.toml")
    assert (code, err) == (0, "")
    assert [line.split()[0] for line in out.splitlines()[1:5]] == [
        "nothing",
        "rate",
        "curve",
        "all",
    ]


@pytest.mark.parametrize(("line", "message"), [
    ("problem.toml --seeds 0", "`--seeds` expects an integer of at least 1, got 0"),
    ("fresh.toml --seeds 2", "`--seeds` expects a seed in the section [start]"),
    ("problem.toml --tolerance 2", "`--tolerance` expects"),
    ("limited.toml", "`problem` expects limits that mixtures of tasks can keep"),
])  # fmt: skip
def test_mistakes(run, tmp_path, line, message):
    text = (tmp_path / "problem.toml").read_text()
    (tmp_path / "limited.toml").write_text(f"{text}\n[limits]\nmax_switches = 1\n")
    code, _, err = run(f"levers {line}")
    assert code == 2
    assert message in err
    assert len(err.splitlines()) == 1


def test_levers_of_a_divergence_fail(run):
    code, _, err = run("levers wild.toml")
    assert code == 1
    assert len(err.splitlines()) == 1


def test_constant_controls_in_a_file(run, tmp_path):
    path = tmp_path / "problem.toml"
    controls = 'tasks = "constant"\nlr = { min = 0.0, max = 3.0, constant = true, shared = true }'
    limits = "min_share = [0.3, 0.0]"  # in whole steps, a third
    path.write_text(f"{path.read_text()}\n[control]\n{controls}\n[limits]\n{limits}\n")
    code, out, err = run("solve problem.toml --json plan.json --plot plan.png")
    assert (code, err) == (0, "")
    assert "mixture" in out
    content = json.loads((tmp_path / "plan.json").read_text())
    assert content["shares"] == pytest.approx(np.array([[1 / 3, 2 / 3]] * 3))
    assert len(set(content["lr"])) == 1
    path.write_text(path.read_text().replace('"constant"', '"sometimes"'))
    code, _, err = run("solve problem.toml")
    assert (code, err) == (
        2,
        'replan: problem.toml: `control.tasks` expects true, false or "constant", '
        'got "sometimes"\n',
    )
    path.write_text(path.read_text().replace('"sometimes"', '"constant"'))
    code, _, err = run("solve problem.toml --method exhaustive")
    assert code == 2
    assert "`Exhaustive` expects a problem in which only the tasks" in err
