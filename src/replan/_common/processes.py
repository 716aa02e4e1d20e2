"""Worker processes that can be ended at any moment."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from typing import Any

_PATIENCE = 5.0  # seconds that a worker without work gets to leave before it is killed
_LOOK = 1.0  # seconds between two looks at whether a worker that says nothing is still there


class Processes:
    """Worker processes, each on a pipe of its own, served by a thread of its own.

    The workers of `concurrent.futures.ProcessPoolExecutor` share a pipe whose write end their
    parent holds open, too: half a message of a worker that was killed never ends there, and the
    parent waits for ever. Here the other end belongs to one worker alone, and its end is seen.
    """

    def __init__(self, workers: int) -> None:
        self._threads = ThreadPoolExecutor(workers)
        self._here = threading.local()  # .worker: the one that this thread serves
        self._lock, self._killed = threading.Lock(), False
        self._workers: list[_Worker] = []

    def submit(self, function: Callable[..., Any], /, *args: Any) -> Future[Any]:
        """Have a worker compute function(*args); all of it can be pickled."""
        return self._threads.submit(self._run, (function, args))

    def result(self, future: Future[Any]) -> Any:
        """Return the result of a call that is done, or raise its error."""
        return future.result()

    def close(self) -> None:
        """Wait until all is done, and let the workers go."""
        self._threads.shutdown()
        for worker in self._workers:
            worker.dismiss()

    def kill(self) -> None:
        """End it all at once, whatever the workers are doing; what is not done fails.

        It fails rather than being cancelled, as `as_completed` in another thread would not hear of
        a future that `shutdown` cancels.
        """
        with self._lock:
            self._killed = True
            for worker in self._workers:
                worker.process.kill()
        self.close()

    def _run(self, task: tuple[Any, ...]) -> Any:
        with self._lock:
            if self._killed:
                raise ChildProcessError("the worker processes were ended")
            if not hasattr(self._here, "worker"):
                self._here.worker = _Worker()
                self._workers.append(self._here.worker)
        return self._here.worker.run(task)


class _Worker:
    """A process and this end of the pipe to it."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs,))
        with theirs, without_ctrl_c():
            self.process.start()

    def run(self, task: tuple[Any, ...]) -> Any:
        data = pickle.dumps(task)
        try:
            self._pipe.send_bytes(data)
            while not self._pipe.poll(_LOOK):  # a child of the worker may hold the pipe open
                if not self.process.is_alive():
                    raise EOFError
            answer = self._pipe.recv_bytes()
        except (EOFError, OSError):
            self.process.join()
            raise ChildProcessError(_why(self.process.exitcode)) from None
        return received(answer)

    def dismiss(self) -> None:
        self._pipe.close()
        self.process.join(_PATIENCE)
        self.process.kill()
        self.process.join()


def _why(exit_code: int | None) -> str:
    """Say how a worker came to its end."""
    if exit_code == -signal.SIGKILL:
        return "a worker process was killed: is there enough memory?"
    if exit_code is not None and exit_code < 0:
        return f"a worker process was ended by {signal.Signals(-exit_code).name}"
    return f"a worker process ended with exit code {exit_code}"


def _serve(pipe: Connection) -> None:
    """Compute what comes through the pipe until it is closed; end with the parent at the latest."""
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    if hasattr(os, "register_at_fork"):  # whose end of the pipe would keep half a message open
        os.register_at_fork(after_in_child=pipe.close)
    with contextlib.suppress(EOFError, OSError):
        while True:
            pipe.send_bytes(outcome(pipe.recv_bytes()))


def _leave_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def outcome(data: bytes) -> bytes:
    """Return what a pickled (function, args) gave, pickled: (result, error, where it came from)."""
    try:
        function, args = pickle.loads(data)
        return pickle.dumps((function(*args), None, ""))
    except BaseException as error:
        where = traceback.format_exc()
        with contextlib.suppress(Exception):
            packed = pickle.dumps((None, error, where))
            pickle.loads(packed)  # not all that can be pickled comes back
            return packed
        return pickle.dumps((None, RuntimeError(f"{type(error).__name__}: {error}"), where))


def received(data: bytes) -> Any:
    """Return the result in an `outcome`, or raise the error."""
    result, error, where = pickle.loads(data)
    if error is not None:
        raise error from RuntimeError(f"in a worker process:\n{where}")
    return result


@contextlib.contextmanager
def without_ctrl_c() -> Iterator[None]:
    """Hold Ctrl-C back from this thread, and for good from threads and processes that it starts."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    resource_tracker.ensure_running()  # else the first process starts it, and lets Ctrl-C through
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
