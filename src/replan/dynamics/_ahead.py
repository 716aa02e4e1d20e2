"""Compiling the reverse of a model in a second process, while this one compiles the roll-out.

Whoever rolls out a model for the first time mostly wants its gradients next, which take longer to
compile: on two cores this takes a third off the wait. The second process puts the code on the disk
and is gone; it ends with this one at the latest.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import pickle
import subprocess
import sys
import threading
from importlib import import_module
from typing import Any

import numpy as np

from replan._common.compiled import is_missing, typeof
from replan._common.cores import cores
from replan.dynamics._dynamics import Pieces
from replan.dynamics._kernels import Kernels
from replan.dynamics._loops import Loops, loops

_COMMAND = "from replan.dynamics._ahead import serve; serve()"
_running: dict[Kernels, subprocess.Popen[bytes]] = {}
_lock = threading.Lock()


def begin(kernels: Kernels, owner: type, parameters: Any) -> None:
    """Start to compile the reverse elsewhere if neither it nor the roll-out is on the disk yet.

    owner: the class of the model. Not in a worker, whose neighbours compile the same, and not on a
    single core.
    """
    found: Loops[Any] = loops(kernels)
    if (
        kernels in _running
        or multiprocessing.parent_process() is not None
        or cores() < 2
        or owner.__module__ == "__main__"
        or not is_missing(found.roll_out.__wrapped__)
        or not is_missing(found.pull_back.__wrapped__)
    ):
        return
    with _lock:
        if kernels not in _running:
            _start(kernels, parameters)


def _start(kernels: Kernels, parameters: Any) -> None:
    places = [None if part is None else (part.__module__, part.__qualname__) for part in kernels]
    if _found(places) != kernels:
        return  # functions that no name leads to: they are compiled here when needed
    try:
        order = pickle.dumps((places, _types(parameters)))
        process = subprocess.Popen(
            [sys.executable, "-c", _COMMAND],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for this process
        )
        _running[kernels] = process
        assert process.stdin is not None
        pickle.dump(sys.path, process.stdin)
        process.stdin.write(order)
        process.stdin.flush()
    except (OSError, pickle.PicklingError, AttributeError):
        return  # it is compiled here when needed


def _found(places: list[tuple[str, str] | None]) -> Kernels:
    """Return the kernels with these modules and names; None for what is not there."""
    parts = [place and getattr(import_module(place[0]), place[1], None) for place in places]
    return Kernels(*parts)  # type: ignore[arg-type]


def _types(parameters: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Return the types of the arguments of `pull_back` and of `pull_all_losses`."""
    row, rows, stages = np.zeros(0), np.zeros((0, 0)), np.zeros((0, 0, 0))
    pieces = Pieces.whole(rows, rows, row)
    back = (parameters, rows, pieces, stages, rows, rows, rows, 0, 0, 0)
    losses = (parameters, rows, rows, rows, 0, 0, 0)
    return tuple(map(typeof, back)), tuple(map(typeof, losses))


def finish(kernels: Kernels) -> None:
    """Wait for what `begin` started."""
    if kernels in _running:
        with _running[kernels] as process:
            process.wait()


@atexit.register
def _end() -> None:
    for process in _running.values():
        process.kill()
        with process:
            pass  # which closes the pipe and waits


def serve() -> None:
    """Compile the reverse of the model whose class and types come through stdin."""
    sys.path[:] = pickle.load(sys.stdin.buffer)
    places, (back, losses) = pickle.load(sys.stdin.buffer)
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    found: Loops[Any] = loops(_found(places))
    found.pull_back.__wrapped__.compile(back)
    found.pull_all_losses.__wrapped__.compile(losses)


def _leave_with_parent() -> None:
    os.read(0, 1)  # nothing comes: it returns when the parent is gone
    os._exit(1)
