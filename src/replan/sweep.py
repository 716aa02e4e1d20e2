"""sweep(function, cases): many independent computations on all cores, each finished one kept."""

from __future__ import annotations

import hashlib
import inspect
import json
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from tqdm import tqdm

from replan import check, files

Case = dict[str, Any]
Result = dict[str, Any]


def sweep(
    function: Callable[..., Result],
    cases: Sequence[Case],
    *,
    cache: files.FilePath | None = None,
    workers: int | None = None,
    progress: str | None = None,
) -> list[Result]:
    """Return function(**case) for every case, in their order.

    **Main arguments**

    - `function`: one of a module (worker processes import it), whose result is a dict of JSON
      types. A script that calls `sweep` needs its `if __name__ == "__main__"`.
    - `cases`: dicts of JSON types, such as the content of a problem file under the key "problem".

    **Other arguments**

    - `cache`: a folder, made if need be. Finished cases are kept there and not computed again, even
      if this process is killed. A case is known by the function's source, its arguments and the
      version of replan.
    - `workers`: processes, by default one a core; with 1, all happens in this process.
    - `progress`: a name for a progress bar on a terminal.

    An error in a case, or Ctrl-C, ends the sweep; what was finished stays in the cache.
    """
    with Sweep(cache, workers, progress) as run:
        return run(function, cases)


class Sweep:
    """Sweeps that share workers, a cache and a progress bar; they may run in several threads.

    The arguments are those of `sweep`. Used as `with Sweep(…) as run: run(function, cases)`.
    """

    def __init__(
        self, cache: files.FilePath | None, workers: int | None, progress: str | None
    ) -> None:
        workers = (os.cpu_count() or 1) if workers is None else workers
        self.cache, self.workers = cache, check.integer("workers", workers, at_least=1)
        self._total = 0
        self._bar = tqdm(total=0, desc=progress, leave=False, disable=None if progress else True)
        self._lock, self._over = threading.Lock(), False
        self._stop: Any = None
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Sweep:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._over = True
        if self._pool is not None:
            if kind is not None:  # the workers leave, which ends whoever waits for them
                self._stop.set()
            self._pool.shutdown()
        self._bar.close()

    def __call__(self, function: Callable[..., Result], cases: Sequence[Case]) -> list[Result]:
        """Return function(**case) for every case, in their order."""
        paths = _paths(function, cases, self.cache)
        results = {i: found for i, path in enumerate(paths) if (found := _read(path)) is not None}
        todo = [i for i in range(len(cases)) if i not in results]
        self._advance(total=len(cases), done=len(results))
        if self.workers == 1 or (self._pool is None and len(todo) <= 1):
            for i in todo:
                if self._over:
                    raise RuntimeError("the sweep is over")
                results[i] = _finish(function, cases[i], paths[i])
                self._advance(done=1)
        else:
            pool = self._workers()
            futures = {pool.submit(_finish, function, cases[i], paths[i]): i for i in todo}
            for future in as_completed(futures):
                results[futures[future]] = future.result()
                self._advance(done=1)
        return [results[i] for i in range(len(cases))]

    def _workers(self) -> ProcessPoolExecutor:
        with self._lock:
            if self._pool is None:
                context = multiprocessing.get_context("spawn")
                self._stop = context.Event()
                self._pool = ProcessPoolExecutor(self.workers, context, _begin, (self._stop,))
            return self._pool

    def _advance(self, *, total: int = 0, done: int = 0) -> None:
        with self._lock:
            self._total += total
            self._bar.total = self._total
            self._bar.update(done)


def _paths(
    function: Callable[..., Result], cases: Sequence[Case], cache: files.FilePath | None
) -> list[Path | None]:
    """Return the file of every case in the cache, named after what determines its result."""
    if cache is None:
        return [None] * len(cases)
    folder = Path(cache)
    folder.mkdir(parents=True, exist_ok=True)
    what = [function.__module__, inspect.getsource(function), files.VERSION]
    texts = (json.dumps([*what, case], sort_keys=True, allow_nan=False) for case in cases)
    return [folder / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.json" for text in texts]


def _read(path: Path | None) -> Result | None:
    """Return the result in a file of the cache, None if there is none that can be read."""
    try:
        return None if path is None else files.read_json(path)["result"]
    except (FileNotFoundError, ValueError, KeyError):
        return None


def _finish(function: Callable[..., Result], case: Case, path: Path | None) -> Result:
    """Compute a case and keep it; in the worker, so that nothing is lost with the parent."""
    result = function(**case)
    if path is not None:
        name = f"{function.__module__}.{function.__name__}"
        files.write_json(path, {"function": name, "case": case, "result": result})
    return result


def _begin(stop: Any) -> None:
    """Set up a worker: Ctrl-C is the parent's matter, and it leaves when told or left alone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def leave() -> None:
        parent = multiprocessing.parent_process()
        while parent is not None and parent.is_alive() and not stop.wait(0.5):
            pass
        os._exit(1)

    threading.Thread(target=leave, daemon=True).start()
