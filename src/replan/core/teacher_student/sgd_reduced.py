"""SGD's overlaps at finite N, exact in law at O(K² + KP) per sample, without N-dimensional vectors.

Inputs are Gaussian, so only their components along the teachers and students matter. Notation: the
teachers span r dimensions, with coordinates `frame` (P, r), S = frame frameᵀ; student k, over √N,
is `along` (K, r) in that span plus `rest` (K, K), lower triangular in an orthonormal frame of its
own. An input has r + K standard normal components there; what is left of it lies along one new
direction, and its length is χ distributed with N − K − r degrees of freedom. After an update the
rest reaches into the new direction; a rotation of the frame makes it triangular again.
No matrix is inverted, so nothing becomes singular when a student aligns with a teacher.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from replan.check import Floats, Ints
from replan.core.compiled import compiled, inlined
from replan.models.capabilities import Chain
from replan.core.teacher_student.activations import activation, slope

if TYPE_CHECKING:
    from replan.models.teacher_student.model import Overlaps, TeacherStudent

LARGE = 1e10  # a run diverges where the error on a sample, or that times lr / N, exceeds this


class Reduced(Chain):
    """One run of SGD as a Markov chain of the overlaps; see the module for its coordinates."""

    def __init__(
        self,
        model: TeacherStudent,
        along: Floats,
        rest: Floats,
        heads: Floats,
        dimension: int,
        rng: np.random.Generator,
    ) -> None:
        self.model, self.dimension, self.rng = model, dimension, rng
        self.frame = model.teacher_frame
        self.along, self.rest, self.heads = along.copy(), rest.copy(), heads.copy()

    @classmethod
    def begin(cls, model: TeacherStudent, start: Overlaps, dimension: int) -> Reduced:
        """Return a run at a start."""
        along, rest = coordinates(start, model.teacher_frame)
        return cls(model, along, rest, start.V, dimension, np.random.default_rng(0))

    def resume(self, rng: np.random.Generator) -> Reduced:
        """Return a copy that continues from here with its own random numbers."""
        return Reduced(self.model, self.along, self.rest, self.heads, self.dimension, rng)

    def advance(self, tasks: Ints, knobs: Floats) -> int:
        """Train on samples of `tasks` (n,) with knobs (n, 3); return how many were done."""
        K, r = self.along.shape
        model = self.model
        rates, head_rates = model.sample_rates(tasks, knobs)
        return int(
            _advance(
                model.parameters,
                self.along,
                self.rest,
                self.heads,
                tasks,
                rates,
                head_rates,
                self.frame,
                self.dimension,
                self.dimension - K - r,
                self.rng,
            )
        )

    def state(self) -> Floats:
        """Return the overlaps now, as a state."""
        Q = self.along @ self.along.T + self.rest @ self.rest.T
        parts = ((Q + Q.T) / 2, self.along @ self.frame.T, self.heads)
        return np.concatenate([np.ravel(part) for part in parts])


def coordinates(overlaps: Overlaps, frame: Floats) -> tuple[Floats, Floats]:
    """Return `along` (K, r) and lower triangular `rest` (K, K) of students with these overlaps."""
    along = np.asarray(overlaps.M) @ np.linalg.pinv(frame).T
    values, vectors = np.linalg.eigh(np.asarray(overlaps.Q) - along @ along.T)
    root = vectors * np.sqrt(values.clip(min=0.0))
    _, upper = np.linalg.qr(root.T)
    return along, np.ascontiguousarray(upper.T)


@compiled
def _advance(
    p: Any,
    along: Floats,
    rest: Floats,
    heads: Floats,
    tasks: Ints,
    rates: Floats,
    head_rates: Floats,
    frame: Floats,
    dimension: int,
    freedom: int,
    rng: Any,
) -> int:
    """Make one SGD step for every sample, in place; return the number before a divergence.

    p: the parameters of the model, whose type says what its activation is.
    """
    K, r = along.shape
    P, teacher_heads, noise = frame.shape[0], p.A, p.noise
    inner, outer = np.empty(r), np.empty(K + 1)
    fields, push, wide = np.empty(K), np.empty(K), np.zeros((K, K + 1))
    for k in range(K):
        for j in range(K):
            wide[k, j] = rest[k, j]
    done = tasks.size
    for sample in range(tasks.size):
        t = tasks[sample]
        for j in range(r):
            inner[j] = rng.standard_normal()
        for j in range(K):
            outer[j] = rng.standard_normal()
        outer[K] = math.sqrt(rng.chisquare(freedom)) if freedom > 0 else 0.0
        error = -noise * rng.standard_normal() if noise > 0.0 else 0.0
        for q in range(P):
            if teacher_heads[t, q] != 0.0:
                field = 0.0
                for j in range(r):
                    field += frame[q, j] * inner[j]
                error -= teacher_heads[t, q] * activation(p, field)
        for k in range(K):
            field = 0.0
            for j in range(r):
                field += along[k, j] * inner[j]
            for j in range(k + 1):
                field += wide[k, j] * outer[j]
            fields[k] = field
            push[k] = activation(p, field)  # holds the activation, for now
            error += heads[t, k] * push[k]
        pace = rates[sample] / dimension * error
        head_pace = head_rates[sample] / dimension * error
        if not max(abs(error), abs(pace), abs(head_pace)) < LARGE:
            done = sample
            break
        for k in range(K):
            active = push[k]
            push[k] = -pace * heads[t, k] * slope(p, fields[k])
            heads[t, k] -= head_pace * active
            for j in range(r):
                along[k, j] += push[k] * inner[j]
        _add_outer(wide, push, outer)
    for k in range(K):
        for j in range(K):
            rest[k, j] = wide[k, j]
    return done


@compiled
def _add_outer(wide: Floats, push: Floats, outer: Floats) -> None:
    """Make the rows of `wide` + push outerᵀ triangular again by rotations of the frame.

    wide: (K, K + 1), lower triangular, its last column zero. First the frame is turned so that
    `outer` (K + 1,) points along its first direction, which brings `wide` one diagonal up; the
    update then touches the first column only, and a second turn removes that diagonal.
    """
    K = push.size
    for i in range(K, 0, -1):
        size = _norm(outer[i - 1], outer[i])
        if size > 0.0:
            c, s = outer[i - 1] / size, outer[i] / size
            outer[i - 1] = size
            _turn(wide, i - 1, i, c, s, i - 1)
    for k in range(K):
        wide[k, 0] += push[k] * outer[0]
    for i in range(K):
        size = _norm(wide[i, i], wide[i, i + 1])
        if size > 0.0:
            c, s = wide[i, i] / size, wide[i, i + 1] / size
            _turn(wide, i, i + 1, c, s, i)
        wide[i, i + 1] = 0.0


@inlined
def _norm(a: float, b: float) -> float:
    """Return the norm of (a, b), three times as fast as `math.hypot`; it may overflow."""
    return math.sqrt(a * a + b * b)


@inlined
def _turn(wide: Floats, i: int, j: int, c: float, s: float, first: int) -> None:
    """Turn columns i and j of the rows from `first` on."""
    for k in range(first, wide.shape[0]):
        a, b = wide[k, i], wide[k, j]
        wide[k, i] = c * a + s * b
        wide[k, j] = c * b - s * a
