"""Samples: the task and the step of the protocol of every SGD sample."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from replan.check import Bools, Floats, Ints
from replan.errors import ArgumentError

if TYPE_CHECKING:
    from replan.protocol import Protocol

ORDERS = ("spread", "random")


def pick(
    shares: Floats,
    order: str,
    rng: np.random.Generator,
    lag: Floats,
    there: Bools | None = None,
) -> Ints:
    """Return a task for each row of shares (n, T), in one of `ORDERS`.

    "random" draws them with `rng`; "spread" continues from `lag` (T,), how far each task lags, and
    updates it. there: (n, T) whether a task that lags can catch up; by default it always can.
    """
    if order == "random":
        draws = rng.random(len(shares))
        return np.sum(draws[:, None] >= np.cumsum(shares, axis=1)[:, :-1], axis=1, dtype=np.int64)
    from replan.core.rounding import follow  # compiled, slow to import

    there = np.ones(shares.shape, bool) if there is None else there
    return np.asarray(follow(shares, np.ones(len(shares)), 0.0, there, lag))


def sample_count(protocol: Protocol, dimension: int) -> int:
    """Return how many samples a protocol takes in `dimension` input dimensions."""
    samples = protocol.duration * dimension
    if not samples < 2**53:  # which floats can count
        raise ArgumentError(
            "dimension", "fewer than 2^53 samples, duration × dimension", f"{samples:g}"
        )
    return round(samples)


class Samples:
    """The samples of a protocol in `dimension` input dimensions, taken in order, a few at a time.

    order: "spread" (as evenly as the shares allow), "random" (drawn from the shares with `rng`), or
    the tasks themselves, from 0, one per sample. there: (steps, T) whether a task that lags in
    "spread" can catch up in a step of the protocol; by default it always can.
    """

    def __init__(
        self,
        protocol: Protocol,
        dimension: int,
        order: str | Ints,
        rng: np.random.Generator,
        there: Bools | None = None,
    ) -> None:
        self.protocol, self.dimension, self.order, self.rng = protocol, dimension, order, rng
        self.there = there
        self.taken = 0
        self._lag = np.zeros(protocol.tasks)

    def take(self, count: int) -> tuple[Ints, Ints]:
        """Return tasks (from 0) and steps of the protocol (count,) of the next samples."""
        which = np.arange(self.taken, self.taken + count)
        self.taken += count
        step = self.protocol.step_at((which + 0.5) / self.dimension)
        if not isinstance(self.order, str):
            tasks = self.order[which]
        else:
            there = None if self.there is None else self.there[step]
            tasks = pick(self.protocol.shares[step], self.order, self.rng, self._lag, there)
        return tasks, step
