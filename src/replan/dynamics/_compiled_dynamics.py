"""CompiledDynamics: a model whose rate, losses and their reverses are compiled functions."""

from __future__ import annotations

from abc import abstractmethod
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from replan._common import check
from replan._common.check import Floats
from replan.dynamics._dynamics import DifferentiableDynamics, Pieces, Pulled
from replan.dynamics._kernels import Kernels

if TYPE_CHECKING:
    from replan.dynamics._loops import Loops


class CompiledDynamics(DifferentiableDynamics):
    """A model that provides compiled kernels; the integrator and its reverse are replan's.

    A subclass names its `kernels`, gives their `parameters`, and says how users write starts.
    """

    @classmethod
    @abstractmethod
    def kernels(cls) -> Kernels:
        """Return the compiled functions of this kind of model."""

    @property
    @abstractmethod
    def parameters(self) -> Any:
        """What the kernels know about this model, a NamedTuple of the type that they name."""

    @cached_property
    def _loops(self) -> Loops:
        from replan.dynamics._loops import loops  # loads numba

        kernels = self.kernels()
        found = loops(kernels)
        if not isinstance(self.parameters, kernels.parameters):
            raise ValueError(
                f"`parameters` expects a {kernels.parameters.__name__}, as the kernels name it, "
                f"got {check.show(self.parameters)}"
            )
        return found

    def losses(self, states: Any) -> Floats:
        """Return the loss of every task (…, T) at states (…, n), or at a user's start."""
        x = states if isinstance(states, np.ndarray) else self.pack(states)
        if x.dtype != np.float64 or x.ndim == 0:
            raise ValueError(f"`states` expects float64 arrays (…, n), got {check.show(states)}")
        rows = x.reshape(-1, x.shape[-1])
        found = self._loops.all_losses(self.parameters, rows, self.tasks)
        return np.asarray(found.reshape(*x.shape[:-1], self.tasks))

    def pull_losses(self, states: Floats, cotangents: Floats) -> Floats:
        """Return the gradients (…, n) of Σ_t cotangents[…, t] × loss of task t."""
        rows = states.reshape(-1, states.shape[-1])
        weights = cotangents.reshape(-1, self.tasks)
        found = self._loops.pull_all_losses(self.parameters, rows, weights)
        return np.asarray(found.reshape(states.shape))

    def roll_out(self, start: Floats, pieces: Pieces) -> Floats:
        """Return the states (pieces + 1, n) of RK4; see `Dynamics.roll_out`."""
        states, completed = self._loops.roll_out(self.parameters, start, pieces)
        return np.asarray(states[: completed + 1])

    def pull_back(self, states: Floats, cotangents: Floats, pieces: Pieces) -> Pulled:
        """Return the exact gradients of a roll-out; see `DifferentiableDynamics.pull_back`."""
        return Pulled(*self._loops.pull_back(self.parameters, states, cotangents, pieces))
