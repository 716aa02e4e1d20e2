"""The reverse of the kernels: the exact gradients of rate and losses.

Notation as in _kernels.py. For a cotangent p of the rate, H = p · Σ_t s_t f_t(x) is one number, H =
Σ_t s_t (η_t B_t + η_t² A_t + ρ_t D_t), so pulling p back through the rate means differentiating H
with respect to the covariance C and the weights w. A bar over a name is the derivative of H by it;
C̄ and the like are defined so that dH = Σ_ab C̄_ab dC_ab over all a, b, with C symmetric.
"""

from __future__ import annotations

import math

from replan._common.check import Floats
from replan._common.compiled import compiled, index, inlined
from replan.dynamics.moments import TWO_OVER_PI, norm, pull_tilt, tilted
from replan.dynamics.teacher_student._kernels import _set_rates, _unpack
from replan.dynamics.teacher_student._work import Bars, PullWork, Work


@inlined
def _pull_heads(cotangent: Floats, shares: Floats, K: int, work: Work, bars: Bars) -> None:
    """V′: D_t −= Σ_kn p_tk w_tn I₂(k, n), p the cotangent of the rate."""
    cov, weights, norms = work.cov, work.weights, work.norms
    T, U = weights.shape
    heads = cotangent.size - T * K
    for k in range(K):
        for n in range(U):
            z = cov[k, n] * norms[k] * norms[n]
            moment = TWO_OVER_PI * math.asin(z)
            bar = 0.0
            for t in range(T):
                pace = work.trained[t] * cotangent[index(heads + t * K + k)]
                bars.heads[t] -= pace * weights[t, n] * moment
                pace = shares[t] * work.head_rates[t] * cotangent[index(heads + t * K + k)]
                bars.weights[t, n] -= pace * moment
                bar -= pace * weights[t, n]
            if bar == 0.0:
                continue
            bar *= TWO_OVER_PI / math.sqrt(1.0 - z * z)
            bars.cov[k, n] += bar * norms[k] * norms[n]
            bars.cov[k, k] -= 0.5 * bar * z * norms[k] * norms[k]
            bars.cov[n, n] -= 0.5 * bar * z * norms[n] * norms[n]


@inlined
def _pull_drift(shares: Floats, k: int, work: Work, bars: Bars) -> None:
    """First-order part of unit k: B_t −= (2/π) norm_k w_tk Σ_n w_tn norm_n Σ_h R_kh O_nh."""
    once, weights, rates = work.once, work.weights, work.rates
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
        pace = scale * shares[t] * rates[t]
        bars.weights[t, k] -= pace * inner
        total -= pace * weights[t, k] * inner
    bars.cov[k, k] -= 0.5 * total * work.norms[k] * work.norms[k]
    for n in range(U):
        bar = 0.0
        for t in range(T):
            pace = scale * shares[t] * rates[t] * weights[t, k]
            bars.weights[t, n] -= pace * work.norms_once[n] * bars.row[n]
            bar -= pace * weights[t, n]
        if bar == 0.0:
            continue
        bar *= work.norms_once[n]
        bars.once[n, n] -= 0.5 * bar * bars.row[n] * work.norms_once[n] * work.norms_once[n]
        for h in range(U):
            bars.once[n, h] += bar * bars.cotangent[k, h]


@inlined
def _pull_diffusion(p: float, shares: Floats, k: int, h: int, work: Work, bars: Bars) -> None:
    """Second-order part of Q_kh: A_t += p w_tk w_th κ (Σ_nm w_tn w_tm I₂(n, m) + σ²)."""
    once, weights, norms, rates = work.once, work.weights, work.norms_twice, work.rates
    T, U = weights.shape
    K = work.K
    inverse = 1.0 / (1.0 + once[h, h])
    kappa = TWO_OVER_PI * work.norms[k] * work.norms_once[h]
    for n in range(U):
        norms[n] = norm(tilted(once[n, n], once[n, h], once[n, h], inverse))
        for m in range(U):
            bars.twice[n, m] = 0.0
    for t in range(T):
        work.coefficients[t] = shares[t] * rates[t] * rates[t] * weights[t, k] * weights[t, h]
    for n in range(U):
        for m in range(n + 1):
            weight, used = 0.0, m < K  # a head of exactly 0 still has a derivative
            for t in range(T):
                product = weights[t, n] * weights[t, m]
                used = used or product != 0.0
                weight += work.coefficients[t] * product
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
        square = work.noise * work.noise
        pace = p * kappa * shares[t] * rates[t] * rates[t]
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
    pull_tilt(bars.twice, once, h, inverse, bars.once)


@compiled
def pull_rate(
    pull_work: PullWork,
    state: Floats,
    cotangent: Floats,
    shares: Floats,
    knobs: Floats,
    scale: float,
    by_state: Floats,
    by_shares: Floats,
    by_knobs: Floats,
) -> None:
    """Reverse of `rate`: write the gradient of H to `by_state` (n,).

    Add `scale` × its gradients by shares and by knobs to `by_shares` (T,) and `by_knobs` (3T,).
    """
    work, bars = pull_work
    K = work.K
    _unpack(state, K, work)
    _set_rates(knobs, work)
    cov, once = work.cov, work.once
    T, U = work.weights.shape
    P = U - K
    bars.cov[:] = 0.0
    bars.weights[:] = 0.0
    bars.linear[:] = 0.0
    bars.quadratic[:] = 0.0
    bars.heads[:] = 0.0
    for k in range(K):
        for h in range(K):
            bars.cotangent[k, h] = cotangent[index(k * K + h)] + cotangent[index(h * K + k)]
        for q in range(P):
            bars.cotangent[k, index(K + q)] = cotangent[index(K * K + k * P + q)]
    _pull_heads(cotangent, shares, K, work, bars)
    for k in range(K):
        inverse = work.norms[k] * work.norms[k]
        for a in range(U):
            for b in range(a + 1):
                once[a, b] = once[b, a] = tilted(cov[a, b], cov[a, k], cov[b, k], inverse)
            work.norms_once[a] = norm(once[a, a])
        bars.once[:] = 0.0
        _pull_drift(shares, k, work, bars)
        for h in range(k, K):
            both = bars.cotangent[k, h] if h > k else 0.5 * bars.cotangent[k, h]
            _pull_diffusion(both, shares, k, h, work, bars)
        pull_tilt(bars.once, cov, k, inverse, bars.cov)
    at = 0
    for k in range(K):
        for h in range(K):
            by_state[index(at)] = 0.5 * (bars.cov[k, h] + bars.cov[h, k])
            at += 1
    for k in range(K):
        for q in range(K, U):
            by_state[index(at)] = bars.cov[k, q] + bars.cov[q, k]
            at += 1
    for t in range(T):
        for k in range(K):
            by_state[index(at)] = bars.weights[t, k]
            at += 1
        rate = work.rates[t]
        by_shares[t] += scale * rate * (bars.linear[t] + rate * bars.quadratic[t])
        by_shares[t] += scale * work.pace * knobs[t] * knobs[index(2 * T + t)] * bars.heads[t]
        by_rate = scale * shares[t] * (bars.linear[t] + 2.0 * rate * bars.quadratic[t])
        by_head_rate = scale * shares[t] * bars.heads[t]
        by_knobs[t] += work.pace * (
            knobs[index(T + t)] * by_rate + knobs[index(2 * T + t)] * by_head_rate
        )
        by_knobs[index(T + t)] += work.pace * knobs[t] * by_rate
        by_knobs[index(2 * T + t)] += work.pace * knobs[t] * by_head_rate


@compiled
def pull_losses(pull_work: PullWork, state: Floats, cotangent: Floats, out: Floats) -> None:
    """Reverse of `losses`: write the gradient (n,) of Σ_t cotangent[t] ε_t to `out`."""
    work, bars = pull_work
    K = work.K
    _unpack(state, K, work)
    cov, weights, norms, variances = work.cov, work.weights, work.norms, bars.row
    T, U = weights.shape
    P = U - K
    out[:] = 0.0
    variances[:] = 0.0
    heads = K * (K + P)
    for n in range(U):
        for m in range(U):
            z = cov[n, m] * norms[n] * norms[m]
            moment = TWO_OVER_PI * math.asin(z)
            bar = 0.0
            for t in range(T):
                scaled = cotangent[t] * weights[t, n]
                if m < K:
                    out[index(heads + t * K + m)] += scaled * moment
                bar += 0.5 * scaled * weights[t, m]
            bar *= TWO_OVER_PI / math.sqrt(1.0 - z * z)
            variances[n] -= bar * z * norms[n] * norms[n]  # through both norms of each pair
            bar *= norms[n] * norms[m]
            if n < K and m < K:
                out[index(n * K + m)] += bar
            elif n < K:
                out[index(K * K + n * P + m - K)] += 2.0 * bar
    for k in range(K):
        out[index(k * K + k)] += variances[k]
