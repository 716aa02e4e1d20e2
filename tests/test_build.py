"""Building the core: with which compiler, when, for which processors and Pythons."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
from ctypes import CDLL
from itertools import compress
from pathlib import Path
from textwrap import dedent
from venv import create
from zipfile import ZipFile

import pytest

from replan.core import build

ROOT = Path(__file__).parents[1]
SOURCES = {path.name for path in build.HERE.glob("*.[ch]")}


def run(*words, **options):
    """Return all that a command says; with its errors, if it fails."""
    done = subprocess.run(
        [str(word) for word in words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        **options,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture
def compiler(tmp_path, monkeypatch):
    """A function that sets CC to a program in Python, which finds the compiler's words in `sys`."""

    def compiler(code):
        program = tmp_path / "compiler.py"
        program.write_text(f"import sys\n{dedent(code)}")
        monkeypatch.setenv("CC", f"{sys.executable} {program}")

    return compiler


@pytest.mark.parametrize("name", ["gcc", "clang"])
@pytest.mark.slow
def test_compiles_without_warnings(name, tmp_path, monkeypatch):
    if shutil.which(name) is None:
        pytest.skip(f"no {name}")
    monkeypatch.setenv("CC", name)
    libraries = build.build(tmp_path, "-Werror")
    assert [path.name for path in libraries] == list(build.LIBRARIES)
    answers = {CDLL(str(path)).replan_has_v3() for path in libraries}
    assert answers in ({0}, {1})
    # Nothing is compiled for the processor of this machine alone.
    defined = {
        library: set(run(name, *flags, "-dM", "-E", "-x", "c", os.devnull).split())
        for library, flags in build.LIBRARIES.items()
    }
    assert {"__AVX__", "__FMA__"}.isdisjoint(defined["_core-base.so"])
    if "_core-v3.so" in defined:
        assert {"__AVX2__", "__FMA__"} <= defined["_core-v3.so"]
        assert "__AVX512F__" not in defined["_core-v3.so"]


@pytest.mark.parametrize("command", ["zig cc", "python -m ziglang cc", "/opt/zig/zig cc"])
def test_zig_compiles_for_all_processors(command, monkeypatch):
    monkeypatch.setenv("CC", command)
    assert build.compiler() == [*command.split(), "-mcpu=baseline"]


def test_ziglang_is_the_compiler_where_there_is_no_other(tmp_path, monkeypatch):
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert build.compiler() == [sys.executable, "-m", "ziglang", "cc", "-mcpu=baseline"]
    for name in ("clang", "gcc", "cc"):
        (tmp_path / name).touch(mode=0o755)
        assert build.compiler() == [name]


def test_a_compiler_that_fails_is_quoted(compiler, tmp_path):
    compiler("sys.exit('stdint.h: no such file')")
    with pytest.raises(SystemExit, match=r"(?s)-lm.*stdint\.h: no such file.*CC"):
        build.build(tmp_path / "libraries")
    assert list((tmp_path / "libraries").iterdir()) == []


def test_a_compiler_that_is_not_there_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("CC", "gc")
    with pytest.raises(SystemExit, match=r"(?s)^gc: .*CC"):
        build.build(tmp_path / "libraries")


def test_compiles_when_a_source_is_newer(compiler, tmp_path):
    for name in ("build.py", *SOURCES):
        shutil.copy(build.HERE / name, tmp_path)
    compiler("open(sys.argv[sys.argv.index('-o') + 1], 'x').close()")

    def update():
        run(sys.executable, tmp_path / "build.py")
        return [(tmp_path / name).stat().st_ino for name in build.LIBRARIES]

    first = update()
    assert update() == first
    for name in ("replan.h", "cpu.c", "build.py"):
        (tmp_path / name).touch()
        second = update()
        assert set(second).isdisjoint(first)
        first = second
    assert update() == first
    (tmp_path / "_core-base.so").unlink()
    assert set(update()).isdisjoint(first[1:])


@pytest.mark.slow
def test_one_wheel_serves_all_pythons_and_needs_no_compiler(tmp_path):
    create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "build")
    bare = {name: value for name, value in os.environ.items() if name != "CC"}
    bare["PATH"] = str(tmp_path)
    log = run(python, "-m", "build", "--outdir", tmp_path, ROOT, env=bare)
    assert "ziglang" in log
    assert "warning:" not in log

    (sdist,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {Path(name).name for name in archive.getnames()}
    assert {"hatch_build.py", "build.py", *SOURCES} <= names
    assert not any(name.endswith(".so") for name in names)

    (wheel,) = tmp_path.glob("*.whl")
    assert re.search(r"-py3-none-(?!any)\w+\.whl$", wheel.name)
    names = {Path(name).name for name in ZipFile(wheel).namelist()}
    assert {*build.LIBRARIES, "library.py"} <= names
    assert {"build.py", *SOURCES}.isdisjoint(names)

    for other in pythons():
        folder = tmp_path / Path(other).name
        words = ["install", "--quiet", "--no-deps", "--target", folder, wheel]
        run(sys.executable, "-m", "pip", "--python", other, *words)
        for name in build.LIBRARIES:
            path = str(folder / "replan" / "core" / name)
            run(other, "-c", f"from ctypes import CDLL; CDLL({path!r}).replan_has_v3()")


def pythons():
    """Return this Python, and later ones that are to be had."""
    names = [f"python3.{minor}" for minor in range(12, 16)]
    found = [path for path in map(shutil.which, names) if path]
    runs = [subprocess.run([path, "-V"], capture_output=True).returncode == 0 for path in found]
    return [sys.executable, *compress(found, runs)]
