"""Overlaps of the teachers of many tasks: Gram matrices of unit vectors, so never negative."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from replan.check import Floats


def drift(tasks: int, similarity: float) -> Floats:
    """Return S_ij = γ^|i−j|, as of a teacher that turns a little from each task to the next."""
    distance = np.abs(np.subtract.outer(np.arange(tasks), np.arange(tasks)))
    return np.asarray(similarity**distance)


def random(tasks: int, similarity: float, *, seed: int = 0) -> Floats:
    """Return overlaps of random teachers whose mean is γ: √a c + √(1−a) u_i, with random u_i.

    The directions u_i, orthogonal to c, are drawn in T dimensions around their mean, which makes
    their own mean overlap negative; a makes up for that.
    """
    if tasks == 1:
        return np.ones((1, 1))
    directions = np.random.default_rng(seed).standard_normal((tasks, tasks))
    directions -= directions.mean(axis=0)
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    overlaps = directions @ directions.T
    np.fill_diagonal(overlaps, 1.0)
    mean = (overlaps.sum() - tasks) / (tasks * (tasks - 1))
    common = max(0.0, (similarity - mean) / (1 - mean))
    return np.asarray(common + (1 - common) * overlaps)


def blocks(tasks: int, similarity: float, *, blocks: int = 2, between: float = 0.0) -> Floats:
    """Return S_ij = γ within each of a number of blocks of successive tasks, else `between`."""
    block = np.arange(tasks) * blocks // tasks
    S = np.where(block[:, None] == block, similarity, between)
    np.fill_diagonal(S, 1.0)
    return S


TEACHERS: dict[str, Callable[..., Floats]] = {"drift": drift, "random": random, "blocks": blocks}
