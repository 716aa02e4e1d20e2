import json
import subprocess
import sys

import pandas as pd
import pytest

import replan
from replan.cli import _time
from replan.studies import _run

STUDY = """
[model]
hidden = 2
similarity = { from = 0.1, to = 0.9, count = 3 }
[start]
fresh = { seed = [0, 1] }
[training]
duration = 2.0
steps = 5
[sweep]
strategies = ["no-replay", "interleaved"]
"""


@pytest.fixture
def study(tmp_path):
    """A file, and a function that changes it."""
    path = tmp_path / "study.toml"
    path.write_text(STUDY)

    def change(old, new):
        path.write_text(path.read_text().replace(old, new))

    return change


@pytest.fixture
def idle(monkeypatch):
    """Make every computation fail."""

    def work(*_, **__):
        raise AssertionError("the work began")

    monkeypatch.setattr(_run, "Sweep", work)


def test_a_study(run, study, tmp_path):
    code, out, err = run("sweep study.toml --out made --workers 1")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[:4] == [
        "study.toml: 6 problems, 12 results",
        "  similarity  0.1, 0.5, 0.9",
        "  seed        0, 1",
        "  on each     no-replay, interleaved",
    ]
    assert lines[4].split() == ["results", "median", "10", "%", "90", "%"]
    assert [line.split()[:2] for line in lines[5:7]] == [["no-replay", "6"], ["interleaved", "6"]]
    assert lines[7].startswith("wrote made/study.json, made/table.csv")
    assert len(pd.read_csv(tmp_path / "made" / "table.csv")) == 12
    assert json.loads((tmp_path / "made" / "study.json").read_text())["problems"] == 6
    assert (tmp_path / "made" / "picture.png").exists()
    assert not (tmp_path / "made" / "plans").exists()
    assert run("sweep study.toml --out made --workers 1") == (0, out, "")


def test_the_folder_is_named_like_the_file(run, study, tmp_path):
    assert run("sweep study.toml --workers 1 --x seed --y similarity")[0] == 0
    assert (tmp_path / "study" / "table.csv").exists()


def test_a_problem_file_is_a_study_of_one(run, tmp_path):
    code, out, _ = run("sweep fresh.toml --workers 1")
    assert code == 0
    assert out.startswith("fresh.toml: 1 problem, 1 result\n  on each  relax\n")
    assert replan.Plan.load(tmp_path / "fresh" / "plans" / "relax.json").status == "converged"


def test_a_model_of_the_users(run, decay, tmp_path, monkeypatch):
    monkeypatch.setenv("REPLAN_IMPORT", "")
    (tmp_path / "own.toml").write_text(
        '[model]\nkind = "decay"\nspeed = [1.0, 2.0]\n[start]\nstate = [1.0, 2.0]\n'
        '[training]\nduration = 1.0\nsteps = 3\n[sweep]\nstrategies = ["half-way"]\n'
    )
    assert run("sweep own.toml --workers 1")[::2] == (
        2,
        "replan: own.toml: `sweep.strategies[0]` expects one of "
        f"{', '.join(name for name in replan.strategies.STRATEGIES if name != 'half-way')}; "
        "got 'half-way'\n",
    )
    code, out, err = run("--import decay.py sweep own.toml --workers 1")
    assert (code, err) == (0, "")
    assert "  speed    1, 2\n  on each  half-way\n" in out


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("similarity", "simlarity", "`model.simlarity` is not a known key, did you mean `simila"),
        ("count", "cuont", "`model.similarity.cuont` is not a known key, did you mean `count`?"),
        ("count = 3", "count = 1000000", "`model.similarity` expects at most 100,000 values, got"),
        ("[0, 1]", "[0, 0]", "`start.fresh.seed` expects different values, got 0 twice"),
        ("[0, 1]", "[0, -1]", "`start.fresh.seed` expects a number of at least 0, got -1, in the "),
        ("[sweep]", "[sweeep]", "`sweeep` is not a known key, expects model, start, training"),
        ("no-replay", "no-reply", "`sweep.strategies[0]` expects one of one-task, no-replay,"),
        ("5\n", "1979-05-27\n", "`study` expects numbers, words, lists and tables, got datetime"),
        ("5\n", "5\nlr = inf\n", "`training.lr` expects a finite number, got inf"),
        ("[model]", "[model", "not a TOML file ("),
    ],
)
def test_mistakes_are_one_line(run, study, idle, old, new, message):
    study(old, new)
    code, out, err = run("sweep study.toml --workers 1")
    assert (code, out) == (2, "")
    assert err.startswith(f"replan: study.toml: {message}")
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("sweep gone.toml", "gone.toml: No such file or directory"),
        (
            "sweep study.toml --x similarty",
            "`--x` expects one of similarity, seed; got 'similarty'",
        ),
        ("sweep study.toml --x seed --y seed", "`--y` expects an axis that does not move with `x`"),
        ("sweep study.toml --workers 0", "`--workers` expects an integer of at least 1, got 0"),
        ("sweep fresh.toml --x seed", "`--x` expects an axis of the study, which has none"),
    ],
)
def test_mistakes_in_the_options(run, study, line, message):
    code, _, err = run(line)
    assert code == 2
    assert err.startswith(f"replan: {message}")


def test_what_cannot_be_written_is_refused_before_the_work(run, study, tmp_path, idle):
    study('"interleaved"]', '"interleaved"]\nsolvers = ["relax"]')
    (tmp_path / "file").touch()
    for out in ("file", "file/inside"):
        code, _, err = run(f"sweep study.toml --out {out} --workers 1")
        assert (code, len(err.splitlines())) == (2, 1)
        assert "'--out'" in err or "`--out` expects a folder that can be written to" in err
    for name in ("study.json", "table.csv", "table.parquet", "picture.png", "picture.pdf"):
        (tmp_path / "out" / name).mkdir(parents=True)
        code, _, err = run("sweep study.toml --out out --workers 1")
        assert (code, err) == (
            2,
            f"replan: `--out` expects a file that can be written, got 'out/{name}' "
            "(Is a directory)\n",
        )
        (tmp_path / "out" / name).rmdir()
    (tmp_path / "out" / "plans").touch()
    code, _, err = run("sweep study.toml --out out --workers 1")
    assert (code, "`--out` expects a folder that can be written to, got 'out/plans'" in err) == (
        2,
        True,
    )


def test_where_nothing_has_a_value_it_says_so(run, study, tmp_path):
    study("5\n", "5\nlr = 1e9\n")
    code, out, err = run("sweep study.toml --out made --workers 1")
    assert (code, err) == (1, "replan: no run has a value: try a smaller `lr`\n")
    assert "6 of 12 without a value: no-replay diverged: " in out
    assert "picture" not in out
    assert pd.read_csv(tmp_path / "made" / "table.csv")["value"].isna().all()


def test_long_work_is_told_unless_it_goes_on(run, study, tmp_path, idle, monkeypatch):
    study('"interleaved"]', '"constant-lr"]\nsolvers = ["relax"]\nsimulate = { dimension = 50 }')
    monkeypatch.setattr(_time, "_LONG", 0.0)
    monkeypatch.setattr(_time, "_measure", lambda call: call() is None or 1.0)
    assert "this takes very roughly" in run("sweep study.toml --out made")[2]
    (tmp_path / "made" / "cache").mkdir(parents=True)
    assert "this takes very roughly" not in run("sweep study.toml --out made")[2]


STOPPED = """
import signal
from replan.studies import _cases

def evaluate(*args, **settings):
    signal.raise_signal(signal.SIGINT)

_cases.evaluate = evaluate
from replan.cli import main
main()
"""


def test_ctrl_c_ends_in_two_lines(run, study, tmp_path):
    words = ["sweep", "study.toml", "--out", "made", "--workers", "1"]
    done = subprocess.run(
        [sys.executable, "-c", STOPPED, *words], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 130
    assert [line for line in done.stderr.splitlines() if line] == [
        "finished cases are kept in made/cache; the same command continues",
        "replan: stopped",
    ]
    assert len(list((tmp_path / "made" / "cache").iterdir())) == 6  # the starts
    assert run("sweep study.toml --out made --workers 1")[0] == 0
