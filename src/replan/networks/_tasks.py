"""Tasks made of images: pairs of classes that are mixed, or classes by their parity."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from replan import check
from replan.check import Ints
from replan.networks._datasets import Images, read_images

Singles = NDArray[np.float32]

_HELD_OUT = 10  # one in this many training images of a class is held out for estimates of the loss
NORMALISATIONS = ("unit", "standard")


@dataclass(frozen=True, eq=False, repr=False)
class ImageTasks:
    """What is trained on: a sample of task t is mix[t] × one image + (1 − mix[t]) × another.

    pixels: (n, D) uint8 training images. targets: (n, C). pools: for each task the rows of the
    first and of the second image. mix: (T,). scale, shift: inputs are scale × pixel + shift.
    held_out, test: for each task inputs (m, D), divided by √D, and targets (m, C). settings: how
    the tasks were made.

    Examples:
        >>> rng = np.random.default_rng(0)
        >>> pixels = rng.integers(0, 256, (200, 8, 8), dtype=np.uint8)  # noise in place of pictures
        >>> labels = np.arange(200, dtype=np.uint8) % 10
        >>> images = replan.networks.Images(pixels, labels, pixels, labels)
        >>> tasks = replan.networks.mixed_tasks(images, similarity=0.5, test_samples=20)
        >>> tasks.tasks, tasks.mix.tolist()
        (2, [1.0, 0.5])
    """

    pixels: NDArray[np.uint8]
    targets: Singles
    pools: list[tuple[Ints, Ints]]
    mix: Singles
    scale: float
    shift: float
    held_out: list[tuple[Singles, Singles]]
    test: list[tuple[Singles, Singles]]
    settings: dict[str, Any]

    def __repr__(self) -> str:
        return f"ImageTasks({', '.join(f'{k}={v!r}' for k, v in self.settings.items())})"

    @property
    def tasks(self) -> int:
        """Number of tasks T."""
        return len(self.pools)


def mixed_tasks(
    images: Images,
    similarity: float,
    *,
    upstream: Sequence[int] = (0, 5),
    auxiliary: Sequence[int] = (2, 7),
    normalise: str = "unit",
    test_samples: int = 2000,
) -> ImageTasks:
    """Return two tasks: a pair of classes, and γ × that pair + (1 − γ) × another pair.

    Labels are ±1, mixed like the images. `normalise`: "unit" (pixels over 255) or "standard" (mean
    0, variance 1). `test_samples`: how many there are at most for each task. (Paper, section 3.2)

    Examples:
        >>> rng = np.random.default_rng(0)
        >>> pixels = rng.integers(0, 256, (200, 8, 8), dtype=np.uint8)  # noise in place of pictures
        >>> labels = np.arange(200, dtype=np.uint8) % 10
        >>> images = replan.networks.Images(pixels, labels, pixels, labels)
        >>> tasks = replan.networks.mixed_tasks(images, similarity=0.5, test_samples=20)
        >>> tasks.tasks, tasks.mix.tolist()
        (2, [1.0, 0.5])
    """
    gamma = check.number("similarity", similarity, at_least=0, at_most=1)
    pairs = [_classes("upstream", upstream), _classes("auxiliary", auxiliary)]
    if set(pairs[0]) & set(pairs[1]):
        raise ValueError(f"`auxiliary` expects classes that are not in `upstream`, got {pairs[1]}")
    sign = np.zeros(10, np.float32)
    for first, second in pairs:
        sign[first], sign[second] = 1.0, -1.0
    return _build(
        images,
        groups=[(pairs[0], pairs[0]), (pairs[0], pairs[1])],
        mix=[1.0, gamma],
        needed=[*pairs[0], *pairs[1]],
        coding=sign[:, None],
        normalise=normalise,
        test_samples=test_samples,
        settings={
            "tasks": "mixed", "similarity": gamma, "upstream": pairs[0], "auxiliary": pairs[1],
            "labels": "+1 and -1",
        },
    )  # fmt: skip


def parity_tasks(
    images: Images, *, normalise: str = "unit", test_samples: int = 2000
) -> ImageTasks:
    """Return two tasks: to tell apart the classes with odd labels, and those with even labels.

    One output for each of the five classes of a task, +1 for the right one and -1 for the others.
    (Paper, appendix on CIFAR-10)

    Examples:
        >>> rng = np.random.default_rng(0)
        >>> pixels = rng.integers(0, 256, (200, 8, 8), dtype=np.uint8)  # noise in place of pictures
        >>> labels = np.arange(200, dtype=np.uint8) % 10
        >>> images = replan.networks.Images(pixels, labels, pixels, labels)
        >>> replan.networks.parity_tasks(images, test_samples=20).tasks
        2
    """
    odd, even = [1, 3, 5, 7, 9], [0, 2, 4, 6, 8]
    tasks = class_tasks(images, [odd, even], normalise=normalise, test_samples=test_samples)
    settings = {"tasks": "parity", "labels": "five outputs, +1 and -1"}
    kept = {key: tasks.settings[key] for key in ("normalise", "test_samples")}
    return replace(tasks, settings=settings | kept)


def class_tasks(
    images: Images,
    classes: Sequence[Sequence[int]],
    *,
    normalise: str = "unit",
    test_samples: int = 2000,
) -> ImageTasks:
    """Return a task for each group of classes: to tell its classes apart.

    All groups are of one size, and no class is in two. With two classes there is one output, +1 for
    the first and -1 for the second; with more, one for each: +1 for the right one, else -1.
    `normalise` and `test_samples` are those of `mixed_tasks`.

    Examples:
        >>> rng = np.random.default_rng(0)
        >>> pixels = rng.integers(0, 256, (200, 8, 8), dtype=np.uint8)  # noise in place of pictures
        >>> labels = np.arange(200, dtype=np.uint8) % 10
        >>> images = replan.networks.Images(pixels, labels, pixels, labels)
        >>> tasks = replan.networks.class_tasks(images, [[0, 5], [2, 7], [1, 3]], test_samples=20)
        >>> tasks.tasks
        3
    """
    groups = [
        [check.integer("classes", x, at_most=9) for x in check.items("classes", group, "classes")]
        for group in check.items("classes", classes, "lists of classes")
    ]
    size = len(groups[0]) if groups else 0
    listed = [label for group in groups for label in group]
    if size < 2 or any(len(g) != size for g in groups) or len(set(listed)) < len(listed):
        raise ValueError(
            "`classes` expects lists of at least two classes, all of one length, no class twice, "
            f"got {check.show(groups)}"
        )
    coding = np.zeros((10, 1 if size == 2 else size), np.float32)
    for group in groups:
        coding[group] = [[1.0], [-1.0]] if size == 2 else 2 * np.eye(size) - 1
    return _build(
        images,
        groups=[(group, group) for group in groups],
        mix=[1.0] * len(groups),
        needed=listed,
        coding=coding,
        normalise=normalise,
        test_samples=test_samples,
        settings={"tasks": "classes", "classes": groups, "labels": "+1 and -1"},
    )


def image_tasks(
    data: str,
    *,
    similarity: float | None = None,
    classes: Sequence[Sequence[int]] | None = None,
    **settings: Any,
) -> ImageTasks:
    """Return tasks made of a data set that is found by its name, so that files can name it.

    - `data`: "fashion-mnist", "cifar10", or an .npz file of arrays as in `Images`.
    - `similarity`: for `mixed_tasks`, or `classes`: for `class_tasks`; `settings` are theirs.

    Examples:
        >>> rng = np.random.default_rng(0)
        >>> pixels = rng.integers(0, 256, (200, 8, 8), dtype=np.uint8)  # noise in place of pictures
        >>> labels = np.arange(200, dtype=np.uint8) % 10
        >>> images = replan.networks.Images(pixels, labels, pixels, labels)
        >>> np.savez("images.npz", **images._asdict())
        >>> replan.networks.image_tasks("images.npz", similarity=0.5, test_samples=20).tasks
        2
    """
    check.word("data", data)
    if (similarity is None) == (classes is None):
        got = "neither" if similarity is None else "both"
        raise ValueError(f"`similarity` or `classes`: expects one of the two, got {got}")
    images = read_images(data)
    if similarity is not None:
        tasks = mixed_tasks(images, similarity, **settings)
    else:
        assert classes is not None
        for key in ("upstream", "auxiliary"):
            if key in settings:
                raise ValueError(f"`{key}` goes with `similarity`, got it with `classes`")
        tasks = class_tasks(images, classes, **settings)
    return replace(tasks, settings={"data": data} | tasks.settings)


def _classes(name: str, pair: Sequence[int]) -> list[int]:
    given = check.items(name, pair, "classes")
    classes = [check.integer(name, x, at_most=9) for x in given]
    if len(classes) != 2 or classes[0] == classes[1]:
        raise ValueError(f"`{name}` expects two different classes, got {check.show(classes)}")
    return classes


def _build(
    images: Images,
    *,
    groups: list[tuple[list[int], list[int]]],
    mix: list[float],
    coding: Singles,
    needed: list[int],
    normalise: str,
    test_samples: int,
    settings: dict[str, Any],
) -> ImageTasks:
    check.instance("images", images, Images, "Images, such as those of `fashion_mnist`")
    check.one_of("normalise", normalise, NORMALISATIONS)
    test_samples = check.integer("test_samples", test_samples, at_least=1)
    chosen = np.isin(images.train_labels, needed)
    for labels in (images.train_labels, images.test_labels):
        missing = [label for label in needed if label not in labels]
        if missing:
            raise ValueError(
                f"`images` expects images of the classes {needed}, got none of {missing}"
            )
    pixels = images.train_images[chosen].reshape(np.count_nonzero(chosen), -1)
    labels = images.train_labels[chosen].astype(np.int64)
    scale, shift = 1 / 255.0, 0.0
    if normalise == "standard":
        share = np.bincount(pixels.ravel(), minlength=256) / pixels.size
        mean = float(share @ np.arange(256))
        scale = 1 / float(np.sqrt(share @ (np.arange(256) - mean) ** 2))
        shift = -scale * mean
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
        return ((scale * inputs + shift) / root).astype(np.float32), targets.astype(np.float32)

    test_flat = images.test_images.reshape(len(images.test_labels), -1)
    test_labels = images.test_labels.astype(np.int64)
    everything = len(labels)
    return ImageTasks(
        pixels=np.ascontiguousarray(pixels),
        targets=coding[labels].astype(np.float32),
        pools=[
            (
                np.flatnonzero(~kept & np.isin(labels, first)),
                np.flatnonzero(~kept & np.isin(labels, second)),
            )
            for first, second in groups
        ],
        mix=np.array(mix, np.float32),
        scale=scale,
        shift=shift,
        held_out=[samples(pixels[kept], labels[kept], t, everything) for t in range(len(groups))],
        test=[samples(test_flat, test_labels, t, test_samples) for t in range(len(groups))],
        settings=settings | {"normalise": normalise, "test_samples": test_samples},
    )
