"""Compiled kernels of the teacher-student dynamics: the rate of change and its RK4 roll-out.

Notation: K hidden units, P teacher units, T tasks, U = K + P units in all. The state is one
vector [Q (K×K), M (K×P), V (T×K)]. Task t's error is Δ_t = Σ_n w_tn g(λ_n), w_t = (V_t, −A_t).
With learning rate η, head factor ρ and label noise σ (paper, appendix A; I₃'s index order
corrected):

    Q′_kh = −η V_tk E[Δ g′_k λ_h] − η V_th E[Δ g′_h λ_k] + η² V_tk V_th E[(Δ² + σ²) g′_k g′_h]
    M′_kp = −η V_tk E[Δ g′_k λ*_p]
    V′_tk = −η ρ_t E[Δ g_k]

Tasks mix linearly with their shares, so weights are mixed first and every special function is
evaluated once for all tasks.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from replan._common.check import Floats, Ints
from replan.dynamics.moments import TWO_OVER_PI, i2, norm, tilted

_compiled = njit(cache=True, nogil=True, error_model="numpy")
# The parts of `rate` are pasted into it: as calls they would cost as much as they compute.
_inlined = njit(inline="always", error_model="numpy")


class Work(NamedTuple):
    """Scratch arrays of `rate`, made once per roll-out; teacher entries are filled in once."""

    cov: Floats  # (U, U) joint covariance C
    once: Floats  # (U, U) C tilted by one unit
    weights: Floats  # (T, U) w
    norms: Floats  # (U,) of C
    norms_once: Floats  # (U,) of C tilted once
    norms_twice: Floats  # (U,) of C tilted twice
    push: Floats  # (U,)
    coefficients: Floats  # (T,)
    units: Ints  # (U,) the units that matter to the tasks trained now
    active: Ints  # (T,) the tasks trained now


@_compiled
def make_work(teacher_overlaps: Floats, teacher_heads: Floats, K: int) -> Work:
    """Allocate the scratch arrays and fill in what the teachers fix."""
    T, P = teacher_heads.shape
    U = K + P
    cov = np.zeros((U, U))
    cov[K:, K:] = teacher_overlaps
    weights = np.zeros((T, U))
    weights[:, K:] = -teacher_heads
    return Work(
        cov,
        np.zeros((U, U)),
        weights,
        np.zeros(U),
        np.zeros(U),
        np.zeros(U),
        np.zeros(U),
        np.zeros(T),
        np.zeros(U, np.int64),
        np.zeros(T, np.int64),
    )


@_inlined
def _unpack(state: Floats, K: int, work: Work) -> None:
    """Fill the covariance and the weights from the state."""
    cov, weights = work.cov, work.weights
    T, U = weights.shape
    P = U - K
    at = 0
    for k in range(K):
        for h in range(K):
            cov[k, h] = state[at]
            at += 1
    for k in range(K):
        for p in range(K, U):
            cov[k, p] = state[at]
            cov[p, k] = state[at]
            at += 1
    for t in range(T):
        for k in range(K):
            weights[t, k] = state[at]
            at += 1
    for a in range(K + P):
        work.norms[a] = norm(cov[a, a])


@_inlined
def _select(shares: Floats, K: int, work: Work) -> tuple[int, int]:
    """List the tasks with a share and the units that enter their errors; return both counts."""
    T, U = work.weights.shape
    tasks = 0
    for t in range(T):
        if shares[t] != 0.0:
            work.active[tasks] = t
            tasks += 1
    units = K
    for k in range(K):
        work.units[k] = k
    for p in range(K, U):
        for i in range(tasks):
            if work.weights[work.active[i], p] != 0.0:
                work.units[units] = p
                units += 1
                break
    return tasks, units


@_inlined
def _add_head_rate(
    shares: Floats,
    lr: Floats,
    head_lr: Floats,
    K: int,
    tasks: int,
    units: int,
    work: Work,
    out: Floats,
) -> None:
    """Add V′ to `out`, the heads' part of the rate."""
    cov, weights, norms = work.cov, work.weights, work.norms
    heads = out.size - weights.shape[0] * K
    for k in range(K):
        for j in range(k, units):
            n = work.units[j]
            moment = i2(cov[k, n], norms[k], norms[n])
            for i in range(tasks):
                t = work.active[i]
                pace = shares[t] * lr[t] * head_lr[t] * moment
                out[heads + t * K + k] -= pace * weights[t, n]
                if k < n < K:
                    out[heads + t * K + n] -= pace * weights[t, k]


@_inlined
def _add_drift(
    shares: Floats, lr: Floats, k: int, K: int, tasks: int, units: int, work: Work, out: Floats
) -> None:
    """Add what hidden unit k's first-order step does to Q and M; needs C tilted by k."""
    once, weights = work.once, work.weights
    U = once.shape[0]
    P = U - K
    scale = TWO_OVER_PI * work.norms[k]
    for j in range(units):
        n = work.units[j]
        push = 0.0
        for i in range(tasks):
            t = work.active[i]
            push += shares[t] * lr[t] * weights[t, k] * weights[t, n]
        work.push[j] = scale * push * work.norms_once[n]
    for h in range(U):
        drift = 0.0
        for j in range(units):
            drift += work.push[j] * once[work.units[j], h]
        if h < K:
            out[k * K + h] -= drift
            out[h * K + k] -= drift
        else:
            out[K * K + k * P + h - K] -= drift


@_inlined
def _add_diffusion(
    shares: Floats,
    lr: Floats,
    noise: float,
    k: int,
    h: int,
    K: int,
    tasks: int,
    units: int,
    work: Work,
    out: Floats,
) -> None:
    """Add the second-order term of Q_kh; needs C tilted by k."""
    once, weights, norms = work.once, work.weights, work.norms_twice
    inverse = 1.0 / (1.0 + once[h, h])
    total = 0.0
    for i in range(tasks):
        t = work.active[i]
        work.coefficients[i] = shares[t] * lr[t] * lr[t] * weights[t, k] * weights[t, h]
        total += work.coefficients[i] * noise * noise
    for j in range(units):
        n = work.units[j]
        norms[n] = norm(tilted(once[n, n], once[n, h], once[n, h], inverse))
    for j in range(units):
        n = work.units[j]
        for j2 in range(j + 1):
            m = work.units[j2]
            weight = 0.0
            for i in range(tasks):
                t = work.active[i]
                weight += work.coefficients[i] * weights[t, n] * weights[t, m]
            if weight == 0.0:  # two teacher units that no task adds up
                continue
            if j2 < j:
                weight *= 2.0
            overlap = tilted(once[n, m], once[n, h], once[m, h], inverse)
            total += weight * i2(overlap, norms[n], norms[m])
    total *= TWO_OVER_PI * work.norms[k] * work.norms_once[h]
    out[k * K + h] += total
    if h != k:
        out[h * K + k] += total


@_compiled
def rate(
    state: Floats,
    shares: Floats,
    lr: Floats,
    noise: float,
    head_lr: Floats,
    K: int,
    work: Work,
    out: Floats,
) -> None:
    """Write Σ_t shares[t] f_t(state, lr[t]) to `out`; shares, lr and head_lr have shape (T,)."""
    _unpack(state, K, work)
    tasks, units = _select(shares, K, work)
    out[:] = 0.0
    _add_head_rate(shares, lr, head_lr, K, tasks, units, work, out)
    cov, once = work.cov, work.once
    U = cov.shape[0]
    for k in range(K):
        inverse = work.norms[k] * work.norms[k]
        for a in range(U):
            for b in range(a + 1):
                once[a, b] = once[b, a] = tilted(cov[a, b], cov[a, k], cov[b, k], inverse)
            work.norms_once[a] = norm(once[a, a])
        _add_drift(shares, lr, k, K, tasks, units, work, out)
        for h in range(k, K):
            _add_diffusion(shares, lr, noise, k, h, K, tasks, units, work, out)


@_compiled
def roll_out(
    start: Floats,
    shares: Floats,
    lr: Floats,
    lengths: Floats,
    substeps: Ints,
    teacher_overlaps: Floats,
    teacher_heads: Floats,
    noise: float,
    head_lr: Floats,
    K: int,
) -> tuple[Floats, int]:
    """Classical RK4 with `substeps[i]` equal steps on piece i.

    `shares` and `lr` are (pieces, T), `lengths` and `substeps` (pieces,). Returns the states
    (pieces + 1, n) at the ends of the pieces and how many pieces ended in finite numbers.
    """
    pieces, n = lengths.size, start.size
    work = make_work(teacher_overlaps, teacher_heads, K)
    states = np.empty((pieces + 1, n))
    states[0] = start
    x, stage, slope, total = np.empty(n), np.empty(n), np.empty(n), np.empty(n)
    x[:] = start
    for piece in range(pieces):
        step = lengths[piece] / substeps[piece]
        share, pace = shares[piece], lr[piece]
        for _ in range(substeps[piece]):
            rate(x, share, pace, noise, head_lr, K, work, slope)
            for i in range(n):
                total[i] = slope[i]
                stage[i] = x[i] + 0.5 * step * slope[i]
            rate(stage, share, pace, noise, head_lr, K, work, slope)
            for i in range(n):
                total[i] += 2.0 * slope[i]
                stage[i] = x[i] + 0.5 * step * slope[i]
            rate(stage, share, pace, noise, head_lr, K, work, slope)
            for i in range(n):
                total[i] += 2.0 * slope[i]
                stage[i] = x[i] + step * slope[i]
            rate(stage, share, pace, noise, head_lr, K, work, slope)
            size = 0.0
            for i in range(n):
                x[i] += step / 6.0 * (total[i] + slope[i])
                size += abs(x[i])
            if not np.isfinite(size):
                return states, piece
        states[piece + 1] = x
    return states, pieces


@_compiled
def losses(states: Floats, teacher_overlaps: Floats, teacher_heads: Floats, K: int) -> Floats:
    """Return ε_t = ½ E[Δ_t²] = ½ Σ_nm w_tn w_tm I₂(n, m), (m, T), of states (m, n)."""
    work = make_work(teacher_overlaps, teacher_heads, K)
    cov, weights, norms = work.cov, work.weights, work.norms
    T, U = weights.shape
    out = np.zeros((states.shape[0], T))
    for row in range(states.shape[0]):
        _unpack(states[row], K, work)
        for n in range(U):
            for m in range(n + 1):
                moment = i2(cov[n, m], norms[n], norms[m])
                if n == m:
                    moment *= 0.5
                for t in range(T):
                    out[row, t] += weights[t, n] * weights[t, m] * moment
    return out
