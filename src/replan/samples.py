"""Samples: which task and which step of a protocol every sample of SGD belongs to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from replan.check import Bools, Ints
from replan.errors import ArgumentError

if TYPE_CHECKING:
    from replan.protocol import Protocol

ORDERS = ("spread", "random")


def sample_count(protocol: Protocol, dimension: int) -> int:
    """Return how many samples a protocol takes in `dimension` input dimensions."""
    samples = protocol.duration * dimension
    if not samples < 2**53:  # which floats can count
        raise ArgumentError(
            "dimension", "small enough for 2^53 samples, duration × dimension", f"{samples:g}"
        )
    return round(samples)


class Samples:
    """The samples of a protocol in `dimension` input dimensions, taken in order, a few at a time.

    order: "spread" (as evenly as the shares allow) or "random" (drawn from the shares with `rng`).
    available: (steps, T) whether a lagging task in "spread" can catch up in a step of the protocol;
    by default it always can.
    """

    def __init__(
        self,
        protocol: Protocol,
        dimension: int,
        order: str,
        rng: np.random.Generator,
        available: Bools | None = None,
    ) -> None:
        self.protocol, self.dimension, self.order, self.rng = protocol, dimension, order, rng
        self.available = available
        self.taken = 0
        self._lag = np.zeros(protocol.tasks)

    def take(self, count: int) -> tuple[Ints, Ints]:
        """Return tasks (from 0) and steps of the protocol (count,) of the next samples."""
        which = np.arange(self.taken, self.taken + count)
        self.taken += count
        steps = self.protocol.step_at((which + 0.5) / self.dimension)
        shares = self.protocol.shares[steps]
        if self.order == "random":
            above = self.rng.random(count)[:, None] >= np.cumsum(shares, axis=1)[:, :-1]
            return np.sum(above, axis=1, dtype=np.int64), steps
        from replan.core.rounding import follow  # compiled, slow to import

        available = self.available
        allowed = np.ones(shares.shape, bool) if available is None else available[steps]
        return np.asarray(follow(shares, np.ones(count), 0.0, allowed, self._lag)), steps
