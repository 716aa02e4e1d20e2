"""Fashion-MNIST and CIFAR-10 as numpy arrays, found on this machine and checked by SHA-256."""

from __future__ import annotations

import codecs
import gzip
import hashlib
import io
import os
import pickle
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from replan import check
from replan.files import FilePath

Bytes = NDArray[np.uint8]


class File(NamedTuple):
    """What is in a file of a data set, decompressed: its SHA-256 and how many bytes there are."""

    sha256: str
    size: int


_PIXELS = 3 * 32 * 32
_BATCH = 10_000 * (1 + _PIXELS)

FASHION_MNIST = {
    "train-images-idx3-ubyte": File(
        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888", 16 + 60_000 * 28 * 28
    ),
    "train-labels-idx1-ubyte": File(
        "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9", 8 + 60_000
    ),
    "t10k-images-idx3-ubyte": File(
        "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b", 16 + 10_000 * 28 * 28
    ),
    "t10k-labels-idx1-ubyte": File(
        "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34", 8 + 10_000
    ),
}
CIFAR10 = {
    "data_batch_1.bin": File(
        "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5", _BATCH
    ),
    "data_batch_2.bin": File(
        "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed", _BATCH
    ),
    "data_batch_3.bin": File(
        "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67", _BATCH
    ),
    "data_batch_4.bin": File(
        "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48", _BATCH
    ),
    "data_batch_5.bin": File(
        "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add", _BATCH
    ),
    "test_batch.bin": File(
        "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b", _BATCH
    ),
}
DATASETS = {"fashion-mnist": FASHION_MNIST, "cifar10": CIFAR10}
FOLDERS = {"fashion-mnist": "fashion-mnist", "cifar10": "cifar-10-batches-bin"}
_TORCHVISION = {"fashion-mnist": "FashionMNIST/raw", "cifar10": "cifar-10-batches-py"}
_DEBIAN = Path("/usr/share/datasets")


class Images(NamedTuple):
    """Images, uint8, and labels: (n, 28, 28) for Fashion-MNIST, (n, 3, 32, 32) for CIFAR-10.

    Examples:
        >>> rng = np.random.default_rng(0)
        >>> pixels = rng.integers(0, 256, (200, 8, 8), dtype=np.uint8)  # noise in place of pictures
        >>> labels = np.arange(200, dtype=np.uint8) % 10
        >>> images = replan.networks.Images(pixels, labels, pixels, labels)
        >>> images.train_images.shape
        (200, 8, 8)
    """

    train_images: Bytes
    train_labels: Bytes
    test_images: Bytes
    test_labels: Bytes

    def __repr__(self) -> str:
        return f"Images({len(self.train_labels)} for training, {len(self.test_labels)} for testing)"


def fashion_mnist(root: FilePath | None = None) -> Images:
    """Return Fashion-MNIST: 60,000 and 10,000 grey images of clothes in ten classes.

    Looks in `root` if given, else in $REPLAN_DATA, the user's cache and Debian's folder: there, in
    `fashion-mnist` and in torchvision's `FashionMNIST/raw`, for the plain or gzipped files.

    Examples:
        >>> try:
        ...     replan.networks.fashion_mnist("empty-folder")
        ... except FileNotFoundError as error:
        ...     print(str(error).partition(" in ")[0])
        the data set fashion-mnist was not found
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

    Looks in `root` if given, else in $REPLAN_DATA and the user's cache: there, in
    `cifar-10-batches-bin` and in `cifar-10-batches-py`.

    Examples:
        >>> try:
        ...     replan.networks.cifar10("empty-folder")
        ... except FileNotFoundError as error:
        ...     print(str(error).partition(" in ")[0])
        the data set cifar10 was not found
    """
    rows = [
        np.frombuffer(payload, np.uint8).reshape(-1, 1 + _PIXELS)
        for payload in _payloads("cifar10", root)
    ]
    train, test = np.concatenate(rows[:-1]), rows[-1]
    images = (part[:, 1:].reshape(-1, 3, 32, 32) for part in (train, test))
    return Images(next(images), train[:, 0].copy(), next(images), test[:, 0].copy())


def read_images(data: str) -> Images:
    """Return a data set by its name, or the arrays of an .npz file, named as in `Images`."""
    if not data.endswith(".npz"):
        check.one_of("data", data, [*DATASETS, "FILE.npz"])
        return fashion_mnist() if data == "fashion-mnist" else cifar10()
    try:
        with np.load(data) as found:
            images = Images(*(found[name] for name in Images._fields))
    except (zipfile.BadZipFile, KeyError, ValueError) as error:
        expects = f"an .npz file with {', '.join(Images._fields)}"
        raise ValueError(f"`data` expects {expects}, got {check.show(data)}: {error}") from None
    for part, pixels, labels in (("train", *images[:2]), ("test", *images[2:])):
        good = pixels.dtype == labels.dtype == np.uint8 and pixels.ndim > 1 and labels.ndim == 1
        if not good or len(pixels) != len(labels) or pixels.shape[1:] != images[0].shape[1:]:
            raise ValueError(
                f"`data` expects uint8 images (n, …) and labels (n,), got {pixels.dtype} "
                f"{pixels.shape} and {labels.dtype} {labels.shape} for {part} in {data}"
            )
    return images


def data_folder() -> Path:
    """Return the folder where `replan data fetch` puts data sets: $REPLAN_DATA, or the cache."""
    folders = _folders()
    if not folders:
        raise ValueError("`root` expects a folder where there is no home directory, got None")
    return folders[0]


def _folders() -> list[Path]:
    given = os.environ.get("REPLAN_DATA")
    folders = [Path(given)] if given else []
    with suppress(RuntimeError):  # no home directory
        cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        folders.append(Path(cache) / "replan")
    return folders


def checked(name: str, file: str, payload: bytes, where: str) -> bytes:
    """Return the payload of a data set's file if it has the right digest."""
    found, wanted = hashlib.sha256(payload).hexdigest(), DATASETS[name][file].sha256
    if found != wanted:
        raise ValueError(
            f"{file} {where} is damaged or another file: {name} expects SHA-256 {wanted}, got "
            f"{found} ({len(payload)} bytes)"
        )
    return payload


def at_most(size: int, stream: IO[bytes] | gzip.GzipFile) -> bytes:
    """Return what a stream holds; refuse it as soon as that is more than `size` bytes."""
    content = stream.read(size + 1)
    if len(content) > size:
        raise ValueError(f"it holds more than {size} bytes")
    return content


def unzip(file: Path | IO[bytes], size: int) -> bytes:
    """Return what is in a gzip file; refuse it as soon as that is more than `size` bytes."""
    with gzip.open(file) as stream:
        return at_most(size, stream)


def _payloads(name: str, root: FilePath | None) -> list[bytes]:
    """Return the contents of a data set's files from the first place that has them all."""
    places, partly = list(dict.fromkeys(_places(name, root))), ""
    for folder in places:
        readers = [_reader(name, folder, file) for file in DATASETS[name]]
        if all(readers):
            try:
                return [
                    checked(name, file, read(), f"in {folder}")
                    for file, read in zip(DATASETS[name], readers, strict=True)
                    if read is not None
                ]
            except ValueError as error:
                raise ValueError(f"{error}; try `replan data fetch {name}`") from None
        if any(readers):
            lacks = [file for file, read in zip(DATASETS[name], readers, strict=True) if not read]
            partly += f" ({folder} lacks {', '.join(lacks)})"
    raise FileNotFoundError(
        f"the data set {name} was not found in {', '.join(map(str, places))}{partly}. "
        f"Get it with `replan data fetch {name}`, or give the folder it is in as `root` or in "
        "the environment variable REPLAN_DATA"
    )


def _places(name: str, root: FilePath | None) -> Iterator[Path]:
    for base in _folders() if root is None else [check.path("root", root)]:
        yield from (base, base / FOLDERS[name], base / _TORCHVISION[name])
    if name == "fashion-mnist" and root is None:
        yield _DEBIAN / name


def _reader(name: str, folder: Path, file: str) -> Callable[[], bytes] | None:
    """Return a function that reads a file of a data set, in any of its forms; None without it."""
    forms = [(folder / file, _plain), (folder / f"{file}.gz", _unzipped)]
    if name == "cifar10":
        forms.append((folder / file.removesuffix(".bin"), _unpickled))
    for path, read in forms:
        if path.is_file():
            return partial(read, path, DATASETS[name][file].size)
    return None


def _plain(path: Path, size: int) -> bytes:
    try:
        with path.open("rb") as file:
            return at_most(size, file)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _unzipped(path: Path, size: int) -> bytes:
    try:
        return unzip(path, size)
    except (gzip.BadGzipFile, EOFError, ValueError, zlib.error) as error:
        raise ValueError(f"{path}: not a whole gzip file ({error})") from None


def _unpickled(path: Path, size: int) -> bytes:
    """Return a batch of `cifar-10-batches-py` in the form of `cifar-10-batches-bin`."""
    try:
        with path.open("rb") as file:  # which also holds the names of the images
            content = at_most(2 * size, file)
        batch = _Unpickler(io.BytesIO(content), encoding="bytes").load()
        labels, pixels = np.array(batch[b"labels"], np.uint8), batch[b"data"]
        if np.shape(pixels) != (size // (1 + _PIXELS), _PIXELS):
            raise ValueError(f"it holds an array of shape {np.shape(pixels)}")
        return np.column_stack([labels, pixels]).tobytes()
    except (
        pickle.UnpicklingError, EOFError, LookupError, ValueError, TypeError, AttributeError,
        ImportError, OverflowError, MemoryError,
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
