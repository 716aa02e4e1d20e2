"""Ctrl-C while compiled code runs.

Python handles a signal only in its main thread, between two of its own instructions, so never
inside a compiled call. Loops are therefore run in calls of a tenth of a second (`ChunkedLoop`), and
a call that may take longer in a background thread (`run_interruptibly`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

_CALL = 0.1  # seconds that one call should last
_LONG = 0.25  # seconds from which the next call gets a background thread
_GROWTH = 64  # at most, from one call to the next: the first ones are short and say little


def interrupted(error: BaseException | None) -> bool:
    """Return whether an exception is a KeyboardInterrupt, or the SystemError that hides one."""
    while isinstance(error, SystemError):
        error = error.__cause__ or error.__context__
    return isinstance(error, KeyboardInterrupt)


def run_interruptibly(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return function(*arguments), which releases the GIL; Ctrl-C takes effect meanwhile.

    Ctrl-C abandons the call; it finishes in the background.
    """
    if threading.current_thread() is not threading.main_thread():
        return function(*arguments)
    results: list[Any] = []
    errors: list[BaseException] = []

    def call() -> None:
        try:
            results.append(function(*arguments))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(_CALL)  # a signal just before a wait without a limit would not end it
    if errors:
        raise errors[0]
    return results[0]


class ChunkedLoop:
    """Runs a compiled loop in calls of about a tenth of a second.

    steps: of one call, learnt from call to call. The first call makes a single step in a background
    thread, as nothing is known yet.
    """

    def __init__(self) -> None:
        self.steps, self._in_background = 1, True

    def run(self, loop: Callable[..., tuple[int, int]], end: int, *arguments: Any) -> int:
        """Call a loop until it reaches `end`, or cannot go on; return the position reached.

        loop(*arguments, position, part, steps) continues from part `part` of `position` for about
        `steps` steps and returns the new position and part; part is −1 where it cannot go on.
        """
        position = part = 0
        while position < end and part >= 0:
            begin = time.perf_counter()
            call = (loop, *arguments, position, part, self.steps)
            position, part = run_interruptibly(*call) if self._in_background else loop(*call[1:])
            seconds = time.perf_counter() - begin
            if seconds > _CALL or (position < end and part >= 0):  # else there was little to do
                wanted = self.steps * _CALL / max(seconds, 1e-9)
                self.steps = max(1, int(min(wanted, _GROWTH * self.steps)))
            self._in_background = seconds > _LONG
        return position
