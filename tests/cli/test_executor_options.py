"""--workers and --dask."""

import logging
import multiprocessing
import sys

import pytest

from replan.cli import _executor

STUDY = """
model = { hidden = 2, similarity = [0.1, 0.9] }
start = { fresh = { seed = 0 } }
training = { duration = 2.0, steps = 5 }
sweep = { strategies = ["interleaved"] }
"""


@pytest.fixture
def study(tmp_path):
    (tmp_path / "study.toml").write_text(STUDY)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--dask 4", "`--dask` expects the address of a scheduler, such as tcp://host:8786, or "),
        ("--dask local:0", "or local:N for N processes on this machine, got 'local:0'"),
        ("--dask local:", "or local:N for N processes on this machine, got 'local:'"),
        ("--dask udp://127.0.0.1:1", "`--dask` expects a scheduler that answers, got 'udp://"),
        ("--dask tcp://127.0.0.1:1", "(Timed out trying to connect to tcp://127.0.0.1:1"),
        (
            "--dask local:2 --workers 2",
            "`--workers` does not go with `--dask`: expects one of them",
        ),
    ],
)
def test_mistakes_are_refused(run, study, monkeypatch, words, message):
    pytest.importorskip("distributed")
    monkeypatch.setattr(_executor, "_ANSWER", 0.1)
    code, out, err = run(f"sweep study.toml {words}")
    assert code == 2
    assert "wrote" not in out
    assert message in err
    assert len(err.splitlines()) == 1


def test_dask_may_be_missing(run, study, monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    code, _, err = run("sweep study.toml --dask local:2")
    assert code == 2
    assert err == "replan: `--dask` expects Dask to be installed: pip install 'replan[dask]'\n"


def test_a_study_on_a_cluster_of_its_own(run, study, tmp_path):
    pytest.importorskip("distributed")
    code, out, err = run("sweep study.toml --out made --dask local:1")
    assert code == 0
    assert err.startswith("replan: dashboard at http://127.0.0.1:")
    assert len(err.splitlines()) == 1
    assert "wrote made/study.json" in out
    assert not multiprocessing.active_children()
    assert logging.getLogger("distributed").isEnabledFor(logging.ERROR)
