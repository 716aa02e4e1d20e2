"""The examples of adapters in the API pages run, each where its framework is installed."""

from importlib.util import find_spec

import pytest

from documented import ENTRIES, run_example

FRAMEWORKS = ("torch", "lightning", "transformers", "avalanche")
ADAPTERS = tuple(f"replan.replay.{name}" for name in FRAMEWORKS)
NAMES = [name for name in ENTRIES if name.startswith(ADAPTERS)]


@pytest.mark.filterwarnings("default")  # those of the frameworks
@pytest.mark.parametrize("name", NAMES)
def test_the_example_runs(name, tmp_path, monkeypatch):
    framework = name.split(".")[2]
    # No other framework is for the environment of Avalanche, whose torchvision breaks them.
    if find_spec(framework) is None or (framework != "avalanche" and find_spec("torchvision")):
        pytest.skip(f"{framework} is tested in another environment")
    if framework == "avalanche":
        import torchvision_operators  # noqa: F401
    monkeypatch.chdir(tmp_path)
    assert run_example(name)
