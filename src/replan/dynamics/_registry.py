"""The kinds of models: what `kind` in a problem file stands for."""

from __future__ import annotations

import importlib
import os
import sys
from importlib.metadata import entry_points
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TypeVar

from replan._common import check
from replan.dynamics._dynamics import Dynamics

DEFAULT = "teacher-student"  # for a problem file that names no kind
IMPORTS = "REPLAN_IMPORT"  # the environment variable that names modules with the user's own models

_D = TypeVar("_D", bound=type[Dynamics])

_KINDS: dict[str, type[Dynamics]] = {}


def register(model: _D) -> _D:
    """Make a model known under its `kind`; used as a decorator of its class."""
    kind = getattr(model, "kind", None)
    if not isinstance(kind, str) or not kind:
        raise ValueError(f"`kind` expects a word to use in files, got {kind!r} in {model.__name__}")
    known = _KINDS.get(kind, model)
    if (known.__module__, known.__qualname__) != (model.__module__, model.__qualname__):
        raise ValueError(f"`kind` expects a new word, got {kind!r}, used by {known.__name__}")
    _KINDS[kind] = model
    return model


def find(kind: str) -> type[Dynamics]:
    """Return the model of a kind; refuse an unknown kind."""
    if not known(kind):
        raise ValueError(
            f"`model.kind` expects one of {', '.join(sorted(_KINDS))}; got {kind!r}"
            f"{check.hint(kind, _KINDS)} (a kind of your own: `replan --import FILE …`)"
        )
    return _KINDS[kind]


def known(kind: str) -> bool:
    """Whether there is a model of this kind.

    One that is not registered yet is sought among the entry points `replan.models` of installed
    packages, and in the modules or files that the environment variable REPLAN_IMPORT names.
    """
    if kind not in _KINDS:
        for entry in entry_points(group="replan.models"):
            if entry.name == kind:
                entry.load()
        for name in filter(None, os.environ.get(IMPORTS, "").split(os.pathsep)):
            _import(name)
    return kind in _KINDS


def _import(name: str) -> None:
    """Import a module by name, or a file by path."""
    if not name.endswith(".py"):
        importlib.import_module(name)
        return
    path = Path(name).resolve()
    if path.stem in sys.modules:
        return
    spec = spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise ValueError(f"`{IMPORTS}` expects modules or Python files, got {name!r}")
    module = sys.modules[path.stem] = module_from_spec(spec)
    spec.loader.exec_module(module)
