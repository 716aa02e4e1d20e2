"""Compiled kernels of linear networks, g(z) = z, and their reverse.

Notation and equations as in `erf`. All moments are entries of the covariance C:

    E[Δ g′_k λ_h] = (C w)_h,   E[Δ² g′_k g′_h] = E[Δ²] = wᵀ C w.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from replan.check import Floats
from replan.core.compiled import compiled, inlined
from replan.core.teacher_student.layout import (
    add_by_controls,
    set_rates,
    unpack,
    with_teachers,
    write_by_state,
)
from replan.core.teacher_student.work import Parameters


class LinearParameters(Parameters):
    """`Parameters` of a type that stands for linear units."""


class LinearWork(NamedTuple):
    """Scratch arrays, made once per roll-out, with all that the kernels know about the model."""

    K: int
    noise: float
    pace: float
    trained: Floats  # (T,)
    rates: Floats  # (T,) η of the features, on each task
    head_rates: Floats  # (T,) of the heads
    cov: Floats  # (U, U) joint covariance C
    weights: Floats  # (T, U) w
    errors: Floats  # (T, U) C w_t: E[Δ_t λ_h]
    squares: Floats  # (T,) E[Δ_t²]


class LinearBars(NamedTuple):
    """Scratch arrays of the reverse."""

    cov: Floats  # (U, U) derivatives by C
    weights: Floats  # (T, U) by w
    errors: Floats  # (T, U) by C w_t
    squares: Floats  # (T,) by E[Δ_t²]
    linear: Floats  # (T,) B
    quadratic: Floats  # (T,) A
    heads: Floats  # (T,) D


class LinearPullWork(NamedTuple):
    """Scratch arrays of the reverse, and those of what it reverses."""

    forward: LinearWork
    bars: LinearBars


@compiled
def make_work(p: LinearParameters) -> LinearWork:
    """Allocate the scratch arrays and fill in what the teachers determine."""
    cov, weights = with_teachers(p)
    T, U = weights.shape
    return LinearWork(
        p.K, p.noise, p.pace, p.trained, np.zeros(T), np.zeros(T), cov, weights,
        np.zeros((T, U)), np.zeros(T),
    )  # fmt: skip


@compiled
def make_vjp_work(p: LinearParameters) -> LinearPullWork:
    """Allocate the scratch arrays of the reverse."""
    T, U = p.A.shape[0], p.K + p.A.shape[1]
    bars = LinearBars(
        np.zeros((U, U)), np.zeros((T, U)), np.zeros((T, U)), np.zeros(T), np.zeros(T),
        np.zeros(T), np.zeros(T),
    )  # fmt: skip
    return LinearPullWork(make_work(p), bars)


@inlined
def _set_state(state: Floats, work: LinearWork) -> None:
    """Fill in covariance and weights from the state, and the averages of all errors."""
    unpack(state, work)
    T, U = work.weights.shape
    for t in range(T):
        work.squares[t] = 0.0
        for h in range(U):
            total = 0.0
            for n in range(U):
                total += work.cov[h, n] * work.weights[t, n]
            work.errors[t, h] = total
            work.squares[t] += total * work.weights[t, h]


@compiled
def rate(work: LinearWork, state: Floats, shares: Floats, knobs: Floats, out: Floats) -> None:
    """Write Σ_t shares[t] f_t(state, knobs of task t) to `out` (n,), as `rate` of erf does."""
    _set_state(state, work)
    set_rates(knobs, work)
    weights, errors, K = work.weights, work.errors, work.K
    T, U = weights.shape
    P = U - K
    out[:] = 0.0
    for t in range(T):
        pace = shares[t] * work.rates[t]
        square = pace * work.rates[t] * (work.squares[t] + work.noise * work.noise)
        for k in range(K):
            for h in range(K):
                first = weights[t, k] * errors[t, h] + weights[t, h] * errors[t, k]
                out[k * K + h] += square * weights[t, k] * weights[t, h] - pace * first
            for p in range(P):
                out[K * K + k * P + p] -= pace * weights[t, k] * errors[t, K + p]
            out[K * U + t * K + k] = -shares[t] * work.head_rates[t] * errors[t, k]


@compiled
def losses(work: LinearWork, state: Floats, out: Floats) -> None:
    """Write ε_t = ½ E[Δ_t²] to `out` (T,)."""
    _set_state(state, work)
    for t in range(work.squares.size):
        out[t] = 0.5 * work.squares[t]


@inlined
def _pull_state(work: LinearWork, bars: LinearBars, out: Floats) -> None:
    """Pull derivatives by errors and squares back to C and w, and write those by the state."""
    weights, errors = work.weights, work.errors
    T, U = weights.shape
    for t in range(T):
        for h in range(U):
            bars.weights[t, h] += 2.0 * bars.squares[t] * errors[t, h]
            for n in range(U):
                bars.cov[h, n] += bars.errors[t, h] * weights[t, n]
                bars.cov[h, n] += bars.squares[t] * weights[t, h] * weights[t, n]
                bars.weights[t, n] += bars.errors[t, h] * work.cov[h, n]
    write_by_state(work, bars, out)


@compiled
def rate_vjp(
    pull_work: LinearPullWork,
    state: Floats,
    cotangent: Floats,
    shares: Floats,
    knobs: Floats,
    scale: float,
    by_state: Floats,
    by_shares: Floats,
    by_knobs: Floats,
) -> None:
    """Reverse of `rate`: write the gradient of H = cotangent · rate to `by_state` (n,).

    Add `scale` × its gradients by shares and by knobs to `by_shares` (T,) and `by_knobs` (3T,).
    """
    work, bars = pull_work
    _set_state(state, work)
    set_rates(knobs, work)
    weights, errors, K = work.weights, work.errors, work.K
    T, U = weights.shape
    P, noise = U - K, work.noise * work.noise
    for part in (bars.cov, bars.weights, bars.errors):
        part[:] = 0.0
    for t in range(T):
        pace = shares[t] * work.rates[t]
        first, both, heads = 0.0, 0.0, 0.0  # H = s (−η first + η² (E[Δ²] + σ²) both − ρ heads)
        square = pace * work.rates[t] * (work.squares[t] + noise)
        for k in range(K):
            for h in range(K):
                p = cotangent[k * K + h]
                first += p * (weights[t, k] * errors[t, h] + weights[t, h] * errors[t, k])
                both += p * weights[t, k] * weights[t, h]
                p += cotangent[h * K + k]
                bars.errors[t, h] -= pace * p * weights[t, k]
                bars.weights[t, k] += p * (square * weights[t, h] - pace * errors[t, h])
            for q in range(P):
                p = cotangent[K * K + k * P + q]
                first += p * weights[t, k] * errors[t, K + q]
                bars.errors[t, K + q] -= pace * p * weights[t, k]
                bars.weights[t, k] -= pace * p * errors[t, K + q]
            p = cotangent[K * U + t * K + k]
            heads += p * work.trained[t] * errors[t, k]
            bars.errors[t, k] -= shares[t] * work.head_rates[t] * p
        bars.squares[t] = pace * work.rates[t] * both
        bars.linear[t] = -first
        bars.quadratic[t] = (work.squares[t] + noise) * both
        bars.heads[t] = -heads
    _pull_state(work, bars, by_state)
    add_by_controls(shares, knobs, scale, work, bars, by_shares, by_knobs)


@compiled
def losses_vjp(pull_work: LinearPullWork, state: Floats, cotangent: Floats, out: Floats) -> None:
    """Reverse of `losses`: write the gradient (n,) of Σ_t cotangent[t] ε_t to `out`."""
    work, bars = pull_work
    _set_state(state, work)
    for part in (bars.cov, bars.weights, bars.errors):
        part[:] = 0.0
    for t in range(cotangent.size):
        bars.squares[t] = 0.5 * cotangent[t]
    _pull_state(work, bars, out)
