"""Data of tasks that arrive one after another: pairs of classes of Fashion-MNIST, or a folder."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from replan import check
from replan.check import Ints
from replan.files import FilePath
from replan.networks import _datasets

PAIRS = ("01", "23", "45", "67", "89")
PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp")
PARTS = 5  # of the samples of a class in a folder: one to validate, one to test, three to train

_FOLDER = "a folder with an .npz file or a sub-folder for each task"


class Samples(NamedTuple):
    """Inputs (n, features) and the numbers of their classes (n,)."""

    x: NDArray[np.float32]
    y: Ints


@dataclass(frozen=True, eq=False)
class TaskData:
    """Samples of each task to train on, to choose settings by (validation) and to test on.

    tasks, classes: their names. A class number in the samples is an index in `classes`; tasks may
    have classes in common.
    """

    tasks: list[str]
    classes: list[str]
    train: list[Samples]
    validation: list[Samples]
    test: list[Samples]

    def classes_of(self, task: int) -> Ints:
        """Return the numbers of the classes that a task has, in ascending order."""
        return np.unique(self.train[task].y)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of everything, by which finished runs are known."""
        found = hashlib.sha256(repr((self.tasks, self.classes)).encode())
        for part in (self.train, self.validation, self.test):
            for samples in part:
                found.update(samples.x.tobytes())
                found.update(samples.y.tobytes())
        return found.hexdigest()


def fashion_pairs(pairs: Sequence[str] = PAIRS, root: FilePath | None = None) -> TaskData:
    """Return pairs of classes of Fashion-MNIST, such as "01", as tasks.

    Of the test images, every other one is for validation. root: as in `fashion_mnist`.
    """
    for pair in pairs:
        if not isinstance(pair, str) or len(set(pair)) != 2 or not pair.isdecimal():
            raise ValueError(
                f"`pairs` expects pairs of different classes like 01, got {check.show(pair)}"
            )
    every = "".join(pairs)
    if len(set(every)) != len(every) or not every:
        raise ValueError(f"`pairs` expects each class once, got {', '.join(pairs)}")
    images = _datasets.fashion_mnist(root)

    def part(pixels: Any, labels: Any) -> list[Samples]:
        found = []
        for pair in pairs:
            where = np.flatnonzero(np.isin(labels, [int(c) for c in pair]))
            if set(labels[where].tolist()) != {int(c) for c in pair}:
                raise ValueError(
                    f"`pairs` expects classes that the data set has, got {check.show(pair)}"
                )
            y = np.array([every.index(str(label)) for label in labels[where]])
            found.append(Samples(_inputs(pixels[where]), y))
        return found

    return TaskData(
        tasks=list(pairs),
        classes=list(every),
        train=part(images.train_images, images.train_labels),
        validation=part(images.test_images[::2], images.test_labels[::2]),
        test=part(images.test_images[1::2], images.test_labels[1::2]),
    )


def task_folder(data: FilePath) -> TaskData:
    """Return the tasks in a folder, in the order of their names.

    A task is an .npz file with the arrays `x`, (n, …), and `y`, (n,) integers or words; or a folder
    with a sub-folder of images for each class. Inputs of all tasks have one shape. Bytes are
    divided by 255, other numbers stay as they are. A class has the same name in all tasks that have
    it, and at least five samples in each. Of these, chosen once and for all, a fifth is for
    validation and a fifth for testing.
    """
    folder = check.path("data", data)
    if not folder.is_dir():
        raise ValueError(f"`data` expects {_FOLDER}, got '{folder}', which is no folder")
    found: dict[str, tuple[NDArray[Any], list[str]]] = {}
    for entry in _entries(folder):
        if entry.is_dir():
            name, read = entry.name, _pictures(entry)
        elif entry.suffix == ".npz":
            name, read = entry.stem, _arrays(entry)
        else:
            raise ValueError(f"`data` expects {_FOLDER}, got the file '{entry}' in it")
        if name in found:
            raise ValueError(f"`data` expects tasks of different names, got {name} twice")
        found[name] = read
    if not found:
        raise ValueError(f"`data` expects {_FOLDER}, got '{folder}', which has none")
    tasks = list(found)
    first = found[tasks[0]][0]
    for name, (x, _) in found.items():
        if (x.shape[1:], x.dtype) != (first.shape[1:], first.dtype):
            raise ValueError(
                f"`data` expects inputs of one shape and kind in all tasks, got {first.dtype} "
                f"{first.shape[1:]} in {tasks[0]} and {x.dtype} {x.shape[1:]} in {name}"
            )
    classes = sorted({label for _, labels in found.values() for label in labels})
    parts: list[list[Samples]] = [[], [], []]
    for name, (x, labels) in found.items():
        numbers = np.array([classes.index(label) for label in labels])
        for part, where in zip(parts, _split(name, numbers, classes), strict=True):
            part.append(Samples(_inputs(x[where]), numbers[where]))
    train, validation, test = parts
    return TaskData(tasks, classes, train, validation, test)


def _entries(folder: Path) -> list[Path]:
    """Return what is in a folder, by name, but for hidden files."""
    return sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))


def _arrays(path: Path) -> tuple[NDArray[Any], list[str]]:
    """Return the inputs (n, …) in an .npz file, and the names of their classes."""
    try:
        with np.load(path) as arrays:
            x, y = arrays["x"], arrays["y"]
    except (zipfile.BadZipFile, KeyError, ValueError, EOFError) as error:
        raise ValueError(f"`data` expects arrays `x` and `y`, got '{path}': {error}") from None
    if x.ndim < 2 or y.ndim != 1 or len(x) != len(y) or x.dtype.kind not in "fiub" or not x.size:
        raise ValueError(
            "`data` expects numbers `x` of shape (n, …) and classes `y` of shape (n,), got "
            f"{x.dtype} {x.shape} and {y.dtype} {y.shape} in '{path}'"
        )
    if y.dtype.kind not in "iuU":
        raise ValueError(
            f"`data` expects integers or words as classes `y`, got {y.dtype} in '{path}'"
        )
    if not np.isfinite(x).all():
        raise ValueError(f"`data` expects finite numbers `x`, got others in '{path}'")
    return x if x.dtype == np.uint8 else x.astype(np.float32), [str(label) for label in y]


def _pictures(folder: Path) -> tuple[NDArray[Any], list[str]]:
    """Return the images (n, height, width[, 3]) in a folder of folders, and their names."""
    from PIL import Image, UnidentifiedImageError

    found: list[NDArray[Any]] = []
    labels: list[str] = []
    for kind in _entries(folder):
        if not kind.is_dir():
            raise ValueError(f"`data` expects a sub-folder for each class, got the file '{kind}'")
        for path in _entries(kind):
            if path.suffix.lower() not in PICTURES:
                raise ValueError(f"`data` expects images ({', '.join(PICTURES)}), got '{path}'")
            try:
                with Image.open(path) as image:
                    grey = image.mode in ("1", "L")
                    pixels = np.asarray(image.convert("L" if grey else "RGB"))
            except (UnidentifiedImageError, OSError, SyntaxError) as error:
                raise ValueError(f"`data` expects images, got '{path}': {error}") from None
            if found and pixels.shape != found[0].shape:
                raise ValueError(
                    "`data` expects images of one size, all grey or all in colour, got "
                    f"{found[0].shape} and, in '{path}', {pixels.shape}"
                )
            found.append(pixels)
            labels.append(kind.name)
    if not found:
        raise ValueError(f"`data` expects images in sub-folders for each class, got '{folder}'")
    return np.array(found), labels


def _inputs(x: NDArray[Any]) -> NDArray[np.float32]:
    """Return inputs (n, features); bytes become numbers from 0 to 1."""
    flat = x.reshape(len(x), -1)
    return np.asarray(flat / np.float32(255) if x.dtype == np.uint8 else flat, dtype=np.float32)


def _split(task: str, numbers: Ints, classes: list[str]) -> list[Ints]:
    """Return which samples are to train on, to validate and to test, of every class its part."""
    rng = np.random.default_rng(0)  # the same for all seeds of training
    parts: list[list[Ints]] = [[], [], []]
    for number in np.unique(numbers):
        where = rng.permutation(np.flatnonzero(numbers == number))
        if len(where) < PARTS:
            raise ValueError(
                f"`data` expects at least {PARTS} samples of each class of a task, got "
                f"{len(where)} of {classes[number]} in {task}"
            )
        fifth = len(where) // PARTS
        for part, some in zip(parts, np.split(where[::-1], [-2 * fifth, -fifth]), strict=True):
            part.append(some)
    return [np.sort(np.concatenate(part)) for part in parts]
