import json
import os
import signal
import sys
from importlib import invalidate_caches
from pathlib import Path

import pytest

import replan
from replan.control import METHODS
from replan.core import build
from replan.models.registry import KINDS
from replan.strategies import STRATEGIES

ROOT = Path(__file__).parents[1]

# Edits of C are never forgotten. The workers start when the first process has read this.
if "PYTEST_XDIST_WORKER" not in os.environ:
    build.update()

# A shell starts background jobs with Ctrl-C ignored; tests of it want it heeded.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(params=["two_tasks_k2", "two_tasks_k4"])
def reference(request):
    """An instance of the problem with values from an independent code."""
    return json.loads((ROOT / "tests" / "data" / f"{request.param}.json").read_text())


@pytest.fixture
def problem():
    """A small problem: two tasks, task 1 half learned, ten units of time left."""
    model = replan.TeacherStudent.similar(0.3)
    start = model.pretrain(task=0, duration=60.0, seed=1)
    return replan.Problem(model, start, duration=10.0, steps=40)


@pytest.fixture
def write(tmp_path, monkeypatch):
    """A function that writes a file of a user's, who has it imported anew."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # two edits in one second are two

    def forget():
        for name, module in list(sys.modules.items()):
            places = [getattr(module, "__file__", None), *getattr(module, "__path__", [])]
            if any(str(place).startswith(str(tmp_path)) for place in places):
                del sys.modules[name]
        invalidate_caches()

    def write(name, text):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        forget()

    yield write
    forget()


@pytest.fixture
def registries():
    """What a test registers is forgotten in the end."""
    kept = [(registry, dict(registry)) for registry in (STRATEGIES, METHODS, KINDS)]
    yield
    for registry, content in kept:
        registry.clear()
        registry.update(content)


@pytest.fixture
def decay(write, tmp_path, monkeypatch, registries):
    """A model and a strategy of the user's, in a file that REPLAN_IMPORT names."""
    write("decay.py", (ROOT / "tests" / "data" / "decay.py").read_text())
    monkeypatch.setenv("REPLAN_IMPORT", str(tmp_path / "decay.py"))
    return tmp_path / "decay.py"
