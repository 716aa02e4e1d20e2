"""Public names: each is documented, has an example that runs, and costs nothing to import."""

import subprocess
import sys

import pytest

import replan
from documented import ENTRIES, find, public_names, run_example

FRAMEWORKS = ("torch", "lightning", "transformers", "avalanche")
ADAPTERS = tuple(f"replan.replay.{name}" for name in FRAMEWORKS)
HERE = [name for name in ENTRIES if not name.startswith(ADAPTERS)]
NAMESPACES = ("control", "models", "replay", "strategies")  # each has a page


def test_every_public_name_has_one_entry():
    assert len(ENTRIES) == len(set(ENTRIES))
    entries = {id(find(name)) for name in HERE}
    missing = [
        name
        for name in public_names()
        if name not in ENTRIES and (name.startswith(ADAPTERS) or id(find(name)) not in entries)
    ]
    assert missing == [f"replan.{name}" for name in NAMESPACES]


def test_public_names_are_few():
    assert len(ENTRIES) <= 68


@pytest.mark.slow
@pytest.mark.parametrize("name", HERE)
def test_the_example_runs(name, registries, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run_example(name)


def test_every_public_name_is_there():
    for name in set(replan.__all__):
        assert getattr(replan, name) is not None
    assert dir(replan) == replan.__all__
    with pytest.raises(AttributeError):
        replan.sovle  # noqa: B018


def test_using_replan_is_light():
    """Names load nothing but numpy; using them loads little more."""
    program = """
import sys
import replan

def loaded(*names):
    return [name for name in names if name in sys.modules]

heavy = "scipy.optimize", "scipy.stats", "matplotlib", "pandas", "jax", "tqdm"
slow = "importlib.metadata", "concurrent.futures", "multiprocessing", "replan.control"
replan.TeacherStudent
print(loaded("scipy", *heavy, *slow))
model = replan.TeacherStudent.similar(0.3)
problem = replan.Problem(model, model.fresh(), duration=2.0, steps=4)
replan.evaluate(problem, replan.strategies.focus_then_replay(problem))
print(loaded(*heavy))
from replan import *
replan.compare(problem, ["shuffled"], optimum=True)
print(loaded(*heavy))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == 3 * "[]\n", done.stderr
