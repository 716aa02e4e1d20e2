"""sweep(function, cases): many independent computations on all cores, each finished one kept."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, as_completed
from pathlib import Path
from typing import Any

import numpy as np

from replan._common import check, files, sources
from replan._common.processes import Processes
from replan._common.progress import Meter, Watch

Case = dict[str, Any]
Result = dict[str, Any]


def sweep(
    function: Callable[..., Result],
    cases: Iterable[Case],
    *,
    cache: files.FilePath | None = None,
    workers: int | None = None,
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
      packages that they import. A warning names what cannot be seen of these.
    - `workers`: processes, by default one per core; with 1, all happens in this process and,
      without a cache, `function` may be anything that can be called.
    - `progress`: True for a progress bar; a function is called with a `Progress`.

    An error in a case, or Ctrl-C, ends the sweep; what was finished stays in the cache.
    """
    with Sweep(cache, workers, progress) as run:
        return run(function, cases)


class Sweep:
    """Sweeps that share workers, a cache and a progress bar; they may run in several threads.

    The arguments are those of `sweep`. Used as `with Sweep(…) as run: run(function, cases)`.
    """

    def __init__(self, cache: files.FilePath | None, workers: int | None, progress: Watch) -> None:
        workers = (os.cpu_count() or 1) if workers is None else workers
        self.cache = None if cache is None else check.path("cache", cache)
        self.workers = check.integer("workers", workers, at_least=1)
        self._meter = Meter(progress, "cases")
        self._lock, self._over = threading.Lock(), False
        self._pool: Processes | None = None

    def __enter__(self) -> Sweep:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._over = True
        with self._meter:
            if self._pool is not None:
                self._pool.shutdown() if kind is None else self._pool.kill()

    def __call__(self, function: Callable[..., Result], cases: Iterable[Case]) -> list[Result]:
        """Return function(**case) for every case, in their order."""
        _check_function(function, workers=self.workers, cached=self.cache is not None)
        cases = check.items("cases", cases, "dicts of arguments")
        for case in cases:
            if not isinstance(case, dict) or not all(isinstance(key, str) for key in case):
                raise ValueError(f"`cases` expects dicts of arguments, got {check.show(case)}")
        cases = [_plain(case, "`cases` expects JSON types") for case in cases]
        paths = _paths(function, cases, self.cache)
        results = {i: found for i, path in enumerate(paths) if (found := _read(path)) is not None}
        todo = [i for i in range(len(cases)) if i not in results]
        self._meter.advance(len(results), expect=len(cases))
        if self.workers == 1:
            for i in todo:
                if self._over:
                    raise RuntimeError("the sweep is over")
                with _heeding_ctrl_c():
                    result = _compute(function, cases[i])
                results[i] = _keep(function, cases[i], paths[i], result)
                self._meter.advance()
            return [results[i] for i in range(len(cases))]
        futures = {self._submit(function, cases[i], paths[i]): i for i in todo}
        try:
            for future in as_completed(futures):
                results[futures[future]] = future.result()
                self._meter.advance()
        except BaseException:
            for future in futures:
                future.cancel()
            raise
        return [results[i] for i in range(len(cases))]

    def _submit(self, *what: Any) -> Future[Result]:
        with self._lock:
            if self._pool is None:
                self._pool = Processes(self.workers)
            return self._pool.submit(_finish, *what)


def _check_function(function: Any, *, workers: int, cached: bool) -> None:
    """Refuse what cannot be called, what workers cannot import, and what a cache cannot know."""
    check.function("function", function)
    if workers == 1 and not cached:
        return
    found: Any = sys.modules.get(getattr(function, "__module__", None) or "")
    for name in getattr(function, "__qualname__", "").split("."):
        found = getattr(found, name, None)
    if found is not function:  # a lambda, a function within a function, a method, a partial
        raise ValueError(
            "`function` expects a function defined by name at the top level of a module, got "
            f"{check.show(function)}: define it there, or use workers=1 without a cache"
        )
    if workers > 1 and sources.find_spec(function.__module__) is None:
        raise ValueError(
            "`function` expects a function in a file that worker processes can import, got "
            f"`{function.__qualname__}` of an interactive session: put it in a module, or use "
            "workers=1"
        )


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


def _paths(
    function: Callable[..., Result], cases: Sequence[Case], cache: Path | None
) -> list[Path | None]:
    """Return the file of every case in the cache, named after what determines its result."""
    if cache is None:
        return [None] * len(cases)
    cache.mkdir(parents=True, exist_ok=True)
    found = sources.reachable_sources(function)
    if found.unseen:
        warnings.warn(
            f"`cache` cannot see all that the results depend on: {', '.join(found.unseen)}",
            stacklevel=4,
        )
    what = [function.__module__, function.__qualname__, found.digest, sources.package_digest()]
    texts = (json.dumps([*what, case], sort_keys=True) for case in cases)
    return [cache / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.json" for text in texts]


def _read(path: Path | None) -> Result | None:
    """Return the result in a file of the cache, None if there is none that can be read."""
    try:
        return None if path is None else files.read_json(path)["result"]
    except (FileNotFoundError, ValueError, KeyError):
        return None


def _finish(function: Callable[..., Result], case: Case, path: Path | None) -> Result:
    """Compute a case and keep it; in the worker, so that nothing is lost with the parent."""
    return _keep(function, case, path, _compute(function, case))


def _compute(function: Callable[..., Result], case: Case) -> Result:
    """Return the result of a case, the same from here as from the cache."""
    try:
        result = function(**case)
        if not isinstance(result, dict):
            raise ValueError(f"`function` expects a dict as its result, got {check.show(result)}")
        plain: Result = _plain(result, "`function` expects a result of JSON types")
    except Exception as error:
        error.add_note(f"in the case {json.dumps(case):.200}")
        raise
    return plain


def _keep(function: Callable[..., Result], case: Case, path: Path | None, result: Result) -> Result:
    """Put a result in the cache, if there is one, and return it."""
    if path is not None:
        name = f"{function.__module__}.{function.__name__}"
        files.write_json(path, {"function": name, "case": case, "result": result})
    return result


@contextlib.contextmanager
def _heeding_ctrl_c() -> Iterator[None]:
    """Raise KeyboardInterrupt at the end if Ctrl-C came and was made a result of.

    `solve` and `simulate` keep the best they have by then, which is not what a case should be.
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
