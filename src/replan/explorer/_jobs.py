"""Jobs: work in the background of a page, of which only the newest counts."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from replan._common.progress import Progress

Report = Callable[[Progress], object]
_LONGEST = 180.0  # seconds that a job may take
_TOLD = 0.25  # seconds between reports of progress
_QUICK, _LONG = 2, 2  # jobs of all pages at a time


class Cancelled(BaseException):  # nothing that somebody may catch as an error
    """Nobody waits for this work any more."""


class Job:
    """Work that ends at its next report of progress once it is cancelled, or takes too long."""

    def __init__(self) -> None:
        self._cancelled = threading.Event()
        self._end = float("inf")

    def begin(self) -> None:
        """Count the time from now; raise `Cancelled` if nobody waits any more."""
        self._end = time.monotonic() + _LONGEST
        self.check()

    def cancel(self) -> None:
        """Let nobody wait for it any more."""
        self._cancelled.set()

    @property
    def cancelled(self) -> bool:
        """Whether nobody waits for it any more."""
        return self._cancelled.is_set()

    def check(self) -> None:
        """Raise `Cancelled` if nobody waits, or a TimeoutError if it takes too long."""
        if self.cancelled:
            raise Cancelled
        if time.monotonic() > self._end:
            raise TimeoutError(f"this takes longer than {_LONGEST:g} s: try something smaller")


class Workers:
    """The threads that work for all pages of a server: some for quick jobs, some for long ones."""

    def __init__(self) -> None:
        self._quick = ThreadPoolExecutor(_QUICK, "quick")
        self._long = ThreadPoolExecutor(_LONG, "long")
        self._jobs: set[Job] = set()
        self._lock = threading.Lock()

    def submit(self, job: Job, work: Callable[[], None], quick: bool) -> None:
        """Have a job done when a thread is free, unless it is cancelled by then."""
        with self._lock:
            self._jobs.add(job)

        def run() -> None:
            try:
                work()
            finally:
                with self._lock:
                    self._jobs.discard(job)

        (self._quick if quick else self._long).submit(run)

    def close(self) -> None:
        """Cancel everything and let the threads go."""
        with self._lock:
            for job in self._jobs:
                job.cancel()
        for pool in (self._quick, self._long):
            pool.shutdown(cancel_futures=True)


class Background:
    """The jobs of one page, by name: a new one takes the place of the one before.

    deliver: calls a function in the thread of the page.
    """

    def __init__(self, workers: Workers, deliver: Callable[[Callable[[], None]], object]) -> None:
        self._workers, self.deliver = workers, deliver
        self._jobs: dict[str, Job] = {}
        self._waiting: dict[str, tuple[Any, Any, Any]] = {}

    def follow(
        self,
        name: str,
        work: Callable[[Report], Any],
        done: Callable[[Any], None],
        failed: Callable[[str], None],
    ) -> None:
        """Do quick work after that of this name which is under way; of what waits, the newest.

        So results keep coming while somebody drags a slider, and none is long out of date.
        """
        self._waiting[name] = work, done, failed
        if name not in self._jobs:
            self._next(name)

    def _next(self, name: str) -> None:
        work, *ends = self._waiting.pop(name)

        def then(end: Callable[[Any], None]) -> Callable[[Any], None]:
            def call(result: Any) -> None:
                self.forget(name)
                if name in self._waiting:
                    self._next(name)
                end(result)

            return call

        done, failed = map(then, ends)
        self.run(name, work, done, failed, quick=True)

    def run(
        self,
        name: str,
        work: Callable[[Report], Any],
        done: Callable[[Any], None],
        failed: Callable[[str], None],
        *,
        report: Report | None = None,
        quick: bool = False,
    ) -> None:
        """Cancel the job of this name, and do other work instead.

        work: called in another thread with a function to report progress to, which ends it once it
        is cancelled. done, failed, report: called in the page's thread with its result, with what
        went wrong or with progress; none of them once it is cancelled.
        """
        self.cancel(name)
        job = self._jobs[name] = Job()

        def tell(function: Callable[[Any], object], argument: Any) -> None:
            def call() -> None:
                if not job.cancelled:
                    function(argument)

            self.deliver(call)

        told = [0.0]

        def watch(progress: Progress) -> None:
            job.check()
            if report is not None and time.monotonic() > told[0] + _TOLD:
                told[0] = time.monotonic()
                tell(report, progress)

        def whole() -> None:
            try:
                job.begin()
                result = work(watch)
            except Cancelled:
                return
            except Exception as error:
                tell(failed, _words(error))
                return
            tell(done, result)

        self._workers.submit(job, whole, quick)

    def cancel(self, name: str) -> bool:
        """Cancel the job of this name; return whether there was one."""
        job = self._jobs.pop(name, None)
        if job is not None:
            job.cancel()
        return job is not None

    def forget(self, name: str) -> None:
        """Note that the job of this name is done."""
        self._jobs.pop(name, None)

    def close(self) -> None:
        """Cancel all jobs of the page."""
        for name in list(self._jobs):
            self.cancel(name)


def _words(error: Exception) -> str:
    """Return what went wrong in one line."""
    known = isinstance(error, ValueError | RuntimeError | TimeoutError | ArithmeticError)
    text = " ".join(str(error).split())
    return text if known and text else f"{type(error).__name__}: {text}"
