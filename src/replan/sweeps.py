"""sweep(function, cases): many independent computations on all cores, each finished one kept."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import json
import math
import os
import pickle
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np

from replan import check, files
from replan._common import sources
from replan._common.executors import Borrowed
from replan._common.processes import Processes
from replan.models.registry import IMPORTS, model_modules
from replan.progress import Meter, Watch

Case = dict[str, Any]
Result = dict[str, Any]
Entry = dict[str, Any]  # of the cache: a case and what else its result depends on

_LOOK = 0.2  # seconds between two looks at whether anybody is still at work


def sweep(
    function: Callable[..., Result],
    cases: Iterable[Case],
    *,
    cache: files.FilePath | None = None,
    workers: int | None = None,
    executor: Any = None,
    progress: Watch = False,
) -> list[Result]:
    """Return function(**case) for every case, in their order.

    **Main arguments**

    - `function`: defined in a module or script that worker processes import; its result is a dict
      of JSON types. A script that calls `sweep` needs its `if __name__ == "__main__"`.
    - `cases`: dicts of JSON types, such as the content of a problem file under the key "problem".
      In cases and results, numpy's numbers and arrays become Python's numbers and lists.

    **Other arguments**

    - `cache`: a folder, made if need be. Finished cases are kept there and not computed again, even
      if this process is killed. A case is known by its arguments, the sources of replan, those of
      all your modules that the function imports, directly or not, and the versions of the installed
      packages that they import. A warning names what cannot be seen of these. Another says that
      the disk takes no more results; the sweep goes on and returns them.
    - `workers`: processes, by default one per core; with 1, all happens in this process and,
      without a cache, `function` may be anything that can be called.
    - `executor`: instead of `workers`, any `concurrent.futures.Executor`, or a
      `dask.distributed.Client`. It is not shut down. Its workers need the same replan, and no disk
      in common with this process, which writes the cache.
    - `progress`: True for a progress bar; a function is called with a `Progress`.

    An error in a case, or Ctrl-C, ends the sweep; what was finished stays in the cache.

    Examples:
        >>> def area(width, height):
        ...     return {"area": width * height}
        >>> replan.sweep(area, [{"width": 2, "height": 3}, {"width": 4, "height": 5}], workers=1)
        [{'area': 6}, {'area': 20}]
    """
    with Sweep(cache, workers=workers, executor=executor, progress=progress) as run:
        return run(function, cases)


class Sweep:
    """Sweeps that share workers, a cache and a progress bar; they may run in several threads.

    The arguments are those of `sweep`. Used as `with Sweep(…) as run: run(function, cases)`.

    Examples:
        >>> def area(width, height):
        ...     return {"area": width * height}
        >>> with replan.sweeps.Sweep(workers=1) as run:
        ...     print(run(area, [{"width": 2, "height": 3}]))
        ...     print(run(area, [{"width": 4, "height": 5}]))
        [{'area': 6}]
        [{'area': 20}]
    """

    def __init__(
        self,
        cache: files.FilePath | None = None,
        *,
        workers: int | None = None,
        executor: Any = None,
        progress: Watch = False,
    ) -> None:
        self.cache = None if cache is None else check.path("cache", cache)
        self._workers: Processes | Borrowed | None = None  # None: the thread that asks
        if executor is not None:
            self._workers = Borrowed(executor)
            if workers is not None:
                raise ValueError(
                    f"`workers` expects None beside `executor`, got {check.show(workers)}"
                )
        else:
            workers = (os.cpu_count() or 1) if workers is None else workers
            if check.integer("workers", workers, at_least=1) > 1:
                self._workers = Processes(workers)
        self._meter = Meter(progress, "cases")
        self._lock, self._over, self._told, self._known = threading.Lock(), False, False, 0

    @property
    def alone(self) -> bool:
        """Whether everything happens in the thread that asks for it."""
        return self._workers is None

    def __enter__(self) -> Sweep:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._over = True
        with self._meter:
            if self._workers is not None:
                self._workers.close() if kind is None else self._workers.kill()

    def __call__(self, function: Callable[..., Result], cases: Iterable[Case]) -> list[Result]:
        """Return function(**case) for every case, in their order."""
        _check_function(function, self._workers, cached=self.cache is not None)
        cases = [
            _plain(case, "`cases` expects JSON types") for case in _checked_cases(function, cases)
        ]
        entries = _entries(function, cases, self.cache)
        found = [None if self.cache is None else _read(self.cache / _name(e)) for e in entries]
        results = {i: result for i, result in enumerate(found) if result is not None}
        todo = [i for i in range(len(cases)) if i not in results]
        if todo and self.cache is not None:  # one that is complete may be read-only
            files.folder("cache", self.cache)
        self._advance(len(results), expect=len(cases), known=True)
        pending = {i: entries[i] for i in todo}
        with contextlib.closing(self._finished(function, pending)) as finished:
            for i, result, trouble in finished:
                results[i] = result
                self._tell(trouble)
                self._advance()
        return [results[i] for i in range(len(cases))]

    def _advance(self, count: int = 1, *, expect: int = 0, known: bool = False) -> None:
        with self._lock:
            self._known += count if known else 0
            note = f"{self._known} from the cache" if self._known else ""
        self._meter.advance(count, expect=expect, known=known, note=note)

    def _tell(self, trouble: str | None) -> None:
        """Warn, once, that results cannot be kept: no reason to stop what computes them."""
        with self._lock:
            told, self._told = self._told, self._told or trouble is not None
        if trouble is not None and not told:
            warnings.warn(f"`cache` cannot keep results from now on: {trouble}", stacklevel=4)

    def _finished(
        self, function: Callable[..., Result], entries: dict[int, Entry]
    ) -> Generator[tuple[int, Result, str | None]]:
        """Yield the cases as they are finished and kept, each with why it could not be kept."""
        if self._workers is None:
            for i, entry in entries.items():
                self._go_on()
                result = _compute(function, entry["case"])
                yield i, result, _keep(entry, self.cache, result)
            return
        send = self._sender(function)
        done: SimpleQueue[Future[Any]] = SimpleQueue()
        futures: dict[Future[Any], int] = {}
        try:
            for i, entry in entries.items():
                future = send(entry)
                futures[future] = i
                future.add_done_callback(done.put)
                while not done.empty():  # submitting all of them may take long
                    yield self._take(done.get(), futures, entries)
            while futures:
                try:
                    future = done.get(timeout=_LOOK)
                except Empty:
                    self._go_on()
                else:
                    yield self._take(future, futures, entries)
        except BaseException:
            for future in futures:
                future.cancel()
            for future in list(futures):  # nothing that was finished is lost
                if future.done() and not future.cancelled() and not future.exception():
                    with contextlib.suppress(Exception):
                        self._take(future, futures, entries)
            raise

    def _go_on(self) -> None:
        if self._over:
            raise RuntimeError("the sweep is over")

    def _sender(self, function: Callable[..., Result]) -> Callable[[Entry], Future[Any]]:
        """Return how the case of an entry is given to a worker."""
        workers, digest = self._workers, sources.package_digest()
        assert workers is not None
        if isinstance(workers, Processes):
            return lambda entry: workers.submit(_finish, digest, function, entry, self.cache)
        if workers.threads:
            return lambda entry: workers.submit(_compute, function, entry["case"])
        return functools.partial(
            workers.submit, _finish_there, digest, os.environ.get(IMPORTS, ""),
            workers.pack(function), name=getattr(function, "__qualname__", "case"),
        )  # fmt: skip

    def _take(
        self, future: Future[Any], futures: dict[Future[Any], int], entries: dict[int, Entry]
    ) -> tuple[int, Result, str | None]:
        """Return a case that is done, its result, and why it could not be kept."""
        i = futures[future]
        assert self._workers is not None
        try:
            found = self._workers.result(future)
        except ChildProcessError as error:
            error.add_note(f"a worker had the case {json.dumps(entries[i]['case']):.200}")
            raise
        if isinstance(self._workers, Borrowed):
            found = found, _keep(entries[i], self.cache, found)
        del futures[future]
        return i, *found


def _check_function(function: Any, workers: Processes | Borrowed | None, *, cached: bool) -> None:
    """Refuse what cannot be called, what workers cannot import, and what a cache cannot know."""
    check.function("function", function)
    if not cached and not isinstance(workers, Processes):
        return
    found: Any = sys.modules.get(getattr(function, "__module__", None) or "")
    for name in getattr(function, "__qualname__", "").split("."):
        found = getattr(found, name, None)
    if found is not function:  # a lambda, a function within a function, a method, a partial
        raise ValueError(
            "`function` expects a function defined by name at the top level of a module, got "
            f"{check.show(function)}: define it there, or use workers=1 without a cache"
        )
    if isinstance(workers, Processes) and sources.find_spec(function.__module__) is None:
        raise ValueError(
            "`function` expects a function in a file that worker processes can import, got "
            f"`{function.__qualname__}` of an interactive session: put it in a module, or use "
            "workers=1"
        )


def _checked_cases(function: Callable[..., Result], cases: Iterable[Case]) -> list[Case]:
    """Return the cases if the function can be called with each."""
    listed = check.items("cases", cases, "dicts of arguments")
    try:
        signature = inspect.signature(function)
    except ValueError:  # some compiled functions have none
        signature = inspect.Signature([inspect.Parameter("_", inspect.Parameter.VAR_KEYWORD)])
    for case in listed:
        if not isinstance(case, dict) or not all(isinstance(key, str) for key in case):
            raise ValueError(f"`cases` expects dicts of arguments, got {check.show(case)}")
        try:
            signature.bind(**case)
        except TypeError as error:
            raise ValueError(
                f"`cases` expects dicts of arguments of `function`, got {check.show(case)}: {error}"
            ) from None
    return list(listed)


def _plain(value: Any, expects: str, where: str = "") -> Any:
    """Return a value in JSON types, those of numpy converted; `where` is its place, for errors."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    match value:
        case None | bool():
            return value
        case str():
            return str.__str__(value)  # no subclass, such as an enumeration
        case int():
            return int(value)
        case float() if math.isfinite(value):
            return float(value)
        case list() | tuple():
            return [_plain(item, expects, f"{where}[{i}]") for i, item in enumerate(value)]
        case dict() if all(isinstance(key, str | int | float | np.number) for key in value):
            keys = [_plain(key, expects, where) for key in value]
            texts = [key if isinstance(key, str) else json.dumps(key) for key in keys]
            if len(set(texts)) == len(texts):
                items = zip(texts, value.values(), strict=True)
                return {key: _plain(x, expects, f"{where}.{key}".lstrip(".")) for key, x in items}
    raise ValueError(f"{expects}, got {check.show(value)}{where and f' in `{where}`'}")


def _entries(
    function: Callable[..., Result], cases: Sequence[Case], cache: Path | None
) -> list[Entry]:
    """Return what the cache knows every case by: the function, its sources and its arguments."""
    if cache is None:
        return [{"case": case} for case in cases]
    found = sources.reachable_sources(function, model_modules())
    if found.unseen:
        warnings.warn(
            f"`cache` cannot see all that the results depend on: {', '.join(found.unseen)}",
            stacklevel=4,
        )
    what = {
        "function": f"{function.__module__}.{function.__qualname__}",
        "sources": f"{found.digest} {sources.package_digest()}",
    }
    return [what | {"case": case} for case in cases]


def _name(entry: Entry) -> str:
    """Return the name of an entry's file in the cache."""
    return f"{_digest([entry[key] for key in ('function', 'sources', 'case')])}.json"


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]


def _read(path: Path) -> Result | None:
    """Return the result in a file of the cache, None if there is none.

    A file under the name of another entry, as by a copy, one whose result was changed and one that
    cannot be read have none.
    """
    try:
        entry = files.read_json(path)
        if _name(entry) == path.name and _digest(entry["result"]) == entry["digest"]:
            return entry["result"]
    except (OSError, ValueError, KeyError, RecursionError):
        pass
    return None


def _finish(
    digest: str, function: Callable[..., Result], entry: Entry, cache: Path | None
) -> tuple[Result, str | None]:
    """Compute a case and keep it; in the worker, so that nothing is lost with the parent.

    digest: of replan's sources as the parent has them.
    """
    _check_replan(digest)
    result = _compute(function, entry["case"])
    return result, _keep(entry, cache, result)


def _finish_there(digest: str, imports: str, packed: bytes, entry: Entry) -> Result:
    """Compute a case on a worker of an executor, perhaps on another machine; the parent keeps it.

    digest: of replan's sources as the parent has them; imports: its REPLAN_IMPORT.
    """
    _check_replan(digest)
    if os.environ.get(IMPORTS, "") != imports:
        os.environ[IMPORTS] = imports
    try:
        function = pickle.loads(packed)
    except Exception as error:
        raise ChildProcessError(
            f"a worker of the executor cannot import `function` ({type(error).__name__}: {error}): "
            "put its module where the workers find it"
        ) from error
    script = function.__module__ in ("__main__", "__mp_main__")  # which is sent, not imported
    if "sources" in entry and not script and _sources(function, imports) != entry["sources"]:
        raise ChildProcessError(
            f"a worker of the executor has other sources of `{function.__module__}`, or of what it "
            "imports, than this process: a cache could not tell their results apart; install the "
            "same there, and start the workers again"
        )
    return _compute(function, entry["case"])


@functools.cache
def _sources(function: Callable[..., Result], imports: str) -> str:
    """Return what a cache knows the sources of a function by here, with REPLAN_IMPORT as given."""
    found = sources.reachable_sources(function, model_modules())
    return f"{found.digest} {sources.package_digest()}"


def _check_replan(digest: str) -> None:
    if sources.package_digest() != digest:
        raise ChildProcessError(
            "a worker has other sources of replan than this process: install the same version in "
            "both; if replan was edited after the sweep began, start it again"
        )


def _compute(function: Callable[..., Result], case: Case) -> Result:
    """Return the result of a case, the same from here as from the cache."""
    try:
        with _heeding_ctrl_c():
            result = function(**case)
        if not isinstance(result, dict):
            raise ValueError(f"`function` expects a dict as its result, got {check.show(result)}")
        plain: Result = _plain(result, "`function` expects a result of JSON types")
    except Exception as error:
        error.add_note(f"in the case {json.dumps(case):.200}")
        raise
    return plain


def _keep(entry: Entry, cache: Path | None, result: Result) -> str | None:
    """Put a result in the cache, if there is one; return why it cannot be."""
    if cache is not None:
        path = cache / _name(entry)
        try:
            kept = entry | {"result": result, "digest": _digest(result)}
            files.replace(path, files.json_bytes(kept))
        except OSError as error:
            return f"{path}: {error.strerror}"
    return None


@contextlib.contextmanager
def _heeding_ctrl_c() -> Iterator[None]:
    """Raise KeyboardInterrupt at the end if Ctrl-C came, even if what it stopped gave a result.

    `solve` and `simulate` return the best they have by then, which is not a finished case.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came = []

    def hear(*_: object) -> None:
        came.append(True)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, hear)
    try:
        yield
        if came:
            raise KeyboardInterrupt
    finally:
        signal.signal(signal.SIGINT, before)
