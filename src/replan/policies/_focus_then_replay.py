"""Focus-then-replay: the new task alone until its loss meets the old tasks', then all mixed."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Real
from typing import Any, final

import numpy as np
from numpy.typing import ArrayLike

from replan._common import check
from replan._common.check import Floats
from replan._common.state import Entries
from replan.policies._policy import Decision, Policy, losses_by_task


@final
class FocusThenReplay(Policy):
    """The new task alone until its loss meets the old tasks', then all of them mixed.

    The paper's rule for real data (Mori et al., section 3.2), for tasks whose losses can be
    estimated while training.

    new_task, old_tasks, losses: the tasks that have arrived and their smoothed losses. focusing,
    switch_step: whether the focus phase is on, and the step at which it ended, -1 if it has not.

    **Main arguments**

    - `new_task`, `old_tasks`: which tasks (from 0). `begin` starts again with another new task.

    **Other arguments**

    - `shares`: of the tasks in the replay phase. By default they are equal; (T,), of which those of
      the tasks that have arrived count; a number is the share of the new task, and the old ones
      divide the rest equally; "loss" is in proportion to the weighted, smoothed losses.
    - `weights`: (T,) by which losses are multiplied before they are compared.
    - `margin`: the losses meet where new ≤ (1 + margin) × the largest of the old ones.
    - `patience`: in how many observations in a row they must have met: the one in which they first
      do, which may be of an old task alone, and from then on those of the new task.
    - `smoothing`: the weight of the old value in the moving average of each task's losses, below 1.
    - `min_focus`, `max_focus`: bounds of the focus phase in steps.
    - `tasks`: how many there will be; by default one more than the largest index given.
    - `order`, `seed`, `log`: as in `Policy`.

    A loss that is not finite is noted in `decisions` and otherwise ignored. Without old tasks there
    is nothing to replay, and the focus phase continues; it also does so while the loss of an old
    task is not known.
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
                f"`weights` expects numbers of at least 0, got {check.show(self.weights.tolist())}"
            )
        if isinstance(shares, str):
            check.one_of("shares", shares, ["loss"])
        elif isinstance(shares, Real):
            shares = check.number("shares", shares, at_least=0, at_most=1)
        elif shares is not None:
            shares = check.simplex_rows("shares", shares, count)
        self._given = shares
        self.margin = check.number("margin", margin, at_least=-1)
        self.patience = check.integer("patience", patience, at_least=1)
        self.smoothing = check.number("smoothing", smoothing, at_least=0)
        if self.smoothing >= 1:
            raise ValueError(
                f"`smoothing` expects a number from 0 to below 1, got {check.show(smoothing)}"
            )
        self.min_focus = check.integer("min_focus", min_focus)
        self.max_focus = (
            None if max_focus is None
            else check.integer("max_focus", max_focus, at_least=self.min_focus)
        )  # fmt: skip
        self.losses: dict[int, float] = {}
        self._start(new_task, old)
        self.arguments |= {
            "new_task": self.new_task,
            "old_tasks": self.old_tasks,
            "shares": shares.tolist() if isinstance(shares, np.ndarray) else shares,
            "weights": self.weights.tolist(),
            "margin": self.margin,
            "patience": self.patience,
            "smoothing": self.smoothing,
            "min_focus": self.min_focus,
            "max_focus": self.max_focus,
        }

    # What it is

    @property
    def needs_losses(self) -> bool:
        """Whether losses decide when the focus phase, if it is on, ends, or what is replayed."""
        ends = self.focusing and self.min_focus != self.max_focus
        return ends or isinstance(self._given, str)

    @property
    def waiting(self) -> str:
        """Not empty if it focuses, only losses can end that, and it has never been told any."""
        if self.focusing and self.old_tasks and not self.losses and self.max_focus is None:
            return "the policy was told no losses so far, and stays with the new task"
        return ""

    @property
    def seen(self) -> list[int]:
        """The tasks that have arrived, in ascending order."""
        return sorted([*self.old_tasks, self.new_task])

    @property
    def focus_lengths(self) -> list[int]:
        """How many steps each focus phase that `begin` started has taken, the last one so far."""
        phases = [d for d in self.decisions if d.what in ("focus", "replay")]
        ends = [d.step for d in phases[1:]] + [self.step]
        return [end - d.step for d, end in zip(phases, ends, strict=True) if d.what == "focus"]

    # When the focus phase begins and ends

    def _begin(self, new_task: int) -> None:
        """Start a focus phase on the new task; the one before it is an old task from now on."""
        self._start(new_task, [t for t in self.seen if t != new_task])
        self._decide("focus", f"task {new_task} is new")

    def _start(self, new_task: int, old_tasks: Sequence[int]) -> None:
        self.new_task = check.task("new_task", new_task, self.tasks)
        self.old_tasks = _old_tasks("old_tasks", old_tasks, self.new_task, self.tasks)
        self.focusing, self.switch_step = True, -1
        self._begun, self._met = self.step, 0
        self._lag = np.zeros(self.tasks)  # tasks that lag behind do not catch up in a focus phase

    def _observe(self, losses: dict[int, float], late: int) -> dict[int, float]:
        """Take note of the losses, and end the focus phase if they have met."""
        bad = {t: loss for t, loss in losses.items() if not np.isfinite(loss)}
        for task, loss in losses.items():
            if task not in bad:
                before = self.losses.get(task, loss)
                self.losses[task] = self.smoothing * before + (1 - self.smoothing) * loss
        if bad:
            reason = f"not finite: {', '.join(f'task {t} {x}' for t, x in sorted(bad.items()))}"
            self._remark("ignored", reason, late)
        elif self.focusing and self.new_task in losses and self._unknown():
            reason = f"no loss of task {', '.join(map(str, self._unknown()))} so far"
            self._remark("waiting", reason, late)
        elif self.focusing and (self.new_task in losses or not self._met):
            self._met = self._met + 1 if self._meet() else 0
            if self._met >= self.patience and self.step - self._begun >= self.min_focus:
                self._end("the losses met", late)
        return self.losses

    def _unknown(self) -> list[int]:
        """Return the tasks that have arrived and whose losses are not known."""
        return [t for t in self.seen if t not in self.losses]

    def _meet(self) -> bool:
        """Return whether the new task's loss is as small as the largest old one; all are known."""
        if not self.old_tasks or self._unknown():
            return False
        new, *old = (self.weights[t] * self.losses[t] for t in (self.new_task, *self.old_tasks))
        return bool(new <= (1 + self.margin) * max(old))

    def _advance(self, count: int) -> None:
        """End the focus phase where the next steps go beyond its bound."""
        left = self._left()
        if left is not None and count > left:
            self._end(f"the longest focus phase, {self.max_focus} steps", after=left)

    def _left(self) -> int | None:
        """Return how many steps of focus are left at most, None without a bound."""
        if not self.focusing or self.max_focus is None or not self.old_tasks:
            return None
        return self._begun + self.max_focus - self.step

    def _end(self, reason: str, late: int = 0, after: int = 0) -> None:
        self.focusing, self.switch_step = False, self.step + after
        self._decide("replay", reason, late, after)

    def _decide(self, what: str, reason: str, late: int = 0, after: int = 0) -> None:
        step = self.step + after
        self.decisions.append(Decision(step, what, reason, dict(self.losses), late))

    def _remark(self, what: str, reason: str, late: int) -> None:
        """Note what changes nothing, unless it was noted just before."""
        if not self.decisions or self.decisions[-1].reason != reason:
            self._decide(what, reason, late)

    # What it answers

    def _ahead(self, count: int) -> tuple[Floats, None]:
        rows = np.tile(self._replay_shares(), (count, 1))
        if self.focusing:
            left = self._left()
            rows[: count if left is None else left] = np.eye(self.tasks)[self.new_task]
        return rows, None

    def _replay_shares(self) -> Floats:
        """Return the shares (T,) of the replay phase, of the tasks that have arrived."""
        amounts = np.zeros(self.tasks)
        if isinstance(self._given, str):
            if not self._unknown():
                losses = [self.losses[t] for t in self.seen]
                amounts[self.seen] = self.weights[self.seen] * np.maximum(losses, 0.0)
        elif isinstance(self._given, float):
            amounts[self.old_tasks] = (1 - self._given) / max(1, len(self.old_tasks))
            amounts[self.new_task] = self._given
        elif self._given is not None:
            amounts[self.seen] = np.asarray(self._given)[self.seen]
        if amounts.sum() == 0:
            amounts[self.seen] = 1.0
        return amounts / amounts.sum()

    # Where it is

    def _state(self) -> dict[str, Any]:
        return {
            "new_task": self.new_task,
            "old_tasks": self.old_tasks,
            "focusing": self.focusing,
            "switch_step": self.switch_step,
            "begun": self._begun,
            "met": self._met,
            "losses": self.losses,
        }

    def _read(self, state: Entries) -> dict[str, Any]:
        step = state.read("step", check.integer)
        new_task = state.read("new_task", check.task, self.tasks)
        begun = state.read("begun", check.integer, at_most=step)
        focusing = state.read("focusing", check.boolean)
        bounds = (-1, -1) if focusing else (begun, step)
        return {
            "new_task": new_task,
            "old_tasks": state.read("old_tasks", _old_tasks, new_task, self.tasks),
            "focusing": focusing,
            "switch_step": state.read(
                "switch_step", check.integer, at_least=bounds[0], at_most=bounds[1]
            ),
            "_begun": begun,
            "_met": state.read("met", check.integer),
            "losses": state.read("losses", losses_by_task, self.tasks),
        }


def _old_tasks(name: str, value: Any, new_task: int, tasks: int) -> list[int]:
    """Return the old tasks in ascending order."""
    named = [check.task(name, t, tasks) for t in check.items(name, value, "tasks")]
    if new_task in named:
        raise ValueError(f"`{name}` expects tasks other than the new one, got {new_task}")
    return sorted(set(named))
