"""Objective: how the tasks' losses are combined into one number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from replan import check
from replan.check import Floats
from replan.errors import ArgumentError
from replan.models import Model
from replan.problem.availability import Availability

Goal = Literal["final", "seen", "worst"]

_WORDS: dict[Goal, str] = {
    "final": "weighted",
    "seen": "mean of tasks seen so far",
    "worst": "worst task",
}
# A target adds _PENALTY × the largest weight × how far a final loss lies above it, smoothed over
# the last part below it. Where meeting it would cost more than that in other losses, a plan misses
# its target. With steeper penalties targets are met more often, but descents become slow.
_PENALTY = 30.0
_MARGIN = 0.03  # the penalty sets in below the target by this fraction of it


@dataclass(frozen=True, eq=False)
class Objective:
    """What a plan minimises.

    One number for each loss is a list in their order or a dict by the model's `loss_names`; most
    models have one loss for each task.

    - `goal`: "final": Σ_l weights[l] × final loss l. "seen": the mean over the training of the mean
      loss of the tasks that have arrived by then, weighted relative to one another. "worst": the
      largest weights[l] × final loss l, weights relative to the largest. The last two need a model
      with one loss for each task.
    - `weights`: (L,), by default equal, of sum 1.
    - `running`: (L,) weights of the losses' averages over the training, added to the goal; by
      default 0.
    - `targets`: (L,) the level that each final loss should not exceed, None for no target. A loss
      above its target adds a penalty.

    Examples:
        >>> model = replan.TeacherStudent.similar(0.3)
        >>> start = model.pretrain(seed=1)
        >>> old_first = replan.Objective(weights=[0.9, 0.1], targets=[0.01, None])
        >>> problem = replan.Problem(model, start, duration=20.0, objective=old_first)
        >>> problem.objective.weights
        array([0.9, 0.1])
    """

    goal: Goal = "final"
    weights: ArrayLike | Mapping[str, float] | None = None
    running: ArrayLike | Mapping[str, float] | None = None
    targets: Sequence[float | None] | Mapping[str, float] | None = None

    def __post_init__(self) -> None:
        check.one_of("goal", self.goal, get_args(Goal))

    def bind(self, model: Model, availability: Availability) -> BoundObjective:
        """Return the objective for a model; refuse one that does not fit it."""
        names = model.loss_names
        weights = _numbers("weights", self.weights, names, 1 / len(names))
        running = _numbers("running", self.running, names, 0.0)
        if weights.max() == 0 and running.max() == 0:
            raise ArgumentError("weights", "numbers not all 0", check.show(weights.tolist()))
        if self.goal != "final":
            if names != model.task_names:
                raise ArgumentError(
                    "goal",
                    '"final" for a model whose losses are not those of its tasks',
                    check.show(self.goal),
                )
            counts = weights > 0
            if self.goal == "seen":
                counts = counts & (availability.arrivals < availability.duration)
            if not counts.any():
                arrives = " of a task that arrives" * (self.goal == "seen")
                raise ArgumentError(
                    "weights",
                    f"numbers with one above 0{arrives}, as the goal is {self.goal!r}",
                    check.show(weights.tolist()),
                )
        if self.goal == "worst":
            weights = weights / weights.max()
        return BoundObjective(
            self.goal, weights, running, _targets(self.targets, names), availability
        )


@dataclass(frozen=True, eq=False)
class BoundObjective:
    """The objective of a problem; see `Objective`.

    weights, running, targets: (L,), targets infinite where there is none.
    """

    goal: Goal
    weights: Floats
    running: Floats
    targets: Floats
    availability: Availability

    @property
    def words(self) -> str:
        """The goal in words."""
        return _WORDS[self.goal]

    @property
    def throughout(self) -> bool:
        """Whether the goal counts losses along the way, and not at the end."""
        return self.goal == "seen"

    @property
    def averages_count(self) -> bool:
        """Whether losses along the way are part of the objective."""
        return self.throughout or bool(self.running.any())

    @cached_property
    def has_targets(self) -> bool:
        """Whether any loss has a target."""
        return bool(np.any(self.targets < np.inf))

    @cached_property
    def _seen(self) -> Floats:
        """The weights (K, L) of the losses after each arrival, of sum 1 or 0."""
        arrived = self.availability.arrivals <= self.availability.begins[:, None]
        weights = np.where(arrived, self.weights, 0.0)
        sums = weights.sum(axis=1, keepdims=True)
        return np.asarray(weights / np.where(sums > 0, sums, 1.0))

    def value(self, final: Floats, along: Floats | float = 0.0) -> Floats:
        """Return the objective (…) from final losses (…, L) and the cost along the way (…).

        The latter is the mean over the training of `weights_along` × the losses.
        """
        return self.at_end(final) + along + self.penalties(final)[0]

    def at_end(self, final: Floats) -> Floats:
        """Return the goal (…) of final losses (…, L), without losses along the way."""
        if self.goal == "worst":
            return np.asarray(self.scaled(final).max(axis=-1))
        return np.zeros(final.shape[:-1]) if self.throughout else np.asarray(final @ self.weights)

    def goal_along(self, edges: Floats) -> Floats:
        """Return the goal's weight of each loss (n, L) in n steps: its mean over the step."""
        if self.goal != "seen":
            return np.zeros((edges.size - 1, self.weights.size))
        ends = np.append(self.availability.begins[1:], self.availability.duration)
        first = np.maximum(edges[:-1, None], self.availability.begins)
        parts = np.maximum(np.minimum(edges[1:, None], ends) - first, 0.0)
        return np.asarray((parts / np.diff(edges)[:, None]) @ self._seen)

    def weights_along(self, edges: Floats) -> Floats:
        """Return the weight of each loss (n, L) in n steps: for the goal, and as a running cost."""
        return self.goal_along(edges) + self.running

    def scaled(self, final: Floats) -> Floats:
        """Return the final losses (…, L) of which "worst" is the largest; −inf without weight."""
        return np.where(self.weights > 0, self.weights * final, -np.inf)

    def slopes(self, final: Floats, mixture: Floats | float = 1.0) -> Floats:
        """Return the derivatives (L,) of the objective by the final losses.

        mixture: (L,) what stands for the largest loss where the goal is "worst".
        """
        penalties = self.penalties(final)[1]
        return penalties if self.throughout else self.weights * mixture + penalties

    def penalties(self, final: Floats) -> tuple[Floats, Floats]:
        """Return what the targets add to the objective (…) and its derivatives (…, L)."""
        if not self.has_targets:
            return np.zeros(final.shape[:-1]), np.zeros(final.shape)
        largest = self.weights.max() / (self.weights.sum() if self.throughout else 1.0)
        scale = _PENALTY * max(float(largest), float(self.running.max()))
        above = np.maximum(final / self.targets - 1.0 + _MARGIN, 0.0)
        near = above <= _MARGIN
        height = np.where(near, above**2 / (2 * _MARGIN), above - _MARGIN / 2)
        lengths = np.where(above > 0, self.targets, 0.0)
        slopes = np.where(near, above / _MARGIN, 1.0)
        return scale * np.sum(height * lengths, axis=-1), scale * slopes

    def curve(self, times: Floats, losses: Floats) -> Floats:
        """Return the goal (n,) of losses (n, L) at times (n,), as if training ended there."""
        if not self.throughout:
            return self.at_end(losses)
        room = 1e-9 * self.availability.duration
        at = np.searchsorted(self.availability.begins, times + room, side="right") - 1
        return np.sum(self._seen[at] * losses, axis=1)

    def to_dict(self) -> dict[str, Any]:
        """Return the `[objective]` section of a problem file."""
        content: dict[str, Any] = {"goal": self.goal} if self.goal != "final" else {}
        content["weights"] = self.weights.tolist()
        if self.running.any():
            content["running"] = self.running.tolist()
        if self.has_targets:
            content["targets"] = {
                str(i + 1): x for i, x in enumerate(self.targets.tolist()) if x < np.inf
            }
        return content


def _by_loss(name: str, given: Any, names: Sequence[str], default: Any) -> Any:
    """Return a value for each loss in their order, where it is given by name."""
    if not isinstance(given, Mapping):
        return given
    if not given:
        raise ArgumentError(name, "numbers for at least one loss", "none")
    for key in given:
        check.one_of(name, key, names)
    return [given.get(key, default) for key in names]


def _numbers(name: str, given: Any, names: Sequence[str], default: float) -> Floats:
    """Return a number of at least 0 for each loss (L,)."""
    if given is None:
        return np.full(len(names), default)
    numbers = check.array(name, _by_loss(name, given, names, 0.0), (len(names),))
    if numbers.min() < 0:
        raise ArgumentError(name, "numbers of at least 0", check.show(numbers.tolist()))
    return numbers


def _targets(given: Any, names: Sequence[str]) -> Floats:
    """Return the targets (L,), infinite where there is none."""
    if given is None:
        return np.full(len(names), np.inf)
    expected = f"{len(names)} numbers or None"
    listed = check.items("targets", _by_loss("targets", given, names, None), expected)
    if len(listed) != len(names):
        raise ArgumentError("targets", expected, f"{len(listed)}")
    return np.array(
        [np.inf if x in (None, np.inf) else check.number("targets", x, above=0) for x in listed]
    )
