"""Compiled kernels of the denoising model, and their reverse.

Notation: inputs are x = ±μ/√N + σ z in N dimensions, with a = μ·μ/N. Their noisy versions are
x̃ = κ x + √Δ ξ with κ = √(1 − Δ). The autoencoder f(x̃) = b x̃ + (w/√N) (w·x̃/√N) has the state
(m, q, b), m = w·μ/N and q = w·w/N. SGD on ½ |x − f|² with rate η for w, and η/N² for b, whose
gradient is N times as large, gives, as averages of polynomials of Gaussian fields:

    Λ = m² + σ² q,  L = κ² Λ + Δ q,  G = m (a + σ²),  H = κ² G + Δ m,  e = b + q
    m′ = η [2κ G − (b + e) H − m L]
    q′ = 4η (κ Λ − e L) + η² [L R + 2 (κ Λ − e L) Y + (Λ − 2κ e Λ + e² L) X]
    b′ = η Y

with R = (1 − bκ)² σ² + b² Δ, X = κ² σ² + Δ and Y = (1 − bκ) κ σ² − b Δ: per dimension, the square
of the residual of the skip, that of the input, and their product.

At the noise Δ of the test, the squared error of N dimensions at a state is N R + C with
C = a (1 − bκ)² − 2 κ Λ + (2b + q) L: `skip` is R, and `cluster` is C. In SGD, b differs from its
limit by O(1/N), which changes N R by O(1) unless b is the best skip at the noise of the test.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from replan.check import Floats
from replan.core.compiled import compiled, inlined


class Parameters(NamedTuple):
    """What the kernels know about a model."""

    mean: float  # a
    variance: float  # σ²
    test_noise: float  # Δ of the test


class Averages(NamedTuple):
    """What the rates and losses are made of, at one level of noise."""

    kappa: float
    lam: float  # Λ
    seen: float  # L
    signal: float  # G
    seen_signal: float  # H
    rest: float  # R
    power: float  # X
    mixed: float  # Y


@inlined
def _averages(p: Parameters, state: Floats, noise: float) -> Averages:
    m, q, b = state[0], state[1], state[2]
    kappa = math.sqrt(1.0 - noise)
    lam = m * m + p.variance * q
    signal = m * (p.mean + p.variance)
    gap = 1.0 - b * kappa
    return Averages(
        kappa,
        lam,
        kappa * kappa * lam + noise * q,
        signal,
        kappa * kappa * signal + noise * m,
        gap * gap * p.variance + b * b * noise,
        kappa * kappa * p.variance + noise,
        gap * kappa * p.variance - b * noise,
    )


@compiled
def rate(p: Parameters, state: Floats, shares: Floats, knobs: Floats, out: Floats) -> None:
    """Write the rate (3,) to `out`; knobs are the learning rate and the noise."""
    m, q, b = state[0], state[1], state[2]
    lr, share, e = knobs[0], shares[0], b + q
    x = _averages(p, state, knobs[1])
    first = x.kappa * x.lam - e * x.seen
    second = x.lam - 2.0 * x.kappa * e * x.lam + e * e * x.seen
    spread = x.seen * x.rest + 2.0 * first * x.mixed + second * x.power
    out[0] = share * lr * (2.0 * x.kappa * x.signal - (b + e) * x.seen_signal - m * x.seen)
    out[1] = share * lr * (4.0 * first + lr * spread)
    out[2] = share * lr * x.mixed


@inlined
def _pull_averages(
    p: Parameters, state: Floats, noise: float, x: Averages, bars: Floats, by_state: Floats
) -> float:
    """Add to `by_state` the derivatives through the averages; return that by the noise.

    bars: (8,) the derivatives by the fields of `Averages`, in their order.
    """
    m, q, b = state[0], state[1], state[2]
    kappa, square, variance = x.kappa, x.kappa * x.kappa, p.variance
    gap = 1.0 - b * kappa
    lam = bars[1] + square * bars[2]
    signal = bars[3] + square * bars[4]
    by_gap = 2.0 * gap * variance * bars[5] + kappa * variance * bars[7]
    by_state[0] += 2.0 * m * lam + (p.mean + variance) * signal + noise * bars[4]
    by_state[1] += variance * lam + noise * bars[2]
    by_state[2] += 2.0 * b * noise * bars[5] - noise * bars[7] - kappa * by_gap
    by_kappa = (
        bars[0]
        + 2.0 * kappa * (x.lam * bars[2] + x.signal * bars[4] + variance * bars[6])
        + gap * variance * bars[7]
        - b * by_gap
    )
    direct = q * bars[2] + m * bars[4] + b * b * bars[5] + bars[6] - b * bars[7]
    return direct - 0.5 * by_kappa / kappa


@compiled
def rate_vjp(
    p: Parameters, state: Floats, cotangent: Floats, shares: Floats, knobs: Floats, scale: float,
    by_state: Floats, by_shares: Floats, by_knobs: Floats,
) -> None:  # fmt: skip
    """Reverse of `rate`; see `Kernels`."""
    m, q, b = state[0], state[1], state[2]
    u, v, w = cotangent[0], cotangent[1], cotangent[2]
    lr, share, e = knobs[0], shares[0], b + q
    x = _averages(p, state, knobs[1])
    first = x.kappa * x.lam - e * x.seen
    second = x.lam - 2.0 * x.kappa * e * x.lam + e * e * x.seen
    spread = x.seen * x.rest + 2.0 * first * x.mixed + second * x.power
    drift = u * (2.0 * x.kappa * x.signal - (b + e) * x.seen_signal - m * x.seen)
    drift += 4.0 * v * first + w * x.mixed
    by_shares[0] += scale * lr * (drift + lr * v * spread)
    by_knobs[0] += scale * share * (drift + 2.0 * lr * v * spread)
    pace, wide = share * lr, share * lr * lr * v
    by_first = 4.0 * pace * v + 2.0 * wide * x.mixed
    by_second = wide * x.power
    bars = np.empty(8)
    bars[0] = 2.0 * pace * u * x.signal + by_first * x.lam - 2.0 * by_second * e * x.lam
    bars[1] = by_first * x.kappa + by_second * (1.0 - 2.0 * x.kappa * e)
    bars[2] = wide * x.rest - pace * u * m - by_first * e + by_second * e * e
    bars[3] = 2.0 * pace * u * x.kappa
    bars[4] = -pace * u * (b + e)
    bars[5] = wide * x.seen
    bars[6] = wide * second
    bars[7] = pace * w + 2.0 * wide * first
    by_e = -pace * u * x.seen_signal - by_first * x.seen
    by_e += by_second * 2.0 * (e * x.seen - x.kappa * x.lam)
    by_state[0] = -pace * u * x.seen
    by_state[1] = by_e
    by_state[2] = by_e - pace * u * x.seen_signal
    by_knobs[1] += scale * _pull_averages(p, state, knobs[1], x, bars, by_state)


@compiled
def losses(p: Parameters, state: Floats, out: Floats) -> None:
    """Write the error per dimension of the skip, and what the clusters change in all, to `out`."""
    q, b = state[1], state[2]
    x = _averages(p, state, p.test_noise)
    out[0] = x.rest
    out[1] = p.mean * (1.0 - b * x.kappa) ** 2 - 2.0 * x.kappa * x.lam + (2.0 * b + q) * x.seen


@compiled
def losses_vjp(p: Parameters, state: Floats, cotangent: Floats, out: Floats) -> None:
    """Reverse of `losses`; see `Kernels`."""
    q, b = state[1], state[2]
    x = _averages(p, state, p.test_noise)
    bars = np.zeros(8)
    bars[1] = -2.0 * x.kappa * cotangent[1]
    bars[2] = (2.0 * b + q) * cotangent[1]
    bars[5] = cotangent[0]
    out[0] = 0.0
    out[1] = x.seen * cotangent[1]
    out[2] = 2.0 * (x.seen - p.mean * x.kappa * (1.0 - b * x.kappa)) * cotangent[1]
    _pull_averages(p, state, p.test_noise, x, bars, out)
