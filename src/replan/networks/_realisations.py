"""Realisations of a training on images: initial weights, memories and the order of samples."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray

from replan import check
from replan.networks._tasks import ImageTasks

Order = NDArray[np.int32]

_LISTED = 10  # numbers of realisations in a message

WEIGHTS, TRAINING, PRETRAINING = range(3)  # what random numbers are for


def checked_realisations(realisations: int | Sequence[int]) -> list[int]:
    """Return the numbers of realisations, given them or how many there are."""
    if isinstance(realisations, Integral):
        realisations = range(check.integer("realisations", realisations, at_least=1))
    items = check.items("realisations", realisations, "numbers")
    which = [check.integer("realisations", x) for x in items]
    if len(which) == 0 or len(set(which)) < len(which):
        raise ValueError(
            f"`realisations` expects at least one, none twice, got {check.show(which)}"
        )
    return which


def numbers_text(numbers: Sequence[int], count: int) -> str:
    """Return some of `count` realisations in words, by their numbers."""
    listed = ", ".join(map(str, numbers[:_LISTED])) + ", …" * (len(numbers) > _LISTED)
    return f"{len(numbers)} of {count} realisations ({listed})"


def rng_of(seed: int, number: int, *use: int) -> np.random.Generator:
    """Return the random numbers of a realisation for one use."""
    return np.random.default_rng([seed, number, *use])


def sample_order(
    tasks: ImageTasks, task: int, distinct: int | None, length: int, rng: np.random.Generator
) -> Order:
    """Return the two images (2, length) of every sample of a task.

    distinct: how many different samples there are, None for as many as the task has. They come in
    passes, each in an order of its own. A longer order begins like a shorter one.
    """
    first, second = (rng.permutation(pool) for pool in tasks.pools[task])
    most = min(len(first), len(second)) if distinct is None else distinct
    pairs = np.stack([first[:most], second[:most]]).astype(np.int32)
    passes = [rng.permutation(most) for _ in range(-(-length // most))]
    return np.ascontiguousarray(pairs[:, np.concatenate(passes)[:length]])


def check_distinct(name: str, value: Any, tasks: ImageTasks, which: Sequence[int]) -> int | None:
    """Return how many different samples some tasks have, None for all of them."""
    if value is None:
        return None
    if not which:
        raise ValueError(f"`{name}` expects None where there are no old tasks, got {value}")
    most = min(len(pool) for t in which for pool in tasks.pools[t])
    return check.integer(name, value, at_least=1, at_most=most)
