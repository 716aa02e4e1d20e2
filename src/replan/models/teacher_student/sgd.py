"""SGD of the teacher-student model at finite N: exact in law at O(K²) a step, and the plain one.

The notation is that of `replan.core.teacher_student.sgd`, which makes the steps.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import numpy as np

from replan.check import Floats, Ints
from replan.core.teacher_student.sgd import advance_reduced, train, train_batches
from replan.models.capabilities import Chain

if TYPE_CHECKING:
    from replan.models.teacher_student.model import TeacherStudent
    from replan.models.teacher_student.overlaps import Overlaps

_BLOCK = 2**20  # numbers drawn at once


class Reduced(Chain):
    """One run of SGD as a Markov chain of the overlaps."""

    def __init__(self, model: TeacherStudent, start: Overlaps, dimension: int) -> None:
        self.model, self.dimension = model, dimension
        self.along, self.rest = coordinates(start, model.teacher_frame)
        self.heads = start.V
        self.rng = np.random.default_rng(0)

    def resume(self, rng: np.random.Generator) -> Reduced:
        """Return a copy that continues from here with its own random numbers."""
        other = copy.copy(self)
        other.along, other.rest, other.heads = (
            array.copy() for array in (self.along, self.rest, self.heads)
        )
        other.rng = rng
        return other

    def advance(self, tasks: Ints, knobs: Floats) -> int:
        """Train on samples of `tasks` (n,) with knobs (n, 3); return how many were done."""
        model, room = self.model, self.dimension - sum(self.along.shape)
        frame, rates = model.teacher_frame, model.sample_rates(tasks, knobs)
        chain = self.along, self.rest, self.heads
        return int(
            advance_reduced(
                model.parameters, *chain, tasks, *rates, frame, self.dimension, room, self.rng
            )
        )

    def state(self) -> Floats:
        """Return the overlaps now, as a state."""
        Q = self.along @ self.along.T + self.rest @ self.rest.T
        parts = ((Q + Q.T) / 2, self.along @ self.model.teacher_frame.T, self.heads)
        return np.concatenate([np.ravel(part) for part in parts])


class Full(Chain):
    """One run of SGD with weights (K, N), heads (T, K) and teachers (P, N).

    velocity: of weights and heads, where there are batches or momentum. filled: how many samples
    of the next batch it holds.
    """

    def __init__(
        self,
        model: TeacherStudent,
        start: Overlaps,
        dimension: int,
    ) -> None:
        self.model, self.heads, self.filled = model, start.V, 0
        self.weights, self.teachers = _embed(model, start, dimension)
        online = model.online
        self.velocity = None if online else (np.zeros_like(self.weights), np.zeros_like(self.heads))
        self.rng = np.random.default_rng(0)

    def resume(self, rng: np.random.Generator) -> Full:
        """Return a copy that continues from here with its own random numbers."""
        other = copy.copy(self)
        other.weights, other.heads, other.rng = self.weights.copy(), self.heads.copy(), rng
        if self.velocity is not None:
            other.velocity = (self.velocity[0].copy(), self.velocity[1].copy())
        return other

    def advance(self, tasks: Ints, knobs: Floats) -> int:
        """Train on samples of `tasks` (n,) with knobs (n, 3); return how many were done."""
        N, model = self.weights.shape[1], self.model
        rates, head_rates = model.sample_rates(tasks, knobs)
        block = max(1, _BLOCK // N)
        for first in range(0, len(tasks), block):
            part = slice(first, first + block)
            count = len(tasks[part])
            inputs = self.rng.standard_normal((count, N))
            noise = (
                model.noise * self.rng.standard_normal(count) if model.noise else np.zeros(count)
            )
            given = (
                model.parameters, self.weights, self.heads, inputs, noise, tasks[part],
                rates[part], head_rates[part], self.teachers,
            )  # fmt: skip
            if self.velocity is None:
                done = train(*given)
            else:
                momentum = (*self.velocity, model.momentum)
                done = train_batches(*given, *momentum, model.batch, self.filled)
                self.filled = (self.filled + done) % model.batch
            if done < count:
                return first + int(done)
        return len(tasks)

    def state(self) -> Floats:
        """Return the overlaps now, as a state."""
        N = self.weights.shape[1]
        w, B = self.weights, self.teachers
        parts = (w @ w.T / N, w @ B.T / N, self.heads)
        return np.concatenate([np.ravel(part) for part in parts])


def coordinates(overlaps: Overlaps, frame: Floats) -> tuple[Floats, Floats]:
    """Return `along` (K, r) and lower triangular `rest` (K, K) of students with these overlaps."""
    along = np.asarray(overlaps.M) @ np.linalg.pinv(frame).T
    values, vectors = np.linalg.eigh(np.asarray(overlaps.Q) - along @ along.T)
    root = vectors * np.sqrt(values.clip(min=0.0))
    _, upper = np.linalg.qr(root.T)
    return along, np.ascontiguousarray(upper.T)


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
