"""What the tests of sweeps sweep over, in a module that worker processes import."""

import contextlib
import enum
import os
import signal
import time
from pathlib import Path

import numpy as np


def square(x):
    return {"y": x * x}


def echo(value):
    return {"value": value}


def counted(x, folder):
    """Leave a mark of every call."""
    with (Path(folder) / "calls").open("a") as calls:
        calls.write(f"{x}\n")
    return {"y": x}


def applied(function, x):
    return function(x) | {"applied": True}


def reciprocal(x):
    return {"y": 1 / x}


def deadly(x):
    if x == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return {"y": x}


class TwoWordsError(Exception):
    """An error that cannot be unpickled: its arguments are not those of its constructor."""

    def __init__(self, first, second):
        super().__init__(f"{first} {second}")


def unlucky(x):
    if x == 1:
        raise TwoWordsError("no", "luck")
    return {"y": x}


def slow_on(x, folder, victim):
    """Never end in the process with the id `victim`, and say so by a file."""
    if os.getpid() == victim:
        (Path(folder) / "at-work").touch()
        wait(lambda: False)
    return {"y": x}


def slow_from_3_on(x, folder):
    """Wait for the file "go", and say so by another."""
    (Path(folder) / f"call-{x}").touch()
    if x >= 3:
        wait((Path(folder) / "go").exists)
    return {"y": x}


def planned(x):
    """Turn Ctrl-C into a result, as `solve` does."""
    with contextlib.suppress(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    return {"y": "half done"}


def impure(x):
    return {"y": (1, np.arange(2.0)), 3: x, "z": [np.int64(4), np.bool_(True), Colour.RED]}


class Colour(enum.StrEnum):
    RED = "red"


class Machine:
    def run(self, x):
        return {"y": x}

    @staticmethod
    def turn(x):
        return {"y": x}


def wait(condition):
    """Wait until a condition holds; give up after so many looks that it never will."""
    for _ in range(12_000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("it never came")
