"""Compiled code is never older than the sources it was made from."""

import os
import shutil
import stat
import subprocess
import sys
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
