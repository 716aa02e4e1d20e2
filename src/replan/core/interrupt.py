"""Ctrl-C in compiled code: distinguished from errors, and run_interruptibly while the code runs.

Python hears a signal only in its main thread, between two of its own instructions: a compiled call
there is deaf. Long work is therefore done in calls of a tenth of a second (`ChunkedLoop`), and what cannot
be cut that short in a thread of its own (`run_interruptibly`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

_CALL = 0.1  # seconds that one call should last
_DEAF = 0.25  # seconds from which a call gets a thread of its own
_GROWTH = 64  # at most, from one call to the next: the first ones are short and say little


def interrupted(error: BaseException | None) -> bool:
    """Return whether an exception is a KeyboardInterrupt, or the SystemError that hides one."""
    while isinstance(error, SystemError):
        error = error.__cause__ or error.__context__
    return isinstance(error, KeyboardInterrupt)


def run_interruptibly(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return function(*arguments), which releases the GIL, and hear Ctrl-C meanwhile.

    The call itself cannot be stopped: after Ctrl-C it runs to its end with nobody waiting.
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
        thread.join(_CALL)  # a signal just before the wait would not end one without a limit
    if errors:
        raise errors[0]
    return results[0]


class ChunkedLoop:
    """How many steps of a compiled loop make a call of about a tenth of a second.

    most: that many; learnt from call to call. The first call has a single step and a thread of its
    own, as nothing is known yet; with `uneven` steps, of which some cost many times as much as
    others, every call has one.
    """

    def __init__(self, uneven: bool = False) -> None:
        self.most, self._alone, self._uneven = 1, True, uneven

    def run(self, loop: Callable[..., tuple[int, int]], end: int, *arguments: Any) -> int:
        """Call a loop until it has reached `end`, or cannot go on; return where it is.

        loop(*arguments, position, part, most) goes on from part `part` of `position` for about
        `most` steps and returns both anew; `part` is −1 where it cannot go on.
        """
        position = part = 0
        while position < end and part >= 0:
            begin = time.perf_counter()
            call = (*arguments, position, part, self.most)
            position, part = run_interruptibly(loop, *call) if self._alone else loop(*call)
            self._learn(time.perf_counter() - begin, position < end and part >= 0)
        return position

    def _learn(self, seconds: float, cut: bool) -> None:
        if cut or seconds > _CALL:  # else the call was short because there was little to do
            wanted = self.most * _CALL / max(seconds, 1e-9)
            self.most = max(1, int(min(wanted, _GROWTH * self.most)))
        self._alone = self._uneven or seconds > _DEAF
