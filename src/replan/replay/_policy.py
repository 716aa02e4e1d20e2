"""The interface of policies, the order in which tasks follow shares, and states."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, final

import numpy as np

from replan import check
from replan.check import Floats, Ints
from replan.errors import ArgumentError

_TIE = 1e-9  # samples; smaller differences are rounding errors, and the first task wins


@dataclass(frozen=True)
class Decision:
    """What a policy decided at a step, and why.

    step: how many steps had been asked for. losses: those it knew then, by task, smoothed if the
    policy smooths.
    """

    step: int
    what: str
    reason: str
    losses: dict[int, float]


class Policy(ABC):
    """Decides which task to train on next.

    Tasks count from 0, in the order in which they arrive. At first the last task is new and all
    others are old; `begin` says otherwise. A step is a sample, or whatever the loop trains on at a
    time. Answers depend on the arguments, on `epoch_steps` and on what was observed alone.

    step: how many steps were asked for. new_task, old_tasks: the newest task and those to replay.
    epoch_steps: steps of an epoch, set by a sampler, else None. decisions: what was decided.

    **A policy of your own** implements `shares` and those of the other hooks that it needs: `lr`,
    `needs_losses`, `on_losses`, `on_steps`, `on_begin`. It keeps all that changes in the dict
    `self.state`, as JSON types, and passes its arguments to `Policy.__init__` by name: the former
    is saved and restored, the latter must be the same on resuming.

    Examples:
        >>> class LargestLoss(replan.replay.Policy):
        ...     needs_losses = True
        ...     def __init__(self, tasks):
        ...         super().__init__(tasks)
        ...         self.state["losses"] = [1e9] * tasks
        ...     def on_losses(self, losses):
        ...         for task, loss in losses.items():
        ...             self.state["losses"][task] = loss
        ...     def shares(self, count):
        ...         largest = np.argmax(self.state["losses"])
        ...         return np.tile(np.eye(self.tasks)[largest], (count, 1))
        >>> policy = LargestLoss(tasks=3)
        >>> policy.observe({0: 0.1, 1: 0.7, 2: 0.4})
        >>> policy.next_tasks(4)
        array([1, 1, 1, 1])
        >>> resumed = LargestLoss(tasks=3)
        >>> resumed.load_state_dict(policy.state_dict())
        >>> resumed.step
        4
    """

    def __init__(self, tasks: int, **arguments: Any) -> None:
        self.tasks = check.integer("tasks", tasks, at_least=1)
        self.arguments = {"tasks": self.tasks} | arguments
        self.state: dict[str, Any] = {}
        self.step = 0
        self.new_task, self.old_tasks = self.tasks - 1, list(range(self.tasks - 1))
        self.epoch_steps: int | None = None
        self.decisions: list[Decision] = []
        self._lag = [0.0] * self.tasks  # samples that each task is behind its shares
        self._present: list[int] | None = None  # tasks with samples, since the last arrival

    def __repr__(self) -> str:
        arguments = ", ".join(f"{key}={check.show(x)}" for key, x in self.arguments.items())
        return f"{type(self).__name__}({arguments})"

    # Hooks, for policies to implement; all but `shares` may be left as they are.

    @abstractmethod
    def shares(self, count: int) -> Floats:
        """Return the shares (count, T) of the tasks in each of the next steps; change nothing."""

    def lr(self, count: int) -> Floats | None:
        """Return factors (count, T) of the learning rate, one for each task a step may train on.

        None if none are planned. Changes nothing.
        """
        return None

    @property
    def needs_losses(self) -> bool:
        """Whether losses told next can change what the policy decides."""
        return False

    def on_losses(self, losses: dict[int, float]) -> None:  # noqa: B027
        """React to losses by task, of some tasks or of all; they may be infinite or NaN."""

    def on_steps(self, count: int) -> None:  # noqa: B027
        """React to the next `count` steps being given out; `step` is still the first of them."""

    def on_begin(self, new_task: int, old_tasks: list[int]) -> None:  # noqa: B027
        """React to the arrival of a task; `new_task` and `old_tasks` have not changed yet."""

    # What a training loop calls.

    @final
    def begin(self, new_task: int, old_tasks: Sequence[int] | None = None) -> None:
        """Tell the policy that a task has arrived; by default all tasks before it are old."""
        new_task = check.task("new_task", new_task, self.tasks)
        given = range(new_task) if old_tasks is None else old_tasks
        old = sorted(set(check.task_list("old_tasks", given, self.tasks).tolist()))
        if new_task in old:
            raise ArgumentError("old_tasks", f"tasks other than the new one, {new_task}", f"{old}")
        self.on_begin(new_task, old)
        self.new_task, self.old_tasks = new_task, old
        self._lag = [0.0] * self.tasks  # no catching up across arrivals
        self._present = None

    @final
    def observe(self, losses: Mapping[int, float]) -> None:
        """Tell the policy losses by task, of some tasks or of all."""
        self.on_losses(check.losses("losses", losses, self.tasks))

    @final
    def next_tasks(self, count: int, among: Sequence[int] | None = None) -> Ints:
        """Return the tasks (count,) of the next steps, spread as evenly as possible, and advance.

        among: the tasks that have samples; the shares of the others are divided among them in
        proportion. Refuses one that has joined them without `begin`: it would have no share.
        """
        count = check.integer("count", count)
        given = range(self.tasks) if among is None else among
        present = check.task_list("among", given, self.tasks)
        shares = np.asarray(self.shares(count))
        if among is not None:
            shares = restrict(shares, present)
        self._note_present(present.tolist())
        self.on_steps(count)
        self.step += count
        return _spread(shares, self._lag)

    def _note_present(self, tasks: list[int]) -> None:
        """Note which tasks have samples; refuse one that joined them without `begin`."""
        joined = set(tasks) - set(self._present or tasks) - {self.new_task, *self.old_tasks}
        if joined:
            expected = f"told of arrivals, here by `begin({min(joined)})`"
            got = f"samples of task {min(joined)}, which it would not train on"
            raise ArgumentError("policy", expected, got)
        self._present = tasks

    @final
    def next_counts(self, count: int) -> Ints:
        """Return how many of the next `count` samples, such as a batch, are of each task (T,)."""
        return np.bincount(self.next_tasks(count), minlength=self.tasks)

    @final
    def state_dict(self) -> dict[str, Any]:
        """Return all that changes and the arguments, as JSON types."""
        return make_state(
            self,
            self.arguments,
            step=self.step,
            new_task=self.new_task,
            old_tasks=self.old_tasks,
            lag=self._lag,
            present=self._present,
            decisions=[asdict(decision) for decision in self.decisions],
            state=self.state,
        )

    @final
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the state of a policy of the same class with the same arguments."""
        saved = check_state(state, self.state_dict())
        self.step, self.new_task = saved["step"], saved["new_task"]
        self.old_tasks, self._lag = saved["old_tasks"], saved["lag"]
        self._present = saved["present"]
        self.decisions = [
            Decision(**entry | {"losses": {int(t): x for t, x in entry["losses"].items()}})
            for entry in saved["decisions"]
        ]
        self.state = saved["state"]


def restrict(shares: Floats, among: Ints) -> Floats:
    """Return shares (n, T) of some tasks alone, in proportion; equal ones where they had none."""
    if not among.size:
        raise ArgumentError("among", "at least one task", "none")
    kept = np.zeros_like(shares)
    kept[:, among] = shares[:, among]
    kept[np.ix_(kept.sum(axis=1) == 0, among)] = 1.0
    return np.asarray(kept / kept.sum(axis=1, keepdims=True))


def _spread(shares: Floats, lag: list[float]) -> Ints:
    """Return the task (n,) that lags its shares (n, T) most at each step; update the lags.

    Sum-up rounding (Sager, Bock & Diehl 2012), in Python: training loops need no compiler.
    """
    chosen = np.empty(len(shares), np.int64)
    for i, row in enumerate(shares.tolist()):
        best = 0
        for task, share in enumerate(row):
            lag[task] += share
            if lag[task] > lag[best] + _TIE:
                best = task
        lag[best] -= 1.0
        chosen[i] = best
    return chosen


def make_state(owner: object, arguments: Mapping[str, Any], **counters: Any) -> dict[str, Any]:
    """Return a state: the class of its owner, the arguments it was made with, what changes."""
    return _as_json({"class": type(owner).__name__, "arguments": arguments} | counters)


def check_state(state: Any, own: Mapping[str, Any], strict: bool = True) -> dict[str, Any]:
    """Return a copy of a state; refuse one unlike `own`, and if strict, of other arguments."""
    if not isinstance(state, Mapping) or state.get("class") != own["class"]:
        raise ArgumentError("state", f"the state of a {own['class']}", check.show(state))
    if state.keys() != own.keys():
        raise ArgumentError("state", f"a dict of {', '.join(own)}", ", ".join(map(str, state)))
    saved = _as_json(state)
    for name, value in own["arguments"].items() if strict else ():
        there = saved["arguments"].get(name)
        if there != value:
            raise ArgumentError(f"state.arguments.{name}", check.show(value), check.show(there))
    return saved


def _as_json(content: Any) -> Any:
    """Return a copy, as if written to a JSON file and read back."""
    return json.loads(json.dumps(content))
