"""The kinds of models: the classes that `kind` in a problem file stands for."""

from __future__ import annotations

import importlib
import os
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from replan import check
from replan.errors import ArgumentError
from replan.models.base import Model

DEFAULT = "teacher-student"  # the kind where a problem file names none
IMPORTS = "REPLAN_IMPORT"  # the environment variable that names modules with users' models

KINDS = Model.registry
register = KINDS.add


def find(kind: str) -> type[Model]:
    """Return the model of a kind.

    Besides registered kinds there are those of the modules and files that REPLAN_IMPORT names, and
    then those of the entry points `replan.models` of installed packages.
    """
    import_named()
    check.word("model.kind", kind)
    if kind not in KINDS:
        from importlib.metadata import entry_points  # slow to import

        for entry in entry_points(group="replan.models"):
            if entry.name == kind:
                entry.load()
    if kind not in KINDS:
        raise ArgumentError(
            "model.kind",
            f"one of {', '.join(KINDS)}",
            f"{check.show(kind)}{check.hint(kind, KINDS)} (for a model in a file: "
            "`replan --import FILE …`)",
        )
    return KINDS[kind]


def import_named() -> None:
    """Import the modules, by name, and the files, by path, that REPLAN_IMPORT lists."""
    for name in filter(None, os.environ.get(IMPORTS, "").split(os.pathsep)):
        try:
            if name.endswith(".py"):
                _import_file(Path(name).resolve())
            else:
                importlib.import_module(name)
        except Exception as error:
            got = f"'{name}': {type(error).__name__}: {error}"
            raise ArgumentError(IMPORTS, "modules and .py files", got) from error


def _import_file(path: Path) -> None:
    """Import a file under its stem, unless that is done already.

    As with `python FILE`, modules are looked for in its folder first.
    """
    name = path.stem
    if name in sys.modules:
        origin = getattr(sys.modules[name], "__file__", None)
        if origin is None or Path(origin).resolve() != path:
            raise ImportError(f"there is another module {name!r}: give the file another name")
        return
    spec = spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None, "it ends in .py"
    module = sys.modules[name] = module_from_spec(spec)
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
