"""What every policy is: it says which task comes next, and may be told losses.

No framework is needed: a policy is told losses (`observe`) and answers with tasks (`next_task`,
`next_tasks`) or with how many samples of a batch come from each task (`next_counts`). Tasks count
from 0. A step is a sample, or whatever else the loop takes one of at a time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from replan._common import check
from replan._common.check import Floats, Ints
from replan.protocol._samples import ORDERS, pick

Log = Callable[[dict[str, float], int], object]


@dataclass(frozen=True)
class Decision:
    """What a policy decided at a step, why, and the smoothed losses by task it knew then.

    late: steps asked for before the decision that were trained on only after the losses had been
    measured.
    """

    step: int
    what: str
    reason: str
    losses: dict[int, float] = field(default_factory=dict)
    late: int = 0


class Policy(ABC):
    """Says which task to train on next.

    step: samples asked for so far. decisions: what was decided, when and why. A policy's answers
    depend on its arguments and on what it has observed, and on nothing else; `state_dict` holds all
    but the arguments.

    - `order`: how samples follow the shares: "spread" (as evenly as possible) or "random" (drawn,
      with `seed`).
    - `log`: called as `log({"share_0": ..., "loss_0": ..., "late": ...}, step)` after each
      observation: with the present shares, the losses (smoothed if the policy smooths them) and how
      many steps late they were.

    A policy of your own implements the abstract methods and properties and overrides nothing else.
    One that depends on the step alone is an `OpenLoop` and implements only `_ahead`.
    """

    def __init__(
        self, tasks: int, *, order: str = "spread", seed: int = 0, log: Log | None = None
    ) -> None:
        self.tasks = check.integer("tasks", tasks, at_least=1)
        self.order = check.one_of("order", order, ORDERS)
        self.log = None if log is None else check.function("log", log, "a function or None")
        self.step = 0
        self.decisions: list[Decision] = []
        self._rng = np.random.default_rng(check.integer("seed", seed))
        self._lag = np.zeros(self.tasks)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.tasks} tasks, step {self.step})"

    # What a policy is

    @property
    @abstractmethod
    def needs_losses(self) -> bool:
        """Whether the losses it is told next can change what it decides."""

    @property
    @abstractmethod
    def waiting(self) -> str:
        """A sentence that says which losses it lacks to continue; empty if it lacks none."""

    @property
    @abstractmethod
    def seen(self) -> list[int] | None:
        """The tasks that have arrived, in ascending order; None if arrivals change nothing."""

    @abstractmethod
    def _ahead(self, count: int) -> tuple[Floats, Floats | None]:
        """Return the shares of the next steps and their learning rates, both (count, T).

        Learning rates are factors of training's own, or None if the policy plans none. Nothing
        changes.
        """

    @abstractmethod
    def _advance(self, count: int) -> None:
        """Take note that the next `count` steps are being given out; `step` is still the first."""

    @abstractmethod
    def _begin(self, new_task: int) -> None:
        """Take note that a task has arrived."""

    @abstractmethod
    def _observe(self, losses: dict[int, float], late: int) -> dict[int, float]:
        """Take note of losses by task; return the ones to log, such as smoothed ones."""

    @abstractmethod
    def _state(self) -> dict[str, Any]:
        """Return what changes in this policy besides what every policy has, as JSON types."""

    @abstractmethod
    def _load(self, state: Mapping[str, Any]) -> None:
        """Restore what `_state` returned."""

    # What it is asked and told

    @property
    def plans_lr(self) -> bool:
        """Whether it plans learning rates."""
        return self._ahead(1)[1] is not None

    def shares(self, count: int = 1) -> Floats:
        """Return the shares (count, T) of the tasks in each of the next steps."""
        return self._ahead(check.integer("count", count))[0]

    def lr(self, count: int = 1) -> Floats:
        """Return the factors (count, T) by which training multiplies its learning rate.

        For each of the next steps and for each task that it may be of; ones if none are planned.
        """
        planned = self._ahead(check.integer("count", count))[1]
        return np.ones((count, self.tasks)) if planned is None else planned

    def next_tasks(self, count: int, among: Sequence[int] | None = None) -> Ints:
        """Return the tasks (count,) of the next steps, and advance by them.

        among: the tasks that have samples to draw; the shares of the others go to them.
        """
        shares = self.shares(count)
        if among is not None:
            some = check.task_list("among", among, self.tasks).tolist()
            if not some:
                raise ValueError("`among` expects at least one task, got none")
            shares = _only(shares, some)
        self._advance(count)
        self.step += count
        return pick(shares, self.order, self._rng, self._lag)

    def next_task(self) -> int:
        """Return the task of the next step, and advance by it."""
        return int(self.next_tasks(1)[0])

    def next_counts(self, count: int) -> Ints:
        """Return how many of the next `count` samples, such as a batch, are of each task (T,)."""
        return np.bincount(self.next_tasks(count), minlength=self.tasks)

    def begin(self, new_task: int) -> None:
        """Tell the policy that a new task has arrived."""
        self._begin(check.task("new_task", new_task, self.tasks))

    def observe(self, losses: Mapping[int, float], late: int = 0) -> None:
        """Tell the policy losses by task, of some tasks or of all.

        late: how many of the steps asked for so far had not been trained on when the losses were
        measured, as happens where worker processes load data ahead.
        """
        late = check.integer("late", late)
        known = self._observe(check.losses("losses", losses, self.tasks), late)
        if self.log is not None:
            values = {f"share_{t}": x for t, x in enumerate(self.shares()[0].tolist())}
            values |= {f"loss_{t}": x for t, x in known.items()}
            self.log(values | {"late": late}, self.step)

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
        } | self._state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from where another policy with the same arguments was."""
        if not isinstance(state, Mapping) or set(state) != set(self.state_dict()):
            raise ValueError(
                f"`state` expects the state_dict of a {type(self).__name__}, with "
                f"{', '.join(self.state_dict())}, got {check.show(state)}"
            )
        lag = check.array("lag", state["lag"], (self.tasks,))
        self._load(state)
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


class OpenLoop(Policy):
    """A policy that depends on the step alone: losses are only logged, arrivals change nothing."""

    @property
    def needs_losses(self) -> bool:
        """False."""
        return False

    @property
    def waiting(self) -> str:
        """Empty: it never waits."""
        return ""

    @property
    def seen(self) -> None:
        """None: arrivals change nothing."""
        return None

    def _advance(self, count: int) -> None:
        pass

    def _begin(self, new_task: int) -> None:
        pass

    def _observe(self, losses: dict[int, float], late: int) -> dict[int, float]:
        return losses

    def _state(self) -> dict[str, Any]:
        return {}

    def _load(self, state: Mapping[str, Any]) -> None:
        pass
