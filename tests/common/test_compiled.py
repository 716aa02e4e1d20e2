"""Compiled code is never older than the sources it was made from."""

import os
import shutil
import stat
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import numba
import pytest

import replan
from replan._common import compiled, sources

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


def run(checkout, program, **environment):
    kept = {key: value for key, value in os.environ.items() if key != "NUMBA_CACHE_DIR"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=kept | {"PYTHONPATH": str(checkout)} | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def folders(checkout):
    return sorted((checkout / "replan" / "__pycache__").glob("replan-*"))


def test_an_edited_kernel_computes_new_numbers_and_old_code_is_removed(checkout):
    before = float(run(checkout, LOSS))
    [first] = folders(checkout)
    code = {path: path.stat().st_mtime_ns for path in first.rglob("*.nb?")}
    assert float(run(checkout, LOSS)) == before
    assert {path: path.stat().st_mtime_ns for path in first.rglob("*.nb?")} == code  # none is new
    moments = checkout / "replan" / "dynamics" / "moments.py"
    text = moments.read_text()
    changed = text.replace(
        "return TWO_OVER_PI * math.asin(", "return 3.0 * TWO_OVER_PI * math.asin("
    )
    assert changed != text
    moments.write_text(changed)
    assert float(run(checkout, LOSS)) == pytest.approx(3 * before)
    [second] = folders(checkout)
    assert second != first


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
    assert compiled._folder.__wrapped__(*replans) is None


def test_code_in_the_temporary_folder_is_this_users_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(compiled.tempfile, "gettempdir", lambda: str(tmp_path))
    *_, private = compiled._parents()
    assert private.parent == tmp_path
    assert stat.S_IMODE(private.stat().st_mode) == 0o700
    private.chmod(0o777)  # somebody else could put code there
    assert private not in list(compiled._parents())


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
        return compiled._folder_of(["near", "replan.dynamics", "far"])

    first = folder()
    assert first == folder()
    write("far.py", "FACTOR = 3\n")
    assert folder() != first


def test_code_that_depends_on_what_cannot_be_seen_is_compiled_anew(write):
    write("near.py", "import importlib\n\nFACTOR = importlib.import_module('ma' + 'th').pi\n")
    import_module("near")
    assert compiled._folder_of(["near"]) is None
