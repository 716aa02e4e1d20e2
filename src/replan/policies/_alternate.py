"""One task after the other."""

from __future__ import annotations

from typing import Any, final

import numpy as np

from replan import check
from replan.check import Floats
from replan.policies._policy import OpenLoop


@final
class Alternate(OpenLoop):
    """One task after the other, `stay` steps each.

    Examples:
        >>> replan.policies.Alternate(tasks=2, stay=3).next_tasks(8)
        array([0, 0, 0, 1, 1, 1, 0, 0])
    """

    def __init__(self, tasks: int, *, stay: int = 1, **settings: Any) -> None:
        super().__init__(tasks, **settings)
        self.stay = check.integer("stay", stay, at_least=1)
        self.arguments |= {"stay": self.stay}

    def _ahead(self, count: int) -> tuple[Floats, None]:
        turn = (self.step + np.arange(count)) // self.stay % self.tasks
        return np.eye(self.tasks)[turn], None
