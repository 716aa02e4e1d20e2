"""Results as files that other tools can open; a file is always either all old or all new."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pandas as pd

FilePath = str | os.PathLike[str]
VERSION = version("replan")
LARGEST = 100_000_000  # bytes of a file that is read: more is no protocol, but a mistake


def write_json(path: FilePath, content: dict[str, Any]) -> None:
    """Write a dict as JSON, with the version of replan in front; refuse NaN."""
    text = json.dumps({"replan": VERSION} | content, allow_nan=False)
    write_text(path, text + "\n")


def read_text(path: FilePath) -> str:
    """Read a text file of at most `LARGEST` bytes, with or without a byte order mark.

    Only a regular file: a device or a pipe may never end.
    """
    name = os.fspath(path)
    found = os.stat(path)  # before it is opened: opening a pipe waits for its other end
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), name)
    if not stat.S_ISREG(found.st_mode):
        raise ValueError(f"{name}: expects a regular file, got a device or a pipe")
    with Path(path).open("rb") as file:
        data = file.read(LARGEST + 1)
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
    rows = values.astype(object)
    rows[~np.isfinite(values)] = None
    return rows.tolist()


def write_csv(path: FilePath, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write rows under a header, floats in full precision."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows([[repr(x) if isinstance(x, float) else x for x in row] for row in rows])
    write_text(path, text.getvalue())


def write_frame(path: FilePath, frame: pd.DataFrame) -> None:
    """Write a pandas frame, without its index, as a .csv file."""
    write_csv(path, list(frame), frame.to_numpy(dtype=object).tolist())


@contextmanager
def replacing(path: FilePath) -> Iterator[Path]:
    """Give a file to write to, which replaces `path` at the end if all went well."""
    target = Path(path)
    if not target.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(target.parent))
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        yield part
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


def suffix(path: FilePath, known: Sequence[str]) -> str:
    """Return the path's suffix, which says the format, if it is a known one."""
    ending = Path(path).suffix.lower()
    if ending not in known:
        raise ValueError(
            f"`path` expects a file name that ends in {' or '.join(known)}, got {os.fspath(path)!r}"
        )
    return ending


def write_text(path: FilePath, text: str) -> None:
    """Write a text file."""
    with replacing(path) as part:
        part.write_text(text, encoding="utf-8")
