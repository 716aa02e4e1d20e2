"""What the tests of sweeps sweep over, in a module that says all it depends on."""

import contextlib
import enum
import os
import shutil
import signal
import time
from pathlib import Path

import numpy as np


def square(x):
    return {"y": x * x}


def echo(value):
    return {"value": value}


def picky(x, folder):
    if x == 3:
        wait(lambda: len(list(Path(folder).iterdir())) == 2)  # the others are done by then
        raise ValueError("`x` expects anything but 3")
    return {"y": x}


def deadly(x):
    if x == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return {"y": x}


def reciprocal(x):
    return {"y": 1 / x}


class TwoWordsError(Exception):
    """An error that cannot be read back: its arguments are not those of its constructor."""

    def __init__(self, first, second):
        super().__init__(f"{first} {second}")


def unlucky(x):
    raise TwoWordsError("no", "luck")


def imports(x):
    return {"y": os.environ.get("REPLAN_IMPORT")}


def slow_on(x, folder, victim):
    """Never come to an end in the process with the id `victim`, and say so by a file."""
    if os.getpid() == victim:
        (Path(folder) / "at-work").touch()
        wait(lambda: False)
    return {"y": x}


def slow_from_3_on(x, folder):
    """Wait for the file "go", and say so by another."""
    (Path(folder) / f"call-{x}").touch()
    if x >= 3:
        (Path(folder) / "at-work").touch()
        wait((Path(folder) / "go").exists)
    return {"y": x}


def destructive(x, folder):
    """Put a file in place of a folder."""
    shutil.rmtree(folder, ignore_errors=True)
    Path(folder).touch()
    return {"y": x}


def planned(x):
    """Return what `solve` and `simulate` make of Ctrl-C: a result."""
    with contextlib.suppress(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    return {"y": "half done"}


def impure(x):
    return {"y": (1, np.arange(2.0)), 3: x, "z": {np.int64(4): np.bool_(True), 0.5: Colour.RED}}


def make():
    def local(x):
        return {"y": x}

    return local


class Colour(enum.StrEnum):
    RED = "red"


class Machine:
    def run(self, x):
        return {"y": x}

    @classmethod
    def make(cls, x):
        return {"y": x}

    @staticmethod
    def turn(x):
        return {"y": x}


def wait(condition):
    """Wait until a condition holds; give up after so many looks that it never will."""
    for _ in range(100_000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("it never came")
