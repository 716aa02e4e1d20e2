"""SGD of the teacher-student model at finite N: exact in law at O(K²) a step, and the plain one.

The notation is that of core/sgd.c, which makes the steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from replan.check import Floats, Ints
from replan.core import library
from replan.core.draws import draw
from replan.errors import ArgumentError
from replan.models.capabilities import Chain

if TYPE_CHECKING:
    from replan.models.teacher_student.model import TeacherStudent
    from replan.models.teacher_student.overlaps import Overlaps

_BLOCK = 2**20  # numbers drawn at once, for the plain one
_DRAWS = 2**15  # for the other, which needs few for a sample


class Reduced(Chain):
    """One run of SGD as a Markov chain of the overlaps."""

    changing = ("along", "rest", "heads")

    def __init__(self, model: TeacherStudent, start: Overlaps, dimension: int) -> None:
        self.model, self.dimension = model, dimension
        self.frame = model.teacher_frame
        self.along, self.rest = coordinates(start, self.frame)
        self.heads = start.V

    def advance(self, tasks: Ints, knobs: Floats) -> int:
        """Train on samples of `tasks` (n,) with knobs (n, 3); return how many were done."""
        return self.record(tasks, knobs, np.empty(0, np.int64), np.empty((0, 0)))

    def record(self, tasks: Ints, knobs: Floats, marks: Ints, states: Floats) -> int:
        """Train as `advance` does and fill in the states; see `Chain.record`."""
        model, (K, r) = self.model, self.along.shape
        tasks, rates, head_rates = _samples(model, tasks, knobs)
        chain, known = (self.along, self.rest, self.heads), (self.frame, model.teacher_heads)
        activation = library.ACTIVATIONS.index(model.activation)
        work, block = np.empty(K * (r + K + 4) + 1), max(1, _DRAWS // (r + K + 2))
        room = np.empty((min(block, len(tasks)), r + K + 2))
        for first in range(0, len(tasks), block):
            part = slice(first, first + block)
            due = slice(*np.searchsorted(marks, [first, first + block], side="right"))
            draws = room[: len(tasks) - first]
            draw(self.rng, self.dimension - K - r, model.noise, draws)
            done = library.ADVANCE_REDUCED(
                activation, self.dimension, model.noise, *chain, tasks[part], rates[part],
                head_rates[part], *known, draws, marks[due] - first, states[due], work,
            )  # fmt: skip
            if done < len(draws):
                return first + done
        return len(tasks)

    def state(self) -> Floats:
        """Return the overlaps now, as a state."""
        Q = self.along @ self.along.T + self.rest @ self.rest.T
        parts = ((Q + Q.T) / 2, self.along @ self.frame.T, self.heads)
        return np.concatenate([np.ravel(part) for part in parts])


class Full(Chain):
    """One run of SGD with weights (K, N), heads (T, K) and teachers (P, N).

    velocity: of weights and heads; without rows, unless there are batches or momentum. filled: how
    many samples of the next batch it holds.
    """

    changing = ("weights", "heads", "velocity")

    def __init__(self, model: TeacherStudent, start: Overlaps, dimension: int) -> None:
        self.model, self.heads, self.filled = model, start.V, 0
        self.weights, self.teachers = _embed(model, start, dimension)
        moving = slice(0 if model.online else None)
        self.velocity = [np.zeros_like(x[moving]) for x in (self.weights, self.heads)]

    def advance(self, tasks: Ints, knobs: Floats) -> int:
        """Train on samples of `tasks` (n,) with knobs (n, 3); return how many were done."""
        (K, N), model = self.weights.shape, self.model
        tasks, rates, head_rates = _samples(model, tasks, knobs)
        network, known = (self.weights, self.heads), (self.teachers, model.teacher_heads)
        activation, work = library.ACTIVATIONS.index(model.activation), np.empty(2 * K)
        block = max(1, _BLOCK // N)
        for first in range(0, len(tasks), block):
            part = slice(first, first + block)
            count = len(tasks[part])
            inputs = self.rng.standard_normal((count, N))
            noise = (
                model.noise * self.rng.standard_normal(count) if model.noise else np.zeros(count)
            )
            done = library.TRAIN(
                activation, model.batch, self.filled, model.momentum, *network, *self.velocity,
                inputs, noise, tasks[part], rates[part], head_rates[part], *known, work,
            )  # fmt: skip
            self.filled = (self.filled + done) % model.batch
            if done < count:
                return first + done
        return len(tasks)

    def state(self) -> Floats:
        """Return the overlaps now, as a state."""
        N = self.weights.shape[1]
        w, B = self.weights, self.teachers
        parts = (w @ w.T / N, w @ B.T / N, self.heads)
        return np.concatenate([np.ravel(part) for part in parts])


def _samples(model: TeacherStudent, tasks: Ints, knobs: Floats) -> tuple[Ints, Floats, Floats]:
    """Return the tasks (n,) of samples, checked, and their rates (n,) of features and heads."""
    if tasks.size and not 0 <= tasks.min() <= tasks.max() < model.tasks:
        raise ArgumentError(
            "tasks", f"from 0 to {model.tasks - 1}", f"{tasks.min()}, {tasks.max()}"
        )
    lr, features, heads = knobs.T
    return tasks, lr * features, np.where(np.array(model.train_heads)[tasks], lr * heads, 0.0)


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
