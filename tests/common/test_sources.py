import importlib
import sys
from types import ModuleType

import numpy as np
import pytest

import replan
from replan._common import sources
from replan._common.sources import Sources, reachable_sources

NOTHING = reachable_sources(sys).digest
START = "def f():\n    pass\n\nclass C:\n    pass\n"


def seen(name="start"):
    return reachable_sources(importlib.import_module(name))


@pytest.mark.parametrize(
    ("start", "edited"),
    [
        ("import other", "other.py"),
        ("import other as o, json", "other.py"),
        ("from other import a", "other.py"),
        ("from other import *", "other.py"),
        ("def f():\n    import other", "other.py"),
        ("def f():\n    if f:\n        from other import a", "other.py"),
        ("try:\n    import gone\nexcept ImportError:\n    import other", "other.py"),
        ("def f():\n    import importlib\n    importlib.import_module('other')", "other.py"),
        ("def f():\n    return __import__('package.inner')", "package/inner.py"),
        ("import package.inner", "package/inner.py"),
        ("import package.inner", "package/__init__.py"),
        ("import package.inner", "other.py"),  # imported by it
        ("from package import inner", "package/inner.py"),
        ("from package.inner import a", "package/__init__.py"),
        ("import package.deep.er", "package/inner.py"),  # from .. import inner
        ("def f():\n    import package.deep.er", "package/inner.py"),
        ("from package import *", "package/listed.py"),
        ("import space.inner", "space/inner.py"),  # a folder without __init__.py
        ("def f():\n    from space.more import inner", "space/more/inner.py"),
    ],
)
def test_an_edit_is_noticed_however_it_is_imported(write, start, edited):
    files = {
        "other.py": "a = 1\n",
        "package/__init__.py": "__all__ = ['listed', 'a']\na = 1\n",
        "package/inner.py": "from other import a\n",
        "package/listed.py": "a = 1\n",
        "package/deep/__init__.py": "",
        "package/deep/er.py": "from .. import inner\n",
        "space/inner.py": "a = 1\n",
        "space/more/inner.py": "a = 1\n",
        "unrelated.py": "a = 1\n",
    }
    for name, text in files.items():
        write(name, text)
    write("start.py", start + "\n")
    before = seen()
    assert before.unseen == []
    write("unrelated.py", "a = 2\n")
    assert seen() == before
    write(edited, files[edited] + "b = 2\n")
    after = seen()
    assert after != before
    write(edited, files[edited])
    assert seen() == before
    assert after.unseen == []


def test_functions_and_classes_count_as_their_modules(write):
    write("start.py", START)
    module = importlib.import_module("start")
    assert reachable_sources(module.f) == reachable_sources(module.C) == seen()


def test_nothing_is_imported(write):
    write("start.py", "def f():\n    import loud.er\n")
    write("loud/__init__.py", "raise RuntimeError\n")
    write("loud/er.py", "raise RuntimeError\n")
    before = seen()
    write("loud/er.py", "raise ValueError\n")
    assert seen() != before
    assert not {"loud", "loud.er"} & set(sys.modules)


def test_what_a_file_does_as_a_script_does_not_count(write):
    write("start.py", START)
    before = seen()
    for more in ("", "    import runpy\n    runpy.run_path('x')\n"):
        write("start.py", START + f'if __name__ == "__main__":\n    f()\n{more}')
        assert seen() == before
    for more in ("b = 1\n", "else:\n    b = 1\n"):
        write("start.py", START + f'if __name__ == "__main__":\n    f()\n{more}')
        assert seen() != before


def test_replan_and_the_standard_library_do_not_count():
    assert reachable_sources(replan.sweep) == Sources(NOTHING, [])
    assert reachable_sources(importlib.import_module) == Sources(NOTHING, [])
    assert reachable_sources(len) == Sources(NOTHING, [])


def test_installed_packages_count_by_version(write, monkeypatch):
    write("start.py", "import numpy.linalg\nfrom click import echo\n")
    before = seen()
    assert reachable_sources(np) != Sources(NOTHING, [])
    sources._version.cache_clear()
    monkeypatch.setattr("importlib.metadata.version", lambda name: "0")
    try:
        assert seen() != before
    finally:
        sources._version.cache_clear()


def test_a_package_installed_under_another_name_has_its_version():
    pytest.importorskip("PIL")
    assert sources._version("PIL").lower().startswith("pillow ")
    assert sources._version("none_of_this_name") == ""


@pytest.mark.parametrize(
    ("text", "unseen"),
    [
        ("import importlib\nnumpy = importlib.import_module('num' + 'py')\n", "`import_module`"),
        ("from importlib import import_module as get\nget('num' + 'py')\n", "`import_module`"),
        ("def f():\n    return __import__('.other', 'package')\n", "`__import__`"),
        ("exec('a = 1')\n", "`exec`"),
        ("from runpy import run_path\ndef f():\n    run_path('x.py')\n", "`run_path`"),
    ],
)
def test_what_runs_unseen_is_said(write, text, unseen):
    write("inner.py", text)
    write("start.py", "import inner\n")
    assert seen().unseen == [f"inner (runs code by {unseen})"]


def test_a_warning_about_a_source_is_left_to_its_import(write):
    write("start.py", "def f():\n    import odd\n")
    write("odd.py", "a = '\\d'\n")
    assert seen().unseen == []


def test_files_that_show_nothing_are_said(write):
    write("start.py", "def f():\n    import broken, gone\n")
    write("broken.py", "def\n")
    before = seen()
    assert before.unseen == ["broken (cannot be parsed)"]
    write("broken.py", "def f\\d\n")
    assert seen().digest != before.digest
    write("start.py", "def f():\n    import extension\n")
    write(f"extension{importlib.machinery.EXTENSION_SUFFIXES[0]}", "no machine code\n")
    assert seen().unseen == ["extension (is compiled)"]


def test_a_session_is_said_and_what_it_imported_counts(write, monkeypatch):
    write("inner.py", "def a():\n    pass\n")
    session = ModuleType("session")
    monkeypatch.setitem(sys.modules, "session", session)
    exec("from inner import a\ndef f():\n    a()\n", vars(session))
    before = reachable_sources(session.f)
    assert before.unseen == ["session (has no file)"]
    write("inner.py", "def a():\n    return 2\n")
    exec("from inner import a", vars(session))
    assert reachable_sources(session.f).digest != before.digest
    session.f.__module__ = "nowhere"
    assert reachable_sources(session.f).unseen == ["nowhere (is not imported)"]


def test_a_module_that_was_edited_after_its_import_is_neither_the_old_nor_the_new(write, tmp_path):
    write("start.py", "a = 1\n")
    old = seen()
    (tmp_path / "start.py").write_text("a = 2\n")
    both = seen()
    assert both.unseen == ["start (was edited after its import: reload it)"]
    importlib.reload(sys.modules["start"])
    new = seen()
    assert new.unseen == []
    assert len({old.digest, both.digest, new.digest}) == 3
