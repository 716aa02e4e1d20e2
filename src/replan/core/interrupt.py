"""Ctrl-C while compiled code runs.

Python handles a signal in its main thread only, between two of its own instructions, so never
inside a compiled call. A call that may take long therefore runs in a background thread, and Ctrl-C
sets the flag that its loop looks at in every step.
"""

from __future__ import annotations

import ctypes
import threading
import time
from typing import Any

from replan.core.library import Function

_LONG = 0.05  # seconds that Ctrl-C may have to wait
_WAIT = 0.1  # a signal just before a wait without a limit would not end it


class Pace:
    """Runs compiled loops so that Ctrl-C takes effect at once.

    seconds: how long a step took in the last call; before the first one, more than most take.
    """

    def __init__(self) -> None:
        self.seconds = 1e-4

    def run(self, function: Function, steps: int, *arguments: Any) -> int:
        """Return function(*arguments), which makes a number of steps."""
        begin = time.perf_counter()
        in_main_thread = threading.current_thread() is threading.main_thread()
        if self.seconds * steps < _LONG or not in_main_thread:
            result = function(*arguments)
        else:
            result = _run_in_background(function, arguments)
        self.seconds = (time.perf_counter() - begin) / max(steps, 1)
        return result


def _run_in_background(function: Function, arguments: tuple[Any, ...]) -> int:
    stop, results = ctypes.c_int64(0), []
    errors: list[BaseException] = []

    def call() -> None:
        try:
            results.append(function(*arguments, stop=stop))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=call, daemon=True)
    try:
        thread.start()
        while thread.is_alive():
            thread.join(_WAIT)
    except BaseException:
        stop.value = 1
        raise
    if errors:
        raise errors[0]
    return results[0]
