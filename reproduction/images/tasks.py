"""Two tasks made of images: pairs of classes that are mixed, or classes by their parity."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reproduction.images.data import Images, load

Singles = NDArray[np.float32]
Ints = NDArray[np.int64]

_HELD_OUT = 10  # one in this many training images of a class is held out to estimate losses


@dataclass(frozen=True, eq=False)
class ImageTasks:
    """What is trained on: a sample of task t is mix[t] × one image + (1 − mix[t]) × another.

    pixels: (n, D) uint8 training images. targets: (n, C). pools: for each task the rows of the
    first and of the second image. mix: (T,). Inputs are pixels / 255 / √D.
    held_out, test: for each task inputs (m, D) and targets (m, C).
    """

    pixels: NDArray[np.uint8]
    targets: Singles
    pools: list[tuple[Ints, Ints]]
    mix: Singles
    held_out: list[tuple[Singles, Singles]]
    test: list[tuple[Singles, Singles]]

    @cached_property
    def factors(self) -> Singles:
        """(T, 4): by which two images, and their targets, are multiplied.

        An input is f₀ × pixels of one image + f₁ × pixels of another, its target f₂ × the target of
        the one + f₃ × that of the other.
        """
        mix = np.stack([self.mix, 1 - self.mix], axis=1)
        root = np.float32(1 / np.sqrt(self.pixels.shape[1]))
        return np.hstack([np.float32(1 / 255.0) * root * mix, mix])


@lru_cache(maxsize=1)  # the cases of a figure use the same tasks again and again
def make_tasks(data: str, settings: str = "{}") -> ImageTasks:
    """Return the tasks of a data set: mixed pairs of classes with a similarity, else by parity.

    settings: of `mixed_tasks` or `parity_tasks`, as JSON.
    """
    given = json.loads(settings)
    make = mixed_tasks if "similarity" in given else parity_tasks
    return make(load(data), **given)


def mixed_tasks(
    images: Images,
    similarity: float,
    *,
    upstream: Sequence[int] = (0, 5),
    auxiliary: Sequence[int] = (2, 7),
    test_samples: int = 2000,
) -> ImageTasks:
    """Return two tasks: a pair of classes, and γ × that pair + (1 − γ) × another pair.

    Labels are ±1, mixed like the images. `test_samples`: at most how many there are of each task.
    (Paper, section 3.2)
    """
    sign = np.zeros((10, 1), np.float32)
    sign[[upstream[0], auxiliary[0]]], sign[[upstream[1], auxiliary[1]]] = 1.0, -1.0
    groups = [(list(upstream), list(upstream)), (list(upstream), list(auxiliary))]
    return _build(images, groups, [1.0, similarity], sign, test_samples)


def parity_tasks(images: Images, *, test_samples: int = 2000) -> ImageTasks:
    """Return two tasks: to tell apart the classes with odd labels, and those with even labels.

    Each task has five outputs: +1 for the right class and −1 for the others. (Paper, appendix)
    """
    coding = np.zeros((10, 5), np.float32)
    groups = [[1, 3, 5, 7, 9], [0, 2, 4, 6, 8]]
    for group in groups:
        coding[group] = 2 * np.eye(5) - 1
    pairs = [(group, group) for group in groups]
    return _build(images, pairs, [1.0, 1.0], coding, test_samples)


def _build(
    images: Images,
    groups: list[tuple[list[int], list[int]]],
    mix: list[float],
    coding: Singles,
    test_samples: int,
) -> ImageTasks:
    """Return tasks whose first and second images are of the classes in `groups`."""
    needed = sorted({label for pair in groups for group in pair for label in group})
    chosen = np.isin(images.train_labels, needed)
    pixels = images.train_images[chosen].reshape(np.count_nonzero(chosen), -1)
    labels = images.train_labels[chosen].astype(np.int64)
    kept = np.zeros(len(labels), bool)
    for label in needed:
        kept[np.flatnonzero(labels == label)[::_HELD_OUT]] = True
    rng = np.random.default_rng(0)  # which images are paired is not part of the noise
    root = np.sqrt(np.float32(pixels.shape[1]))

    def samples(flat: Any, found: Any, task: int, most: int) -> tuple[Singles, Singles]:
        """Return inputs and targets of a task; no image is used twice."""
        first, second = (
            rng.permutation(np.flatnonzero(np.isin(found, group))) for group in groups[task]
        )
        count = min(most, len(first), len(second))
        first, second = first[:count], second[:count]
        one, two = np.float32(mix[task]), np.float32(1 - mix[task])
        inputs = one * flat[first] + two * flat[second]
        targets = one * coding[found[first]] + two * coding[found[second]]
        return (1 / 255.0 * inputs / root).astype(np.float32), targets.astype(np.float32)

    test_flat = images.test_images.reshape(len(images.test_labels), -1)
    test_labels = images.test_labels.astype(np.int64)
    return ImageTasks(
        pixels=np.ascontiguousarray(pixels),
        targets=coding[labels],
        pools=[
            tuple(np.flatnonzero(~kept & np.isin(labels, group)) for group in pair)
            for pair in groups
        ],
        mix=np.array(mix, np.float32),
        held_out=[samples(pixels[kept], labels[kept], t, len(labels)) for t in range(len(groups))],
        test=[samples(test_flat, test_labels, t, test_samples) for t in range(len(groups))],
    )
