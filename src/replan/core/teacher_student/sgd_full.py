"""Plain SGD on N-dimensional weights: what the reduced engine is checked against.

With batches of b samples and momentum β, a velocity u keeps the gradients. Each batch makes
u ← β u + (1/b) Σ lr_i ∇_i over its samples, which may be of several tasks, each with its own rate,
and all weights and heads go by −u.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from replan.check import Floats, Ints
from replan.core.compiled import compiled, inlined
from replan.models.capabilities import Chain
from replan.core.teacher_student.activations import activation, slope
from replan.core.teacher_student.sgd_reduced import LARGE, coordinates

if TYPE_CHECKING:
    from replan.models.teacher_student.model import Overlaps, TeacherStudent

_BLOCK = 2**20  # numbers drawn at once


class Full(Chain):
    """One run of SGD with weights (K, N), heads (T, K) and teachers (P, N).

    velocity: of weights and heads, where there are batches or momentum. filled: how many samples
    of the next batch it holds.
    """

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
        self.velocity = None if model.online else (np.zeros_like(weights), np.zeros_like(heads))
        self.filled = 0

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
        other = Full(self.model, self.weights, self.heads, self.teachers, rng)
        if self.velocity is not None:
            other.velocity = (self.velocity[0].copy(), self.velocity[1].copy())
            other.filled = self.filled
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
                done = _train(*given)
            else:
                momentum = (*self.velocity, model.momentum)
                done = _train_batches(*given, *momentum, model.batch, self.filled)
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


@inlined
def _error(
    p: Any,
    x: Floats,
    t: int,
    noise: float,
    weights: Floats,
    heads: Floats,
    teachers: Floats,
    fields: Floats,
    activations: Floats,
) -> float:
    """Return prediction minus label of an input x (N,) of task t; fill in the fields (K,)."""
    K, N = weights.shape
    error = -noise
    for q in range(teachers.shape[0]):
        error -= p.A[t, q] * activation(p, _dot(teachers[q], x) / math.sqrt(N))
    for k in range(K):
        fields[k] = _dot(weights[k], x) / math.sqrt(N)
        activations[k] = activation(p, fields[k])
        error += heads[t, k] * activations[k]
    return error


@compiled
def _train(
    p: Any,
    weights: Floats,
    heads: Floats,
    inputs: Floats,
    noise: Floats,
    tasks: Ints,
    rates: Floats,
    head_rates: Floats,
    teachers: Floats,
) -> int:
    """Make one SGD step for every input (n, N), in place; return the number before a divergence."""
    K, N = weights.shape
    fields, activations = np.empty(K), np.empty(K)
    for sample in range(tasks.size):
        x, t = inputs[sample], tasks[sample]
        error = _error(p, x, t, noise[sample], weights, heads, teachers, fields, activations)
        pace, head_pace = rates[sample] / N * error, head_rates[sample] / N * error
        if not max(abs(error), abs(pace), abs(head_pace)) < LARGE:
            return sample
        for k in range(K):
            push = pace * math.sqrt(N) * heads[t, k] * slope(p, fields[k])
            heads[t, k] -= head_pace * activations[k]
            for j in range(N):
                weights[k, j] -= push * x[j]
    return tasks.size


@compiled
def _train_batches(
    p: Any,
    weights: Floats,
    heads: Floats,
    inputs: Floats,
    noise: Floats,
    tasks: Ints,
    rates: Floats,
    head_rates: Floats,
    teachers: Floats,
    velocity: Floats,
    head_velocity: Floats,
    momentum: float,
    batch: int,
    filled: int,
) -> int:
    """Make an SGD step for every batch of inputs (n, N), in place, as `_train` does for each.

    The velocity already holds the first `filled` samples of a batch.
    """
    K, N = weights.shape
    fields, activations = np.empty(K), np.empty(K)
    for sample in range(tasks.size):
        x, t = inputs[sample], tasks[sample]
        error = _error(p, x, t, noise[sample], weights, heads, teachers, fields, activations)
        pace = rates[sample] / (batch * N) * error
        head_pace = head_rates[sample] / (batch * N) * error
        if not max(abs(error), abs(pace), abs(head_pace)) < LARGE:
            return sample
        if filled == 0:
            velocity *= momentum
            head_velocity *= momentum
        for k in range(K):
            push = pace * math.sqrt(N) * heads[t, k] * slope(p, fields[k])
            head_velocity[t, k] += head_pace * activations[k]
            for j in range(N):
                velocity[k, j] += push * x[j]
        filled += 1
        if filled == batch:
            weights -= velocity
            heads -= head_velocity
            filled = 0
    return tasks.size


@compiled(fastmath={"reassoc", "contract"})  # sums in any order run several times as fast
def _dot(a: Floats, b: Floats) -> float:
    total = 0.0
    for j in range(a.size):
        total += a[j] * b[j]
    return total


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
