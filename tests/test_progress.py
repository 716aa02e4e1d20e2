"""Progress: a bar on a terminal or in a notebook, a function, or nothing."""

import io
import signal
import sys
import threading
from types import ModuleType, SimpleNamespace

import pytest

from replan import ArgumentError
from replan.progress import Meter


@pytest.fixture
def notebook(monkeypatch):
    """A shell as a notebook's kernel has it, without widgets."""
    shell = SimpleNamespace(config={"IPKernelApp": {}})
    ipython = ModuleType("IPython")
    ipython.get_ipython = lambda: shell
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    monkeypatch.setattr("replan.progress.find_spec", sys.modules.get)
    return shell


def work(watch):
    with Meter(watch, "steps", 3) as meter:
        meter.advance(2)
        meter.advance(1, expect=2, note="more")
        meter.advance(2)
    return meter


def test_nothing_is_shown_without_a_terminal(notebook, capsys):
    notebook.config = {"TerminalIPythonApp": {}}  # IPython in a terminal is no notebook
    assert work(True).done == 5
    assert work(False).done == 5
    assert capsys.readouterr() == ("", "")


def test_a_terminal_shows_text(monkeypatch):
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", terminal)
    work(True)
    shown = terminal.getvalue()
    assert "steps:   0%" in shown
    assert "3.00/5.00" in shown
    assert shown.endswith("\r")  # gone at the end


def test_a_bar_that_is_interrupted_leaves_others_alone(monkeypatch):
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", terminal)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("tqdm.tqdm.display", lambda *_: signal.raise_signal(signal.SIGINT))
        work(True)
    thread = threading.Thread(target=work, args=[True], daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()


def test_a_notebook_without_widgets_shows_text_in_the_cell(notebook, capsys):
    work(True)
    out, errors = capsys.readouterr()
    assert "3.00/5.00" in out
    assert not errors


def test_a_notebook_with_widgets_shows_widgets(notebook, monkeypatch):
    import tqdm.notebook

    said = []

    class Widget:
        start_t = 0.0

        def __init__(self, **settings):
            said.append(settings)

        def __getattr__(self, name):
            return lambda *args, **kwargs: said.append((name, *args))

    monkeypatch.setitem(sys.modules, "ipywidgets", ModuleType("ipywidgets"))
    monkeypatch.setattr(tqdm.notebook, "tqdm", Widget)
    work(True)
    assert said[0].items() >= {"desc": "steps", "total": 3, "leave": False}.items()
    assert ("reset", 5) in said  # a widget that is only given a new `total` keeps its old length
    assert said[-1] == ("close",)


def test_a_function_is_called(capsys):
    told = []
    work(told.append)
    assert [(p.done, p.total, p.note) for p in told] == [(2, 3, ""), (3, 5, "more"), (5, 5, "")]
    assert capsys.readouterr() == ("", "")
    with pytest.raises(ArgumentError) as caught:
        Meter(3, "steps")
    assert caught.value.name == "progress"
