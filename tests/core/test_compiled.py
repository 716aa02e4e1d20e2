"""Compiled code is never older than its sources, and a broken cache only costs time."""

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numba
import pytest
from llvmlite.binding.ffi import register_lock_callback, unregister_lock_callback

import replan
from replan.core import compiled


@pytest.fixture
def checkout(tmp_path):
    """A copy of the sources, as an editable checkout has them."""
    skipped = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(replan.__file__).parent, tmp_path / "src" / "replan", ignore=skipped)
    return tmp_path / "src"


def run(checkout):
    """Round a share of one third with the code of a checkout."""
    program = (
        "import numpy as np; from replan.core.rounding import follow\n"
        "there, shares = np.ones((3, 2), bool), np.tile([0.4, 0.6], (3, 1))\n"
        "print(follow(shares, np.ones(3), 0.0, there, np.zeros(2)).tolist())"
    )
    kept = {key: value for key, value in os.environ.items() if key != "NUMBA_CACHE_DIR"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=kept | {"PYTHONPATH": str(checkout)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stderr == ""
    return done.stdout.strip()


def test_an_edited_source_is_compiled_again_and_a_broken_file_costs_only_time(checkout):
    assert run(checkout) == "[1, 0, 1]"
    [folder] = (checkout / "replan" / "core" / "__pycache__").glob("core-*")
    [index], [code] = folder.rglob("*.nbi"), folder.rglob("*.nbc")
    written = code.stat().st_mtime_ns
    assert run(checkout) == "[1, 0, 1]"
    assert code.stat().st_mtime_ns == written  # it was kept
    for path, content in ((index, b""), (code, b"half")):
        path.write_bytes(content)
        assert run(checkout) == "[1, 0, 1]"
        assert path.read_bytes() != content
    source = checkout / "replan" / "core" / "rounding.py"
    source.write_text(source.read_text().replace("lag[t] += ", "lag[t] -= "))
    assert run(checkout) == "[0, 1, 0]"
    [second] = (checkout / "replan" / "core" / "__pycache__").glob("core-*")
    assert second != folder  # the old code is removed


def test_ctrl_c_cannot_break_off_the_compiler_while_it_holds_its_lock():
    """It would be held for good. Ctrl-C is raised in the main thread alone."""
    holders = set()

    def note():
        holders.add(threading.current_thread())

    function = compiled.compiled(lambda x: x + 1)
    register_lock_callback(note, note)
    try:
        assert function(1) == 2
    finally:
        unregister_lock_callback(note, note)
    assert holders and threading.main_thread() not in holders


def test_a_function_that_numba_compiles_can_call_ours():
    """It holds the compiler's lock meanwhile; another thread would wait for it for ever."""
    double = compiled.compiled(lambda x: 2.0 * x)
    assert numba.njit(lambda x: double(x) + 1.0)(3.0) == 7.0
