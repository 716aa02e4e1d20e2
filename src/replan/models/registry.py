"""The kinds of models: the classes that `kind` in a problem file stands for."""

from __future__ import annotations

import importlib
import os
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TypeVar

from replan import check
from replan.errors import ArgumentError
from replan.models.base import Model

DEFAULT = "teacher-student"  # the kind where a problem file names none
IMPORTS = "REPLAN_IMPORT"  # the environment variable that names modules with users' models

_M = TypeVar("_M", bound=type[Model])

_KINDS: dict[str, type[Model]] = {}


def register(model: _M) -> _M:
    """Make a model known under its `kind`; used as a decorator of its class.

    Examples:
        >>> @replan.models.register
        ... class Still(replan.Model):
        ...     kind, tasks = "still", 1
        ...     def losses(self, states):
        ...         return states**2
        ...     def roll_out(self, start, schedule):
        ...         return np.tile(start, (len(schedule.lengths) + 1, 1))
        >>> replan.models.registry.find("still") is Still
        True
    """
    if not isinstance(model, type) or not issubclass(model, Model):
        raise ArgumentError("model", "a subclass of Model", check.show(model))
    kind = getattr(model, "kind", None)
    if not isinstance(kind, str) or not kind:
        raise ArgumentError("kind", "a word for files", f"{check.show(kind)} in {model.__name__}")
    before = _KINDS.get(kind, model)
    if (before.__module__, before.__qualname__) != (model.__module__, model.__qualname__):
        raise ArgumentError(
            "kind",
            "a word that no other model uses",
            f"{check.show(kind)}, that of {before.__module__}.{before.__name__}",
        )
    _KINDS[kind] = model
    return model


def find(kind: str) -> type[Model]:
    """Return the model of a kind.

    Besides registered kinds there are those of the modules and files that REPLAN_IMPORT names, and
    then those of the entry points `replan.models` of installed packages.

    Examples:
        >>> replan.models.registry.find("teacher-student") is replan.TeacherStudent
        True
    """
    import_named()
    check.word("model.kind", kind)
    if kind not in _KINDS:
        from importlib.metadata import entry_points  # slow to import

        for entry in entry_points(group="replan.models"):
            if entry.name == kind:
                entry.load()
    if kind not in _KINDS:
        raise ArgumentError(
            "model.kind",
            f"one of {', '.join(kinds())}",
            f"{check.show(kind)}{check.hint(kind, kinds())} (for a model in a file: "
            "`replan --import FILE …`)",
        )
    return _KINDS[kind]


def kinds() -> list[str]:
    """Return all registered kinds."""
    return sorted(_KINDS)


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
