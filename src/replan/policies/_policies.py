"""Replay policies: which task next, decided while training from nothing but losses.

No framework is needed: a policy is told losses (`observe`) and answers with tasks (`next_task`,
`next_tasks`) or with how many samples of a batch come from each (`next_counts`). Tasks count from
0, steps are samples, or whatever is asked for one at a time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from replan._common import check
from replan._common.check import Floats, Ints
from replan.protocol import Protocol
from replan.protocol._samples import ORDERS, pick

Log = Callable[[dict[str, float], int], object]


@dataclass(frozen=True)
class Decision:
    """What a policy decided at a step, why, and the smoothed losses by task it knew then.

    late: steps asked for before the decision, but trained on after the losses were measured.
    """

    step: int
    what: str
    reason: str
    losses: dict[int, float] = field(default_factory=dict)
    late: int = 0


def checked_losses(losses: Mapping[int, float], tasks: int) -> dict[int, float]:
    """Return losses by task as floats; not finite ones are taken, too."""
    if not isinstance(losses, Mapping):
        raise ValueError(f"`losses` expects a dict of losses by task, got {losses!r}")
    try:
        return {check.task("losses", t, tasks): float(x) for t, x in losses.items()}
    except TypeError:
        raise ValueError(f"`losses` expects a number for each task, got {dict(losses)}") from None


def focus_lengths(decisions: Sequence[Decision], end: int) -> list[int]:
    """Return how many steps each focus phase was long that was begun, the last up to `end`."""
    phases = [d for d in decisions if d.what in ("focus", "replay")]
    after = [d.step for d in phases[1:]] + [end]
    return [stop - d.step for d, stop in zip(phases, after, strict=True) if d.what == "focus"]


class ReplayPolicy(ABC):
    """Says which task to train on next.

    step: samples asked for so far. decisions: what was decided, when and why. A policy's answers
    depend on its arguments, on what it observed and on nothing else; `state_dict` holds all but the
    arguments.

    - `order`: how samples follow the shares: "spread" (as evenly as they allow) or "random" (drawn,
      with `seed`).
    - `log`: called as `log({"share_0": ..., "loss_0": ..., "late": ...}, step)` when losses were
      observed: with the shares now, the losses, smoothed if the policy smooths them, and how many
      steps late that was.
    """

    def __init__(
        self, tasks: int, *, order: str = "spread", seed: int = 0, log: Log | None = None
    ) -> None:
        self.tasks = check.integer("tasks", tasks, at_least=1)
        self.order = check.one_of("order", order, ORDERS)
        self.log = log
        self.step = 0
        self.decisions: list[Decision] = []
        self._rng = np.random.default_rng(check.integer("seed", seed))
        self._lag = np.zeros(self.tasks)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.tasks} tasks, step {self.step})"

    @abstractmethod
    def shares(self, count: int = 1) -> Floats:
        """Return the shares (count, T) of the tasks in each of the next samples."""

    @property
    def needs_losses(self) -> bool:
        """Whether the losses it is told next can change what it decides."""
        return False

    def lr(self, count: int = 1) -> Floats:
        """Return factors (count, T) of the learning rate in each of the next samples, by task."""
        return np.ones((count, self.tasks))

    def begin(self, new_task: int) -> None:
        """Take note that a new task has arrived; here nothing changes."""
        check.task("new_task", new_task, self.tasks)

    def observe(self, losses: Mapping[int, float], late: int = 0) -> None:
        """Take note of losses by task, of some or of all; here they are only logged.

        late: how many of the steps asked for so far were not yet trained on when the losses were
        measured, as where worker processes load data ahead.
        """
        self._say(checked_losses(losses, self.tasks), late)

    def _say(self, losses: Mapping[int, float], late: int) -> None:
        if self.log is not None:
            values = {f"share_{t}": x for t, x in enumerate(self.shares()[0].tolist())}
            values |= {f"loss_{t}": float(x) for t, x in losses.items()}
            self.log(values | {"late": late}, self.step)

    def next_tasks(self, count: int, among: Sequence[int] | None = None) -> Ints:
        """Return the tasks (count,) of the next samples, and go on.

        among: the tasks there are to draw from; the others leave them their shares.
        """
        count = check.integer("count", count)
        shares = self.shares(count)
        if among is not None:
            shares = _only(shares, [check.task("among", t, self.tasks) for t in among])
        self.step += count
        return pick(shares, self.order, self._rng, self._lag)

    def next_task(self) -> int:
        """Return the task of the next sample, and go on."""
        return int(self.next_tasks(1)[0])

    def next_counts(self, count: int) -> Ints:
        """Return how many of the next samples, such as a batch's, are of each task (T,); go on."""
        return np.bincount(self.next_tasks(count), minlength=self.tasks)

    def state_dict(self) -> dict[str, Any]:
        """Return where the policy is, as JSON types."""
        return {
            "step": self.step,
            "lag": self._lag.tolist(),
            "rng": self._rng.bit_generator.state,
            "decisions": [
                asdict(entry) | {"losses": {str(t): x for t, x in entry.losses.items()}}
                for entry in self.decisions
            ],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from where another policy with the same arguments was."""
        if not isinstance(state, Mapping) or set(state) != set(self.state_dict()):
            raise ValueError(
                f"`state_dict` expects what a {type(self).__name__} gave, with "
                f"{', '.join(self.state_dict())}, got {state!r:.80}"
            )
        lag = check.array("state_dict", state["lag"], (self.tasks,))
        self.step, self._lag = int(state["step"]), lag
        self._rng.bit_generator.state = state["rng"]
        self.decisions = [
            Decision(**(entry | {"losses": {int(t): x for t, x in entry["losses"].items()}}))
            for entry in state["decisions"]
        ]


def _only(shares: Floats, among: Sequence[int]) -> Floats:
    """Return shares (n, T) of some tasks alone, in proportion; equal ones where they had none."""
    left = np.zeros_like(shares)
    left[:, among] = shares[:, among]
    none = left.sum(axis=1) == 0
    left[np.ix_(none, among)] = 1.0
    return np.asarray(left / left.sum(axis=1, keepdims=True))


class Fixed(ReplayPolicy):
    """The same shares (T,) all the time, what most replay libraries do."""

    def __init__(self, shares: ArrayLike, **settings: Any) -> None:
        self._shares = check.simplex_rows("shares", shares, ("T",))
        super().__init__(self._shares.size, **settings)

    def shares(self, count: int = 1) -> Floats:
        """Return the shares (count, T) of the next samples."""
        return np.tile(self._shares, (count, 1))


class Alternate(ReplayPolicy):
    """One task after the other, `stay` samples each."""

    def __init__(self, tasks: int, *, stay: int = 1, **settings: Any) -> None:
        super().__init__(tasks, **settings)
        self.stay = check.integer("stay", stay, at_least=1)

    def shares(self, count: int = 1) -> Floats:
        """Return the shares (count, T) of the next samples."""
        turn = (self.step + np.arange(count)) // self.stay % self.tasks
        return np.eye(self.tasks)[turn]


class Follow(ReplayPolicy):
    """Plays a protocol, such as a plan's, within a number of steps; its end goes on after them."""

    def __init__(self, protocol: Protocol, steps: int, **settings: Any) -> None:
        if not isinstance(protocol, Protocol):
            raise ValueError(f"`protocol` expects a Protocol, got {protocol!r}")
        super().__init__(protocol.tasks, **settings)
        self.protocol, self.steps = protocol, check.integer("steps", steps, at_least=1)

    def shares(self, count: int = 1) -> Floats:
        """Return the shares (count, T) of the next samples."""
        return self.protocol.shares[self._piece(count)]

    def lr(self, count: int = 1) -> Floats:
        """Return the learning rates (count, T) of the next samples, one of each task."""
        return self.protocol.lr_by_task[self._piece(count)]

    def _piece(self, count: int) -> Ints:
        middle = (self.step + np.arange(count) + 0.5) / self.steps
        return self.protocol.step_at(middle * self.protocol.duration)


class FocusThenReplay(ReplayPolicy):
    """The new task alone until its loss meets the old tasks', then all of them mixed.

    The paper's pseudo-optimal rule, for tasks whose losses can be estimated while training.

    **Main arguments**

    - `new_task`, `old_tasks`: which tasks (from 0). `begin` starts again with another new task.

    **Other arguments**

    - `shares`: (T,) of the tasks in the replay phase, of which those seen so far count; by default
      equal ones; a number: the new task's, of which the old ones share the rest equally; "loss": in
      proportion to their weighted, smoothed losses.
    - `weights`: (T,) by which losses are multiplied before they are compared.
    - `margin`: the losses meet where new ≤ (1 + margin) × the largest of the old ones.
    - `patience`: how many observations of the new task in a row they must have met.
    - `smoothing`: the part of the old value in the moving average of each task's losses, below 1.
    - `min_focus`, `max_focus`: bounds of the focus phase in steps.
    - `tasks`: how many there will be, by default the largest that is named and one more.
    - `order`, `seed`, `log`: as in `ReplayPolicy`.

    A loss that is not finite is logged and otherwise ignored. Without old tasks there is nothing to
    replay, and the focus phase goes on; so it does while the loss of an old task is not known.
    """

    def __init__(
        self,
        new_task: int,
        old_tasks: Sequence[int],
        *,
        shares: ArrayLike | float | str | None = None,
        weights: ArrayLike | None = None,
        margin: float = 0.0,
        patience: int = 1,
        smoothing: float = 0.0,
        min_focus: int = 0,
        max_focus: int | None = None,
        tasks: int | None = None,
        **settings: Any,
    ) -> None:
        old = check.items("old_tasks", old_tasks, "tasks")
        named = [check.integer("new_task", new_task), *(check.integer("old_tasks", t) for t in old)]
        super().__init__(max(named) + 1 if tasks is None else tasks, **settings)
        count = (self.tasks,)
        self.weights = check.array("weights", np.ones(count) if weights is None else weights, count)
        if self.weights.min() < 0:
            raise ValueError(
                f"`weights` expects numbers of at least 0, got {self.weights.tolist()}"
            )
        if isinstance(shares, str):
            check.one_of("shares", shares, ["loss"])
        elif isinstance(shares, Real):
            check.number("shares", shares, at_least=0, at_most=1)
        elif shares is not None:
            shares = check.simplex_rows("shares", shares, count)
        self._given = shares
        self.margin = check.number("margin", margin, at_least=-1)
        self.patience = check.integer("patience", patience, at_least=1)
        self.smoothing = check.number("smoothing", smoothing, at_least=0)
        if self.smoothing >= 1:
            raise ValueError(f"`smoothing` expects a number from 0 to below 1, got {smoothing!r}")
        self.min_focus = check.integer("min_focus", min_focus)
        self.max_focus = (
            None if max_focus is None
            else check.integer("max_focus", max_focus, at_least=self.min_focus)
        )  # fmt: skip
        self.losses: dict[int, float] = {}
        self._start(new_task, old)

    def begin(self, new_task: int) -> None:
        """Start a focus phase on another new task; the one before is an old task from now on."""
        old = [t for t in (*self.old_tasks, self.new_task) if t != new_task]
        self._start(new_task, old)
        self._decide("focus", f"task {new_task} is new")

    def _start(self, new_task: int, old_tasks: Sequence[int]) -> None:
        self.new_task = check.task("new_task", new_task, self.tasks)
        self.old_tasks = sorted({check.task("old_tasks", t, self.tasks) for t in old_tasks})
        if self.new_task in self.old_tasks:
            raise ValueError(f"`old_tasks` expects tasks other than the new one, got {new_task}")
        self.focusing, self.switch_step = True, -1
        self._begun, self._met = self.step, 0
        self._lag = np.zeros(self.tasks)  # what lags behind is not made up for in a focus phase

    @property
    def seen(self) -> list[int]:
        """The tasks met so far, from 0."""
        return sorted([*self.old_tasks, self.new_task])

    @property
    def needs_losses(self) -> bool:
        """Whether losses decide when the focus phase ends, if it is on, or what is replayed."""
        ends = self.focusing and self.min_focus != self.max_focus
        return ends or isinstance(self._given, str)

    @property
    def deaf(self) -> bool:
        """Whether it focuses and was never told a loss, by which alone it could end."""
        return bool(self.focusing and self.old_tasks and not self.losses and self.max_focus is None)

    def observe(self, losses: Mapping[int, float], late: int = 0) -> None:
        """Take note of losses by task, and end the focus phase if they have met."""
        told = checked_losses(losses, self.tasks)
        bad = {t: loss for t, loss in told.items() if not np.isfinite(loss)}
        for task, loss in told.items():
            if task not in bad:
                before = self.losses.get(task, loss)
                self.losses[task] = self.smoothing * before + (1 - self.smoothing) * loss
        if bad:
            reason = f"not finite: {', '.join(f'task {t} {x}' for t, x in sorted(bad.items()))}"
            if not self.decisions or self.decisions[-1].reason != reason:  # once is enough
                self._decide("ignored", reason, late)
        elif self.focusing and self.new_task in told and self._unknown():
            reason = f"no loss of task {', '.join(map(str, self._unknown()))} so far"
            if not self.decisions or self.decisions[-1].reason != reason:
                self._decide("waiting", reason, late)
        elif self.focusing and (self.new_task in told or not self._met):
            self._met = self._met + 1 if self._meet() else 0
            focused = self.step - self._begun
            if self._met >= self.patience and focused >= self.min_focus:
                self._end("the losses met", late)
        self._say(self.losses, late)

    def _unknown(self) -> list[int]:
        """Return the tasks met so far whose losses nobody has told."""
        return [t for t in self.seen if t not in self.losses]

    def _meet(self) -> bool:
        """Return whether the new task's loss is as small as an old one's; all must be known."""
        if not self.old_tasks or self._unknown():
            return False
        new, *old = (self.weights[t] * self.losses[t] for t in (self.new_task, *self.old_tasks))
        return bool(new <= (1 + self.margin) * max(old))

    def _end(self, reason: str, late: int = 0) -> None:
        self.focusing, self.switch_step = False, self.step
        self._decide("replay", reason, late)

    def _decide(self, what: str, reason: str, late: int = 0) -> None:
        self.decisions.append(Decision(self.step, what, reason, dict(self.losses), late))

    def next_tasks(self, count: int, among: Sequence[int] | None = None) -> Ints:
        """Return the tasks (count,) of the next samples, and go on."""
        left = self._left()
        if left is None or count <= left:
            return super().next_tasks(count, among)
        first = super().next_tasks(left, among)
        self._end(f"the longest focus phase, {self.max_focus} steps")
        return np.concatenate([first, super().next_tasks(count - left, among)])

    def _left(self) -> int | None:
        """Return how many steps of focus are left at most, None without a bound."""
        if not self.focusing or self.max_focus is None or not self.old_tasks:
            return None
        return self._begun + self.max_focus - self.step

    def shares(self, count: int = 1) -> Floats:
        """Return the shares (count, T) of the next samples."""
        rows = np.tile(self._replay_shares(), (count, 1))
        if self.focusing:
            left = self._left()
            rows[: count if left is None else left] = np.eye(self.tasks)[self.new_task]
        return rows

    def _replay_shares(self) -> Floats:
        """Return the shares (T,) of the replay phase: of tasks seen so far, given or equal."""
        amounts = np.zeros(self.tasks)
        if isinstance(self._given, str):
            if not self._unknown():
                losses = [self.losses[t] for t in self.seen]
                amounts[self.seen] = self.weights[self.seen] * np.maximum(losses, 0.0)
        elif isinstance(self._given, Real):
            amounts[self.old_tasks] = (1 - float(self._given)) / max(1, len(self.old_tasks))
            amounts[self.new_task] = float(self._given)
        elif self._given is not None:
            amounts[self.seen] = np.asarray(self._given)[self.seen]
        if amounts.sum() == 0:
            amounts[self.seen] = 1.0
        return amounts / amounts.sum()

    def state_dict(self) -> dict[str, Any]:
        """Return where the policy is, as JSON types."""
        return super().state_dict() | {
            "new_task": self.new_task,
            "old_tasks": self.old_tasks,
            "focusing": self.focusing,
            "switch_step": self.switch_step,
            "begun": self._begun,
            "met": self._met,
            "losses": {str(t): x for t, x in self.losses.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from where another policy with the same arguments was."""
        super().load_state_dict(state)
        lag = self._lag
        self._start(state["new_task"], state["old_tasks"])
        self._lag = lag
        self.focusing, self.switch_step = bool(state["focusing"]), int(state["switch_step"])
        self._begun, self._met = int(state["begun"]), int(state["met"])
        self.losses = {int(t): float(x) for t, x in state["losses"].items()}
