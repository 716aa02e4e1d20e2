"""Print the oldest dependencies that pyproject.toml allows, as constraints for pip."""

import tomllib
from pathlib import Path

content = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))
for requirement in content["project"]["dependencies"]:
    assert requirement.count(">=") == 1, f"{requirement}: no oldest version"
    print(requirement.replace(">=", "=="))
