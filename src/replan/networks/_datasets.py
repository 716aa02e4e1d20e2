"""Fashion-MNIST and CIFAR-10 as numpy arrays, found on this machine and checked by digest."""

from __future__ import annotations

import codecs
import gzip
import hashlib
import os
import pickle
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from replan._common.files import FilePath

Bytes = NDArray[np.uint8]

# MD5 of what is in the files, decompressed
FASHION_MNIST = {
    "train-images-idx3-ubyte": "f4a8712d7a061bf5bd6d2ca38dc4d50a",
    "train-labels-idx1-ubyte": "9018921c3c673c538a1fc5bad174d6f9",
    "t10k-images-idx3-ubyte": "8181f5470baa50b63fa0f6fddb340f0a",
    "t10k-labels-idx1-ubyte": "15d484375f8d13e6eb1aabb0c3f46965",
}
CIFAR10 = {
    "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
    "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
    "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
    "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
    "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
    "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
}
DATASETS = {"fashion-mnist": FASHION_MNIST, "cifar10": CIFAR10}
FOLDERS = {"fashion-mnist": "fashion-mnist", "cifar10": "cifar-10-batches-bin"}
_TORCHVISION = {"fashion-mnist": "FashionMNIST/raw", "cifar10": "cifar-10-batches-py"}
_DEBIAN = Path("/usr/share/datasets")
_PIXELS = 3 * 32 * 32


class Images(NamedTuple):
    """Images, uint8, and labels: (n, 28, 28) for Fashion-MNIST, (n, 3, 32, 32) for CIFAR-10."""

    train_images: Bytes
    train_labels: Bytes
    test_images: Bytes
    test_labels: Bytes

    def __repr__(self) -> str:
        return f"Images({len(self.train_labels)} for training, {len(self.test_labels)} for testing)"


def fashion_mnist(root: FilePath | None = None) -> Images:
    """Return Fashion-MNIST: 60,000 and 10,000 grey images of clothes in ten classes.

    Looks in `root` if given, else in $REPLAN_DATA, the user's cache and Debian's folder, for the
    plain or gzipped files themselves, in `fashion-mnist`, or in torchvision's `FashionMNIST/raw`.
    """
    train, train_labels, test, test_labels = _payloads("fashion-mnist", root)
    return Images(
        np.frombuffer(train, np.uint8, offset=16).reshape(-1, 28, 28),
        np.frombuffer(train_labels, np.uint8, offset=8),
        np.frombuffer(test, np.uint8, offset=16).reshape(-1, 28, 28),
        np.frombuffer(test_labels, np.uint8, offset=8),
    )


def cifar10(root: FilePath | None = None) -> Images:
    """Return CIFAR-10: 50,000 and 10,000 colour images in ten classes.

    Looks in `root` if given, else in $REPLAN_DATA and the user's cache, for the files themselves,
    or in `cifar-10-batches-bin` or `cifar-10-batches-py`.
    """
    rows = [
        np.frombuffer(payload, np.uint8).reshape(-1, 1 + _PIXELS)
        for payload in _payloads("cifar10", root)
    ]
    train, test = np.concatenate(rows[:-1]), rows[-1]
    images = (part[:, 1:].reshape(-1, 3, 32, 32) for part in (train, test))
    return Images(next(images), train[:, 0].copy(), next(images), test[:, 0].copy())


def data_folder() -> Path:
    """Return the folder where `replan data fetch` puts data sets: $REPLAN_DATA, or the cache."""
    return _folders()[0]


def _folders() -> list[Path]:
    given = os.environ.get("REPLAN_DATA")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "replan"
    return [Path(given), cache] if given else [cache]


def checked(name: str, file: str, payload: bytes, where: object) -> bytes:
    """Return the payload of a data set's file if it has the right digest."""
    found, wanted = hashlib.md5(payload, usedforsecurity=False).hexdigest(), DATASETS[name][file]
    if found != wanted:
        raise ValueError(
            f"{file} in {where}: expects that of {name} with MD5 {wanted}, got {found} "
            f"({len(payload)} bytes), a damaged or other file: try `replan data fetch {name}`"
        )
    return payload


def _payloads(name: str, root: FilePath | None) -> list[bytes]:
    """Return the contents of a data set's files from the first place that has them all."""
    places, partly = list(dict.fromkeys(_places(name, root))), ""
    for folder in places:
        readers = [_reader(name, folder, file) for file in DATASETS[name]]
        if all(readers):
            return [
                checked(name, file, read(), folder)
                for file, read in zip(DATASETS[name], readers, strict=True)
                if read is not None
            ]
        if any(readers):
            lacks = [file for file, read in zip(DATASETS[name], readers, strict=True) if not read]
            partly += f" (only {', '.join(lacks)} not in {folder})"
    raise FileNotFoundError(
        f"the data set {name} was not found in {', '.join(map(str, places))}{partly}. "
        f"Get it with `replan data fetch {name}`, or give the folder it is in as `root` or in "
        "the environment variable REPLAN_DATA"
    )


def _places(name: str, root: FilePath | None) -> Iterator[Path]:
    for base in _folders() if root is None else [Path(root)]:
        yield from (base, base / FOLDERS[name], base / _TORCHVISION[name])
    if name == "fashion-mnist" and root is None:
        yield _DEBIAN / name


def _reader(name: str, folder: Path, file: str) -> Callable[[], bytes] | None:
    """Return what reads a file of a data set in a folder, in any of its forms, None without it."""
    plain, zipped = folder / file, folder / f"{file}.gz"
    pickled = folder / file.removesuffix(".bin")
    if plain.is_file():
        return plain.read_bytes
    if zipped.is_file():
        return lambda: _unzipped(zipped)
    if name == "cifar10" and pickled.is_file():
        return lambda: _unpickled(pickled)
    return None


def _unzipped(path: Path) -> bytes:
    try:
        return gzip.decompress(path.read_bytes())
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{path}: not a whole gzip file ({error})") from None


def _unpickled(path: Path) -> bytes:
    """Return a batch of `cifar-10-batches-py` in the form of `cifar-10-batches-bin`."""
    try:
        with path.open("rb") as file:
            batch = _Unpickler(file, encoding="bytes").load()
        labels = np.array(batch[b"labels"], np.uint8)
        return np.column_stack([labels, batch[b"data"]]).tobytes()
    except (
        pickle.UnpicklingError, EOFError, LookupError, ValueError, TypeError, AttributeError,
        ImportError, OverflowError,
    ) as error:  # fmt: skip
        raise ValueError(f"{path}: not a batch of CIFAR-10 ({error})") from None


class _Unpickler(pickle.Unpickler):
    """Loads arrays, and nothing that could run code."""

    def find_class(self, module: str, name: str) -> Any:
        if module in ("numpy.core.multiarray", "numpy._core.multiarray") and name == "_reconstruct":
            return np.zeros(0).__reduce__()[0]
        known = {
            ("numpy", "ndarray"): np.ndarray,
            ("numpy", "dtype"): np.dtype,
            ("_codecs", "encode"): codecs.encode,
        }
        if (module, name) not in known:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return known[module, name]
