"""Progress of long computations: `progress=True` shows a bar, a function is called."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, NamedTuple

from replan import check
from replan.errors import ArgumentError


class Progress(NamedTuple):
    """Progress of a long computation: `done` out of `total` (None if unknown) of `what`."""

    what: str
    done: int
    total: int | None
    note: str = ""


Watch = bool | Callable[[Progress], object]


class Meter:
    """Counts progress and reports it to `watch`, from any thread; used in a `with` statement.

    watch: False (no report), True (a bar, on a terminal or in a notebook) or a function that is
    called with a `Progress` at every advance.
    """

    def __init__(self, watch: Watch, what: str, total: int | None = None) -> None:
        if not isinstance(watch, bool) and not callable(watch):
            raise ArgumentError(
                "progress", "True, False or a function of a Progress", check.show(watch)
            )
        self.what, self.done, self.total = what, 0, total
        self._bar = _bar(what, total) if watch is True else None
        self._tell = watch if callable(watch) else None
        self._lock = threading.Lock()

    def advance(self, count: int = 1, *, expect: int = 0, note: str = "") -> None:
        """Count `count` more as done, and add `expect` to the total."""
        with self._lock:
            self.done += count
            if expect:
                self.total = (self.total or 0) + expect
            if self._bar is not None:
                self._bar.set_postfix_str(note, refresh=False)
                self._lengthen(self._bar) if expect else self._bar.update(count)
            if self._tell is not None:
                self._tell(Progress(self.what, self.done, self.total, note))

    def _lengthen(self, bar: Any) -> None:
        """Give the bar a new total by `reset`, as a notebook's expects, and keep its count."""
        start = bar.start_t
        bar.reset(self.total)
        bar.start_t, bar.n, bar.last_print_n = start, self.done, self.done
        bar.refresh()

    def notes(self, name: str) -> Callable[[Progress], None]:
        """Return a function that shows the progress of a part as a note."""
        return lambda progress: self.advance(0, note=f"{name}: {progress.note}")

    def __enter__(self) -> Meter:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()


def _bar(what: str, total: int | None) -> Any:
    """Return a bar that disappears at the end; None where nobody can see it."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    in_notebook = shell is not None and "IPKernelApp" in shell.config
    if not in_notebook and not (sys.stderr and sys.stderr.isatty()):
        return None
    import tqdm

    # Ctrl-C may leave a bar's lock locked, so that no other must share it, nor a thread watch it.
    own = {"_lock": threading.RLock(), "monitor_interval": 0}
    settings: dict[str, Any] = {"desc": what, "total": total, "unit_scale": True, "leave": False}
    kind: Any = tqdm.tqdm
    if in_notebook and find_spec("ipywidgets") is not None:
        from tqdm.notebook import tqdm as kind
    elif in_notebook:
        settings["file"] = sys.stdout  # as text in the cell
    return type("Bar", (kind,), own)(**settings, miniters=1)
