"""sweep(function, cases): a parallel map that keeps what is finished and can always be stopped.

Where there are workers, a background thread manages them and draws the bar; see core/threads.py.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future
from contextlib import suppress
from functools import partial
from multiprocessing import connection, resource_tracker
from pathlib import Path
from pkgutil import resolve_name
from queue import Empty, SimpleQueue
from typing import Any

from replan import check, files
from replan.core.threads import in_background, stopped
from replan.errors import ArgumentError
from replan.progress import Meter

VERSION = files.version()
_POLL = 0.05  # seconds between two looks at whether to stop
_LEAVE = 5.0  # seconds for a process to end by itself
_LONGEST = 3000  # characters of a failure


class SweepError(RuntimeError):
    """Some cases failed; raised when all others are finished.

    results: one per case, None where it failed. failures: by the index of the case, a line that
    says what went wrong, followed by the traceback.
    """

    def __init__(self, cases: list[Any], results: list[Any], failures: dict[int, str]) -> None:
        first = min(failures)
        line, _, trace = failures[first].partition("\n")
        case = json.dumps(cases[first])
        super().__init__(
            f"{len(failures)} of {len(cases)} cases failed; the first, {case:.200}: {line}"
        )
        self.results, self.failures = results, failures
        self.add_note(trace)


def sweep(
    function: Callable[..., Any],
    cases: Iterable[dict[str, Any]],
    *,
    cache: str | os.PathLike[str] | None = None,
    key: Any = None,
    workers: int | None = None,
    executor: Any = None,
    progress: bool = False,
) -> list[Any]:
    """Return function(**case) for every case, in order.

    **Main arguments**

    - `function`: defined at the top level of a module or script, so that worker processes can
      import it, or a `functools.partial` of such functions. A script that calls `sweep` needs its
      `if __name__ == "__main__"`.
    - `cases`: dicts of JSON types. In cases and results, NumPy numbers and arrays become Python
      numbers and lists.
    - `cache`: a folder with a file for each finished case, created if missing. A case that is
      found there is not computed again, even if this process was killed in the meantime.

    **Other arguments**

    - `key`: any JSON value on which results depend besides the function's name, the case and the
      version of replan, such as the version of your own code. Change it to compute cases again.
    - `workers`: the number of processes, one per core by default. With 1, cases are computed in
      this process, and without a `cache`, `function` can be any callable.
    - `executor`: a `concurrent.futures.Executor` or a `dask.distributed.Client` to use instead of
      processes. Its workers need the same version of replan; it is not shut down.
    - `progress`: show a progress bar.

    A case that fails does not stop the others: a `SweepError` at the end holds all results and
    failures. Ctrl-C stops at once; finished cases stay in the cache.

    Examples:
        >>> def area(width, height):
        ...     return {"area": width * height}
        >>> replan.sweep(area, [{"width": 2, "height": 3}, {"width": 4, "height": 5}], workers=1)
        [{'area': 6}, {'area': 20}]
    """
    workers = check.integer(
        "workers", os.cpu_count() or 1 if workers is None else workers, at_least=1
    )
    name = _import_path(function)
    here = executor is None and workers == 1
    if not callable(function) or not (name or (cache is None and (here or executor))):
        expected = "in a file that can be imported, or use workers=1 without a cache"
        raise ArgumentError("function", expected, repr(function))
    about = {"function": name, "replan": VERSION, "key": key}
    entries = json.loads(_json("cases", [about | {"case": case} for case in cases]))
    run = _Sweep(function, entries, None if cache is None else Path(cache))
    work: Callable[[], None] = partial(run.use_processes, min(workers, len(run.todo)))
    if here:
        work = run.compute_here
    elif executor is not None:
        work = partial(run.use, *_unpack(executor))

    def compute() -> None:
        with Meter(progress, "cases", len(entries)) as run.meter:
            run.meter.advance(len(run.results))
            work()

    compute() if here or not run.todo else in_background(compute)
    results = [run.results.get(i) for i in range(len(entries))]
    if run.failures:
        raise SweepError([entry["case"] for entry in entries], results, run.failures)
    return results


class _Sweep:
    """The state of a sweep.

    entries: what each file says besides the result. paths: the files, None without a cache.
    """

    meter: Meter

    def __init__(
        self, function: Callable[..., Any], entries: list[dict[str, Any]], cache: Path | None
    ) -> None:
        self.function, self.entries = function, entries
        self.results: dict[int, Any] = {}
        self.failures: dict[int, str] = {}
        self.paths: list[Path | None] = [None] * len(entries)
        if cache is not None:
            cache.mkdir(parents=True, exist_ok=True)
            texts = [json.dumps(entry, sort_keys=True) for entry in entries]
            names = [hashlib.sha256(text.encode()).hexdigest()[:32] for text in texts]
            self.paths = [cache / f"{name}.json" for name in names]
        for i, path in enumerate(self.paths):
            with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
                if path is not None:
                    self.results[i] = files.read_json(path)["result"]  # else missing or broken
        self.todo = deque(i for i in range(len(entries)) if i not in self.results)

    def compute_here(self) -> None:
        """Compute the cases in the calling thread.

        A result after Ctrl-C is not one of the case: `solve` returns an unfinished plan.
        """
        interrupted = False

        def interrupt(*_: object) -> None:
            nonlocal interrupted
            interrupted = True
            raise KeyboardInterrupt

        default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        heeds = default and threading.current_thread() is threading.main_thread()
        try:
            if heeds:
                signal.signal(signal.SIGINT, interrupt)
            while self.todo:
                i = self.todo.popleft()
                result, failure = _attempt(self.function, self.entries[i])
                if interrupted:
                    raise KeyboardInterrupt
                self._take(i, result, failure)
        finally:
            if heeds:
                signal.signal(signal.SIGINT, signal.default_int_handler)

    def use(self, executor: Executor, client: Any) -> None:
        """Compute the cases on an executor, whose workers may not see this disk.

        client: of a Dask cluster.
        """
        done: SimpleQueue[Future[Any]] = SimpleQueue()
        running: dict[Future[Any], int] = {}
        broken = ""
        while (running or (self.todo and not broken)) and not stopped():
            if client is not None and client.status != "running":
                broken = "the connection to the Dask scheduler was lost"
                self._fail(running.values(), broken)
                break
            more = bool(self.todo) and not broken
            if more:
                i = self.todo[0]
                try:
                    future = executor.submit(_attempt, self.function, self.entries[i])
                except Exception as error:
                    broken = _line(error)
                    continue
                running[future] = self.todo.popleft()
                future.add_done_callback(done.put)
            try:
                future = done.get(timeout=0 if more else _POLL)
            except Empty:
                continue
            i = running.pop(future)
            try:
                self._take(i, *future.result())
            except BaseException as error:  # of the executor, such as a cancelled future
                self._fail([i], _line(error))
        for future in running:
            future.cancel()
        self._fail(self.todo, broken)

    def use_processes(self, workers: int) -> None:
        """Compute the cases in processes, which write the files themselves.

        Each has its own pipe, whose end is that of the process, even in the middle of a result. A
        process that dies at work is replaced; one that dies before would do so again.
        """
        spawn = multiprocessing.get_context("spawn")
        pool: dict[Any, tuple[Any, int | None]] = {}  # processes and their cases, by pipe

        def start() -> None:
            pipe, other = spawn.Pipe()
            process = spawn.Process(target=_work, args=(self.function, other))
            process.start()
            other.close()
            pool[pipe] = process, None

        def hear(pipe: Any) -> None:
            process, i = pool[pipe]
            try:
                answer = pipe.recv()
            except (EOFError, OSError):
                del pool[pipe]
                process.join(_LEAVE)
                if i is not None:
                    self._fail([i], f"{died} (exit code {process.exitcode})")
                    if self.todo:
                        start()
                return
            if i is not None:
                result, failure = answer
                self._take(i, result, failure, kept=True)
            i = self.todo.popleft() if self.todo else None
            pool[pipe] = process, i
            if i is not None:
                with suppress(OSError):  # dead, as its pipe will tell
                    pipe.send((self.entries[i], self.paths[i]))

        died = "a process died: too little memory, or a script without its guard?"
        # Ctrl-C in a terminal reaches all processes but is for the caller alone: workers inherit
        # the signal mask of this thread, which the tracker would lift if it were started later.
        resource_tracker.ensure_running()
        masked = hasattr(signal, "pthread_sigmask")
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT}) if masked else set()
        try:
            for _ in range(workers):
                start()
            while not stopped() and (self.todo or any(i is not None for _, i in pool.values())):
                if not pool:
                    self._fail(self.todo, died)
                    break
                for pipe in connection.wait(list(pool), _POLL):
                    hear(pipe)
        finally:
            if masked:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
            for pipe, (process, i) in pool.items():
                if stopped() or i is not None:
                    process.kill()
                pipe.close()
            for process, _ in pool.values():
                process.join(_LEAVE)
                process.kill()

    def _take(self, i: int, result: Any, failure: str, kept: bool = False) -> None:
        if failure:
            return self._fail([i], failure)
        if not kept:
            _keep(self.paths[i], self.entries[i], result)
        self.results[i] = result
        return self.meter.advance()

    def _fail(self, cases: Iterable[int], why: str) -> None:
        if why:
            self.failures |= dict.fromkeys(cases, why)
            self.meter.advance(len(self.results) + len(self.failures) - self.meter.done)


def _work(function: Callable[..., Any], pipe: Any) -> None:
    """Compute cases in a worker process and write their files; end when the parent does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def leave_with_parent() -> None:
        multiprocessing.parent_process().join()  # type: ignore[union-attr]
        os._exit(1)

    threading.Thread(target=leave_with_parent, daemon=True).start()
    with suppress(EOFError, OSError):  # the parent has closed the pipe
        pipe.send(None)
        while True:
            entry, path = pipe.recv()
            result, failure = _attempt(function, entry)
            if not failure:
                try:
                    _keep(path, entry, result)
                except OSError as error:
                    failure = _line(error)
            pipe.send((result, failure))


def _keep(path: Path | None, entry: dict[str, Any], result: Any) -> None:
    if path is not None:
        files.write_json(path, entry | {"result": result})


def _attempt(function: Callable[..., Any], entry: dict[str, Any]) -> tuple[Any, str]:
    """Return the result of a case and "", or None and why it failed."""
    if entry["replan"] != VERSION:
        return None, f"a worker has replan {VERSION} instead of {entry['replan']}"
    try:
        return json.loads(_json("result", function(**entry["case"]))), ""
    except Exception as error:
        line = _line(error)
        return None, f"{line}\n{traceback.format_exc()[len(line) - _LONGEST :]}"


def _unpack(executor: Any) -> tuple[Any, Any]:
    """Return the executor, and the client of the Dask cluster if it has one."""
    client = getattr(executor, "_client", None)
    if hasattr(executor, "get_executor"):
        client, executor = executor, executor.get_executor(pure=False)
    if not isinstance(executor, Executor) or getattr(client, "asynchronous", False):
        expected = "a concurrent.futures.Executor or a synchronous dask.distributed.Client"
        raise ArgumentError("executor", expected, repr(executor))
    return executor, client


def _import_path(function: Any) -> str:
    """Return "module:name" if other processes can import the function by it, else "".

    For a partial of functions, the names of all of them.
    """
    if isinstance(function, partial) and not function.keywords:
        names = [_import_path(part) for part in (function.func, *function.args)]
        return " of ".join(names) if all(names) else ""
    module, name = (getattr(function, key, "") for key in ("__module__", "__qualname__"))
    with suppress(ImportError, AttributeError, ValueError):
        if resolve_name(f"{module}:{name}") is function:
            if module == "__main__":  # a script, which has a file, or a session
                module = Path(sys.modules[module].__file__ or "").stem
            return f"{module}:{name}"
    return ""


def _json(name: str, value: Any) -> str:
    """Return JSON text; arrays and numbers of NumPy, which have `tolist`, become Python's."""
    try:
        return json.dumps(value, allow_nan=False, default=lambda x: x.tolist())
    except (AttributeError, TypeError, ValueError, RecursionError) as error:
        got = f"{value!r:.200} ({error})"
        raise ArgumentError(name, "JSON types and finite numbers", got) from None


def _line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {str(error) or 'no details'}".split())[:500]
