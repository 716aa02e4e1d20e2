"""The one door to numba: functions compiled on their first call, and kept for the next process.

numba's own cache checks the file of a function only, not the files of what it calls: after an edit
of a kernel, its callers would still compute old numbers. Here the cache of a function lies in a
folder named after all the sources it can depend on, and folders of older sources are removed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast, overload

import numba
from numba import njit
from numba.core.errors import NumbaError as NumbaError

from replan._common import sources

_F = TypeVar("_F", bound=Callable[..., Any])

_config: Any = numba.config  # its settings have no types
_versions: dict[str, set[tuple[Path, str]]] = {}  # of the user's modules: what was loaded here


@overload
def compiled(function: _F) -> _F: ...


@overload
def compiled(*, modules: Sequence[str] = (), **options: Any) -> Callable[[_F], _F]: ...


def compiled(
    function: Callable[..., Any] | None = None,
    *,
    modules: Sequence[str] = (),
    **options: Any,
) -> Any:
    """Compile a function with numba, without the interpreter's lock and with IEEE division.

    Used as a decorator. The compiled code is kept on disk under the sources of all of replan and,
    for a function of the user's, of every module that it reaches.

    - `modules`: those of the model that it is compiled for, whose sources count in place of its
      own.
    - `options`: numba's own.
    """
    if function is None:
        return lambda found: _compile(found, modules, options)
    return _compile(function, modules, options)


def inlined(function: _F) -> _F:
    """Compile a function by pasting it into its callers: a call would cost as much as the work."""
    return cast(_F, njit(inline="always", error_model="numpy")(function))


def _compile(function: Any, modules: Sequence[str], options: dict[str, Any]) -> Any:
    settings: dict[str, Any] = {"nogil": True, "error_model": "numpy"} | options
    folder = _folder_of(modules or [function.__module__])
    if folder is None:
        return njit(**settings)(function)
    with _numba_cache_in(folder):
        return njit(cache=True, **settings)(function)


@contextlib.contextmanager
def _numba_cache_in(folder: Path) -> Iterator[None]:
    """Make functions that are decorated meanwhile keep their code in a folder."""
    before, _config.CACHE_DIR = _config.CACHE_DIR, str(folder)
    try:
        yield
    finally:
        _config.CACHE_DIR = before


def _folder_of(modules: Sequence[str]) -> Path | None:
    """Return the folder of the compiled code of some modules; None where nothing can be kept.

    Code without a file, as of an interactive session, is compiled anew in every process. So is code
    that depends on what cannot be seen, and that of a module that was edited and reloaded: code
    from disk may bear the names of what is loaded already, which would run in its place.
    """
    own = __package__.partition(".")[0]
    first, *others = [name for name in modules if name.partition(".")[0] != own] or [own]
    if first == own:
        return _folder(sources.PACKAGE, sources.package_digest())
    file = getattr(sys.modules.get(first), "__file__", None)
    if file is None or not os.path.exists(file):
        return None
    owner = Path(file).resolve()
    found = sources.reachable_sources(sys.modules[first], others)
    if found.unseen:
        return None
    digest = sources.package_digest() + found.digest
    versions = _versions.setdefault(first, set())
    versions.add((owner, digest))
    return _folder(owner, digest) if len(versions) == 1 else None


@cache
def _folder(owner: Path, digest: str) -> Path | None:
    """Return the folder of the code of a file or package with these sources; remove older ones."""
    place = hashlib.sha256(str(owner).encode()).hexdigest()[:8]
    for parent in _parents():
        folder = parent / f"{owner.stem}-{place}-{digest}"
        if _writable(folder):
            for old in parent.glob(f"{owner.stem}-{place}-*"):
                if old != folder:
                    shutil.rmtree(old, ignore_errors=True)
            return folder
    return None


def _parents() -> Iterator[Path]:
    """Yield where compiled code may be kept, the best place first."""
    if _config.CACHE_DIR:  # the user's choice
        yield Path(_config.CACHE_DIR)
    yield sources.PACKAGE / "__pycache__"
    with contextlib.suppress(RuntimeError):  # no home directory
        yield Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "replan"
    # Nobody else may put code here: the folder is this user's, or it is not used.
    user = os.getuid() if hasattr(os, "getuid") else 0
    private = Path(tempfile.gettempdir()) / f"replan-{user}"
    with contextlib.suppress(OSError):
        private.mkdir(mode=0o700, exist_ok=True)
        found = private.lstat()
        if found.st_uid == user and not found.st_mode & 0o077:
            yield private


def _writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False
