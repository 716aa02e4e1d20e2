"""The kinds of models: what `kind` in a problem file stands for."""

from __future__ import annotations

import importlib
import os
import sys
from importlib.metadata import EntryPoints, entry_points
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TypeVar

from replan import check
from replan.errors import ArgumentError
from replan.models.base import Model

DEFAULT = "teacher-student"  # for a problem file that names no kind
IMPORTS = "REPLAN_IMPORT"  # the environment variable that names modules with the user's own models

_D = TypeVar("_D", bound=type[Model])

_KINDS: dict[str, type[Model]] = {}


def register(model: _D) -> _D:
    """Make a model known under its `kind`; used as a decorator of its class.

    Examples:
        >>> @replan.models.register
        ... class Still(replan.Model):
        ...     kind, tasks = "still", 1
        ...     def losses(self, states):
        ...         return states**2
        ...     def roll_out(self, start, pieces):
        ...         return np.tile(start, (len(pieces.lengths) + 1, 1))
        >>> replan.models.find("still") is Still
        True
    """
    if not isinstance(model, type) or not issubclass(model, Model):
        raise ArgumentError("model", "a class of dynamics", check.show(model))
    kind = getattr(model, "kind", None)
    if not isinstance(kind, str) or not kind:
        raise ArgumentError("kind", "a word for files", f"{check.show(kind)} in {model.__name__}")
    before = _KINDS.get(kind, model)
    if (before.__module__, before.__qualname__) != (model.__module__, model.__qualname__):
        raise ArgumentError(
            "kind",
            "a new word",
            f"{check.show(kind)} in {model.__module__}.{model.__name__}, which is "
            f"{before.__module__}.{before.__name__}",
        )
    _KINDS[kind] = model
    return model


def find(kind: str) -> type[Model]:
    """Return the model of a kind; refuse an unknown kind.

    Examples:
        >>> replan.models.find("teacher-student") is replan.TeacherStudent
        True
    """
    if not isinstance(kind, str) or not known(kind):
        raise ArgumentError(
            "model.kind",
            f"one of {', '.join(kinds())}",
            f"{check.show(kind)}{check.hint(kind, kinds())} (a kind of your own:"
            " `replan --import FILE …`)",
        )
    return _KINDS[kind]


def kinds() -> list[str]:
    """Return the words of all kinds that are registered."""
    return sorted(_KINDS)


def known(kind: str) -> bool:
    """Whether there is a model of this kind.

    First come the modules or files that the environment variable REPLAN_IMPORT names, which may
    bring strategies and solvers as well. A kind that is still not known is looked for among the
    entry points `replan.models` of installed packages.
    """
    import_named()
    if kind not in _KINDS:
        for entry in _entry_points():
            if entry.name == kind:
                entry.load()
    return kind in _KINDS


def model_modules() -> list[str]:
    """Return the names of all modules outside replan that bring models, as `known` finds them."""
    return import_named() + [entry.module for entry in _entry_points()]


def _entry_points() -> EntryPoints:
    return entry_points(group="replan.models")


def import_named() -> list[str]:
    """Import what REPLAN_IMPORT names; return the names of the modules."""
    return [_import(name) for name in os.environ.get(IMPORTS, "").split(os.pathsep) if name]


def _import(name: str) -> str:
    """Import a module by its name, or a file by its path; whatever goes wrong is a ValueError."""
    try:
        if name.endswith(".py"):
            return _import_file(Path(name).resolve())
        return importlib.import_module(name).__name__
    except Exception as error:
        raise ValueError(
            f"`--import`, or {IMPORTS}, expects modules and .py files that can be imported, "
            f"got '{name}': {type(error).__name__}: {error}"
        ) from error


def _import_file(path: Path) -> str:
    """Import a file under its own name, if it is not there yet; return that name.

    As with `python FILE`, its folder is where modules are looked for first, then and later.
    """
    name = path.stem
    if name in sys.modules:
        found = getattr(sys.modules[name], "__file__", None)
        if found is None or Path(found).resolve() != path:
            raise ImportError(f"there is another module {name!r}: give the file another name")
        return name
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
    return name
