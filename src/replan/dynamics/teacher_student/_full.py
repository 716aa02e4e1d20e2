"""Plain SGD on N-dimensional weights: what the reduced engine is checked against."""

from __future__ import annotations

from math import sqrt

import numpy as np
from scipy.special import erf

from replan._common.check import Floats, Ints
from replan.dynamics.teacher_student._model import Overlaps, TeacherStudent
from replan.dynamics.teacher_student._reduced import LARGE

_BLOCK = 2**20  # numbers drawn at once


class Full:
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

    def advance(self, tasks: Ints, lr: Floats) -> int:
        """Train on samples of `tasks` (n,) with rates `lr` (n,); return how many it did."""
        N = self.weights.shape[1]
        block = max(1, _BLOCK // N)
        for first in range(0, len(tasks), block):
            inputs = self.rng.standard_normal((min(block, len(tasks) - first), N))
            for sample, x in enumerate(inputs, start=first):
                if not self._train(x, int(tasks[sample]), lr[sample]):
                    return sample
        return len(tasks)

    def _train(self, x: Floats, t: int, lr: float) -> bool:
        N = x.size
        fields = self.weights @ x / sqrt(N)
        activations = erf(fields / sqrt(2))
        label = self.model.teacher_heads[t] @ erf(self.teachers @ x / sqrt(2 * N))
        label += self.model.noise * self.rng.standard_normal() if self.model.noise else 0.0
        error = self.heads[t] @ activations - label
        pace = lr / N * error
        if not max(abs(error), abs(pace)) < LARGE:
            return False
        slopes = sqrt(2 / np.pi) * np.exp(-(fields**2) / 2)
        push = pace * sqrt(N) * self.heads[t] * slopes
        self.heads[t] -= pace * self.model.head_rates[t] * activations
        self.weights -= push[:, None] * x
        return True

    def overlaps(self) -> Overlaps:
        """Return the overlaps now."""
        N = self.weights.shape[1]
        w, B = self.weights, self.teachers
        return Overlaps(w @ w.T / N, w @ B.T / N, self.heads.copy())
