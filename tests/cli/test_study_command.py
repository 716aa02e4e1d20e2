import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from stressed import alive
from swept import wait

STUDY = """
[model]
hidden = 2
similarity = 0.3
[start]
fresh = { seed = 0 }
[training]
duration = 2.0
steps = 5
[axes]
model.similarity = [0.1, 0.5, 0.9]
start.fresh.seed = [0, 1]
[run]
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


def test_a_study(run, study, tmp_path):
    code, out, err = run("study study.toml --workers 1 --x start.fresh.seed")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert [line.split()[:2] for line in lines[1:3]] == [["no-replay", "6"], ["interleaved", "6"]]
    assert lines[-1] == "wrote study/table.csv, study/study.json, study/picture.png"
    assert len(pd.read_csv(tmp_path / "study" / "table.csv")) == 12
    assert run("study study.toml --workers 1 --out study") == (0, out, "")


def test_a_model_of_the_user(run, decay, tmp_path, monkeypatch):
    monkeypatch.setenv("REPLAN_IMPORT", "")
    (tmp_path / "own.toml").write_text(
        '[model]\nkind = "decay"\nspeed = 1.0\n[start]\nstate = [1.0, 2.0]\n'
        "[training]\nduration = 1.0\nsteps = 3\n[axes]\nmodel.speed = [1.0, 2.0]\n"
        '[run]\nstrategies = ["half-way"]\n'
    )
    code, _, err = run("study own.toml --workers 1")
    assert (code, len(err.splitlines())) == (2, 1)
    assert run("--import decay.py study own.toml --workers 1")[0] == 0


@pytest.mark.parametrize(
    ("old", "new", "name"),
    [
        ("model.similarity", "model.simlarity", "`model.simlarity`"),
        ("no-replay", "no-reply", "`run.strategies[0]`"),
        ("[0, 1]", "[0, 0]", "`axes.start.fresh.seed`"),
        ("[model]", "[model", "study.toml"),
    ],
)
def test_mistakes_are_one_line(run, study, tmp_path, old, new, name):
    study(old, new)
    code, out, err = run("study study.toml --workers 1")
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert name in err
    assert not (tmp_path / "study").exists()


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ("gone.toml", "gone.toml"),
        ("study.toml --workers 0", "`--workers`"),
        ("study.toml --workers 1 --x similarity", "`--x`"),
        ("study.toml --dask udp://127.0.0.1:1", "`--dask`"),
        ("study.toml --out study.toml", "study.toml"),
    ],
)
def test_mistakes_in_the_options(run, study, options, name):
    code, _, err = run(f"study {options}")
    assert (code, len(err.splitlines())) == (2, 1)
    assert name in err


def test_where_nothing_has_a_value_it_says_so(run, study, tmp_path):
    study("steps = 5\n", "steps = 5\nlr = 1e9\n")
    code, out, err = run("study study.toml --workers 1")
    assert code == 1
    assert "no-replay, interleaved" in err
    assert "12 of 12 rows have no value" in out
    assert "picture" not in out
    assert pd.read_csv(tmp_path / "study" / "table.csv")["value"].isna().all()


def test_where_one_run_has_no_value_it_says_so(run, study):
    study('"interleaved"', '"interleaved", { strategy = "constant-lr", lr = 1e9, name = "wild" }')
    code, out, err = run("study study.toml --workers 1")
    assert (code, len(err.splitlines())) == (1, 1)
    assert "wild" in err
    assert "interleaved" not in err
    assert "picture" in out


STOPPED = """
import signal
from replan import studies

def evaluate(*args, **settings):
    signal.raise_signal(signal.SIGINT)

studies.evaluate = evaluate
from replan.cli import main
main()
"""


def test_ctrl_c_ends_in_two_lines(study, tmp_path):
    words = ["study", "study.toml", "--out", "made", "--workers", "1"]
    done = subprocess.run(
        [sys.executable, "-c", STOPPED, *words], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 130
    assert [line for line in done.stderr.splitlines() if line] == [
        "finished cases are kept in made/cache; the same command continues",
        "replan: stopped",
    ]


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at /proc")
def test_ctrl_c_at_any_moment_ends_every_process(study, tmp_path):
    """A real signal to a real study with processes, ended whatever happens."""
    words = ["study", "study.toml", "--workers", "2"]
    study("[0.1, 0.5, 0.9]", json.dumps([k / 1000 for k in range(1000)]))
    process = subprocess.Popen(
        [sys.executable, "-c", "from replan.cli import main; main()", *words],
        cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        while not list(tmp_path.glob("study/cache/*.json")):
            assert process.poll() is None, process.stderr.read()
        os.killpg(process.pid, signal.SIGINT)
        errors = process.communicate()[1]
        assert process.returncode == 130
        assert "Traceback" not in errors
        wait(lambda: not alive(process.pid))
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        process.stderr.close()
