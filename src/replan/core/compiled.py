"""The one door to numba: functions compiled on their first call, and kept for the next process.

numba's own cache checks the file of a function only, not the files of what it calls: after an edit
of a kernel, its callers would still compute old numbers. So the code of this folder is kept under a
digest of all its sources. Functions of users are compiled once in every process.
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
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar, cast, overload

import numba
import numpy as np
from numba import njit
from numba.core.caching import CompileResultCacheImpl, FunctionCache
from numba.core.compiler_lock import global_compiler_lock
from numba.core.errors import NumbaError as NumbaError
from numba.extending import overload as _stand_for

from replan.core.interrupt import run_interruptibly

_F = TypeVar("_F", bound=Callable[..., Any])

_CORE = Path(__file__).parent
_config: Any = numba.config  # its settings have no types
_FunctionCache: Any = FunctionCache  # nor have these
_lock: Any = global_compiler_lock
_CompileResultCacheImpl: Any = CompileResultCacheImpl
# Of an array, in compiled code: a signed one costs a test whether it counts from the end.
index = np.uint64
# Of a function with loops to be vectorised: sums in any order, products fused into them.
REORDERED: Any = {"reassoc", "contract"}


@overload
def compiled(function: _F) -> _F: ...


@overload
def compiled(*, keep: bool | None = None, **options: Any) -> Callable[[_F], _F]: ...


def compiled(
    function: Callable[..., Any] | None = None, *, keep: bool | None = None, **options: Any
) -> Any:
    """Compile a function with numba, without the interpreter's lock and with IEEE division.

    Used as a decorator. `keep`: whether the compiled code is kept on disk; by default that of
    replan is. `options`: numba's own.

    Examples:
        >>> @replan.models.compiled
        ... def double(x):
        ...     return 2.0 * x
        >>> double(21.0)
        42.0
    """
    if function is None:
        return lambda found: _compile(found, keep, options)
    return _compile(function, keep, options)


def inner(function: _F) -> _F:
    """Compile a function that compiled code alone calls, without what a call from Python needs.

    That takes time to compile too; a call from Python crashes.
    """
    return cast(_F, _compile(function, None, {"no_cpython_wrapper": True}))


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


def _compile(function: Any, keep: bool | None, options: dict[str, Any]) -> Any:
    settings: dict[str, Any] = {
        "nogil": True,
        "error_model": "numpy",
        "no_cfunc_wrapper": True,
    } | options
    dispatcher = njit(**settings)(function)
    dispatcher.compile = partial(_in_a_thread, dispatcher.compile)
    if function.__module__.startswith("replan.core") if keep is None else keep:
        folder = _kernel_folder()
        if folder is not None:
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
    before, _config.CACHE_DIR = _config.CACHE_DIR, str(folder)
    try:
        with contextlib.suppress(RuntimeError):  # numba finds no place
            dispatcher._cache = _Cache(dispatcher.py_func)
    finally:
        _config.CACHE_DIR = before


class _Place(_CompileResultCacheImpl):  # type: ignore[misc]
    """Where numba keeps code: the folder it is given, none of the others that it would try next."""

    _locator_classes = _CompileResultCacheImpl._locator_classes[:1]


class _Cache(_FunctionCache):  # type: ignore[misc]
    """numba's cache of a function, where a disk that fails only costs the time to compile."""

    _impl_class = _Place

    def load_overload(self, *args: Any) -> Any:
        """Return compiled code from the disk; None if there is none that can be read."""
        code = None
        try:
            code = super().load_overload(*args)
        except Exception:  # whatever unpickling a broken file raises
            with contextlib.suppress(OSError):
                self.flush()
        if code is None:
            _announce()
        return code

    def save_overload(self, *args: Any) -> None:
        """Put compiled code on the disk."""
        try:
            super().save_overload(*args)
        except OSError:
            self.disable()


@cache
def _announce() -> None:
    """Say on a terminal, once, what takes so long."""
    if sys.stderr.isatty() and multiprocessing.parent_process() is None:
        print("\rreplan: compiling (once)", file=sys.stderr)


@cache
def _kernel_folder() -> Path | None:
    """Return the folder of the code of these sources, and remove those of older ones."""
    digest = hashlib.sha256()
    for path in sorted(_CORE.rglob("*.py")):
        digest.update(path.read_bytes())
    name = f"core-{hashlib.sha256(str(_CORE).encode()).hexdigest()[:8]}"
    folder = cache_folder(f"{name}-{digest.hexdigest()[:16]}")
    if folder is not None:
        for old in folder.parent.glob(f"{name}-*"):
            if old != folder:
                shutil.rmtree(old, ignore_errors=True)
    return folder


def cache_folder(name: str) -> Path | None:
    """Return a folder for compiled code; None where none can be written."""
    for parent in _parents():
        with contextlib.suppress(OSError):
            (parent / name).mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=parent / name):
                return parent / name
    return None


def _parents() -> Iterator[Path]:
    """Yield where compiled code may be kept, the best place first."""
    if _config.CACHE_DIR:  # the user's choice
        yield Path(_config.CACHE_DIR)
    yield _CORE / "__pycache__"
    with contextlib.suppress(RuntimeError):  # no home directory
        yield Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "replan"
