"""The reverse of a model is compiled in a second process, which ends with the first."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

import replan
from problems.models import Fishing
from replan._common import compiled
from replan.dynamics import _ahead, moments

ROLL_OUT = """
import os, signal
import numpy as np
from problems.models import Fishing
from replan.dynamics import Pieces, _ahead
_ahead._cores = lambda: 2
model, x = Fishing(), np.array([0.5, 0.7, 0.0])
pieces = Pieces.whole(np.full((2, 2), 0.5), np.ones((2, 2)), np.ones(2))
"""
BOTH = """
states = model.roll_out(x, pieces)
model.pull_back(states, states, pieces)
model.pull_losses(states, np.ones((3, 2)))
for process in _ahead._running.values():
    print(process.returncode)
for loop in (model._loops.pull_back, model._loops.pull_all_losses):
    print(sum(loop.__wrapped__.stats.cache_hits.values()))
"""
KILLED = """
_ahead.begin(model.kernels(), Fishing, model.parameters)
[process] = _ahead._running.values()
print(process.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def run(program, folder):
    paths = [Path(replan.__file__).parents[1], Path(__file__).parents[1]]
    return subprocess.run(
        [sys.executable, "-c", ROLL_OUT + program],
        env=os.environ
        | {"NUMBA_CACHE_DIR": str(folder), "PYTHONPATH": os.pathsep.join(map(str, paths))},
        capture_output=True,
        text=True,
    )


def test_a_second_process_compiles_the_reverse_and_the_next_has_all_of_it(tmp_path):
    first = run(BOTH, tmp_path)
    assert first.stdout.split() == ["0", "1", "1"], first.stderr
    second = run(BOTH, tmp_path)
    assert second.stdout.split() == ["1", "1"], second.stderr


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="processes cannot be killed so here")
def test_the_second_process_ends_with_the_first(tmp_path):
    pid = int(run(KILLED, tmp_path).stdout)
    deadline = time.monotonic() + 600
    try:
        while is_running(pid):
            assert time.monotonic() < deadline
            time.sleep(0.1)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert not list(tmp_path.rglob("*pull_back*"))


def is_running(pid):
    """Whether a process is there, and not only waiting to be looked at by its parent."""
    with contextlib.suppress(ProcessLookupError, FileNotFoundError):
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


@pytest.mark.parametrize(("module", "cores"), [("__main__", 2), ("problems.models", 1)])
def test_a_single_core_and_models_of_the_main_program_have_no_second_process(
    monkeypatch, module, cores
):
    monkeypatch.setattr(_ahead, "is_missing", lambda loop: True)
    monkeypatch.setattr(_ahead, "_running", {})
    monkeypatch.setattr(_ahead, "cores", lambda: cores)
    monkeypatch.setattr(Fishing, "__module__", module)
    _ahead.begin(Fishing.kernels(), Fishing, Fishing().parameters)
    assert not _ahead._running


def test_a_broken_index_counts_as_missing_and_code_that_cannot_be_kept_does_not(monkeypatch):
    def broken():
        raise EOFError("Ran out of input")

    kept = moments.norm._cache
    monkeypatch.setattr(kept._cache_file, "_load_index", broken)
    assert compiled.is_missing(SimpleNamespace(signatures=[], _cache=kept))
    assert not compiled.is_missing(SimpleNamespace(signatures=["float64"], _cache=kept))
    assert not compiled.is_missing(SimpleNamespace(signatures=[], _cache=None))
