"""Risk: how the objectives of an ensemble's members are combined into one number."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from replan import check
from replan.check import Floats
from replan.errors import ArgumentError

RiskLevel = Literal["mean", "worst"] | float

_SUM = 1e-6  # how far from 1 the sum of weights may lie


@dataclass(frozen=True, eq=False)
class Risk:
    """The mean of the worst part of the members: conditional value at risk.

    It is the largest Σ_m p_m x_m over all mixtures p of sum 1 with p_m ≤ weights[m] / level: with
    the level 1 the mean, with smaller ones the mean of the worst members that make up that part of
    the weights, and with 0 the worst member. (Rockafellar & Uryasev 2000)

    weights: (M,) of sum 1, above 0. level: the part, from 0 to 1.
    """

    weights: Floats
    level: float = 1.0

    @property
    def linear(self) -> bool:
        """Whether it is linear: the mean, or a single member."""
        return self.level == 1.0 or self.weights.size == 1

    @property
    def word(self) -> RiskLevel:
        """Its word in files."""
        return {1.0: "mean", 0.0: "worst"}.get(self.level, self.level)  # type: ignore[return-value]

    @property
    def words(self) -> str:
        """The risk in words."""
        if self.level in (0.0, 1.0):
            return f"{self.word} of {self.weights.size} members"
        return f"mean of the worst {100 * self.level:.3g} % of {self.weights.size} members"

    @cached_property
    def caps(self) -> Floats:
        """The largest weight (M,) of each member in a mixture."""
        if self.level == 0.0:
            return np.full_like(self.weights, np.inf)
        return np.asarray(self.weights / self.level)

    def of(self, x: Floats) -> Floats:
        """Aggregate per-member values (M, …) into the risk (…)."""
        x = np.asarray(x)
        if self.weights.size == 1:
            return np.asarray(x[0])
        if self.level == 0.0:
            return np.asarray(x.max(axis=0))
        parts = self.mixture(x)
        return np.multiply(parts, x, out=np.zeros(x.shape), where=parts > 0).sum(axis=0)  # 0 × inf

    def quantile(self, x: Floats, level: float) -> float:
        """Return the weighted quantile of per-member values (M,)."""
        order = np.argsort(x, kind="stable")
        reached = np.cumsum(self.weights[order]) >= level - _SUM
        return float(x[order[np.argmax(reached)]])

    def mixture(self, x: Floats) -> Floats:
        """Return the mixture (M, …) that attains the risk: worst first, up to their caps."""
        if self.linear:
            return np.broadcast_to(self.weights.reshape(-1, *[1] * (x.ndim - 1)), x.shape)
        order = np.argsort(-x, axis=0, kind="stable")
        caps = np.minimum(self.caps, 1.0)[order]
        remaining = np.maximum(1.0 - (np.cumsum(caps, axis=0) - caps), 0.0)
        mixture = np.empty_like(caps)
        np.put_along_axis(mixture, order, np.minimum(caps, remaining), axis=0)
        return mixture


ONE = Risk(np.ones(1))  # of a problem that is no ensemble


def risk_of(given: Any, weights: Any, count: int) -> Risk:
    """Return the risk of `count` members, with equal weights where None are given."""
    parts = np.full(count, 1 / count)
    if weights is not None:
        parts = check.array("weights", weights, (count,))
        if parts.min() <= 0 or abs(parts.sum() - 1) > _SUM:
            raise ArgumentError("weights", "numbers above 0 of sum 1", check.show(parts.tolist()))
        parts = parts / parts.sum()
    words = {"mean": 1.0, "worst": 0.0}
    if not isinstance(given, str):
        return Risk(parts, check.number("risk", given, above=0, at_most=1))
    if given not in words:
        raise ArgumentError("risk", '"mean", "worst" or a number in (0, 1]', check.show(given))
    return Risk(parts, words[given])
