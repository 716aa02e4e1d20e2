"""Results as files that other tools can open; a file is always either all old or all new."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
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


def write_json(path: FilePath, content: dict[str, Any]) -> None:
    """Write a dict as JSON, with the version of replan in front; refuse NaN."""
    text = json.dumps({"replan": VERSION} | content, allow_nan=False)
    write_text(path, text + "\n")


def read_json(path: FilePath) -> dict[str, Any]:
    """Read a JSON object."""
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{os.fspath(path)}: not a JSON file ({error})") from None
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


def check_folder(path: FilePath, name: str = "path") -> None:
    """Refuse the path of a file to write whose folder does not exist."""
    if not Path(path).parent.is_dir():
        raise ValueError(f"`{name}` expects a file in a folder that exists, got '{path}'")


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
