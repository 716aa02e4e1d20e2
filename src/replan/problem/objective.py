"""Goal: what a plan makes of the losses of all tasks, before running costs and targets."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np

from replan import check
from replan.check import Floats
from replan.errors import ArgumentError
from replan.models import Model
from replan.problem.availability import Availability

GoalName = Literal["final", "seen", "worst"]

_WORDS: dict[GoalName, str] = {  # what the value is, for people
    "final": "weighted",
    "seen": "mean of tasks seen so far",
    "worst": "worst task",
}


@dataclass(frozen=True, eq=False)
class Goal:
    """What the losses of all tasks come to.

    - "final": Σ_l weights[l] × final loss l.
    - "seen": the mean over the training of the mean loss of the tasks that have arrived by then.
    - "worst": the largest weights[l] × final loss l.

    weights: (L,) for "final" as given, for "worst" relative to the largest. For "seen" they count
    relative to those of the tasks that have arrived; until one with a weight has, nothing counts.
    """

    name: GoalName
    weights: Floats
    presence: Availability

    @cached_property
    def _seen(self) -> Floats:
        """The weights (K, L) of the losses from each of these times on, of sum 1 or 0."""
        arrived = self.availability.arrivals <= self.availability.begins[:, None]
        weights = np.where(arrived, self.weights, 0.0)
        sums = weights.sum(axis=1, keepdims=True)
        return np.asarray(weights / np.where(sums > 0, sums, 1.0))

    @property
    def words(self) -> str:
        """What it makes of losses, for people."""
        return _WORDS[self.name]

    @property
    def largest_weight(self) -> float:
        """The most that the loss of one task counts, were all there."""
        return float(self.weights.max() / (self.weights.sum() if self.throughout else 1.0))

    def along(self, edges: Floats) -> Floats:
        """Return what each loss counts (n, L) in n steps: the mean over the step."""
        if self.name != "seen":
            return np.zeros((edges.size - 1, self.weights.size))
        ends = np.append(self.availability.begins[1:], self.availability.duration)
        first = np.maximum(edges[:-1, None], self.availability.begins)
        parts = np.maximum(np.minimum(edges[1:, None], ends) - first, 0.0)
        return np.asarray((parts / np.diff(edges)[:, None]) @ self._seen)

    def at_end(self, final: Floats) -> Floats:
        """Return what final losses (…, L) come to (…); those along the way are not in it."""
        if self.name == "worst":
            return np.asarray(self.scaled(final).max(axis=-1))
        return np.zeros(final.shape[:-1]) if self.throughout else np.asarray(final @ self.weights)

    @property
    def throughout(self) -> bool:
        """Whether losses count along the way, and not at the end."""
        return self.name == "seen"

    def scaled(self, final: Floats) -> Floats:
        """Return the final losses (…, L) of which "worst" is the largest; −inf without weight."""
        return np.where(self.weights > 0, self.weights * final, -np.inf)

    def slopes(self, final: Floats, mixture: Floats | None = None) -> Floats:
        """Return the derivatives (L,) of `at_end` by the final losses.

        mixture: (L,) what stands for the largest loss where the goal is "worst": by default the
        worst task alone.
        """
        if self.throughout:
            return np.zeros_like(self.weights)
        if self.name == "final":
            return self.weights
        if mixture is None:
            mixture = np.eye(self.weights.size)[np.argmax(self.scaled(final))]
        return self.weights * mixture

    def error(self, errors: Floats) -> float:
        """Return the error of `at_end` from those of the final losses (L,)."""
        if self.name == "worst":
            return float(np.max(self.weights * errors, initial=0.0, where=self.weights > 0))
        return 0.0 if self.throughout else float(errors @ self.weights)

    def curve(self, times: Floats, losses: Floats) -> Floats:
        """Return what losses (n, L) at times (n,) come to (n,), as if training ended there."""
        if not self.throughout:
            return self.at_end(losses)
        room = 1e-9 * self.availability.duration
        at = np.searchsorted(self.availability.begins, times + room, side="right") - 1
        return np.sum(self._seen[at] * losses, axis=1)


def goal_of(name: Any, weights: Floats, presence: Availability, model: Model) -> Goal:
    """Return the goal; refuse one that means nothing for the model or the weights."""
    found: Any = check.one_of("goal", name, get_args(GoalName))
    if found == "final":
        return Goal("final", weights, presence)
    if model.loss_names != model.task_names:
        raise ValueError(
            f"`goal` {found} expects a model with a loss for each task, got one with the losses "
            f"{', '.join(model.loss_names)}"
        )
    counts = weights > 0
    if found == "seen":
        counts = counts & (presence.arrivals < presence.duration)
    if not counts.any():
        raise ArgumentError(
            "weights",
            f"one above 0 {'of a task that arrives ' * (found == 'seen')}where the goal is {found}",
            check.show(weights.tolist()),
        )
    return Goal(found, weights / weights.max() if found == "worst" else weights, presence)
