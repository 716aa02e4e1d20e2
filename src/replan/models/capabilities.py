"""Simulation at finite size, which only some models offer."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from typing import Any, ClassVar, Self

import numpy as np

from replan import check
from replan.check import Floats, Ints
from replan.errors import ArgumentError
from replan.models.base import Model

_LARGE = 1e10  # a run diverges where an entry of its state exceeds this


class Chain(ABC):
    """One run of SGD at finite size.

    changing: the names of the attributes that training changes. rng: since `resume`.
    """

    changing: ClassVar[tuple[str, ...]]
    rng: np.random.Generator

    def resume(self, rng: np.random.Generator) -> Self:
        """Return a copy that continues from here with its own random numbers."""
        other = copy.copy(self)
        other.rng = rng
        for name in self.changing:
            setattr(other, name, copy.deepcopy(getattr(self, name)))
        return other

    @abstractmethod
    def advance(self, tasks: Ints, knobs: Floats) -> int:
        """Train on samples of `tasks` (n,) with knobs (n, number); return how many were done.

        A row of `knobs` holds the value of each of the model's knobs for the sample's task. Fewer
        than n samples are done where the run diverges.
        """

    def record(self, tasks: Ints, knobs: Floats, marks: Ints, states: Floats) -> int:
        """Train as `advance` does, and fill in the states (m, …) after `marks` (m,) samples.

        Marks rise from 1 to n. After a divergence, states stay as they are.
        """
        done = 0
        for i, mark in enumerate([*marks.tolist(), len(tasks)]):
            done += self.advance(tasks[done:mark], knobs[done:mark])
            if done < mark:
                break
            if i < len(marks):
                states[i] = self.state()
        return done

    @abstractmethod
    def state(self) -> Floats:
        """Return the state (n,) now."""


class Simulable(ABC):
    """A model that can be trained by SGD in any number of input dimensions.

    engines: names of the algorithms, the default first. least_dimension: the smallest number of
    input dimensions that has room for the network.
    """

    engines: ClassVar[tuple[str, ...]]
    least_dimension: int = 1

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


class Sampled(Simulable):
    """A model that is simulated by steps of SGD on fresh samples, one after another.

    Weights may be anything that `copy.deepcopy` can copy.

    Examples:
        >>> model = replan.models.Curriculum([0.0, 3.0])
        >>> isinstance(model, replan.models.Sampled)
        True
        >>> problem = replan.Problem(model, (1.0, 1.0, 0.1), duration=1.0, steps=4)
        >>> mixed = replan.strategies.interleaved(problem)
        >>> replan.simulate(problem, mixed, dimension=50, runs=2).losses.shape
        (2, 51, 2)
    """

    engines = ("full",)

    @abstractmethod
    def make_weights(self, state: Floats, dimension: int, rng: np.random.Generator) -> Any:
        """Return weights in N = `dimension` dimensions whose state is `state` (n,)."""

    @abstractmethod
    def sgd_step(self, weights: Any, task: int, knobs: Floats, rng: np.random.Generator) -> Any:
        """Return the weights after a step on a fresh sample of a task (from 0).

        `knobs` holds the value of each knob. The weights may be changed in place.
        """

    @abstractmethod
    def measure(self, weights: Any) -> Floats:
        """Return the state (n,) of weights."""

    def begin_chain(self, engine: str, state: Floats, dimension: int) -> Chain:
        """Return a run at its start."""
        return _SampledChain(self, state, dimension)


class _SampledChain(Chain):
    """A run of SGD; its weights are made when it is resumed with its random numbers."""

    changing = ("weights",)

    def __init__(self, model: Sampled, state: Floats, dimension: int) -> None:
        self.model, self._state, self.dimension = model, state, dimension
        self.weights: Any = None

    def resume(self, rng: np.random.Generator) -> Self:
        """Return a copy that continues from here with its own random numbers."""
        other = super().resume(rng)
        if other.weights is None:
            other.weights = self.model.make_weights(self._state, self.dimension, rng)
        return other

    def advance(self, tasks: Ints, knobs: Floats) -> int:
        """Train on samples of `tasks` (n,) with knobs (n, number); return how many were done."""
        model, weights = self.model, self.weights
        with np.errstate(all="ignore"):
            for i, task in enumerate(tasks.tolist()):
                weights = model.sgd_step(weights, task, knobs[i], self.rng)
                due = i % 64 == 63 or i + 1 == len(tasks)
                if due and not np.all(np.abs(model.measure(weights)) < _LARGE):
                    return i
        self.weights = weights
        return len(tasks)

    def state(self) -> Floats:
        """Return the state (n,) now."""
        return self.model.measure(self.weights)
