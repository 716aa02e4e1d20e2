"""Plain SGD on N-dimensional weights: what the reduced engine is checked against."""

from __future__ import annotations

from math import sqrt
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import erf

from replan._common.check import Floats, Ints
from replan.dynamics._capabilities import Chain
from replan.dynamics.teacher_student._reduced import LARGE, coordinates

if TYPE_CHECKING:
    from replan.dynamics.teacher_student._model import Overlaps, TeacherStudent

_BLOCK = 2**20  # numbers drawn at once


class Full(Chain):
    """One run of SGD with weights (K, N), heads (T, K) and teachers (P, N)."""

    def __init__(
        self,
        model: TeacherStudent,
        weights: Floats,
        heads: Floats,
        teachers: Floats,
        rng: np.random.Generator,
    ) -> None:
        self.model, self.rng = model, rng
        self.weights, self.heads, self.teachers = weights.copy(), heads.copy(), teachers

    @classmethod
    def begin(
        cls,
        model: TeacherStudent,
        start: Overlaps,
        dimension: int,
        weights: tuple[ArrayLike, ArrayLike] | None,
    ) -> Full:
        """Return a run at a start, with given weights (K, N) and teachers (P, N), or with any."""
        if weights is None:
            student, teachers = _embed(model, start, dimension)
        else:
            student, teachers = _checked(model, start, dimension, weights)
        return cls(model, student, start.V, teachers, np.random.default_rng(0))

    def resume(self, rng: np.random.Generator) -> Full:
        """Return a copy that continues from here with its own random numbers."""
        return Full(self.model, self.weights, self.heads, self.teachers, rng)

    def advance(self, tasks: Ints, knobs: Floats) -> int:
        """Train on samples of `tasks` (n,) with knobs (n, 3); return how many were done."""
        N = self.weights.shape[1]
        rates, head_rates = self.model.sample_rates(tasks, knobs)
        block = max(1, _BLOCK // N)
        for first in range(0, len(tasks), block):
            inputs = self.rng.standard_normal((min(block, len(tasks) - first), N))
            for sample, x in enumerate(inputs, start=first):
                if not self._train(x, int(tasks[sample]), rates[sample], head_rates[sample]):
                    return sample
        return len(tasks)

    def _train(self, x: Floats, t: int, lr: float, head_lr: float) -> bool:
        N = x.size
        fields = self.weights @ x / sqrt(N)
        activations = erf(fields / sqrt(2))
        label = self.model.teacher_heads[t] @ erf(self.teachers @ x / sqrt(2 * N))
        label += self.model.noise * self.rng.standard_normal() if self.model.noise else 0.0
        error = self.heads[t] @ activations - label
        pace, head_pace = lr / N * error, head_lr / N * error
        if not max(abs(error), abs(pace), abs(head_pace)) < LARGE:
            return False
        slopes = sqrt(2 / np.pi) * np.exp(-(fields**2) / 2)
        push = pace * sqrt(N) * self.heads[t] * slopes
        self.heads[t] -= head_pace * activations
        self.weights -= push[:, None] * x
        return True

    def state(self) -> Floats:
        """Return the overlaps now, as a state."""
        N = self.weights.shape[1]
        w, B = self.weights, self.teachers
        parts = (w @ w.T / N, w @ B.T / N, self.heads)
        return np.concatenate([np.ravel(part) for part in parts])


def _embed(model: TeacherStudent, start: Overlaps, dimension: int) -> tuple[Floats, Floats]:
    """Return weights (K, N) and teachers (P, N) with these overlaps, along the first axes.

    Inputs are isotropic, so any weights with these overlaps will do.
    """
    frame = model.teacher_frame
    along, rest = coordinates(start, frame)
    K, r = along.shape
    weights, teachers = np.zeros((K, dimension)), np.zeros((len(frame), dimension))
    weights[:, :r], weights[:, r : r + K] = along, rest
    teachers[:, :r] = frame
    return weights * np.sqrt(dimension), teachers * np.sqrt(dimension)


def _checked(
    model: TeacherStudent,
    start: Overlaps,
    dimension: int,
    weights: tuple[ArrayLike, ArrayLike],
) -> tuple[Floats, Floats]:
    """Return given weights (K, N) and teachers (P, N) if they have the overlaps of the start."""
    if not isinstance(weights, tuple) or len(weights) != 2:
        raise ValueError(
            "`weights` expects a tuple of students (K, N) and teachers (P, N), "
            f"got {type(weights).__name__}"
        )
    try:
        found = model.from_weights(weights[0], start.V, weights[1])
    except ValueError as error:
        raise ValueError(f"`weights`: {error}") from None
    student, teachers = (np.array(part, dtype=np.float64) for part in weights)
    if student.shape[1] != dimension:
        raise ValueError(
            f"`weights` expects weights of dimension {dimension}, got {student.shape[1]}"
        )
    gap = max(np.max(np.abs(found.Q - start.Q)), np.max(np.abs(found.M - start.M)))
    if gap > 1e-6 * max(1.0, float(np.max(np.abs(start.Q)))):  # float32's
        raise ValueError(
            f"`weights` expects weights with the overlaps of `problem.start`, got overlaps that "
            f"differ by {gap:.3g}"
        )
    return student, teachers
