"""Every public name has an entry in the API pages, and an example that runs.

Those that need PyTorch, Lightning or Avalanche: tests/replay/frameworks/test_examples.py.
"""

import pytest

from documented import ENTRIES, docstring, find, public_names, run_example
from replan.models import _registry
from replan.strategies import STRATEGIES

ADAPTERS = ("replan.replay.torch", "replan.replay.lightning", "replan.replay.avalanche")
HERE = [name for name in ENTRIES if not name.startswith(ADAPTERS)]


@pytest.fixture
def registries():
    """What examples register is forgotten in the end."""
    kept = [(registry, dict(registry)) for registry in (STRATEGIES, _registry._KINDS)]
    yield
    for registry, content in kept:
        registry.clear()
        registry.update(content)


def test_every_public_name_has_one_entry():
    assert len(ENTRIES) == len(set(ENTRIES))
    entries = {id(find(name)) for name in HERE}
    for name in public_names():
        if name.startswith(ADAPTERS):
            assert name in ENTRIES
        else:
            assert name in ENTRIES or id(find(name)) in entries, name


@pytest.mark.parametrize("name", HERE)
def test_the_example_runs(name, registries, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run_example(name)


def test_an_example_that_is_wrong_fails(monkeypatch):
    right = docstring("replan.sweep")
    monkeypatch.setattr(find("replan.sweep"), "__doc__", right.replace("20}]", "21}]"))
    with pytest.raises(AssertionError, match="'area': 21"):
        run_example("replan.sweep")
