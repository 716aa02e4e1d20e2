"""What every solver offers: begin from controls, step, know when it is over."""

from __future__ import annotations

from abc import ABC, abstractmethod

from replan.control._objective import Controls, Objective


class Solver(ABC):
    """A descent of the objective that begins (init) with its constructor.

    controls, value: the best so far, at any time.
    """

    objective: Objective
    controls: Controls
    value: float

    @abstractmethod
    def step(self) -> None:
        """Make one step."""

    @abstractmethod
    def terminate(self) -> bool:
        """Whether no further step is worth it."""
