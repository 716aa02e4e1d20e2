"""The one door to numba: functions compiled on their first call, and kept for the next process.

numba's own cache checks the file of a function only, not the files of what it calls: after an edit
of a kernel, its callers would still compute old numbers. Here the cache of a function lies in a
folder named after all the sources it can depend on, and folders of older sources are removed.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import multiprocessing
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar, cast, overload

import numba
import numpy as np
from numba import njit
from numba import typeof as typeof
from numba.core.caching import CompileResultCacheImpl, FunctionCache
from numba.core.compiler_lock import global_compiler_lock
from numba.core.errors import NumbaError as NumbaError
from numba.extending import overload as _stand_for

from replan._common import sources
from replan.core.interrupt import run_interruptibly

_F = TypeVar("_F", bound=Callable[..., Any])

_config: Any = numba.config  # its settings have no types
_FunctionCache: Any = FunctionCache  # nor have these
_lock: Any = global_compiler_lock
_CompileResultCacheImpl: Any = CompileResultCacheImpl
# Of an array, in compiled code: a signed one costs a test whether it counts from the end.
index = np.uint64
# Of a function with loops to be vectorised: sums in any order, products fused into them.
REORDERED: Any = {"reassoc", "contract"}
_USER = os.getuid() if hasattr(os, "getuid") else 0
_PRIVATE = f"replan-{_USER}"
_told = False
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

    Examples:
        >>> @replan.models.compiled
        ... def double(x):
        ...     return 2.0 * x
        >>> double(21.0)
        42.0
    """
    if function is None:
        return lambda found: _compile(found, modules, options)
    return _compile(function, modules, options)


def inner(function: _F) -> _F:
    """Compile a function that compiled code alone calls, without what a call from Python needs.

    That takes time to compile too; a call from Python crashes.
    """
    return cast(_F, _compile(function, (), {"no_cpython_wrapper": True}))


def inlined(function: _F) -> _F:
    """Compile a function by pasting it into its callers: a call would cost as much as the work."""
    return cast(_F, njit(inline="always", error_model="numpy")(function))


def by_type(choices: Mapping[type, Callable[..., Any]]) -> Callable[..., Any]:
    """Return a function for compiled code that stands for one of several.

    choices: functions of a number made by `inlined`, by NamedTuple class: the type of the first
    argument says which one is meant when the caller is compiled, so that the code has no branch.
    """

    def function(p: Any, x: float) -> Any: ...

    @_stand_for(function, inline="always", strict=False)
    def find(p: Any, x: Any) -> Any:
        chosen = choices[p.instance_class]
        return lambda p, x: chosen(x)

    return function


def is_missing(function: Any) -> bool:
    """Whether code of a compiled function could be kept on the disk, but there is none, nor here.

    For whatever types.
    """
    kept = function._cache
    if function.signatures or not isinstance(kept, _Cache):
        return False
    try:
        return not kept._cache_file._load_index()
    except Exception:  # whatever unpickling a broken file raises
        return True


def _compile(function: Any, modules: Sequence[str], options: dict[str, Any]) -> Any:
    settings: dict[str, Any] = {
        "nogil": True,
        "error_model": "numpy",
        "no_cfunc_wrapper": True,
    } | options
    folder = _folder_of(modules or [function.__module__])
    dispatcher = njit(**settings)(function)
    dispatcher.compile = partial(_in_a_thread, dispatcher.compile)
    if folder is not None:
        with _numba_cache_in(folder):
            _keep_code(dispatcher, folder)
    return dispatcher


def _in_a_thread(compile_: Callable[..., Any], *arguments: Any) -> Any:
    """Compile in a thread of its own, where no Ctrl-C can break it off while it holds its locks.

    Not where this thread holds them already, as it does when a function of the user's that numba
    compiles calls ours: the other thread would wait for ever.
    """
    if _lock.is_locked():
        return compile_(*arguments)
    collects = gc.isenabled()
    gc.disable()  # a sixth of the time to compile: looking in vain for what can be freed
    try:
        return run_interruptibly(compile_, *arguments)
    finally:
        if collects:
            gc.enable()


def _keep_code(dispatcher: Any, folder: Path) -> None:
    """Make a compiled function keep its code in a folder, and nowhere else."""
    with contextlib.suppress(RuntimeError):  # numba finds no place
        kept = _Cache(dispatcher.py_func)
        if Path(kept.cache_path).parent == folder:  # not a place that numba's settings name
            dispatcher._cache = kept
            return
    _tell(f"compiled code stays in memory ({folder} cannot be written)")


class _Place(_CompileResultCacheImpl):  # type: ignore[misc]
    """Where numba keeps code: the folder it is given, none of the others that it would try next."""

    _locator_classes = _CompileResultCacheImpl._locator_classes[:1]


class _Cache(_FunctionCache):  # type: ignore[misc]
    """numba's cache of a function, where a disk that fails only costs the time to compile."""

    _impl_class = _Place

    def load_overload(self, *args: Any) -> Any:
        """Return compiled code from the disk; None if there is none that can be read."""
        found = None
        try:
            found = super().load_overload(*args)
        except Exception:  # whatever unpickling a broken file raises
            with contextlib.suppress(OSError):
                self.flush()
        if found is None:
            _tell_of_compiling()
        return found

    def save_overload(self, *args: Any) -> None:
        """Put compiled code on the disk."""
        try:
            super().save_overload(*args)
        except OSError as error:
            self.disable()
            _tell(f"compiled code stays in memory ({self.cache_path}: {error.strerror})")


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


def folder_for(name: str) -> Path | None:
    """Return a folder for code that another library compiles; None where none can be written."""
    for parent in chain(_parents(), _private()):
        if _writable(parent / name):
            return parent / name
    return None


@cache
def _folder(owner: Path, digest: str) -> Path | None:
    """Return the folder of the code of a file or package with these sources; remove older ones."""
    place = hashlib.sha256(str(owner).encode()).hexdigest()[:8]
    for parent in chain(_parents(), _private()):
        folder = parent / f"{owner.stem}-{place}-{digest}"
        if _writable(folder):
            for old in parent.glob(f"{owner.stem}-{place}-*"):
                if old != folder:
                    shutil.rmtree(old, ignore_errors=True)
            if parent.name == _PRIVATE:
                _tell(f"compiled code is kept in {parent}, as no better folder can be written")
            return folder
    _tell("compiled code stays in memory, as no folder for it can be written")
    return None


def _parents() -> Iterator[Path]:
    """Yield where compiled code is kept for good, the best place first."""
    if _config.CACHE_DIR:  # the user's choice
        yield Path(_config.CACHE_DIR)
    yield sources.PACKAGE / "__pycache__"
    with contextlib.suppress(RuntimeError):  # no home directory
        yield Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "replan"


def _private() -> Iterator[Path]:
    """Yield a folder in the temporary one if it is this user's: nobody else may put code there."""
    with contextlib.suppress(OSError):
        private = Path(tempfile.gettempdir()) / _PRIVATE
        private.mkdir(mode=0o700, exist_ok=True)
        found = private.lstat()
        if found.st_uid == _USER and not found.st_mode & 0o077:
            yield private


def _writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(4096))  # a full disk still takes an empty file
        return True
    except OSError:
        return False


@cache
def _tell_of_compiling() -> None:
    """Say on a terminal, once, what takes so long."""
    if sys.stderr.isatty() and multiprocessing.parent_process() is None:
        print("\rreplan: compiling, which later starts need not do", file=sys.stderr)


def _tell(what: str) -> None:
    """Say once, on stderr, where compiled code is; workers are silent, as their parent says it."""
    global _told
    if not _told and multiprocessing.parent_process() is None:
        print(f"replan: {what}", file=sys.stderr)
    _told = True
