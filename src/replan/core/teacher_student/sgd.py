"""The steps of SGD at finite N, compiled: of the reduced chain of overlaps, and plain ones.

**Reduced.** Inputs are Gaussian, so only their components along the teachers and students matter.
Notation: the teachers span r dimensions, with coordinates `frame` (P, r), S = frame frameᵀ; student
k, over √N, is `along` (K, r) in that span plus `rest` (K, K), lower triangular in an orthonormal
frame beside it. An input has r + K standard normal components there; the remainder lies along one
new direction, and its length is χ distributed with N − K − r degrees of freedom. After an update
the rest reaches into the new direction; a rotation of the frame makes it triangular again. No
matrix is inverted, so nothing becomes singular when a student aligns with a teacher.

**Plain.** With batches of b samples and momentum β, a velocity u accumulates the gradients. Each
batch makes u ← β u + (1/b) Σ lr_i ∇_i over its samples, which may be of several tasks, each at its
rate, and all weights and heads move by −u.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from replan.check import Floats, Ints
from replan.core.compiled import compiled, inlined
from replan.core.teacher_student.activations import activation, slope

LARGE = 1e10  # a run diverges where the error on a sample, or that times lr / N, exceeds this


@compiled
def advance_reduced(
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
def train(
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
def train_batches(
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
    """Make an SGD step for every batch of inputs (n, N), in place, as `train` does for each.

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
