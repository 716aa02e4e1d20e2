"""The policies: a fixed share, a protocol that is followed, focus-then-replay."""

from __future__ import annotations

import hashlib
import math
import warnings
from typing import final

import numpy as np

from replan import check
from replan.check import Floats, Ints
from replan.errors import ArgumentError
from replan.protocol import Protocol
from replan.replay._policy import Decision, Policy

_LONGEST = 10_000  # steps of focus where the loop does not say how long an epoch is


@final
class FixedReplay(Policy):
    """Train on the newest task, with a fixed share of samples from the old ones.

    - `tasks`: how many there will be. The last one is new until `begin` says otherwise.
    - `share`: of the old tasks together, divided equally among them. The best value depends on the
      memory and on the heads: docs/training-loops.md.

    Examples:
        >>> policy = replan.replay.FixedReplay(tasks=3, share=0.5)
        >>> for task in range(3):  # they arrive one after another
        ...     policy.begin(task)
        ...     print(policy.next_counts(20))  # samples of each task in a batch
        [20  0  0]
        [10 10  0]
        [ 5  5 10]
    """

    def __init__(self, tasks: int, share: float) -> None:
        self.share = check.number("share", share, at_least=0, at_most=1)
        super().__init__(tasks, share=self.share)

    def shares(self, count: int) -> Floats:
        """Return the same shares (T,) for each of the next steps (count, T)."""
        return np.tile(_mixture(self, self.share), (count, 1))


@final
class FollowProtocol(Policy):
    """Follow a protocol and its learning rates, if it sets any, stretched over some steps.

    After these, the last piece of the protocol continues. Losses and arrivals change nothing.

    Examples:
        >>> protocol = replan.Protocol([[0.0, 1.0], [0.5, 0.5]], duration=2.0)
        >>> replan.replay.FollowProtocol(protocol, steps=8).next_tasks(8)
        array([1, 1, 1, 1, 0, 1, 0, 1])
    """

    def __init__(self, protocol: Protocol, steps: int) -> None:
        self.protocol = check.instance("protocol", protocol, Protocol, "a Protocol")
        self.steps = check.integer("steps", steps, at_least=1)
        self._sets_rates = "lr" in protocol.knobs
        self._rates = protocol.by_task("lr") if self._sets_rates else np.ones_like(protocol.shares)
        # A digest: the protocol itself may be long, and states are saved often.
        parts = (protocol.edges, protocol.shares, self._rates)
        digest = hashlib.sha256(b"".join(part.tobytes() for part in parts)).hexdigest()
        super().__init__(protocol.tasks, protocol=digest, steps=self.steps)

    def shares(self, count: int) -> Floats:
        """Return the protocol's shares (count, T) in the next steps."""
        return self.protocol.shares[self._pieces(count)]

    def lr(self, count: int) -> Floats | None:
        """Return the protocol's learning rates (count, T) in the next steps, if it sets any."""
        return self._rates[self._pieces(count)] if self._sets_rates else None

    def _pieces(self, count: int) -> Ints:
        """Return the piece of the protocol (count,) in the middle of each step."""
        middle = (self.step + np.arange(count) + 0.5) / self.steps
        return self.protocol.step_at(middle * self.protocol.duration)


@final
class FocusThenReplay(Policy):
    """Train on the new task alone until its loss is low enough, then on all tasks mixed.

    With tuned learning rates and shares it ended no lower than `FixedReplay`, which needs no
    losses: docs/training-loops.md.

    - `tasks`: how many there will be. The last one is new until `begin` says otherwise.
    - `until`: what ends the focus phase. "halved": the new task's loss is at most half of the first
      one told since the task arrived; negative losses are refused. "met": it is at most the
      largest of the old tasks' losses, the paper's rule for real data (Mori et al., section 3.2),
      for losses of one scale. A number: this fraction of the sampler's epoch is over, whatever the
      losses.
    - `shares`: the share of the new task in the replay phase, by default an equal one; the old ones
      divide the rest equally.
    - `smoothing`: the weight of the past in the moving average of losses, from 0 to below 1.
    - `max_focus`: the longest focus phase in steps; by default half of the sampler's epoch, or
      10,000 steps in a loop without a sampler; `math.inf` for no bound. May change on resuming.

    The focus phase continues, up to its bound, while a loss that decides is unknown, and without a
    bound while there are no old tasks. Losses that are not finite are noted in `decisions` and
    otherwise ignored.

    Examples:
        >>> policy = replan.replay.FocusThenReplay(tasks=2)
        >>> policy.observe({0: 0.1, 1: 1.0})
        >>> policy.next_counts(32)
        array([ 0, 32])
        >>> policy.observe({0: 0.2, 1: 0.4})  # task 1's loss has halved
        >>> policy.next_counts(32)
        array([16, 16])
    """

    def __init__(
        self,
        tasks: int,
        *,
        until: str | float = "halved",
        shares: float | None = None,
        smoothing: float = 0.0,
        max_focus: float | None = None,
    ) -> None:
        self._listens = isinstance(until, str)  # whether losses end the focus phase
        self.until: str | float = (
            check.one_of("until", until, ["halved", "met"])
            if self._listens
            else check.number("until", until, at_least=0, at_most=1)
        )
        if shares is not None:
            shares = check.number("shares", shares, at_least=0, at_most=1)
        self._new_share = shares
        self.smoothing = check.number("smoothing", smoothing, at_least=0)
        if self.smoothing >= 1:
            raise ArgumentError("smoothing", "below 1", f"{smoothing}")
        self.max_focus = max_focus
        if max_focus is not None and max_focus != math.inf:
            self.max_focus = check.integer("max_focus", max_focus)
        super().__init__(tasks, until=self.until, shares=shares, smoothing=self.smoothing)
        self.state = {"begun": 0, "switch_step": -1, "first": None, "losses": [None] * self.tasks}

    @property
    def switch_step(self) -> int:
        """The step at which the focus phase ended, -1 while it is on."""
        return self.state["switch_step"]

    @property
    def losses(self) -> dict[int, float]:
        """The smoothed losses by task, where known."""
        return {t: loss for t, loss in enumerate(self.state["losses"]) if loss is not None}

    @property
    def needs_losses(self) -> bool:
        """Whether losses decide when the focus phase ends."""
        focuses = self.switch_step < 0 and self._longest > 0
        return bool(self.old_tasks) and focuses and self._listens

    def shares(self, count: int) -> Floats:
        """Return the new task alone for what is left of the focus phase, then the mixture."""
        focus, old = int(min(count, self._left)), len(self.old_tasks)
        replayed = old / (old + 1) if self._new_share is None else 1 - self._new_share
        rows = np.tile(_mixture(self, replayed), (count, 1))
        rows[:focus] = np.eye(self.tasks)[self.new_task]
        return rows

    def on_begin(self, new_task: int, old_tasks: list[int]) -> None:
        """Begin a focus phase on the new task."""
        self.state |= {"begun": self.step, "switch_step": -1, "first": None}
        self._decide("focus", f"task {new_task} is new")

    def on_losses(self, losses: dict[int, float]) -> None:
        """Smooth the losses, and end the focus phase if they are low enough."""
        known = self.state["losses"]
        if self.until == "halved" and any(-math.inf < loss < 0 for loss in losses.values()):
            expected = 'at least 0, because `until="halved"` compares ratios'
            raise ArgumentError("losses", expected, f"{losses}")  # -1 is below half of itself
        for task, loss in losses.items():
            if math.isfinite(loss):
                before = loss if known[task] is None else known[task]
                known[task] = self.smoothing * before + (1 - self.smoothing) * loss
                continue
            reason = f"the loss of task {task} is not finite"  # noted once since the last arrival
            if reason not in [d.reason for d in self.decisions if d.step >= self.state["begun"]]:
                self._decide("ignored", reason)
        finite = all(map(math.isfinite, losses.values()))
        if self.switch_step < 0 and self.old_tasks and finite and self._low_enough(losses):
            self._end("the losses met" if self.until == "met" else "the new task's loss halved")

    def on_steps(self, count: int) -> None:
        """End the focus phase where the next steps go beyond its bound."""
        if self.switch_step < 0 and count > self._left:
            if self._unknown and self.max_focus is None:
                untold = f"the policy was told no loss of tasks {self._unknown}"
                warnings.warn(f"a focus phase ends by default: {untold}", stacklevel=3)
            phase = "longest focus phase" if self._listens else "focus phase"
            self._end(f"the {phase}, {self._longest:.0f} steps", after=int(self._left))

    @property
    def _longest(self) -> float:
        """The longest focus phase in steps."""
        if self.max_focus is not None:
            return self.max_focus
        fraction = 0.5 if self._listens else float(self.until)
        return _LONGEST if self.epoch_steps is None else int(fraction * self.epoch_steps)

    @property
    def _left(self) -> float:
        """How many steps of focus are left at most."""
        if self.switch_step >= 0:
            return 0
        end = self.state["begun"] + self._longest if self.old_tasks else math.inf
        return max(0, end - self.step)

    @property
    def _unknown(self) -> list[int]:
        """The tasks whose losses would end the focus phase, but are unknown."""
        decisive = [*self.old_tasks, self.new_task] if self.until == "met" else [self.new_task]
        return [t for t in sorted(decisive) if t not in self.losses] if self._listens else []

    def _low_enough(self, told: dict[int, float]) -> bool:
        """Return whether the new task's loss ends the focus phase."""
        if not self._listens or self._unknown:
            return False
        new = self.losses[self.new_task]
        if self.until == "met":
            return new <= max(self.losses[task] for task in self.old_tasks)
        if self.new_task in told and self.state["first"] is None:
            self.state["first"] = new
        return self.new_task in told and new <= self.state["first"] / 2

    def _end(self, reason: str, after: int = 0) -> None:
        self.state["switch_step"] = self.step + after
        self._decide("replay", reason, after)

    def _decide(self, what: str, reason: str, after: int = 0) -> None:
        self.decisions.append(Decision(self.step + after, what, reason, self.losses))


def _mixture(policy: Policy, replayed: float) -> Floats:
    """Return shares (T,): equal ones of the old tasks, `replayed` in all; else of the new task."""
    row = np.zeros(policy.tasks)
    row[policy.old_tasks] = replayed / max(1, len(policy.old_tasks))
    row[policy.new_task] = 1 - row.sum()
    return row
