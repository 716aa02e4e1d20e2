"""Compiles the core into the wheel, or beside its sources for an editable installation."""

from pathlib import Path
from runpy import run_path
from typing import Any

from hatchling.builders.config import BuilderConfig
from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from packaging.tags import platform_tags

CORE = "src/replan/core"


class CoreHook(BuildHookInterface[BuilderConfig]):
    """What hatchling calls before it makes a wheel."""

    def dependencies(self) -> list[str]:
        """Return what the build needs: ziglang, where there is no other compiler."""
        return ["ziglang"] if "ziglang" in self.core()["compiler"]() else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile the libraries, and take the page where it was built.

        They know nothing of Python: one wheel serves all versions.
        """
        build_data["artifacts"] += [f"{CORE}/{path.name}" for path in self.core()["build"]()]
        page = "build/replan.html"
        if version == "standard" and Path(self.root, page).exists():
            build_data["force_include"][page] = "replan/page/replan.html"
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{next(platform_tags())}"

    def core(self) -> dict[str, Any]:
        """Return the functions that find a compiler and run it."""
        return run_path(str(Path(self.root, CORE, "build.py")))
