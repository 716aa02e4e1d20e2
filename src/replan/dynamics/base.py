"""What every dynamics offers, and integration to an asked accuracy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Literal, NamedTuple

import numpy as np

from replan._common import check
from replan._common.check import Floats, Ints

Status = Literal["ok", "diverged", "inaccurate"]

RTOL = 1e-9
MAX_STEPS = 2**19
_ATOL = 1e-14  # losses are differences of numbers near 1, good to about 1e-15
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
    def pull_losses(self, states: Floats, cotangents: Floats) -> Floats:
        """Return the gradients (…, n) by the states of Σ_t cotangents[…, t] × loss of task t."""

    @abstractmethod
    def pull_back(
        self,
        states: Floats,
        cotangents: Floats,
        shares: Floats,
        lr: Floats,
        lengths: Floats,
        substeps: Ints,
    ) -> tuple[Floats, Floats, Floats]:
        """Return the exact gradients of Σ_i cotangents[i] · states[i] of a roll-out.

        states are those `roll_out` gave, cotangents have their shape. Gradients: by the state at
        every edge (pieces + 1, n) with all that follows from it, by shares and by lr (pieces, T).
        """

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Return the settings of this model as the `[model]` section of a problem file."""

    @abstractmethod
    def describe_start(self, start: Any) -> dict[str, Any]:
        """Return a start as the `[start]` section of a problem file."""

    def integrate(
        self,
        start: Floats,
        shares: Floats,
        lr: Floats,
        lengths: Floats,
        *,
        rtol: float = RTOL,
        max_steps: int = MAX_STEPS,
    ) -> Integration:
        """Roll out with ever smaller steps until the losses and states are good to `rtol`.

        The error is estimated from step against half step: a difference d of an order-4 method
        leaves d/15 in the finer one, and says how many times smaller the steps must be. After the
        first pair of runs, it gives up where the next would take more than `max_steps` steps.
        """
        rtol = check.number("rtol", rtol, at_least=1e-13, at_most=1e-2)
        whole = lengths.size + 1
        max_steps = check.integer("max_steps", max_steps, at_least=1)
        first = np.maximum(1, np.ceil(100 * lengths / lengths.sum() - 1e-9))
        substeps: Ints = first.astype(np.int64)
        while True:
            coarse, coarse_losses = self._finite_roll_out(start, shares, lr, lengths, substeps)
            fine = 2 * substeps
            states, losses = self._finite_roll_out(start, shares, lr, lengths, fine)
            errors = np.full_like(losses, np.inf)
            finer: Ints | int = 2
            if len(states) == len(coarse) == whole:
                errors = np.abs(losses - coarse_losses) / (2**_ORDER - 1)
                state_errors = np.abs(states - coarse) / (2**_ORDER - 1)
                excess = max(
                    np.max(errors / (rtol * np.abs(losses) + _ATOL)),
                    np.max(state_errors / (rtol * np.maximum(1.0, np.abs(states)))),
                )
                if excess <= 1.0:
                    return Integration(states, losses, errors, fine, "ok", "")
                times = np.clip(1.1 * excess ** (1 / _ORDER), 2, 8)  # far off, errors mislead
                parts = self._error_parts(states, shares, lr, lengths, substeps)
                finer = np.ceil(times * parts ** (1 / _ORDER)).astype(np.int64)
                finer = np.where(parts >= 0.01, np.maximum(finer, 2), finer)
            substeps = substeps * np.maximum(finer, 1)
            if 2 * substeps.sum() > max_steps:
                break
        if len(states) == whole:
            advice = (
                f"accuracy {rtol:g} was not reached with {fine.sum()} steps: "
                "try a smaller `lr` or a shorter `duration`"
            )
            return Integration(states, losses, errors, fine, "inaccurate", advice)
        done = len(states) - 1
        advice = (
            f"the trajectory diverged after time {lengths[:done].sum():g} of {lengths.sum():g} "
            f"at learning rate {lr[done][shares[done] > 0].max():g}: try a smaller `lr` "
            "or a shorter `duration`"
        )
        return Integration(states, losses, errors, fine, "diverged", advice)

    def _error_parts(
        self, states: Floats, shares: Floats, lr: Floats, lengths: Floats, substeps: Ints
    ) -> Floats:
        """Return the error that each piece (pieces,) makes on its own, relative to the largest.

        `states` come from twice the substeps; each piece is run again on its own, from its start.
        Where errors are made, not where they show: dynamics that amplify errors show them late.
        """
        ends = []
        for i in range(lengths.size):
            one = slice(i, i + 1)
            piece = (shares[one], lr[one], lengths[one], substeps[one])
            ends.append(self.roll_out(states[i], *piece)[-1])
        local = np.max(np.abs(np.array(ends) - states[1:]), axis=1)
        return np.asarray(local / max(local.max(), 1e-300))

    def _finite_roll_out(
        self, start: Floats, shares: Floats, lr: Floats, lengths: Floats, substeps: Ints
    ) -> tuple[Floats, Floats]:
        """Return states and losses up to the first that is not a finite number."""
        states = self.roll_out(start, shares, lr, lengths, substeps)
        with np.errstate(invalid="ignore"):  # a step too large can leave the valid overlaps
            losses = self.losses(states)
        bad = np.flatnonzero(~np.isfinite(losses).all(axis=1))
        end = bad[0] if bad.size else len(states)
        return states[:end], losses[:end]
