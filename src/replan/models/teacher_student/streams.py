"""Overlaps of the teachers of many tasks: Gram matrices of unit vectors, so never negative.

`tasks`: T. `gamma`: the similarity, from 0 to 1.
"""

from __future__ import annotations

import numpy as np

from replan.check import Floats

KINDS = ("drift", "random", "blocks")


def drift(tasks: int, gamma: float) -> Floats:
    """Return S_ij = γ^|i−j|: the teacher turns a little from each task to the next."""
    distance = np.abs(np.subtract.outer(np.arange(tasks), np.arange(tasks)))
    return np.asarray(gamma**distance)


def random(tasks: int, gamma: float, seed: int) -> Floats:
    """Return overlaps of random teachers whose mean is γ: √a c + √(1−a) u_i, with random u_i.

    The directions u_i, orthogonal to c, are drawn in T dimensions around their mean, which makes
    their mean overlap negative; a makes up for that.
    """
    rng = np.random.default_rng(seed)
    if tasks == 1:
        return np.ones((1, 1))
    directions = rng.standard_normal((tasks, tasks))
    directions -= directions.mean(axis=0)
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    overlaps = directions @ directions.T
    np.fill_diagonal(overlaps, 1.0)
    mean = (overlaps.sum() - tasks) / (tasks * (tasks - 1))
    common = max(0.0, (gamma - mean) / (1 - mean))
    return np.asarray(common + (1 - common) * overlaps)


def blocks(tasks: int, gamma: float, count: int, between: float) -> Floats:
    """Return S_ij = γ within each of several blocks of successive tasks, else `between`."""
    block = np.arange(tasks) * count // tasks
    S = np.where(block[:, None] == block, gamma, between)
    np.fill_diagonal(S, 1.0)
    return S
