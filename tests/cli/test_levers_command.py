import json

import pandas as pd
import pytest

import replan

NAMES = ["nothing", "share", "rate", "timing", "curve", "rates", "all"]


@pytest.fixture(autouse=True)
def short(run, tmp_path):
    """Make the problems short: each of a dozen is solved."""
    for path in tmp_path.glob("*.toml"):
        path.write_text(path.read_text().replace("steps = 8", "steps = 3"))


def test_levers_shows_a_table_and_draws(run, tmp_path):
    code, out, err = run("levers problem.toml --json l.json --csv l.csv")
    assert (code, err) == (0, "")
    assert [line.split()[0] for line in out.splitlines()[1:8]] == NAMES
    assert out.endswith("\nwrote l.json, l.csv, problem-levers.png\n")
    assert (tmp_path / "problem-levers.png").exists()
    assert pd.read_csv(tmp_path / "l.csv")["lever"].tolist() == NAMES
    content = json.loads((tmp_path / "l.json").read_text())
    assert list(content["levers"]) == NAMES
    assert content["levers"]["all"] <= min(content["levers"].values()) * (1 + 1e-6)
    assert content["settings"] | {"file": {}} == {"file": {}, "seeds": 1, "tolerance": 1e-3}


def test_several_seeds(run, tmp_path):
    code, out, err = run("levers problem.toml --seeds 2 --json l.json --tolerance 0.01")
    assert (code, err) == (0, "")
    assert out.startswith("medians of 2 starts, quartiles in brackets\n")
    content = json.loads((tmp_path / "l.json").read_text())
    model = replan.TeacherStudent.similar(0.3)
    for seed, start in zip((1, 2), content["starts"], strict=True):
        expected = model.pretrain(duration=60.0, seed=seed)
        assert start["problem"]["start"]["V"] == expected.V.tolist()


def test_other_problems_and_mistakes(run, refused):
    assert run("levers one.toml")[::2] == (0, "")
    refused("levers problem.toml --seeds 0", "--seeds")
    refused("levers fresh.toml --seeds 2", "--seeds")
    refused("levers problem.toml --tolerance 2", "--tolerance")
    code, _, err = run("levers wild.toml")
    assert (code, len(err.splitlines())) == (1, 1)
