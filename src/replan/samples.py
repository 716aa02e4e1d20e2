"""Samples: the task and learning rate of every SGD sample, as a protocol says."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from replan.check import Floats, Ints

if TYPE_CHECKING:
    from replan.protocol import Protocol

ORDERS = ("spread", "random")


class Samples:
    """The samples of a protocol in `dimension` input dimensions, taken in order, some at a time.

    order: "spread" (as evenly as the shares allow), "random" (drawn from the shares with `rng`), or
    the tasks themselves, from 0, one a sample.
    """

    def __init__(
        self, protocol: Protocol, dimension: int, order: str | Ints, rng: np.random.Generator
    ) -> None:
        self.protocol, self.dimension, self.order, self.rng = protocol, dimension, order, rng
        self.taken = 0
        self._lag = np.zeros(protocol.tasks)

    def take(self, count: int) -> tuple[Ints, Floats]:
        """Return tasks (from 0) and learning rates (count,) of the next samples."""
        which = np.arange(self.taken, self.taken + count)
        self.taken += count
        step = self.protocol.step_at((which + 0.5) / self.dimension)
        if not isinstance(self.order, str):
            tasks = self.order[which]
        elif self.order == "random":
            ladder = np.cumsum(self.protocol.shares, axis=1)[:, :-1]
            draws = self.rng.random(count)
            tasks = np.sum(draws[:, None] >= ladder[step], axis=1, dtype=np.int64)
        else:
            from replan.rounding import follow  # compiled, slow to import

            tasks = follow(self.protocol.shares[step], np.ones(count), 0.0, self._lag)
        return tasks, self.protocol.lr_by_task[step, tasks]
