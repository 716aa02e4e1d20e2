"""The reverse of kernels.py: exact gradients of a roll-out, discretise first, then differentiate.

Notation as in kernels.py. For a cotangent p of the rate, H = p · Σ_t s_t f_t(x, η_t) is one number,
H = Σ_t s_t (η_t B_t + η_t² A_t), so pulling p back through the rate means differentiating H with
respect to the covariance C and the weights w. A bar over a name is the derivative of H by it; C̄ and
its kin are kept so that dH = Σ_ab C̄_ab dC_ab over all a, b, with C symmetric.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numba import njit

from replan._common.check import Floats, Ints
from replan.dynamics.moments import TWO_OVER_PI, norm, tilted
from replan.dynamics.teacher_student._kernels import Work, _unpack, make_work, rate

_compiled = njit(cache=True, nogil=True, error_model="numpy")
_inlined = njit(inline="always", error_model="numpy")


class Bars(NamedTuple):
    """Scratch arrays of `pull_rate`, made once per roll-out."""

    cov: Floats  # (U, U) C̄
    once: Floats  # (U, U) of C tilted once
    twice: Floats  # (U, U) of C tilted twice
    weights: Floats  # (T, U) w̄
    moment: Floats  # (U, U) I₂ of C tilted twice
    cotangent: Floats  # (U, U) rows k < K: what multiplies E[Δ g′_k λ_h] in H
    row: Floats  # (U,)
    linear: Floats  # (T,) B
    quadratic: Floats  # (T,) A


@_compiled
def make_bars(T: int, U: int) -> Bars:
    """Allocate the scratch arrays."""
    return Bars(
        np.zeros((U, U)),
        np.zeros((U, U)),
        np.zeros((U, U)),
        np.zeros((T, U)),
        np.zeros((U, U)),
        np.zeros((U, U)),
        np.zeros(U),
        np.zeros(T),
        np.zeros(T),
    )


@_inlined
def _pull_heads(
    p: Floats, shares: Floats, lr: Floats, head_lr: Floats, K: int, work: Work, bars: Bars
) -> None:
    """V′: B_t −= ρ_t Σ_kn p_tk w_tn I₂(k, n)."""
    cov, weights, norms = work.cov, work.weights, work.norms
    T, U = weights.shape
    heads = p.size - T * K
    for k in range(K):
        for n in range(U):
            z = cov[k, n] * norms[k] * norms[n]
            moment = TWO_OVER_PI * math.asin(z)
            bar = 0.0
            for t in range(T):
                pace = head_lr[t] * p[heads + t * K + k]
                bars.linear[t] -= pace * weights[t, n] * moment
                pace *= shares[t] * lr[t]
                bars.weights[t, n] -= pace * moment
                bar -= pace * weights[t, n]
            if bar == 0.0:
                continue
            bar *= TWO_OVER_PI / math.sqrt(1.0 - z * z)
            bars.cov[k, n] += bar * norms[k] * norms[n]
            bars.cov[k, k] -= 0.5 * bar * z * norms[k] * norms[k]
            bars.cov[n, n] -= 0.5 * bar * z * norms[n] * norms[n]


@_inlined
def _pull_drift(shares: Floats, lr: Floats, k: int, work: Work, bars: Bars) -> None:
    """First-order part of unit k: B_t −= (2/π) norm_k w_tk Σ_n w_tn norm_n Σ_h R_kh O_nh."""
    once, weights = work.once, work.weights
    T, U = weights.shape
    scale = TWO_OVER_PI * work.norms[k]
    for n in range(U):
        y = 0.0
        for h in range(U):
            y += bars.cotangent[k, h] * once[n, h]
        bars.row[n] = y
    total = 0.0
    for t in range(T):
        inner = 0.0
        for n in range(U):
            inner += weights[t, n] * work.norms_once[n] * bars.row[n]
        bars.linear[t] -= scale * weights[t, k] * inner
        pace = scale * shares[t] * lr[t]
        bars.weights[t, k] -= pace * inner
        total -= pace * weights[t, k] * inner
    bars.cov[k, k] -= 0.5 * total * work.norms[k] * work.norms[k]
    for n in range(U):
        bar = 0.0
        for t in range(T):
            pace = scale * shares[t] * lr[t] * weights[t, k]
            bars.weights[t, n] -= pace * work.norms_once[n] * bars.row[n]
            bar -= pace * weights[t, n]
        if bar == 0.0:
            continue
        bar *= work.norms_once[n]
        bars.once[n, n] -= 0.5 * bar * bars.row[n] * work.norms_once[n] * work.norms_once[n]
        for h in range(U):
            bars.once[n, h] += bar * bars.cotangent[k, h]


@_inlined
def _pull_diffusion(
    p: float, shares: Floats, lr: Floats, noise: float, k: int, h: int, work: Work, bars: Bars
) -> None:
    """Second-order part of Q_kh: A_t += p w_tk w_th κ (Σ_nm w_tn w_tm I₂(n, m) + σ²)."""
    once, weights, norms = work.once, work.weights, work.norms_twice
    T, U = weights.shape
    inverse = 1.0 / (1.0 + once[h, h])
    kappa = TWO_OVER_PI * work.norms[k] * work.norms_once[h]
    for n in range(U):
        norms[n] = norm(tilted(once[n, n], once[n, h], once[n, h], inverse))
        for m in range(U):
            bars.twice[n, m] = 0.0
    for n in range(U):
        for m in range(n + 1):
            weight, used = 0.0, False
            for t in range(T):
                product = weights[t, n] * weights[t, m]
                used = used or product != 0.0
                weight += shares[t] * lr[t] * lr[t] * weights[t, k] * weights[t, h] * product
            bars.moment[n, m] = bars.moment[m, n] = 0.0
            if not used:
                continue
            overlap = tilted(once[n, m], once[n, h], once[m, h], inverse)
            z = overlap * norms[n] * norms[m]
            bars.moment[n, m] = bars.moment[m, n] = TWO_OVER_PI * math.asin(z)
            if weight == 0.0:
                continue
            if m < n:
                weight *= 2.0
            bar = p * kappa * weight * TWO_OVER_PI / math.sqrt(1.0 - z * z)
            bars.twice[n, m] += bar * norms[n] * norms[m]
            bars.twice[n, n] -= 0.5 * bar * z * norms[n] * norms[n]
            bars.twice[m, m] -= 0.5 * bar * z * norms[m] * norms[m]
    total = 0.0
    for t in range(T):
        square = noise * noise
        pace = p * kappa * shares[t] * lr[t] * lr[t]
        both = weights[t, k] * weights[t, h]
        for n in range(U):
            row = 0.0
            for m in range(U):
                row += bars.moment[n, m] * weights[t, m]
            square += weights[t, n] * row
            bars.weights[t, n] += 2.0 * pace * both * row
        bars.quadratic[t] += p * kappa * both * square
        bars.weights[t, k] += pace * weights[t, h] * square
        bars.weights[t, h] += pace * weights[t, k] * square
        total += pace * both * square
    bars.cov[k, k] -= 0.5 * total * work.norms[k] * work.norms[k]
    bars.once[h, h] -= 0.5 * total * inverse
    _pull_tilt(bars.twice, once, h, inverse, U, bars.once)


@_inlined
def _pull_tilt(bar: Floats, cov: Floats, k: int, inverse: float, U: int, out: Floats) -> None:
    """Add to `out` the derivative by C of what depends on C^k through `bar`."""
    total = 0.0
    for n in range(U):
        row = 0.0
        for m in range(U):
            out[n, m] += bar[n, m]
            row += (bar[n, m] + bar[m, n]) * cov[m, k]
        out[n, k] -= inverse * row
        total += 0.5 * row * cov[n, k]
    out[k, k] += inverse * inverse * total


@_compiled
def pull_rate(
    state: Floats,
    p: Floats,
    shares: Floats,
    lr: Floats,
    noise: float,
    head_lr: Floats,
    K: int,
    work: Work,
    bars: Bars,
    state_bar: Floats,
    share_bar: Floats,
    lr_bar: Floats,
    scale: float,
) -> None:
    """Write ∂(p·f)/∂state to `state_bar`; add `scale` × those by shares and lr to theirs."""
    _unpack(state, K, work)
    cov, once = work.cov, work.once
    T, U = work.weights.shape
    P = U - K
    bars.cov[:] = 0.0
    bars.weights[:] = 0.0
    bars.linear[:] = 0.0
    bars.quadratic[:] = 0.0
    for k in range(K):
        for h in range(K):
            bars.cotangent[k, h] = p[k * K + h] + p[h * K + k]
        for q in range(P):
            bars.cotangent[k, K + q] = p[K * K + k * P + q]
    _pull_heads(p, shares, lr, head_lr, K, work, bars)
    for k in range(K):
        inverse = work.norms[k] * work.norms[k]
        for a in range(U):
            for b in range(a + 1):
                once[a, b] = once[b, a] = tilted(cov[a, b], cov[a, k], cov[b, k], inverse)
            work.norms_once[a] = norm(once[a, a])
        bars.once[:] = 0.0
        _pull_drift(shares, lr, k, work, bars)
        for h in range(k, K):
            both = bars.cotangent[k, h] if h > k else 0.5 * bars.cotangent[k, h]
            _pull_diffusion(both, shares, lr, noise, k, h, work, bars)
        _pull_tilt(bars.once, cov, k, inverse, U, bars.cov)
    at = 0
    for k in range(K):
        for h in range(K):
            state_bar[at] = 0.5 * (bars.cov[k, h] + bars.cov[h, k])
            at += 1
    for k in range(K):
        for q in range(K, U):
            state_bar[at] = bars.cov[k, q] + bars.cov[q, k]
            at += 1
    for t in range(T):
        for k in range(K):
            state_bar[at] = bars.weights[t, k]
            at += 1
        linear, quadratic = bars.linear[t], bars.quadratic[t]
        share_bar[t] += scale * lr[t] * (linear + lr[t] * quadratic)
        lr_bar[t] += scale * shares[t] * (linear + 2.0 * lr[t] * quadratic)


@_compiled
def pull_back(
    states: Floats,
    cotangents: Floats,
    shares: Floats,
    lr: Floats,
    lengths: Floats,
    substeps: Ints,
    teacher_overlaps: Floats,
    teacher_heads: Floats,
    noise: float,
    head_lr: Floats,
    K: int,
) -> tuple[Floats, Floats, Floats]:
    """Reverse of `kernels.roll_out`: exact gradients of Σ_i cotangents[i] · states[i].

    states, cotangents: (pieces + 1, n). Returns the adjoints (pieces + 1, n), the gradients by the
    state at each edge, and the gradients by shares and lr (pieces, T).
    """
    pieces, n = lengths.size, states.shape[1]
    T = shares.shape[1]
    work = make_work(teacher_overlaps, teacher_heads, K)
    bars = make_bars(T, work.cov.shape[0])
    adjoints = np.empty_like(states)
    share_bars, lr_bars = np.zeros((pieces, T)), np.zeros((pieces, T))
    most = 1
    for piece in range(pieces):
        most = max(most, substeps[piece])
    stages = np.empty((most, 4, n))
    x, slope, total = np.empty(n), np.empty(n), np.empty(n)
    back, pulled, p = np.empty(n), np.empty(n), np.empty(n)
    adjoints[pieces] = cotangents[pieces]
    for piece in range(pieces - 1, -1, -1):
        step = lengths[piece] / substeps[piece]
        share, pace = shares[piece], lr[piece]
        x[:] = states[piece]
        for sub in range(substeps[piece]):  # the stages again, forwards
            stage = stages[sub]
            stage[0] = x
            rate(stage[0], share, pace, noise, head_lr, K, work, slope)
            for i in range(n):
                total[i] = slope[i]
                stage[1, i] = x[i] + 0.5 * step * slope[i]
            rate(stage[1], share, pace, noise, head_lr, K, work, slope)
            for i in range(n):
                total[i] += 2.0 * slope[i]
                stage[2, i] = x[i] + 0.5 * step * slope[i]
            rate(stage[2], share, pace, noise, head_lr, K, work, slope)
            for i in range(n):
                total[i] += 2.0 * slope[i]
                stage[3, i] = x[i] + step * slope[i]
            if sub + 1 < substeps[piece]:
                rate(stage[3], share, pace, noise, head_lr, K, work, slope)
                for i in range(n):
                    x[i] += step / 6.0 * (total[i] + slope[i])
        back[:] = adjoints[piece + 1]
        for sub in range(substeps[piece] - 1, -1, -1):
            # x⁺ = x + h/6 (k₁ + 2k₂ + 2k₃ + k₄); p is the cotangent of each kᵢ in turn over h.
            for i in range(n):
                p[i] = back[i] / 6.0
                total[i] = 0.0
            for j in range(3, -1, -1):
                pull_rate(
                    stages[sub, j], p, share, pace, noise, head_lr, K, work, bars,
                    pulled, share_bars[piece], lr_bars[piece], step,
                )  # fmt: skip
                for i in range(n):
                    pulled[i] *= step
                    total[i] += pulled[i]
                    if j == 3:
                        p[i] = back[i] / 3.0 + pulled[i]
                    elif j == 2:
                        p[i] = back[i] / 3.0 + 0.5 * pulled[i]
                    elif j == 1:
                        p[i] = back[i] / 6.0 + 0.5 * pulled[i]
            for i in range(n):
                back[i] += total[i]
        for i in range(n):
            adjoints[piece, i] = back[i] + cotangents[piece, i]
    return adjoints, share_bars, lr_bars


@_compiled
def pull_losses(
    states: Floats, cotangents: Floats, teacher_overlaps: Floats, teacher_heads: Floats, K: int
) -> Floats:
    """Reverse of `kernels.losses`: gradients (m, n) by states (m, n); cotangents are (m, T)."""
    work = make_work(teacher_overlaps, teacher_heads, K)
    cov, weights, norms = work.cov, work.weights, work.norms
    T, U = weights.shape
    P = U - K
    out = np.zeros_like(states)
    variances = np.zeros(U)
    for row in range(states.shape[0]):
        _unpack(states[row], K, work)
        variances[:] = 0.0
        heads = K * (K + P)
        for n in range(U):
            for m in range(U):
                z = cov[n, m] * norms[n] * norms[m]
                moment = TWO_OVER_PI * math.asin(z)
                bar = 0.0
                for t in range(T):
                    scaled = cotangents[row, t] * weights[t, n]
                    if m < K:
                        out[row, heads + t * K + m] += scaled * moment
                    bar += 0.5 * scaled * weights[t, m]
                bar *= TWO_OVER_PI / math.sqrt(1.0 - z * z)
                variances[n] -= bar * z * norms[n] * norms[n]  # through both norms of each pair
                bar *= norms[n] * norms[m]
                if n < K and m < K:
                    out[row, n * K + m] += bar
                elif n < K:
                    out[row, K * K + n * P + m - K] += 2.0 * bar
        for k in range(K):
            out[row, k * K + k] += variances[k]
    return out
