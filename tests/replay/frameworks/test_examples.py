"""The examples of adapters in the API pages run, each where its framework is installed."""

from importlib.util import find_spec

import pytest

from documented import ENTRIES, run_example

ADAPTERS = ("replan.replay.torch", "replan.replay.lightning", "replan.replay.avalanche")
NAMES = [name for name in ENTRIES if name.startswith(ADAPTERS)]


@pytest.mark.filterwarnings("default")  # those of the frameworks
@pytest.mark.parametrize("name", NAMES)
def test_the_example_runs(name, tmp_path, monkeypatch):
    framework = name.split(".")[2]
    # Lightning is not for the environment of Avalanche, whose torchvision breaks it.
    if find_spec(framework) is None or (framework != "avalanche" and find_spec("torchvision")):
        pytest.skip(f"{framework} is tested in another environment")
    if framework == "avalanche":
        import torchvision_operators  # noqa: F401
    monkeypatch.chdir(tmp_path)
    assert run_example(name)
