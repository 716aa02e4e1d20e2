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
    workers = (os.cpu_count() or 1) if workers is None else workers
    workers = check.integer("workers", workers, at_least=1)
    paths = _paths(function, cases, cache)
    results = {i: found for i, path in enumerate(paths) if (found := _read(path)) is not None}
    todo = [i for i in range(len(cases)) if i not in results]
    with tqdm(
        total=len(cases),
        initial=len(results),
        desc=progress,
        leave=False,
        disable=None if progress else True,
    ) as bar:
        if min(workers, len(todo)) <= 1:
            for i in todo:
                results[i] = _finish(function, cases[i], paths[i])
                bar.update()
            return [results[i] for i in range(len(cases))]
        context = multiprocessing.get_context("spawn")
        stop = context.Event()
        with ProcessPoolExecutor(min(workers, len(todo)), context, _begin, (stop,)) as pool:
            futures = {pool.submit(_finish, function, cases[i], paths[i]): i for i in todo}
            try:
                for future in as_completed(futures):
                    results[futures[future]] = future.result()
                    bar.update()
            except BaseException:
                stop.set()
                pool.shutdown(wait=False, cancel_futures=True)
                raise
    return [results[i] for i in range(len(cases))]


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
