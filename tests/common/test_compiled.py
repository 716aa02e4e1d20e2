"""Compiled code is never older than the sources it was made from."""

import io
import os
import resource
import shutil
import stat
import subprocess
import sys
import threading
from importlib import import_module
from pathlib import Path

import numba
import numpy as np
import pytest
from llvmlite.binding.ffi import register_lock_callback, unregister_lock_callback

import replan
from mounted import can_mount, with_mounts
from replan.core import compiled
from replan._common import sources
from replan.models import moments

LOSS = (
    "import replan; m = replan.TeacherStudent([[1.0]], hidden=1); "
    "print(repr(float(m.losses(m.fresh(0, weight_variance=0.5, head_variance=1.0))[0])))"
)


@pytest.fixture
def checkout(tmp_path):
    """A copy of the sources, as an editable checkout has them."""
    skipped = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(replan.__file__).parent, tmp_path / "src" / "replan", ignore=skipped)
    return tmp_path / "src"


def start(checkout, program, *, before=(), size=-1, folder=None, **environment):
    """Run a program in a folder, by a command before it, with files of a size (bytes) at most."""
    kept = {key: value for key, value in os.environ.items() if key != "NUMBA_CACHE_DIR"}
    return subprocess.run(
        [*before, sys.executable, "-c", program],
        env=kept | {"PYTHONPATH": str(checkout)} | environment,
        cwd=folder,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size)),
        capture_output=True,
        text=True,
        check=True,
    )


def run(checkout, program):
    return start(checkout, program).stdout.strip()


def folders(checkout):
    return sorted((checkout / "replan" / "__pycache__").glob("replan-*"))


def test_an_edited_kernel_computes_new_numbers_and_old_code_is_removed(checkout):
    before = float(run(checkout, LOSS))
    [first] = folders(checkout)
    code = {path: path.stat().st_mtime_ns for path in first.rglob("*.nb?")}
    assert float(run(checkout, LOSS)) == before
    assert {path: path.stat().st_mtime_ns for path in first.rglob("*.nb?")} == code  # none is new
    moments = checkout / "replan" / "dynamics" / "moments" / "erf.py"
    text = moments.read_text()
    changed = text.replace("return TWO_OVER_PI * arcsine(", "return 3.0 * TWO_OVER_PI * arcsine(")
    assert changed != text
    moments.write_text(changed)
    assert float(run(checkout, LOSS)) == pytest.approx(3 * before)
    [second] = folders(checkout)
    assert second != first


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_compiling_is_said_once_on_a_terminal(monkeypatch):
    compiled._tell_of_compiling.cache_clear()
    monkeypatch.setattr(sys, "stderr", Terminal())
    for kind in (np.float32, np.int8):  # nobody else calls it with these
        moments.norm._cache.flush()
        assert moments.norm(kind(3)) == 0.5
    assert sys.stderr.getvalue().count("replan: compiling") == 1


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


def test_the_numba_of_others_keeps_its_own_cache_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    compiled.compiled(lambda x: x)
    assert str(tmp_path) == numba.config.CACHE_DIR


def test_a_folder_that_cannot_be_written_is_passed_over(tmp_path, monkeypatch):
    good, bad = tmp_path / "good", tmp_path / "bad"
    bad.write_text("a file is no folder")
    monkeypatch.setattr(compiled, "_parents", lambda: iter([bad, good]))
    replans = sources.PACKAGE, sources.package_digest()
    folder = compiled._folder.__wrapped__(*replans)
    assert folder.parent == good
    assert folder.name.endswith(sources.package_digest())
    monkeypatch.setattr(compiled, "_parents", lambda: iter([bad]))
    monkeypatch.setattr(compiled, "_private", lambda: iter([bad]))
    assert compiled._folder.__wrapped__(*replans) is None


def test_code_in_the_temporary_folder_is_this_users_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(compiled.tempfile, "gettempdir", lambda: str(tmp_path))
    [private] = compiled._private()
    assert private.parent == tmp_path
    assert stat.S_IMODE(private.stat().st_mode) == 0o700
    private.chmod(0o777)  # somebody else could put code there
    assert list(compiled._private()) == []


def test_code_without_a_file_is_compiled_without_a_cache():
    names = {"__name__": "nowhere"}
    exec("def twice(x):\n    return 2 * x", names)
    assert compiled.compiled(names["twice"])(2.0) == 4.0


def test_code_is_known_by_every_module_that_it_was_given(write):
    write("near.py", "def rate(x):\n    return x\n")
    write("far.py", "FACTOR = 1\n")

    def folder():
        import_module("near")
        compiled._versions.pop("near", None)  # as in a process of its own
        return compiled._folder_of(["near", "replan.models", "far"])

    first = folder()
    assert first == folder()
    write("far.py", "FACTOR = 3\n")
    assert folder() != first


def test_code_that_depends_on_what_cannot_be_seen_is_compiled_anew(write):
    write("near.py", "import importlib\n\nFACTOR = importlib.import_module('ma' + 'th').pi\n")
    import_module("near")
    assert compiled._folder_of(["near"]) is None


# Disks that refuse: code is compiled all the same, and one line says where it is

SMALL = """
import numpy as np
from replan.core.rounding import follow
{between}
there = np.ones((4, 2), bool)
print(follow(np.full((4, 2), 0.5), np.ones(4), 0.0, there, np.zeros(2)).tolist())
"""
FOLLOWED = "[0, 1, 0, 1]"


def test_a_disk_that_takes_no_byte_leaves_code_in_memory_and_workers_silent(checkout, tmp_path):
    (checkout / "jobs.py").write_text(
        "import replan.core.rounding\n\ndef job(x):\n    return {'x': x}\n"
    )
    program = "import jobs, replan; print(replan.sweep(jobs.job, [{'x': 1}, {'x': 2}], workers=2))"
    done = start(checkout, program, size=0, HOME=str(tmp_path))
    assert done.stdout == "[{'x': 1}, {'x': 2}]\n"
    assert done.stderr == (
        "replan: compiled code stays in memory, as no folder for it can be written\n"
    )


def test_a_disk_that_fills_up_leaves_code_in_memory(checkout, tmp_path):
    done = start(checkout, SMALL.format(between=""), size=5000, HOME=str(tmp_path))
    assert done.stdout == f"{FOLLOWED}\n"
    [line] = done.stderr.splitlines()
    assert line.startswith("replan: compiled code stays in memory (")
    assert line.endswith(": File too large)")


@pytest.mark.parametrize("then", ["", "open(folder, 'w').close()"])
def test_a_folder_that_vanishes_is_made_again_or_done_without(checkout, then):
    vanish = (
        "import shutil; from replan._common import compiled as c, sources as s\n"
        f"folder = c._folder(s.PACKAGE, s.package_digest()); shutil.rmtree(folder); {then}"
    )
    done = start(checkout, SMALL.format(between=vanish))
    assert done.stdout == f"{FOLLOWED}\n"
    assert done.stderr.count("replan: compiled code stays in memory") == bool(then)


@pytest.mark.parametrize(("pattern", "content"), [("*.nbi", b""), ("*.nbc", b"half")])
def test_broken_code_is_compiled_again(checkout, pattern, content):
    assert run(checkout, SMALL.format(between="")) == FOLLOWED
    [folder] = folders(checkout)
    broken = list(folder.rglob(pattern))
    assert broken
    for path in broken:
        path.write_bytes(content)
    done = start(checkout, SMALL.format(between=""))
    assert (done.stdout, done.stderr) == (f"{FOLLOWED}\n", "")
    assert all(path.read_bytes() != content for path in broken)


@pytest.mark.skipif(not can_mount(), reason="no mounts in a name space of its own")
@pytest.mark.parametrize(
    ("home", "private", "told"),
    [
        ("ro", True, "is kept in {temporary}/replan-0, as no better folder can be written"),
        ("size=4k", True, "is kept in {temporary}/replan-0, as no better folder can be written"),
        ("ro", False, "stays in memory, as no folder for it can be written"),
        ("size=16k", False, "stays in memory ({home}/.cache/replan/"),
        ("size=1m,nr_inodes=5", False, "stays in memory ({home}/.cache/replan/"),
    ],
)
def test_read_only_and_full_disks(checkout, tmp_path, home, private, told):
    """The package is read-only, home is that or small, temporary files are private or not."""
    places = {"package": checkout / "replan", "home": tmp_path / "h", "temporary": tmp_path / "t"}
    (places["package"] / "__pycache__").mkdir()
    for place in ("home", "temporary"):
        places[place].mkdir()
    here = tmp_path / "here"
    here.mkdir()
    if not private:
        (places["temporary"] / "replan-0").mkdir()
        (places["temporary"] / "replan-0").chmod(0o777)
    script = (
        "mount --bind {package} {package} && mount -o remount,bind,ro {package} && "
        f"mount -t tmpfs -o {home} none {{home}} && {{fill}}"
    ).format(**places, fill="head -c 4096 /dev/zero > $HOME/full" if home == "size=4k" else "true")
    done = start(
        checkout,
        SMALL.format(between=""),
        before=with_mounts(script),
        HOME=str(places["home"]),
        TMPDIR=str(places["temporary"]),
        folder=here,
        XDG_CACHE_HOME="",
    )
    assert list(here.iterdir()) == []  # numba would keep code in a folder of its own
    assert done.stdout == f"{FOLLOWED}\n"
    [line] = done.stderr.splitlines()
    assert line.startswith("replan: compiled code " + told.format(**places))


def test_a_function_that_numba_compiles_can_call_ours():
    """It holds the compiler's lock meanwhile; another thread would wait for it for ever."""
    program = (
        "import numba; from replan.core.moments import norm\n"
        "print(numba.njit(lambda x: 2.0 * norm(x))(3.0))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=1200
    )
    assert done.stdout == "1.0\n"
