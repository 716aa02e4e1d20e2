"""--workers and --dask."""

import logging
import multiprocessing
import sys

import pytest

from replan.cli import _executor


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
def test_mistakes_are_refused(run, monkeypatch, words, message):
    pytest.importorskip("distributed")
    monkeypatch.setattr(_executor, "_ANSWER", 0.1)
    code, out, err = run(f"figure readout --quick {words}")
    assert (code, out) == (2, "")
    assert message in err
    assert len(err.splitlines()) == 1


def test_dask_may_be_missing(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    code, _, err = run("figure readout --quick --dask local:2")
    assert code == 2
    assert err == "replan: `--dask` expects Dask to be installed: pip install 'replan[dask]'\n"


def test_a_figure_on_a_cluster_of_its_own(run, tmp_path):
    pytest.importorskip("distributed")
    code, out, err = run("figure readout --quick --out made --dask local:1")
    assert code == 0
    assert err.startswith("replan: dashboard at http://127.0.0.1:")
    assert len(err.splitlines()) == 1
    assert out.startswith("readout: wrote made/readout.png")
    assert not multiprocessing.active_children()
    assert logging.getLogger("distributed").isEnabledFor(logging.ERROR)
