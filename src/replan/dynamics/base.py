"""What every dynamics offers, and integration to an asked accuracy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Literal, NamedTuple

import numpy as np

from replan import check
from replan.check import Floats, Ints

Status = Literal["ok", "diverged", "inaccurate"]

RTOL = 1e-9
_ATOL = 1e-14  # losses are differences of numbers near 1, good to about 1e-15
_MAX_SUBSTEPS = 2**20  # of a whole integration
_ORDER = 4


class IntegrationError(ArithmeticError):
    """The learning curve could not be computed; the message says when and what to try."""


class Integration(NamedTuple):
    """A roll-out to an asked accuracy.

    states: (pieces + 1, n), fewer rows where it diverged. losses: (pieces + 1, T). errors: the
    estimated discretisation error of each loss. substeps: RK4 steps taken on each piece.
    """

    states: Floats
    losses: Floats
    errors: Floats
    substeps: Ints
    status: Status
    advice: str


class Dynamics(ABC):
    """A low-dimensional ODE that describes training: x′ = Σ_t share_t f_t(x, lr_t).

    A state is a vector of length n; `pack` makes one from what a user writes, `unpack` goes back.
    """

    tasks: int

    @abstractmethod
    def pack(self, start: Any) -> Floats:
        """Return a user's start, checked, as a state (n,)."""

    @abstractmethod
    def unpack(self, states: Floats) -> Any:
        """Return states (…, n) in the user's form."""

    @abstractmethod
    def losses(self, states: Floats) -> Floats:
        """Return the loss of every task (…, T) at states (…, n)."""

    @abstractmethod
    def roll_out(
        self, start: Floats, shares: Floats, lr: Floats, lengths: Floats, substeps: Ints
    ) -> Floats:
        """Return the states (pieces + 1, n) of RK4 with `substeps[i]` steps on piece i.

        shares and lr are (pieces, T), lengths and substeps (pieces,). A roll-out that leaves the
        finite numbers stops there: it returns only the rows before.
        """

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Return the settings of this model as the `[model]` section of a problem file."""

    @abstractmethod
    def describe_start(self, start: Any) -> dict[str, Any]:
        """Return a start as the `[start]` section of a problem file."""

    def integrate(
        self, start: Floats, shares: Floats, lr: Floats, lengths: Floats, *, rtol: float = RTOL
    ) -> Integration:
        """Roll out, halving the step until the losses and states are good to `rtol`.

        The error is estimated from step against half step: a difference d of an order-4 method
        leaves d/15 in the finer one.
        """
        rtol = check.number("rtol", rtol, at_least=1e-13, at_most=1e-2)
        substeps = np.ceil(100 * lengths / lengths.sum() - 1e-9).astype(np.int64)
        coarse = self.roll_out(start, shares, lr, lengths, substeps)
        while True:
            substeps = 2 * substeps
            fine = self.roll_out(start, shares, lr, lengths, substeps)
            losses = self.losses(fine)
            complete = len(fine) == len(coarse) == lengths.size + 1
            errors = np.full_like(losses, np.inf)
            if complete:
                errors = _richardson(losses, self.losses(coarse))
                state_errors = _richardson(fine, coarse)
                if np.all(errors <= rtol * np.abs(losses) + _ATOL) and np.all(
                    state_errors <= rtol * np.maximum(1.0, np.abs(fine))
                ):
                    return Integration(fine, losses, errors, substeps, "ok", "")
            if 2 * substeps.sum() > _MAX_SUBSTEPS:
                break
            coarse = fine
        if complete:
            advice = (
                f"accuracy {rtol:g} was not reached with {substeps.sum()} steps: "
                "try a larger `rtol`, a smaller `lr` or a shorter `duration`"
            )
            return Integration(fine, losses, errors, substeps, "inaccurate", advice)
        done = len(fine) - 1
        time, end = lengths[:done].sum(), lengths.sum()
        advice = (
            f"the trajectory diverged after time {time:g} of {end:g} at learning rate "
            f"{lr[done][shares[done] > 0].max():g}: try a smaller `lr`"
        )
        return Integration(fine, losses, errors, substeps, "diverged", advice)


def _richardson(fine: Floats, coarse: Floats) -> Floats:
    return np.abs(fine - coarse) / (2**_ORDER - 1)
