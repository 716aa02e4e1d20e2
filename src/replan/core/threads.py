"""Work in threads, which Ctrl-C can always stop.

Ctrl-C raises a KeyboardInterrupt in Python's main thread between any two instructions, so never
inside a compiled call, but also when it has just taken a lock, which then stays locked for ever.
Conditions, queues and pools take locks; the thread that waits here uses none of them. Its one lock
is a bell: locked from the beginning, released by those who ring, and never what another thread
waits for.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import signal
import threading
import time
from _thread import LockType, allocate_lock, start_new_thread
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, TypeVar

_POLL = 0.1  # seconds: a signal just before a wait without a limit would not end it
_PATIENCE = 10.0  # seconds until a thread that does not stop is left alone
_LONG = 0.05  # seconds that Ctrl-C may have to wait for a compiled call

_R = TypeVar("_R")
_Job = Callable[[], object]


class _This(threading.local):
    """What a thread knows about its work: the flag that stops it, and its part of the cores."""

    stop: ctypes.c_int64 | None = None
    cores: int | None = None


_this = _This()
_idle: deque[tuple[list[_Job], LockType]] = deque()  # threads by what they wait for
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_idle.clear)  # a fork has no other threads


def free_cores() -> int:
    """Return how many cores are for this thread alone: in a worker process, beside others, one."""
    from multiprocessing import parent_process  # slow to import

    if parent_process() is not None:
        return 1
    if _this.cores is not None:
        return _this.cores
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def stopped() -> bool:
    """Return whether this thread's work is to stop."""
    return _this.stop is not None and bool(_this.stop.value)


@contextmanager
def interruptible_once() -> Iterator[Callable[[], None]]:
    """Let Ctrl-C raise once: a second one would lose what was kept when the first came.

    It raises no more, either, once the function that this yields has been called.
    """
    over: list[None] = []

    def handle(number: int, frame: Any) -> None:
        kept = suppress(KeyboardInterrupt) if over else nullcontext()
        over.append(None)
        with kept:
            if callable(handler):
                handler(number, frame)

    handler = signal.getsignal(signal.SIGINT)
    main = threading.current_thread() is threading.main_thread()  # others have no signals
    if main:
        signal.signal(signal.SIGINT, handle)
    try:
        yield lambda: over.append(None)
    finally:
        if main:
            signal.signal(signal.SIGINT, handler)


def in_background(work: _Job, threads: int = 1, meanwhile: _Job = lambda: None) -> None:
    """Call `work` in threads and return when all calls have, or raise the first error.

    The calling thread calls `meanwhile` now and then. If it is interrupted, or something fails,
    the others are `stopped`, and it waits for them, but not for ever.
    """
    stop, bell = ctypes.c_int64(0), allocate_lock()
    begun: list[None] = []
    ended: list[None] = []
    errors: list[BaseException] = []
    cores = max(1, free_cores() // threads)

    def job() -> None:
        begun.append(None)  # before a look at the flag: who sets it waits for what has begun
        _this.stop, _this.cores = stop, cores
        try:
            if not stop.value:
                work()
        except BaseException as error:
            errors.append(error)
        ended.append(None)
        with suppress(RuntimeError):  # another has rung
            bell.release()

    bell.acquire()
    try:
        for _ in range(threads):
            _start(job)
        over = False
        while not over:
            meanwhile()
            bell.acquire(timeout=_POLL)
            over = len(ended) == threads
            if errors:
                raise errors[0]
            if stopped():
                raise KeyboardInterrupt
    except BaseException:
        stop.value = 1
        limit = time.monotonic() + _PATIENCE
        while len(ended) < len(begun) and time.monotonic() < limit:
            bell.acquire(timeout=_POLL)
        raise


def in_threads(function: Callable[[int], _R], count: int) -> list[_R]:
    """Return function(i) for i below `count`, on all free cores, this thread among them."""
    helpers = min(free_cores(), count) - 1
    if helpers < 1:
        return [function(i) for i in range(count)]
    results: list[Any] = [None] * count
    work = take_turns(lambda i: results.__setitem__(i, function(i)), count)
    in_background(work, helpers, meanwhile=work)
    return results


def take_turns(function: Callable[[int], object], count: int) -> _Job:
    """Return what several threads call so that function(i) is called once for each i < `count`."""
    numbers = itertools.count()

    def work() -> None:
        for i in numbers:
            if i >= count or stopped():
                return
            function(i)

    return work


def _start(job: _Job) -> None:
    """Call `job` in a thread, an idle one if there is any: starting another takes 0.2 ms."""
    try:
        jobs, bell = _idle.pop()
    except IndexError:
        start_new_thread(_live, ([job],))
    else:
        jobs.append(job)
        bell.release()


def _live(jobs: list[_Job]) -> None:
    bell = allocate_lock()
    bell.acquire()
    while True:
        jobs.pop()()
        _idle.append((jobs, bell))
        bell.acquire()


class Pace:
    """Runs compiled loops so that Ctrl-C takes effect at once: long ones in another thread.

    Ctrl-C sets a flag that loops look at in every step. seconds: how long a step took in the last
    call; before the first one, more than most take.
    """

    def __init__(self) -> None:
        self.seconds = 1e-4

    def run(self, function: Callable[..., int], steps: int, *arguments: Any) -> int:
        """Return function(*arguments), which makes a number of steps."""
        begin = time.perf_counter()
        if _this.stop is not None:
            result = function(*arguments, stop=_this.stop)
            if stopped():
                raise KeyboardInterrupt
        elif self.seconds * steps < _LONG or threading.get_ident() != threading.main_thread().ident:
            result = function(*arguments)
        else:
            results: list[int] = []
            in_background(lambda: results.append(self.run(function, steps, *arguments)))
            return results[0]
        self.seconds = (time.perf_counter() - begin) / max(steps, 1)
        return result
