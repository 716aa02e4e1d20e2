"""Ctrl-C while compiled code runs.

Python handles a signal in its main thread only, between two of its own instructions, so never
inside a compiled call. A call that may take long therefore runs in another thread, and Ctrl-C
sets the flag that its loop looks at in every step.
"""

from __future__ import annotations

import threading
import time
from typing import Any

from replan.core.library import Function
from replan.core.threads import in_background, stop_flag

_LONG = 0.05  # seconds that Ctrl-C may have to wait


class Pace:
    """Runs compiled loops so that Ctrl-C takes effect at once.

    seconds: how long a step took in the last call; before the first one, more than most take.
    """

    def __init__(self) -> None:
        self.seconds = 1e-4

    def run(self, function: Function, steps: int, *arguments: Any) -> int:
        """Return function(*arguments), which makes a number of steps."""
        begin = time.perf_counter()
        if (stop := stop_flag()) is not None:
            result = function(*arguments, stop=stop)
            if stop.value:
                raise KeyboardInterrupt
        elif self.seconds * steps < _LONG or threading.get_ident() != threading.main_thread().ident:
            result = function(*arguments)
        else:
            results: list[int] = []
            in_background(lambda: results.append(self.run(function, steps, *arguments)))
            return results[0]
        self.seconds = (time.perf_counter() - begin) / max(steps, 1)
        return result
