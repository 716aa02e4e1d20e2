"""The driver of every experiment on images: a network, a policy, tasks that arrive in turn."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from replan._common import check
from replan.dynamics import IntegrationError
from replan.replay import FixedReplay, FocusThenReplay, Policy

Record = dict[str, Any]  # of a run, JSON types: what was measured at each look, by name

# What happens when a new task arrives: `policy(tasks, share of replay, smoothing of losses)`.
POLICIES: dict[str, Callable[[int, float, float], Policy]] = {
    "no-replay": lambda tasks, share, smoothing: FixedReplay(tasks, 0.0),
    "interleaved": lambda tasks, share, smoothing: FocusThenReplay(tasks, max_focus=0),
    "fixed-replay": lambda tasks, share, smoothing: FocusThenReplay(
        tasks, shares=1 - share, max_focus=0
    ),
    "focus-until-halved": lambda tasks, share, smoothing: FocusThenReplay(
        tasks, shares=1 - share, smoothing=smoothing
    ),
    "focus-then-replay": lambda tasks, share, smoothing: FocusThenReplay(
        tasks, until="met", shares=1 - share, smoothing=smoothing, max_focus=math.inf
    ),
    "focus-then-loss": lambda tasks, share, smoothing: FocusThenReplay(
        tasks, until="met", shares="loss", smoothing=smoothing, max_focus=math.inf
    ),
}
"""The strategies of `experiment` by name: what makes the policies behind them.

Examples:
    >>> sorted(replan.networks.POLICIES)[:3]
    ['fixed-replay', 'focus-then-loss', 'focus-then-replay']
"""


def check_strategies(strategies: Sequence[str]) -> list[str]:
    """Return names of strategies, each known and given once."""
    names = check.items("strategies", strategies, "strategies")
    for name in names:
        check.one_of("strategies", name, POLICIES)
    if len(set(names)) != len(names) or not names:
        raise ValueError(
            f"`strategies` expects each name once, at least one, got {check.show(names)}"
        )
    return names


def has_share(strategy: str) -> bool:
    """Return whether a strategy replays at a share that one can choose."""
    return strategy in ("fixed-replay", "focus-until-halved", "focus-then-replay")


def strategy_policy(
    strategy: str, tasks: int, share: float | None = None, smoothing: float = 0.0
) -> Policy:
    """Return the policy of a strategy; `begin` tells it of each task that arrives.

    share: of replay, for strategies that have one.
    """
    return POLICIES[strategy](tasks, 0.5 if share is None else share, smoothing)


def needs_losses(strategy: str) -> bool:
    """Return whether losses decide something once there are two tasks."""
    return strategy_policy(strategy, 2).needs_losses


class Network(ABC):
    """A network in training, as the driver sees it.

    time: how far it is, in samples. looks: what was measured on the test set so far.
    """

    time: int
    looks: list[Record]

    @abstractmethod
    def begin(self, task: int, policy: Policy) -> None:
        """Let a task arrive. From now on the policy says which task comes next."""

    @abstractmethod
    def train(self, end: int) -> None:
        """Train up to the time `end`."""

    @abstractmethod
    def test(self) -> dict[str, list[Any]]:
        """Return what is measured on the test set: "loss" and more, each a list by task.

        Tasks that are not tested have None.
        """

    @abstractmethod
    def estimate(self) -> dict[int, float]:
        """Return the loss of each task so far (from 0) on held-out images."""

    def look(self) -> None:
        """Test the network and keep what comes out."""
        self.looks.append({"time": self.time} | self.test())


def learn(
    name: str,
    network: Network,
    policy: Policy,
    arrivals: Sequence[tuple[int, int]],
    looks: Collection[int],
    interval: int,
    first: int | None = None,
) -> Record:
    """Train a network on tasks that arrive one after the other, and return what was measured.

    name: of this run, for errors. arrivals: each task and the time until which it is the newest.
    looks: when to test. interval: samples between estimates of the losses, for policies that need
    them. first: samples from the arrival of a task to the first of them, by default `interval`.
    """
    first = interval if first is None else first
    for task, end in arrivals:
        start = network.time
        network.begin(task, policy)
        policy.begin(task)
        while network.time < end:
            due = start + first
            if network.time >= due:
                due += ((network.time - due) // interval + 1) * interval
            estimating = due < end and policy.needs_losses  # the end leaves nothing to decide
            stops = [end, *(look for look in looks if network.time < look < end)]
            network.train(min([*stops, due] if estimating else stops))
            if network.time in looks:
                network.look()
                if not all(np.isfinite(x) for x in network.looks[-1]["loss"] if x is not None):
                    where = f"by step {network.time}"
                    raise IntegrationError(f"{name} diverged {where}: try a smaller `lr`")
            if estimating and network.time == due:
                policy.observe(network.estimate())
    if not network.looks:
        return {}
    measured = {key: [look[key] for look in network.looks] for key in network.looks[0]}
    return measured | {"decisions": [asdict(decision) for decision in policy.decisions]}
