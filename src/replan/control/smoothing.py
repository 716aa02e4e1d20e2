"""Smoothing: a smooth function in place of the largest of several numbers."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from replan.check import Floats
from replan.problem import Problem
from replan.problem.risk import ONE, Risk

_WARM = 0.1  # the first temperature, in units of what the numbers differ by
_RARE = 1e-6  # the least part of a number in a prior: it may become the largest again


class Mixture(NamedTuple):
    """How much each number stands for the largest.

    members: (M,) of sum 1. losses: (M, L) of each member, of sum 1; None unless the largest of them
    counts.
    """

    members: Floats
    losses: Floats | None

    def of(self, rows: Floats) -> Floats:
        """Return the mixture (…) of what there is for each member (M, …)."""
        return rows[0] if len(rows) == 1 else np.tensordot(self.members, rows, axes=1)

    def below(self, scaled: Floats) -> float:
        """Return by how much the mixtures of losses (M, L) lie below the largest of each member."""
        if self.losses is None:
            return 0.0
        each = [
            float(row.max() - part[part > 0] @ row[part > 0])
            for row, part in zip(scaled, self.losses, strict=True)
        ]
        return float(self.members @ each)


class Reached(NamedTuple):
    """What members reach; levels: (M,) their objectives. losses: (M, L) their final losses."""

    levels: Floats
    losses: Floats


class Smoothing(NamedTuple):
    """The largest Σ_i p_i x_i − temperature × KL(p | prior) over mixtures p of numbers x_i.

    Without the second part it is the largest Σ_i p_i x_i: of all mixtures the largest number, of
    those that `risk` allows what it makes of the members' objectives. With it, it is smooth and at
    most that, and the best mixture gives its derivatives. With that as the next prior, minima
    approach those of the largest without a temperature near 0. (The exponential method of
    multipliers; Tseng & Bertsekas 1993)

    The numbers are the members' objectives, or where the goal is "worst" all their losses: then the
    largest loss of each member, in its objective, is smoothed first. A mixture of all is one of
    members and for each of them one of its losses.

    losses: (M, L) the prior of each member's losses, of sum 1; None unless the largest counts.
    members: (M,) that of the members, of one by default.
    """

    temperature: float
    losses: Floats | None
    members: Floats = ONE.weights
    risk: Risk = ONE

    def mixture(self, levels: Floats, scaled: Floats) -> Mixture:
        """Return the best mixture; levels: (M,) objectives. scaled: (M, L) losses."""
        within = None
        if self.losses is not None:
            parts = self._parts(scaled)
            within = np.asarray(parts / parts.sum(axis=-1, keepdims=True))
        return Mixture(self._mixed(self.levels(levels, scaled)), within)

    def levels(self, levels: Floats, scaled: Floats) -> Floats:
        """Return objectives (M, …) with a smooth function in place of the largest loss.

        levels: (M, …) the objectives themselves. scaled: (M, …, L) the losses.
        """
        return levels if self.losses is None else levels + self._excess(scaled)

    def value(self, levels: Floats, scaled: Floats) -> Floats:
        """Return the smooth function (…) of objectives (M, …) and losses (M, …, L)."""
        x = self.levels(levels, scaled)
        if self.risk.linear:
            return self.risk.of(x)
        parts = self._mixed(x)
        prior = self.members.reshape(-1, *[1] * (x.ndim - 1))
        rates = np.log(np.maximum(parts, 1e-300) / prior)
        return np.sum(parts * (x - self.temperature * rates), axis=0, where=parts > 0)

    # The losses of each member

    def _excess(self, x: Floats) -> Floats:
        """Return by how much the smooth function (…) of losses (…, L) lies above the largest."""
        above = self.temperature * np.log(self._parts(x).sum(axis=-1))
        return np.asarray(above + self._top(x)[..., 0] - x.max(axis=-1))

    def _parts(self, x: Floats) -> Floats:
        far = np.minimum(x - self._top(x), 0.0)
        return np.asarray(self._prior(x) * np.exp(far / self.temperature))

    def _top(self, x: Floats) -> Floats:
        """Return the largest (…, 1) of the losses that count."""
        return np.where(self._prior(x) > 0, x, -np.inf).max(axis=-1, keepdims=True)

    def _prior(self, x: Floats) -> Floats:
        """Return the prior of losses (M, …, L), with as many axes."""
        assert self.losses is not None
        members, count = self.losses.shape
        return self.losses.reshape(members, *[1] * (x.ndim - 2), count)

    # The members

    def _mixed(self, x: Floats) -> Floats:
        """Return how much each member (M, …) counts, given smooth objectives (M, …).

        Each as exp(x / temperature) × its prior, all times one factor, but at most as much as it
        may: those beyond are found from the largest such ratio on.
        """
        risk = self.risk
        if risk.linear:
            return risk.mixture(x)
        lead = (-1, *[1] * (x.ndim - 1))
        sizes = np.log(self.members).reshape(lead) + (x - x.max(axis=0)) / self.temperature
        caps = np.broadcast_to(risk.caps.reshape(lead), x.shape)
        order = np.argsort(np.log(caps) - sizes, axis=0, kind="stable")
        ranked, most = (np.take_along_axis(rows, order, axis=0) for rows in (sizes, caps))
        before = np.concatenate([np.zeros_like(most[:1]), np.cumsum(most, axis=0)[:-1]])
        left = np.maximum(1.0 - before, 0.0)  # for those from here on, if all before are full
        rest = np.logaddexp.accumulate(ranked[::-1], axis=0)[::-1]
        with np.errstate(divide="ignore"):
            factors = np.log(left) - rest
            full = factors + ranked > np.log(most)
        first = np.argmin(full, axis=0)  # of those that are not
        first = np.where(full.all(axis=0), len(x) - 1, first)
        factor = np.take_along_axis(factors, first[None], axis=0)
        return np.asarray(np.minimum(caps, np.exp(np.minimum(factor + sizes, 0.0))))

    def sharpened(self, mixture: Mixture, factor: float) -> Smoothing:
        """Return one with a mixture as its prior, and the temperature times a factor."""
        losses = self.losses
        if losses is not None and mixture.losses is not None:
            losses = np.where(losses > 0, np.maximum(mixture.losses, _RARE), 0.0)
            losses = losses / losses.sum(axis=-1, keepdims=True)
        members = np.maximum(mixture.members, _RARE)
        return Smoothing(factor * self.temperature, losses, members / members.sum(), self.risk)


def smoothing(problem: Problem, first: Reached, final: Reached) -> Smoothing | None:
    """Return one to begin with, None where the objective is smooth.

    first, final: what is reached before and after some training.
    """
    if problem.smooth:
        return None
    goal, risk = problem.objective, problem.risk
    before, after, priors = first.levels, final.levels, None
    if goal.goal == "worst":
        counts = goal.weights > 0
        before, after = (goal.scaled(x.losses)[:, counts] for x in (first, final))
        priors = np.tile(counts / counts.sum(), (len(before), 1))
    apart = max(np.abs(after - before).max(), np.ptp(after)) or abs(after.max()) or 1.0
    return Smoothing(_WARM * float(apart), priors, risk.weights, risk)
