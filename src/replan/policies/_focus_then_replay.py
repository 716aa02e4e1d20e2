"""Focus-then-replay: the new task alone for a while that its losses decide, then all mixed."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from numbers import Real
from typing import Any, final

import numpy as np
from numpy.typing import ArrayLike

from replan import check
from replan._common.state import Entries
from replan.check import Floats
from replan.policies._policy import Decision, Policy, losses_by_task, old_tasks_of

RULES = ("halved", "met")
LONGEST = 10_000  # steps of focus, where the loop does not say how long an epoch is


@final
class FocusThenReplay(Policy):
    """The new task alone until its loss is low enough, then all of them mixed.

    For tasks whose losses can be estimated while training. With tuned learning rates and shares it
    ended no lower than `FixedReplay`, which needs no losses: docs/how-much-when.md.

    new_task, old_tasks, losses: the tasks that have arrived and their smoothed losses. focusing,
    switch_step: whether the focus phase is on, and the step at which it ended, -1 if it has not.

    **Main arguments**

    - `new_task`, `old_tasks`: which tasks (from 0). `begin` starts again with another new task.

    **Other arguments**

    - `until`: what ends the focus phase. "halved": the new task's loss has come down to half of the
      first one told since it arrived, which compares it with nothing but itself. "met": it has
      come down to the largest of the old tasks', the paper's rule for real data (Mori et al.,
      section 3.2), for tasks whose losses have one scale. A number: that part of an epoch of the
      sampler is over, whatever the losses (0.5 and more is late replay: docs/real-images.md).
    - `shares`: of the tasks in the replay phase. By default they are equal, which is more replay
      than suits a head per task; (T,), of which those of the tasks that have arrived count; a
      number is the share of the new task, and the old ones divide the rest equally; "loss" is in
      proportion to the weighted, smoothed losses.
    - `weights`: (T,) by which losses are multiplied before they are compared with each other.
    - `margin`: the new loss is low enough where it is at most (1 + margin) × that half, or × the
      largest of the old ones.
    - `patience`: in how many observations in a row that must be so. Observations without the new
      task do not count, except the one in which the losses first meet.
    - `smoothing`: the weight of the old value in the moving average of each task's losses, below 1.
    - `min_focus`, `max_focus`: bounds of the focus phase in steps. The longest one is by default
      half of an epoch of the sampler, in a loop without one 10,000 steps; `math.inf` is none.
    - `focus_lr`, `replay_lr`: factors of training's own learning rate in the two phases.
    - `decay`: in the replay phase the factor falls as exp(−decay × epochs since it began); in a
      loop without a sampler 20,000 steps count as an epoch.
    - `tasks`: how many there will be; by default one more than the largest index given.
    - `order`, `seed`, `log`: as in `Policy`.

    A loss that is not finite is noted in `decisions` and otherwise ignored. Without old tasks there
    is nothing to replay, and the focus phase continues; it also does so, up to its bound, while a
    loss that decides is not known. A state may be resumed with other bounds.

    Examples:
        >>> policy = replan.policies.FocusThenReplay(new_task=1, old_tasks=[0])
        >>> policy.observe({0: 0.1, 1: 1.0})
        >>> policy.next_counts(32)
        array([ 0, 32])
        >>> policy.observe({0: 0.2, 1: 0.4})  # task 1's loss has halved
        >>> policy.next_counts(32)
        array([16, 16])
    """

    def __init__(
        self,
        new_task: int,
        old_tasks: Sequence[int],
        *,
        until: str | float = "halved",
        shares: ArrayLike | float | str | None = None,
        weights: ArrayLike | None = None,
        margin: float = 0.0,
        patience: int = 1,
        smoothing: float = 0.0,
        min_focus: int = 0,
        max_focus: float | None = None,
        focus_lr: float = 1.0,
        replay_lr: float = 1.0,
        decay: float = 0.0,
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
        self.until: str | float
        if isinstance(until, Real):
            self.until = check.number("until", until, at_least=0, at_most=1)
        else:
            self.until = check.one_of("until", until, RULES)
        self.margin = check.number("margin", margin, at_least=-1)
        self.patience = check.integer("patience", patience, at_least=1)
        self.smoothing = check.number("smoothing", smoothing, at_least=0)
        if self.smoothing >= 1:
            raise ValueError(
                f"`smoothing` expects a number from 0 to below 1, got {check.show(smoothing)}"
            )
        self.min_focus = check.integer("min_focus", min_focus)
        self.max_focus = max_focus
        if max_focus is not None and not (isinstance(max_focus, float) and max_focus == math.inf):
            self.max_focus = check.integer("max_focus", max_focus, at_least=self.min_focus)
        self.focus_lr = check.number("focus_lr", focus_lr, at_least=0)
        self.replay_lr = check.number("replay_lr", replay_lr, at_least=0)
        self.decay = check.number("decay", decay, at_least=0)
        rates = {"focus_lr": self.focus_lr, "replay_lr": self.replay_lr, "decay": self.decay}
        self._rated = tuple(rates.values()) != (1.0, 1.0, 0.0)
        self.losses: dict[int, float] = {}
        self._start(new_task, old)
        self.arguments |= {
            "new_task": self.new_task,
            "old_tasks": self.old_tasks,
            "until": self.until,
            "shares": shares.tolist() if isinstance(shares, np.ndarray) else shares,
            "weights": self.weights.tolist(),
            "margin": self.margin,
            "patience": self.patience,
            "smoothing": self.smoothing,
        } | (rates if self._rated else {})

    # What it is

    @property
    def longest(self) -> float:
        """The longest focus phase in steps: `max_focus`, or what stands for it."""
        if self.max_focus is not None:
            return self.max_focus
        part = 0.5 if self._listens else float(self.until)
        usual = LONGEST if self.epoch_steps is None else int(part * self.epoch_steps)
        return max(self.min_focus, usual)

    @property
    def _listens(self) -> bool:
        """Whether losses may end a focus phase."""
        return isinstance(self.until, str)

    @property
    def needs_losses(self) -> bool:
        """Whether losses decide when the focus phase, if it is on, ends, or what is replayed."""
        ends = self.focusing and self._listens and self.min_focus != self.longest
        return bool(self.old_tasks) and (ends or isinstance(self._given, str))

    @property
    def waiting(self) -> str:
        """Not empty if no bound was given, and a loss that ends the focus phase was never told."""
        given = self.max_focus not in (None, math.inf)
        if given or not self.old_tasks or not self._unknown():
            return ""
        lacking = f"the policy was told no loss of task {_listed(self._unknown())} so far, and "
        if self.focusing:
            return lacking + "stays with the new task"
        return lacking + "replays because the longest focus phase was over"

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
        alone = self.step - self._begun
        if alone and self.focusing and self.needs_losses and self.longest < math.inf:
            warnings.warn(
                f"task {self.new_task} was trained on alone, for {alone} steps, until task "
                f"{new_task} arrived: no loss ended its focus phase, and nothing was replayed; "
                "`max_focus` bounds it",
                stacklevel=3,
            )
        self._start(new_task, [t for t in self.seen if t != new_task])
        self._decide("focus", f"task {new_task} is new")

    def _start(self, new_task: int, old_tasks: Sequence[int]) -> None:
        self.new_task = check.task("new_task", new_task, self.tasks)
        self.old_tasks = old_tasks_of("old_tasks", old_tasks, self.new_task, self.tasks)
        self.focusing, self.switch_step = True, -1
        self._begun, self._met = self.step, 0
        self._first: dict[int, float] = {}  # loss of the new task that was told in this phase
        self._lag = np.zeros(self.tasks)  # tasks that lag behind do not catch up in a focus phase

    def _observe(self, losses: dict[int, float], late: int) -> dict[int, float]:
        """Take note of the losses, and end the focus phase if they say so."""
        bad = sorted(t for t, loss in losses.items() if not np.isfinite(loss))
        for task, loss in losses.items():
            if task not in bad:
                before = self.losses.get(task, loss)
                self.losses[task] = self.smoothing * before + (1 - self.smoothing) * loss
        for task in bad:
            self._remark("ignored", f"the loss of task {task} is not finite", late)
        if self.focusing and self.old_tasks and self._listens and not bad:
            self._judge(losses, late)
        return self.losses

    def _judge(self, told: dict[int, float], late: int) -> None:
        """End the focus phase if the losses told now have been low enough for long enough."""
        if self._unknown():
            self._remark("waiting", f"no loss of task {_listed(self._unknown())} so far", late)
        elif self.new_task in told or (self.until == "met" and not self._met):
            self._met = self._met + 1 if self._low_enough() else 0
            if self._met >= self.patience and self.step - self._begun >= self.min_focus:
                met = self.until == "met"
                self._end("the losses met" if met else "the new task's loss halved", late)

    def _unknown(self) -> list[int]:
        """Return the tasks whose losses end the focus phase and are not known."""
        needed = self.seen if self.until == "met" else [self.new_task]
        return [t for t in needed if t not in self.losses] if self._listens else []

    def _low_enough(self) -> bool:
        """Return whether the new task's loss is, beside its first one or the largest of the others.

        What it needs is known.
        """
        if self.until == "met":
            new, *old = (self.weights[t] * self.losses[t] for t in (self.new_task, *self.old_tasks))
            goal = max(old)
        else:
            new = self.losses[self.new_task]
            goal = self._first.setdefault(self.new_task, new) / 2
        return bool(new <= (1 + self.margin) * goal)

    def _advance(self, count: int) -> None:
        """End the focus phase where the next steps go beyond its bound."""
        left = self._left()
        if left is not None and count > left:
            what = "longest focus phase" if self._listens else "focus phase"
            self._end(f"the {what}, {self.longest:.0f} steps", after=left)

    def _left(self) -> int | None:
        """Return how many steps of focus are left at most, None without a bound."""
        if not self.focusing or self.longest == math.inf or not self.old_tasks:
            return None
        return max(0, self._begun + int(self.longest) - self.step)  # the bound may come late

    def _end(self, reason: str, late: int = 0, after: int = 0) -> None:
        self.focusing, self.switch_step = False, self.step + after
        self._decide("replay", reason, late, after)

    def _decide(self, what: str, reason: str, late: int = 0, after: int = 0) -> None:
        step = self.step + after
        self.decisions.append(Decision(step, what, reason, dict(self.losses), late))

    def _remark(self, what: str, reason: str, late: int) -> None:
        """Note what changes nothing, once until the next task arrives."""
        for decision in reversed(self.decisions):
            if decision.reason == reason:
                return
            if decision.what == "focus":
                break
        self._decide(what, reason, late)

    # What it answers

    def _ahead(self, count: int) -> tuple[Floats, Floats | None]:
        rows = np.empty((count, self.tasks))
        left = self._left() if self.focusing else 0
        alone = count if left is None else min(count, left)
        if alone:
            rows[:alone] = 0.0
            rows[:alone, self.new_task] = 1.0
        if alone < count:
            rows[alone:] = self._replay_shares()
        return rows, self._factors(count, alone) if self._rated else None

    def _factors(self, count: int, alone: int) -> Floats:
        """Return the learning rates (count, T) of the next steps, of which some are of focus."""
        epoch = self.epoch_steps or 2 * LONGEST
        begun = self.step + alone if self.focusing else self.switch_step
        since = (self.step + np.arange(count) - begun) / epoch
        after = self.replay_lr * np.exp(-self.decay * np.maximum(since, 0.0))
        row = np.where(np.arange(count) < alone, self.focus_lr, after)
        return np.tile(row[:, None], self.tasks)

    def _replay_shares(self) -> list[float]:
        """Return the shares (T,) of the replay phase, of the tasks that have arrived."""
        seen, given = self.seen, self._given
        amounts = dict.fromkeys(seen, 0.0)
        if isinstance(given, str):
            if all(t in self.losses for t in seen):
                amounts = {t: self.weights[t] * max(self.losses[t], 0.0) for t in seen}
        elif isinstance(given, float):
            amounts = dict.fromkeys(seen, (1 - given) / max(1, len(self.old_tasks)))
            amounts[self.new_task] = given
        elif given is not None:
            amounts = {t: given[t] for t in seen}
        total = sum(amounts.values())
        if total == 0:
            amounts, total = dict.fromkeys(seen, 1.0), len(seen)
        return [amounts.get(t, 0.0) / total for t in range(self.tasks)]

    # Where it is

    def _state(self) -> dict[str, Any]:
        return {
            "new_task": self.new_task,
            "old_tasks": self.old_tasks,
            "focusing": self.focusing,
            "switch_step": self.switch_step,
            "begun": self._begun,
            "met": self._met,
            "first": self._first,
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
            "old_tasks": state.read("old_tasks", old_tasks_of, new_task, self.tasks),
            "focusing": focusing,
            "switch_step": state.read(
                "switch_step", check.integer, at_least=bounds[0], at_most=bounds[1]
            ),
            "_begun": begun,
            "_met": state.read("met", check.integer),
            "_first": state.read("first", losses_by_task, self.tasks),
            "losses": state.read("losses", losses_by_task, self.tasks),
        }


def _listed(tasks: list[int]) -> str:
    return ", ".join(map(str, tasks))
