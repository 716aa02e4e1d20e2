"""A protocol, such as a plan's, played in a training loop."""

from __future__ import annotations

import hashlib
from typing import Any, final

import numpy as np

from replan import check
from replan.check import Floats
from replan.policies._policy import OpenLoop
from replan.protocol import Protocol


@final
class Follow(OpenLoop):
    """Plays a protocol, with its learning rates, stretched over a number of steps.

    After these, the last piece of the protocol continues.

    Examples:
        >>> plan = replan.Protocol([[0.0, 1.0], [0.5, 0.5]], duration=2.0)
        >>> replan.policies.Follow(plan, steps=8).next_tasks(8)
        array([1, 1, 1, 1, 0, 1, 0, 1])
    """

    def __init__(self, protocol: Protocol, steps: int, **settings: Any) -> None:
        check.instance("protocol", protocol, Protocol, "a Protocol")
        super().__init__(protocol.tasks, **settings)
        self.protocol, self.steps = protocol, check.integer("steps", steps, at_least=1)
        self._rates = protocol.by_task("lr")
        # The protocol itself may be long, and a state is saved often.
        parts = (protocol.edges, protocol.shares, protocol.lr)
        digest = hashlib.sha256(b"".join(part.tobytes() for part in parts)).hexdigest()
        self.arguments |= {"protocol": f"{protocol!r}, SHA-256 {digest}", "steps": self.steps}

    def _ahead(self, count: int) -> tuple[Floats, Floats]:
        middle = (self.step + np.arange(count) + 0.5) / self.steps
        piece = self.protocol.step_at(middle * self.protocol.duration)
        return self.protocol.shares[piece], self._rates[piece]
