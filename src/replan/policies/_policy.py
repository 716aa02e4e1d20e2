"""What every policy is: it says which task comes next, and may be told losses.

No framework is needed: a policy is told losses (`observe`) and answers with tasks (`next_task`,
`next_tasks`) or with how many samples of a batch come from each task (`next_counts`). Tasks count
from 0. A step is a sample, or whatever else the loop takes one of at a time.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import numpy as np

from replan import check
from replan._common.state import Entries, Stateful, generator
from replan.check import Floats, Ints
from replan.samples import ORDERS, pick

Log = Callable[[dict[str, float], int], object]
"""What is called with shares and losses by name, and the step, after each observation.

Examples:
    >>> seen = []
    >>> def log(values, step):
    ...     seen.append((step, values["loss_0"]))
    >>> policy = replan.policies.Fixed([0.5, 0.5], log=log)
    >>> policy.observe({0: 0.3})
    >>> seen
    [(0, 0.3)]
"""


@dataclass(frozen=True)
class Decision:
    """What a policy decided at a step, why, and the smoothed losses by task it knew then.

    late: steps asked for before the decision that were trained on only after the losses had been
    measured.

    Examples:
        >>> policy = replan.policies.FocusThenReplay(new_task=1, old_tasks=[0])
        >>> for loss in (1.0, 0.4):
        ...     policy.observe({0: 0.1, 1: loss})
        >>> decision = policy.decisions[-1]
        >>> decision.what, decision.reason
        ('replay', "the new task's loss halved")
    """

    step: int
    what: str
    reason: str
    losses: dict[int, float] = field(default_factory=dict)
    late: int = 0


class Policy(Stateful):
    """Says which task to train on next.

    step: samples asked for so far. decisions: what was decided, when and why. epoch_steps: how many
    steps an epoch of the loop has; a sampler sets it, else it is None. A policy's answers depend on
    its arguments, on this length and on what it has observed, and on nothing else; `state_dict`
    holds the rest, and `load_state_dict` continues from there with a policy of the same arguments.

    - `order`: how samples follow the shares: "spread" (as evenly as possible) or "random" (drawn,
      with `seed`).
    - `log`: called as `log({"share_0": ..., "loss_0": ..., "late": ...}, step)` after each
      observation: with the present shares, the losses (smoothed if the policy smooths them) and how
      many steps late they were.

    A policy of your own implements the abstract methods and properties and overrides nothing else.
    One that depends on the step alone is an `OpenLoop` and implements only `_ahead`. If it has
    arguments of its own, it adds them, as JSON types by name, to `self.arguments`.

    Examples:
        >>> policy = replan.policies.Fixed([0.5, 0.5])
        >>> isinstance(policy, replan.policies.Policy), policy.needs_losses
        (True, False)
        >>> tasks = policy.next_tasks(3)
        >>> again = replan.policies.Fixed([0.5, 0.5])
        >>> again.load_state_dict(policy.state_dict())  # continues with the very next sample
        >>> again.step
        3
    """

    def __init__(
        self, tasks: int, *, order: str = "spread", seed: int = 0, log: Log | None = None
    ) -> None:
        self.tasks = check.integer("tasks", tasks, at_least=1)
        self.order = check.one_of("order", order, ORDERS)
        self.log = None if log is None else check.function("log", log, "a function or None")
        self.step = 0
        self.epoch_steps: int | None = None
        self.decisions: list[Decision] = []
        self.arguments: dict[str, Any] = {
            "tasks": self.tasks,
            "order": self.order,
            "seed": check.integer("seed", seed),
        }
        self._rng = np.random.default_rng(self.arguments["seed"])
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
    def _read(self, state: Entries) -> dict[str, Any]:
        """Return the attributes that `_state` stood for, by name, and change nothing.

        `state["key"]` is what `_state` returned, after a way through JSON. What it cannot have
        returned is refused with a ValueError.
        """

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

    def next_steps(
        self, count: int, among: Sequence[int] | None = None
    ) -> tuple[Ints, Floats | None]:
        """Return the tasks (count,) of the next steps and their learning rates, and advance.

        among: the tasks that have samples to draw; the shares of the others go to them. The rates
        (count,) are factors of training's own, None if none are planned.
        """
        count = check.integer("count", count)  # an int, not one of NumPy: it enters the state
        shares, planned = self._ahead(count)
        if among is not None:
            some = check.task_list("among", among, self.tasks).tolist()
            if not some:
                raise ValueError("`among` expects at least one task, got none")
            shares = _only(shares, some)
        self._advance(count)
        self.step += count
        tasks = pick(shares, self.order, self._rng, self._lag)
        return tasks, None if planned is None else planned[np.arange(count), tasks]

    def next_tasks(self, count: int, among: Sequence[int] | None = None) -> Ints:
        """Return the tasks (count,) of the next steps, and advance by them, as `next_steps`."""
        return self.next_steps(count, among)[0]

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

    # Where it is

    def _made_with(self) -> dict[str, Any]:
        return self.arguments

    def _saved(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "lag": self._lag.tolist(),
            "rng": self._rng.bit_generator.state,
            "decisions": [asdict(entry) for entry in self.decisions],
        } | self._state()

    def _restored(self, state: Entries) -> dict[str, Any]:
        step = state.read("step", check.integer)
        return {
            "step": step,
            "_lag": state.read("lag", _lag, self.tasks),
            "_rng": state.read("rng", generator, self._rng),
            "decisions": state.read("decisions", _decisions, step, self.tasks),
        } | self._read(state)


def losses_by_task(name: str, value: Any, tasks: int) -> dict[int, float]:
    """Return finite losses by task from a dict whose keys, as in JSON, are strings."""
    known = {str(task): task for task in range(tasks)}
    if not isinstance(value, dict):
        raise ValueError(f"`{name}` expects a dict of losses by task, got {check.show(value)}")
    return {
        check.task(name, known.get(key, key), tasks): float(check.array(f"{name}.{key}", loss, ()))
        for key, loss in value.items()
    }


def old_tasks_of(name: str, value: Any, new_task: int, tasks: int) -> list[int]:
    """Return the old tasks in ascending order."""
    named = [check.task(name, t, tasks) for t in check.items(name, value, "tasks")]
    if new_task in named:
        raise ValueError(f"`{name}` expects tasks other than the new one, got {new_task}")
    return sorted(set(named))


def _lag(name: str, value: Any, tasks: int) -> Floats:
    """Return how far each task lags (T,): rounding never lets one lag by more than T samples."""
    if not isinstance(value, list) or len(value) != tasks:
        raise ValueError(f"`{name}` expects {tasks} numbers, one per task, got {check.show(value)}")
    return np.array([check.number(name, x, at_least=-tasks, at_most=tasks) for x in value])


def _decisions(name: str, value: Any, step: int, tasks: int) -> list[Decision]:
    """Return decisions taken up to a step."""
    keys = [part.name for part in fields(Decision)]
    listed = [
        Entries(f"{name}[{i}]", entry, keys)
        for i, entry in enumerate(check.instance(name, value, list, "a list of decisions"))
    ]
    return [
        Decision(
            step=entry.read("step", check.integer, at_most=step),
            what=entry.read("what", check.instance, str, "a word"),
            reason=entry.read("reason", check.instance, str, "a sentence"),
            losses=entry.read("losses", losses_by_task, tasks),
            late=entry.read("late", check.integer),
        )
        for entry in listed
    ]


def _only(shares: Floats, among: Sequence[int]) -> Floats:
    """Return shares (n, T) of some tasks alone, in proportion; equal ones where they had none."""
    left = np.zeros_like(shares)
    left[:, among] = shares[:, among]
    none = left.sum(axis=1) == 0
    left[np.ix_(none, among)] = 1.0
    return np.asarray(left / left.sum(axis=1, keepdims=True))


class OpenLoop(Policy):
    """A policy that depends on the step alone: losses are only logged, arrivals change nothing.

    Examples:
        >>> class Ramp(replan.policies.OpenLoop):  # from task 0 to task 1 in 8 samples
        ...     def _ahead(self, count):
        ...         new = np.minimum((self.step + np.arange(count)) / 8, 1.0)
        ...         return np.column_stack([1 - new, new]), None
        >>> Ramp(tasks=2).next_tasks(12)
        array([0, 0, 0, 1, 0, 1, 1, 0, 1, 1, 1, 1])
    """

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

    def _read(self, state: Entries) -> dict[str, Any]:
        return {}
