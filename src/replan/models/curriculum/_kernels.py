"""Compiled kernels of the curriculum model, and their reverse.

Notation: the state is (q₁, q₂, m): the squared norms of the student's weights on relevant and on
irrelevant inputs, and the overlap with the teacher. On inputs of difficulty Δ the student's field
has the variance s = q₁ + Δ q₂; T is the teacher's squared norm; η is the learning rate.
(Mignacco & Mori 2025, after Saglietti et al. 2022)

    D = (2 + s) T − m²,  E = (1 + s) T − m²
    A = 2η² / (π² √(1 + s)) [π/2 + asin(s / (2 + 3s)) − 2 asin(m / √((2 + 3s) E))]
    q₁′ = 4η / (π (2 + s)) [−q₁ / √(1 + s) + m (2 + Δ q₂) / √D] + A
    q₂′ = −4η Δ q₂ / (π (2 + s)) [1 / √(1 + s) + m / √D] + Δ A
    m′ = 2η / (π (2 + s)) [−m / √(1 + s) + √D]
"""

from __future__ import annotations

import math
from typing import NamedTuple

from replan.check import Floats
from replan.core.compiled import compiled, inlined

_SQUARE = 2.0 / math.pi**2


class Parameters(NamedTuple):
    """What the kernels know about a model."""

    difficulties: Floats  # (T,) Δ
    teacher: float  # T


class Parts(NamedTuple):
    """What the rate on one difficulty is made of."""

    s: float
    r: float  # 1 / √(1 + s)
    root: float  # √D
    slope: float  # 4 / (π (2 + s))
    first: float  # the three brackets
    second: float
    third: float
    ratio: float  # s / (2 + 3s)
    square: float  # (2 + 3s) E
    cosine: float  # m / √square
    angle: float  # the bracket of A


@inlined
def _parts(state: Floats, difficulty: float, teacher: float) -> Parts:
    q1, q2, m = state[0], state[1], state[2]
    s = q1 + difficulty * q2
    r = 1.0 / math.sqrt(1.0 + s)
    root = math.sqrt((2.0 + s) * teacher - m * m)
    ratio = s / (2.0 + 3.0 * s)
    square = (2.0 + 3.0 * s) * ((1.0 + s) * teacher - m * m)
    cosine = m / math.sqrt(square)
    return Parts(
        s,
        r,
        root,
        4.0 / (math.pi * (2.0 + s)),
        -q1 * r + m * (2.0 + difficulty * q2) / root,
        r + m / root,
        -m * r + root,
        ratio,
        square,
        cosine,
        0.5 * math.pi + math.asin(ratio) - 2.0 * math.asin(cosine),
    )


@compiled
def rate(p: Parameters, state: Floats, shares: Floats, knobs: Floats, out: Floats) -> None:
    """Write the rate (3,) to `out`; shares and knobs, the learning rates, are (T,)."""
    out[:] = 0.0
    for t in range(p.difficulties.size):
        if shares[t] == 0.0:
            continue
        delta, lr = p.difficulties[t], knobs[t]
        x = _parts(state, delta, p.teacher)
        spread = _SQUARE * lr * lr * x.r * x.angle
        out[0] += shares[t] * (lr * x.slope * x.first + spread)
        out[1] += shares[t] * delta * (spread - lr * x.slope * state[1] * x.second)
        out[2] += shares[t] * 0.5 * lr * x.slope * x.third


@compiled
def rate_vjp(
    p: Parameters, state: Floats, cotangent: Floats, shares: Floats, knobs: Floats, scale: float,
    by_state: Floats, by_shares: Floats, by_knobs: Floats,
) -> None:  # fmt: skip
    """Reverse of `rate`; see `Kernels`."""
    a, b, c = cotangent[0], cotangent[1], cotangent[2]
    q1, q2, m = state[0], state[1], state[2]
    by_state[:] = 0.0
    for t in range(p.difficulties.size):
        delta, lr, share = p.difficulties[t], knobs[t], shares[t]
        x = _parts(state, delta, p.teacher)
        # the rate is lr × drift + lr² × spread, both contracted with the cotangent
        drift = x.slope * (a * x.first - b * delta * q2 * x.second + 0.5 * c * x.third)
        spread = _SQUARE * (a + delta * b) * x.r * x.angle
        by_shares[t] += scale * lr * (drift + lr * spread)
        by_knobs[t] += scale * share * (drift + 2.0 * lr * spread)
        if share == 0.0:
            continue
        pace, wide = share * lr * x.slope, share * lr * lr * _SQUARE * (a + delta * b)
        first, second, third = pace * a, -pace * b * delta * q2, 0.5 * pace * c
        mean = 2.0 + delta * q2
        by_r = -first * q1 + second - third * m + wide * x.angle
        by_root = third - (first * mean + second) * m / (x.root * x.root)
        by_square = wide * x.r * m / (math.sqrt(1.0 - x.cosine * x.cosine) * x.square**1.5)
        by_e = (2.0 + 3.0 * x.s) * by_square
        by_s = (
            3.0 * x.square / (2.0 + 3.0 * x.s) * by_square
            + p.teacher * (by_e + 0.5 * by_root / x.root)
            + wide * x.r * 2.0 / (math.sqrt(1.0 - x.ratio * x.ratio) * (2.0 + 3.0 * x.s) ** 2)
            - 0.5 * x.r**3 * by_r
            - share * lr * drift / (2.0 + x.s)
        )
        by_state[0] += by_s - first * x.r
        by_state[1] += delta * (by_s + first * m / x.root - pace * b * x.second)
        by_state[2] += (
            (first * mean + second) / x.root
            - third * x.r
            - 2.0 * wide * x.r / (math.sqrt(1.0 - x.cosine * x.cosine) * math.sqrt(x.square))
            - 2.0 * m * (by_e + 0.5 * by_root / x.root)
        )


@compiled
def losses(p: Parameters, state: Floats, out: Floats) -> None:
    """Write the error acos(m / √((q₁ + Δ q₂) T)) / π on each difficulty to `out` (T,)."""
    for t in range(p.difficulties.size):
        square = (state[0] + p.difficulties[t] * state[1]) * p.teacher
        cosine = state[2] / math.sqrt(square)
        out[t] = math.acos(min(max(cosine, -1.0), 1.0)) / math.pi  # above 1 by rounding


@compiled
def losses_vjp(p: Parameters, state: Floats, cotangent: Floats, out: Floats) -> None:
    """Reverse of `losses`; see `Kernels`."""
    out[:] = 0.0
    for t in range(p.difficulties.size):
        square = (state[0] + p.difficulties[t] * state[1]) * p.teacher
        length = math.sqrt(square)
        bar = -cotangent[t] / (math.pi * math.sqrt(1.0 - state[2] * state[2] / square))
        by_variance = -0.5 * bar * state[2] * p.teacher / (square * length)
        out[0] += by_variance
        out[1] += p.difficulties[t] * by_variance
        out[2] += bar / length
