"""sweep(function, cases): many independent computations on all cores, each finished one kept."""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import json
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from multiprocessing.connection import Connection
from pathlib import Path
from types import CodeType
from typing import Any

from tqdm import tqdm

from replan._common import check, files

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
      if this process is killed. A case is known by its arguments, by the source of the function and
      of what it uses from its own module, and by the version of replan.
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
        self._leash: Any = None
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Sweep:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._over = True
        if self._pool is not None:
            if kind is not None:  # the workers leave, which ends whoever waits for them
                self._leash.close()
            self._pool.shutdown()
        self._bar.close()

    def __call__(self, function: Callable[..., Result], cases: Sequence[Case]) -> list[Result]:
        """Return function(**case) for every case, in their order."""
        for case in cases:
            if not isinstance(case, dict):
                raise ValueError(f"`cases` expects dicts of arguments, got {case!r:.80}")
        paths = _paths(function, cases, self.cache)
        results = {i: found for i, path in enumerate(paths) if (found := _read(path)) is not None}
        todo = [i for i in range(len(cases)) if i not in results]
        self._advance(total=len(cases), done=len(results))
        if self.workers == 1:
            for i in todo:
                if self._over:
                    raise RuntimeError("the sweep is over")
                with _heeding_ctrl_c():
                    result = _compute(function, cases[i])
                results[i] = _keep(function, cases[i], paths[i], result)
                self._advance(done=1)
            return [results[i] for i in range(len(cases))]
        futures = {self._submit(function, cases[i], paths[i]): i for i in todo}
        try:
            for future in as_completed(futures):
                results[futures[future]] = future.result()
                self._advance(done=1)
        except BaseException:
            for future in futures:
                future.cancel()
            raise
        return [results[i] for i in range(len(cases))]

    def _submit(self, *what: Any) -> Future[Result]:
        with self._lock:
            if self._pool is None:
                context = multiprocessing.get_context("spawn")
                held, self._leash = context.Pipe(duplex=False)
                self._pool = ProcessPoolExecutor(self.workers, context, _begin, (held,))
            with _without_ctrl_c():  # workers start here, and inherit that
                return self._pool.submit(_finish, *what)

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
    what = [function.__module__, _recipe(function), files.VERSION]
    texts = (json.dumps([*what, case], sort_keys=True, allow_nan=False) for case in cases)
    return [folder / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.json" for text in texts]


def _recipe(function: Callable[..., Result]) -> dict[str, str]:
    """Return the source of a function, and of what it uses from its own module, by name."""
    recipe: dict[str, str] = {}
    todo: list[tuple[str, Any]] = [(function.__name__, function)]
    while todo:
        name, thing = todo.pop()
        if name in recipe:
            continue
        if not inspect.isfunction(thing):
            recipe[name] = repr(thing)
            continue
        recipe[name] = inspect.getsource(thing)
        todo += [
            (used, value)
            for used in _names(thing.__code__)
            if (value := thing.__globals__.get(used)) is not None
            and not inspect.ismodule(value)
            and not inspect.isclass(value)
            and (not callable(value) or getattr(value, "__module__", "") == function.__module__)
        ]
    return recipe


def _names(code: CodeType) -> set[str]:
    """Return the names that a piece of code, and the code within it, looks up."""
    inner = (_names(part) for part in code.co_consts if isinstance(part, CodeType))
    return set(code.co_names).union(*inner)


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
        text = json.dumps(function(**case), allow_nan=False)
    except Exception as error:
        error.add_note(f"in the case {json.dumps(case):.200}")
        raise
    result: Result = json.loads(text)
    return result


def _keep(function: Callable[..., Result], case: Case, path: Path | None, result: Result) -> Result:
    """Put a result in the cache, if there is one, and return it."""
    if path is not None:
        name = f"{function.__module__}.{function.__name__}"
        files.write_json(path, {"function": name, "case": case, "result": result})
    return result


def _begin(held: Connection) -> None:
    """Set up a worker: it leaves when the parent lets go of the other end, or is gone."""

    def leave() -> None:
        with contextlib.suppress(EOFError):
            held.recv_bytes()
        os._exit(1)

    threading.Thread(target=leave, daemon=True).start()


@contextlib.contextmanager
def _without_ctrl_c() -> Iterator[None]:
    """Hold Ctrl-C back from this thread, and for good from processes that it starts."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


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
