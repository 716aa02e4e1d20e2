"""Replay at a fixed share from the moment a new task arrives."""

from __future__ import annotations

from typing import Any, final

import numpy as np

from replan import check
from replan._common.state import Entries
from replan.check import Floats
from replan.policies._policy import Decision, Policy, old_tasks_of


@final
class FixedReplay(Policy):
    """The newest task, and a share of samples of all tasks before it.

    new_task, old_tasks: the tasks that have arrived; at first task 0 is new, and there are no
    others. Call `begin` when the next one arrives.

    **Main arguments**

    - `tasks`: how many there will be.
    - `share`: of the old tasks together, which divide it equally. No value suits all networks:
      docs/how-much-when.md.

    **Other arguments**

    - `order`, `seed`, `log`: as in `Policy`.

    Examples:
        >>> policy = replan.policies.FixedReplay(tasks=2, share=0.25)
        >>> policy.begin(1)  # task 1 arrives
        >>> policy.next_counts(32)  # samples of each in a batch
        array([ 8, 24])
    """

    def __init__(self, tasks: int, share: float, **settings: Any) -> None:
        super().__init__(tasks, **settings)
        self.share = check.number("share", share, at_least=0, at_most=1)
        self.arguments |= {"share": self.share}
        self.new_task, self.old_tasks = 0, list[int]()

    @property
    def needs_losses(self) -> bool:
        """False."""
        return False

    @property
    def waiting(self) -> str:
        """Empty: it never waits."""
        return ""

    @property
    def seen(self) -> list[int]:
        """The tasks that have arrived, in ascending order."""
        return sorted([*self.old_tasks, self.new_task])

    def _begin(self, new_task: int) -> None:
        """Replay all other tasks that have arrived from now on."""
        self.old_tasks = [task for task in self.seen if task != new_task]
        self.new_task = new_task
        self._lag = np.zeros(self.tasks)  # tasks that lag behind do not catch up
        if self.old_tasks:
            self.decisions.append(Decision(self.step, "replay", f"task {new_task} is new"))

    def _observe(self, losses: dict[int, float], late: int) -> dict[int, float]:
        return losses

    def _advance(self, count: int) -> None:
        pass

    def _ahead(self, count: int) -> tuple[Floats, None]:
        row = np.zeros(self.tasks)
        row[self.old_tasks] = self.share / max(1, len(self.old_tasks))
        row[self.new_task] = 1 - row.sum()
        return np.tile(row, (count, 1)), None

    def _state(self) -> dict[str, Any]:
        return {"new_task": self.new_task, "old_tasks": self.old_tasks}

    def _read(self, state: Entries) -> dict[str, Any]:
        new_task = state.read("new_task", check.task, self.tasks)
        return {
            "new_task": new_task,
            "old_tasks": state.read("old_tasks", old_tasks_of, new_task, self.tasks),
        }
