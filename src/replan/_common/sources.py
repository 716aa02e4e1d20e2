"""Digests of source code, which distinguish results of older code from new ones."""

from __future__ import annotations

import ast
import contextlib
import hashlib
import inspect
import json
import os
import pkgutil
import sys
import warnings
from collections.abc import Iterable, Iterator
from functools import cache
from importlib import metadata
from importlib.machinery import ModuleSpec
from importlib.util import resolve_name
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

PACKAGE = Path(__file__).parents[1]
STANDARD = Path(os.__file__).parent
INSTALLED = {"site-packages", "dist-packages"}
IMPORTS = {"__import__", "import_module"}
RUNS_CODE = IMPORTS | {"exec", "run_module", "run_path", "spec_from_file_location"}

_distributions = cache(metadata.packages_distributions)
_first: dict[str, tuple[object, str]] = {}  # by module: its `__spec__`, its digest when first seen


class Sources(NamedTuple):
    """What code depends on: a digest of the sources, and which of them could not be seen."""

    digest: str
    unseen: list[str]


@cache
def package_digest() -> str:
    """Return a digest of all of replan's own sources, as they were when first asked for."""
    digest = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*.py")):
        digest.update(f"{path.relative_to(PACKAGE).as_posix()}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def reachable_sources(thing: Any, also: Iterable[str] = ()) -> Sources:
    """Return a digest of the user's modules that a function, class or module reaches.

    Follows the imports in their sources, inside functions too, and imports nothing itself. Code
    under `if __name__ == "__main__"` counts only where it sets what the rest of its file uses.
    Installed packages count by their versions; the standard library does not count, nor does
    replan, which has `package_digest`. `also` names more modules to begin from.
    """
    start = thing.__name__ if inspect.ismodule(thing) else str(thing.__module__)
    todo, found = [start, *also], {}
    while todo:
        name = todo.pop()
        if name not in found:
            found[name] = _look_at(name)
            todo += found[name].imports
    digests = [[name, module.digest] for name, module in sorted(found.items()) if module.digest]
    unseen = [f"{name} ({what})" for name, module in found.items() for what in module.unseen]
    if start not in sys.modules:
        unseen.append(f"{start} (is not imported)")
    elif find_spec(start) is None:
        with contextlib.suppress(OSError, TypeError):  # notebooks know the text of their cells
            digests.append([start, inspect.getsource(thing)])
    return Sources(_digest(json.dumps(digests).encode()), sorted(unseen))


class _Module(NamedTuple):
    """What a module depends on: its own source, other modules by name, and what cannot be seen."""

    digest: str = ""
    imports: frozenset[str] = frozenset()
    unseen: tuple[str, ...] = ()


def _look_at(name: str) -> _Module:
    """Return what a module depends on; nothing if it is not the user's, or no module."""
    module, spec = sys.modules.get(name), find_spec(name)
    if spec is None:
        return _Module() if module is None else _session(module)
    path = Path(spec.origin or "")
    if spec.origin in ("built-in", "frozen") or PACKAGE in path.parents:
        return _Module()
    if not INSTALLED.isdisjoint(path.parts):
        version = _version(name.partition(".")[0])
        return _Module(version, unseen=() if version else ("has no version",))
    if STANDARD in path.parents:
        return _Module()
    above = {name.rpartition(".")[0]} - {""}
    if spec.origin is None:  # a folder without __init__.py
        return _Module(imports=frozenset(above))
    found = _read(path, spec.parent or "")
    if module is not None:
        found = _as_imported(name, module, found)
    return found._replace(imports=found.imports | above)


def find_spec(name: str) -> ModuleSpec | None:
    """Return what a module was or would be loaded from; None if it has no file."""
    module = sys.modules.get(name)
    if module is not None:
        file = getattr(module, "__file__", None)
        script = ModuleSpec(name, None, origin=file) if file and Path(file).is_file() else None
        return getattr(module, "__spec__", None) or script
    above = name.rpartition(".")[0]
    if not above:
        found = [finder.find_spec(name, None) for finder in sys.meta_path]
    else:
        parent = find_spec(above)
        folders = (parent and parent.submodule_search_locations) or []
        finders = [pkgutil.get_importer(folder) for folder in folders]
        found = [finder.find_spec(name) for finder in finders if finder is not None]
    specs = [spec for spec in found if spec is not None]
    # A folder without __init__.py has no loader, and gives way to any module of its name.
    return next((spec for spec in specs if spec.loader is not None), next(iter(specs), None))


def _session(module: ModuleType) -> _Module:
    """Return what an interactive session depends on: the modules that its objects come from."""
    names = {
        thing.__name__ if inspect.ismodule(thing) else getattr(thing, "__module__", None)
        for thing in list(vars(module).values())
    }
    imports = frozenset(name for name in names if isinstance(name, str))
    return _Module(imports=imports, unseen=("has no file",))


@cache
def _version(package: str) -> str:
    """Return the version of an installed package, given the name it is imported by."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:  # the slow way, as for `sklearn` of scikit-learn
        names = _distributions().get(package, [])
        return " ".join(f"{name} {metadata.version(name)}" for name in sorted(set(names)))


def _read(path: Path, package: str) -> _Module:
    """Return what the file of a module in a package depends on."""
    try:
        content = path.read_bytes()
    except OSError:
        return _Module(unseen=("cannot be read",))
    if path.suffix != ".py":  # it is seen; what it imports is not
        return _Module(_digest(content), unseen=("is compiled",))
    try:
        return _parse(content, package, is_package=path.name == "__init__.py")
    except (SyntaxError, ValueError):
        return _Module(_digest(content), unseen=("cannot be parsed",))


@cache
def _parse(content: bytes, package: str, *, is_package: bool) -> _Module:
    """Return what a source depends on, without what it does only as a script."""
    with warnings.catch_warnings(action="ignore"):  # importing the source will show them
        tree, lines = ast.parse(content), content.splitlines()
    for part in reversed(tree.body):
        match part:
            case ast.If(test=test, orelse=[]) if ast.unparse(test) == "__name__ == '__main__'":
                tree.body.remove(part)
                if _names(part, ast.Store) & _names(tree, ast.Load):
                    tree.body.append(part)
                else:
                    del lines[part.lineno - 1 : part.end_lineno]
    names: set[str] = set()  # as in import statements, with leading dots
    unseen: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Import():
                names |= {alias.name for alias in node.names}
            case ast.ImportFrom():
                module = "." * node.level + (node.module or "")
                dot = "." if node.module else ""
                names |= {module, *(module + dot + alias.name for alias in node.names)}
                hidden = {alias.name for alias in node.names if alias.asname}  # calls are not seen
                unseen |= {f"runs code by `{name}`" for name in hidden & RUNS_CODE}
            case ast.Assign(targets=[ast.Name(id="__all__")]) if is_package:
                parts = (p.value for p in ast.walk(node.value) if isinstance(p, ast.Constant))
                names |= {f".{part}" for part in parts if isinstance(part, str)}  # for import *
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in RUNS_CODE:
                match node.args:
                    case [ast.Constant(value=str(text)), *_] if name in IMPORTS and text[:1] != ".":
                        names.add(text)
                    case _:
                        unseen.add(f"runs code by `{name}`")
    digest = _digest(b"\n".join(lines))
    return _Module(digest, frozenset(_absolute(names, package)), tuple(sorted(unseen)))


def _names(tree: ast.AST, context: type[ast.expr_context]) -> set[str]:
    """Return the names that a piece of code sets, or reads."""
    nodes = (node for node in ast.walk(tree) if isinstance(node, ast.Name))
    return {node.id for node in nodes if isinstance(node.ctx, context)}


def _absolute(names: Iterable[str], package: str) -> Iterator[str]:
    for name in names:
        with contextlib.suppress(ImportError):  # above the topmost package: no such module
            yield resolve_name(name, package)


def _as_imported(name: str, module: ModuleType, found: _Module) -> _Module:
    """Return what a loaded module depends on, if its file is unchanged since it was first seen.

    After an edit, the old source runs here and the new one in processes that start now: results
    must not be mistaken for those of either.
    """
    spec = getattr(module, "__spec__", None)
    if name not in _first or _first[name][0] is not spec:  # a new one when a module is reloaded
        _first[name] = spec, found.digest
    first = _first[name][1]
    if first == found.digest:
        return found
    unseen = (*found.unseen, "was edited after its import: reload it")
    return found._replace(digest=first + found.digest, unseen=unseen)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
