"""Results as files that other tools can open; a file is always either all old or all new."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import secrets
import stat
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

if sys.platform != "win32":
    import fcntl

from replan import check
from replan.errors import ArgumentError

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

FilePath = str | os.PathLike[str]
__version__ = version("replan")
LARGEST = 100_000_000  # bytes of a file that is read: a larger one is a mistake, not a protocol
_BLOCK = 4096  # bytes: the least that a file takes up on a disk
_DAY = 86_400.0  # seconds


# Formats


def write_json(path: FilePath, content: dict[str, Any]) -> None:
    """Write a dict as JSON, with the version of replan in front; refuse NaN."""
    write(path, json_bytes(content))


def json_bytes(content: dict[str, Any]) -> bytes:
    """Return what `write_json` writes."""
    return (json.dumps({"replan": __version__} | content, allow_nan=False) + "\n").encode()


def read_text(path: FilePath) -> str:
    """Read a text file of at most `LARGEST` bytes, with or without a byte order mark.

    Only a regular file: a device or a pipe may never end.
    """
    name = str(check.path("path", path))
    found = os.stat(path)  # before it is opened: opening a pipe waits for its other end
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), name)
    if not stat.S_ISREG(found.st_mode):
        raise ValueError(f"{name}: expects a regular file, got a device or a pipe")
    try:
        with Path(path).open("rb") as file:
            data = file.read(LARGEST + 1)
    except OSError as error:  # of a disk that fails: it does not say which file
        raise OSError(error.errno, error.strerror, name) from None
    if len(data) > LARGEST:
        size = max(found.st_size, len(data))
        raise ValueError(
            f"{name}: expects a file of at most {LARGEST / 1e6:.0f} MB, got {size / 1e6:.0f} MB"
        )
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{name}: expects text in UTF-8, got bytes that are not ({error})"
        ) from None


def read_json(path: FilePath) -> dict[str, Any]:
    """Read a JSON object."""
    text = read_text(path)
    try:
        content = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{os.fspath(path)}: not a JSON file ({error})") from None
    except RecursionError:
        raise ValueError(f"{os.fspath(path)}: brackets are nested too deeply") from None
    if not isinstance(content, dict):
        raise ValueError(f"{os.fspath(path)}: expects a JSON object, got {type(content).__name__}")
    return content


def nullable(values: NDArray[Any]) -> Any:
    """Return an array as nested lists, with None for what is not finite."""
    import numpy as np  # here, as checks of paths on the command line need no library

    rows = values.astype(object)
    rows[~np.isfinite(values)] = None
    return rows.tolist()


def write_csv(path: FilePath, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write rows under a header, floats in full precision."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows([[repr(x) if isinstance(x, float) else x for x in row] for row in rows])
    write(path, text.getvalue().encode())


def write_frame(path: FilePath, frame: pd.DataFrame) -> None:
    """Write a pandas frame, without its index, as a .csv file."""
    write_csv(path, list(frame), frame.to_numpy(dtype=object).tolist())


def suffix(path: FilePath, known: Sequence[str], name: str = "path") -> str:
    """Return the path's suffix, which says the format, if it is a known one."""
    ending = check.path("path", path).suffix.lower()
    if ending not in known:
        raise ArgumentError(
            name, f"a file name that ends in {' or '.join(known)}", check.show(os.fspath(path))
        )
    return ending


# Before the work: can its results be written?


def output(name: str, path: FilePath, endings: Sequence[str] | None = None) -> Path:
    """Return the path of a file that is to be written later; refuse one that cannot be written."""
    target = check.path(name, path)
    if endings is not None:
        suffix(path, endings, name)
    try:
        if not target.parent.is_dir():
            raise ArgumentError(name, "a file in a folder that exists", f"'{target}'")
        _check_target(target)
        with _part(target, bytes(_BLOCK)):
            pass
    except OSError as error:
        raise ArgumentError(
            name, "a file that can be written", f"'{target}' ({error.strerror})"
        ) from None
    return target


def folder(name: str, path: FilePath) -> Path:
    """Return a folder for files to be written later, made if need be; refuse what cannot be one."""
    target = check.path(name, path)
    try:
        target.mkdir(parents=True, exist_ok=True)
        with _part(target / "file", bytes(_BLOCK)):
            pass
    except OSError as error:
        raise ArgumentError(
            name, "a folder that can be written to", f"'{target}' ({error.strerror})"
        ) from None
    return target


def _check_target(target: Path) -> None:
    """Raise an OSError for what must not be replaced: folders, devices, read-only files."""
    if not target.parent.is_dir():
        raise _error(errno.ENOENT, target.parent)
    try:
        mode = target.stat().st_mode
    except FileNotFoundError:
        return
    if stat.S_ISDIR(mode):
        raise _error(errno.EISDIR, target)
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "Not a regular file", str(target))
    if not os.access(target, os.W_OK):
        raise _error(errno.EACCES, target)


def _error(number: int, path: Path) -> OSError:
    return OSError(number, os.strerror(number), str(path))


# Writing


def write(path: FilePath, data: bytes) -> None:
    """Write the file of a result by `replace`; where that fails, keep the result elsewhere.

    The error then says where.
    """
    try:
        replace(path, data)
    except OSError as error:
        why = f"{error.strerror or error}{_rescue(Path(path).suffix, data)}"
        raise OSError(error.errno, why, error.filename) from error


def replace(path: FilePath, data: bytes) -> None:
    """Write a file in one go: whoever reads it finds all of the old one or all of the new one."""
    target = Path(path)
    _check_target(target)
    with _part(target, data) as part:
        os.replace(part, target)


def create(path: FilePath, data: bytes) -> None:
    """Write a new file in one go; raise FileExistsError if there is one, even one just made."""
    target = Path(path)
    with _part(target, data) as part:
        try:
            os.link(part, target)
        except FileExistsError:
            raise
        except OSError:  # a file system without links: the name is taken first, empty
            os.close(os.open(target, os.O_CREAT | os.O_EXCL))
            os.replace(part, target)


def _rescue(ending: str, data: bytes) -> str:
    """Keep data where it can be kept, and return a clause that says where; "" if nowhere."""
    for place in (tempfile.gettempdir, Path.home, Path.cwd):
        with suppress(OSError, RuntimeError):  # no such place, or no space there
            file, name = tempfile.mkstemp(ending, "replan-", place())
            try:
                with open(file, "wb") as out:
                    out.write(data)
            except OSError:
                os.unlink(name)
                raise
            return f"; the result is kept in {name}"
    return ""


@contextmanager
def _part(target: Path, data: bytes) -> Iterator[Path]:
    """Yield a file with the data beside a target, to be renamed; else it is removed at the end.

    Errors name the target.
    """
    try:
        _remove_leftovers(os.path.abspath(target.parent))
        with _new_part(target.parent) as file:
            part = Path(file.name)
            try:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
                if sys.platform == "win32":
                    file.close()  # an open file cannot be renamed there
                yield part
            finally:
                with suppress(OSError):  # it has been renamed
                    part.unlink()
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(target)) from None


def _new_part(place: Path) -> BinaryIO:
    """Return a new file, locked as long as it is open: it is no leftover of a killed process.

    Its name is random, as ids of processes are not unique: containers share folders, threads share
    a process.
    """
    while True:
        file = (place / f".replan-{secrets.token_hex(8)}.part").open("xb")
        _lock(file.fileno())
        if os.fstat(file.fileno()).st_nlink:
            return file
        file.close()  # another writer took it for a leftover before it was locked


@cache
def _remove_leftovers(place: str) -> None:
    """Remove what writers that were killed left in a folder; once in a process, as it takes time.

    A part is a leftover if its lock is free. Where there are no locks, as on Windows and on some
    shared disks, it is one after a day.
    """
    with suppress(OSError):
        for part in Path(place).glob(".replan-*.part"):
            with suppress(OSError):  # another process was faster
                if part.stat().st_mtime < time.time() - _DAY:
                    part.unlink()
                    continue
                with part.open("r+b") as file:
                    if _lock(file.fileno(), wait=False):
                        part.unlink()


@contextmanager
def locked(path: FilePath) -> Iterator[None]:
    """Hold the lock of a file, which is to be read, changed and written, among all processes.

    Where there are no locks, as on Windows and on some shared disks, nothing is held.
    """
    lock = Path(path).with_name(f".{Path(path).name}.lock")
    while True:
        with lock.open("ab") as file:
            _lock(file.fileno())
            if not os.fstat(file.fileno()).st_nlink:  # removed by its previous holder
                continue
            try:
                yield
                return
            finally:
                with suppress(OSError):  # Windows cannot remove an open file
                    lock.unlink()


def _lock(file: int, *, wait: bool = True) -> bool:
    """Take the lock of an open file; return whether it is held now."""
    if sys.platform != "win32":
        with suppress(OSError):  # another has it, or there are no locks
            fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
    return False
