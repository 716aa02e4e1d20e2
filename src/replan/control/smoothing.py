"""Smoothing: a smooth surrogate for the largest of several numbers.

M members, L losses. The objective is not smooth where the goal is "worst" (the largest loss counts)
or where the risk of an ensemble is not its mean (the worst members count).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from replan.check import Floats
from replan.problem import Problem
from replan.problem.risk import ONE, Risk

_FIRST_TEMPERATURE = 0.1  # in units of how far the numbers lie apart
_LEAST_PRIOR = 1e-6  # a number with a smaller prior could hardly become the largest again


class Outcome(NamedTuple):
    """What training reaches; values: (M,) objectives of the members; losses: (M, L) final ones."""

    values: Floats
    losses: Floats


class Mixture(NamedTuple):
    """Weights that stand for "the largest".

    members: (M,) of sum 1. losses: (M, L) of each member, of sum 1; None unless the goal is
    "worst".
    """

    members: Floats
    losses: Floats | None

    def average(self, rows: Floats) -> Floats:
        """Return the weighted mean (…) of per-member rows (M, …)."""
        return rows[0] if len(rows) == 1 else np.tensordot(self.members, rows, axes=1)

    def gap(self, scaled: Floats) -> float:
        """Return how far the mixtures of losses (M, L) lie below each member's largest loss."""
        if self.losses is None:
            return 0.0
        gaps = [
            float(row.max() - weights[weights > 0] @ row[weights > 0])
            for row, weights in zip(scaled, self.losses, strict=True)
        ]
        return float(self.members @ gaps)


class Surrogate(NamedTuple):
    """A smooth function in place of the objective; the objective itself where that is smooth.

    value: of the smooth function. slack: how far the objective lies above the mixture whose
    gradient is known: to first order it can fall by that much more than the gradient says.
    member_values: (M,) objectives with each member's largest loss smoothed.
    """

    value: float
    slack: float
    mixture: Mixture
    member_values: Floats


class Smoothing(NamedTuple):
    """The maximum of Σ_i p_i x_i − temperature × KL(p | prior) over mixtures p of numbers x_i.

    Without the second term it is the largest x_i, or the risk of the members' objectives where the
    risk bounds the mixtures. With it, it is smooth and never larger, and the best mixture gives its
    gradient. Taking that mixture as the next prior, minima approach those of the largest number
    without a temperature near 0 (the exponential method of multipliers; Tseng & Bertsekas 1993).

    The numbers are the members' objectives; where the goal is "worst", each member's largest loss
    is smoothed first, within its objective.

    loss_prior: (M, L) of each member's losses, of sum 1; None unless the goal is "worst".
    member_prior: (M,) of sum 1.
    """

    temperature: float
    loss_prior: Floats | None
    member_prior: Floats = ONE.weights
    risk: Risk = ONE

    def smoothed(self, values: Floats, scaled: Floats) -> tuple[Mixture, Floats]:
        """Return the best mixture for objectives (M,) and losses (M, L), and smooth objectives.

        These have each member's largest loss smoothed.
        """
        losses, smooth = None, values
        if self.loss_prior is not None:
            counted = np.where(self.loss_prior > 0, scaled, -np.inf)
            largest = counted.max(axis=1, keepdims=True)
            below = np.minimum(scaled - largest, 0.0)
            weights = self.loss_prior * np.exp(below / self.temperature)
            sums = weights.sum(axis=1, keepdims=True)
            losses = weights / sums
            above = self.temperature * np.log(sums[:, 0])
            smooth = values + (above + largest[:, 0] - scaled.max(axis=1))
        return Mixture(self._member_weights(smooth), losses), smooth

    def value(self, values: Floats, scaled: Floats) -> float:
        """Return the smooth function of objectives (M,) and losses (M, L)."""
        (weights, _), smooth = self.smoothed(values, scaled)
        if self.risk.linear:
            return float(self.risk.of(smooth))
        divergences = np.log(np.maximum(weights, 1e-300) / self.member_prior)
        return float(np.sum(weights * (smooth - self.temperature * divergences), where=weights > 0))

    def _member_weights(self, values: Floats) -> Floats:
        """Return the weights (M,) of the members with smooth objectives (M,).

        Each is prior × exp(value / temperature) × a common factor, capped by the risk. Members
        reach their caps in the order of `cap / size`, so the factor follows from one pass.
        """
        if self.risk.linear:
            return self.risk.mixture(values)
        caps = self.risk.caps
        sizes = np.log(self.member_prior) + (values - values.max()) / self.temperature
        order = np.argsort(np.log(caps) - sizes, kind="stable")
        ranked, bounds = sizes[order], caps[order]
        capped = np.concatenate([[0.0], np.cumsum(bounds)[:-1]])
        remaining = np.maximum(1.0 - capped, 0.0)  # for those from here on, if all before are full
        totals = np.logaddexp.accumulate(ranked[::-1])[::-1]
        with np.errstate(divide="ignore"):
            factors = np.log(remaining) - totals
            full = factors + ranked > np.log(bounds)
        first = len(values) - 1 if full.all() else int(np.argmin(full))
        return np.asarray(np.minimum(caps, np.exp(np.minimum(factors[first] + sizes, 0.0))))

    def sharpened(self, mixture: Mixture, factor: float) -> Smoothing:
        """Return a smoothing with the mixture as its prior, and the temperature times a factor."""
        losses = self.loss_prior
        if losses is not None and mixture.losses is not None:
            losses = np.where(losses > 0, np.maximum(mixture.losses, _LEAST_PRIOR), 0.0)
            losses = losses / losses.sum(axis=-1, keepdims=True)
        members = np.maximum(mixture.members, _LEAST_PRIOR)
        return Smoothing(factor * self.temperature, losses, members / members.sum(), self.risk)


def first_smoothing(problem: Problem, first: Outcome, final: Outcome) -> Smoothing | None:
    """Return a smoothing to begin with, None where the objective is smooth.

    first, final: outcomes before and after some training, which set the temperature.
    """
    if problem.smooth:
        return None
    goal, risk = problem.objective, problem.risk
    before, after, prior = first.values, final.values, None
    if goal.goal == "worst":
        counts = goal.weights > 0
        before, after = (goal.scaled(outcome.losses)[:, counts] for outcome in (first, final))
        prior = np.tile(counts / counts.sum(), (len(before), 1))
    spread = max(np.abs(after - before).max(), np.ptp(after)) or abs(after.max()) or 1.0
    return Smoothing(_FIRST_TEMPERATURE * float(spread), prior, risk.weights, risk)


def surrogate_of(problem: Problem, outcome: Outcome, smoothing: Smoothing | None) -> Surrogate:
    """Return the smooth function, and its mixture, that stand for the objective at an outcome."""
    value = float(problem.risk.of(outcome.values))
    if smoothing is None:
        return Surrogate(value, 0.0, Mixture(problem.risk.weights, None), outcome.values)
    scaled = problem.objective.scaled(outcome.losses)
    mixture, smooth = smoothing.smoothed(outcome.values, scaled)
    slack = value - float(mixture.members @ outcome.values) + mixture.gap(scaled)
    return Surrogate(smoothing.value(outcome.values, scaled), slack, mixture, smooth)
