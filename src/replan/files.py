"""Reading and writing files; writes are atomic."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from replan import check
from replan.errors import ArgumentError

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

FilePath = str | os.PathLike[str]


def version() -> str:
    """Return the version of replan."""
    from importlib import metadata  # slow to import

    return metadata.version("replan")


def read_text(path: FilePath) -> str:
    """Read a text file in UTF-8, with or without a byte order mark."""
    target = check.path("path", path)
    if target.exists() and not target.is_file():  # a device or a pipe may never end
        raise ArgumentError("path", "a file", f"'{target}'")
    try:
        return target.read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ArgumentError("path", "a text file in UTF-8", f"'{target}' ({error})") from None


def read_json(path: FilePath) -> dict[str, Any]:
    """Read a JSON object."""
    try:
        content = json.loads(read_text(path))
    except (json.JSONDecodeError, RecursionError) as error:
        raise ArgumentError("path", "a JSON file", f"'{os.fspath(path)}' ({error})") from None
    if not isinstance(content, dict):
        kind = type(content).__name__
        raise ArgumentError("path", "a file with a JSON object", f"'{os.fspath(path)}', a {kind}")
    return content


def write_json(path: FilePath, content: dict[str, Any]) -> None:
    """Write a dict as JSON, with the version of replan in front; NaN is refused."""
    text = json.dumps({"replan": version()} | content, allow_nan=False)
    write(path, f"{text}\n".encode())


def write_frame(path: FilePath, frame: pd.DataFrame) -> None:
    """Write a pandas frame, without its index, as a .csv file with all digits."""
    write(path, frame.to_csv(index=False, lineterminator="\n").encode())


def nullable(values: NDArray[Any]) -> Any:
    """Return an array as nested lists, with None for numbers that are not finite."""
    import numpy as np  # here, as checks of paths on the command line need no library

    rows = values.astype(object)
    rows[~np.isfinite(values)] = None
    return rows.tolist()


def suffix(path: FilePath, known: Sequence[str], name: str = "path") -> str:
    """Return the path's suffix, which gives the format; refuse an unknown one."""
    ending = check.path(name, path).suffix.lower()
    if ending not in known:
        raise ArgumentError(
            name, f"a file name that ends in {' or '.join(known)}", check.show(os.fspath(path))
        )
    return ending


def output(name: str, path: FilePath, endings: Sequence[str] = ()) -> Path:
    """Return the path of an output file; refuse one that cannot be written, before any work."""
    target = check.path(name, path)
    if endings:
        suffix(path, endings, name)
    if not target.parent.is_dir():
        raise ArgumentError(name, "a file in a folder that exists", f"'{target}'")
    exists = target.exists()
    if exists and not target.is_file():
        raise ArgumentError(name, "a file", f"'{target}'")
    if not os.access(target if exists else target.parent, os.W_OK):
        raise ArgumentError(name, "a file that can be written", f"'{target}' (permission denied)")
    return target


def write(path: FilePath, data: bytes) -> None:
    """Write a file atomically: readers see either the old content or the new."""
    target = output("path", path)
    part = target.with_name(f".{os.urandom(8).hex()}.part")
    try:
        part.write_bytes(data)
        os.replace(part, target)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(target)) from None
    finally:
        with suppress(OSError):  # it has been renamed, or could not be made
            part.unlink()
