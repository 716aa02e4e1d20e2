"""Simulation at finite size, which only some models offer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np

from replan import check
from replan.check import Floats, Ints
from replan.errors import ArgumentError
from replan.models.base import Model


class Chain(ABC):
    """One run of SGD at finite size.

    Examples:
        >>> model = replan.TeacherStudent.similar(0.3)
        >>> chain = model.begin_chain("reduced", model.pack(model.fresh(seed=1)), 1000)
        >>> run = chain.resume(np.random.default_rng(0))
        >>> run.advance(np.zeros(500, dtype=np.int64), np.ones((500, 3)))  # 500 samples of task 1
        500
    """

    @abstractmethod
    def resume(self, rng: np.random.Generator) -> Chain:
        """Return a copy that continues from here with its own random numbers."""

    @abstractmethod
    def advance(self, tasks: Ints, knobs: Floats) -> int:
        """Train on samples of `tasks` (n,) with knobs (n, number); return how many were done.

        A row of `knobs` holds the value of each of the model's knobs for the sample's task. Fewer
        than n samples are done where the run diverges.
        """

    @abstractmethod
    def state(self) -> Floats:
        """Return the state (n,) now."""


class Simulable(ABC):
    """A model that can be trained by SGD in any number of input dimensions.

    engines: names of the algorithms, the default first. least_dimension: the smallest number of
    input dimensions that has room for the network.

    Examples:
        >>> model = replan.TeacherStudent.similar(0.3)
        >>> isinstance(model, replan.models.Simulable), model.engines, model.least_dimension
        (True, ('reduced', 'full'), 4)
    """

    engines: ClassVar[tuple[str, ...]]
    least_dimension: int

    def choose_engine(self, engine: str | None) -> str:
        """Return an engine if it can simulate this model, the default for None."""
        return check.one_of("engine", self.engines[0] if engine is None else engine, self.engines)

    def chain_size(self, engine: str, dimension: int) -> int:
        """Return how many numbers a run holds besides its state, such as N-dimensional weights."""
        return 0

    @abstractmethod
    def begin_chain(self, engine: str, state: Floats, dimension: int) -> Chain:
        """Return a run at its start, by one of the `engines`."""


def require_simulable(model: Model) -> Simulable:
    """Return the model if it can be simulated at finite size."""
    if not isinstance(model, Simulable):
        raise ArgumentError(
            "problem", "one whose model can be simulated at finite size", f"kind {model.kind!r}"
        )
    return model
