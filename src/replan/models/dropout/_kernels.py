"""Compiled kernels of the dropout model, and their reverse.

Notation: K hidden units, P teacher units, U = K + P, weights w = (v, −A) of all units; the state is
[Q (K×K), M (K×P)]. In training, each hidden unit is kept with probability p, so that a term of the
teacher-student equations with j distinct hidden units in it (those whose activation or gradient it
has) is multiplied by p^j (Mignacco & Mori 2025). With learning rate η and label noise σ:

    Q′_kh = −η v_k Σ_n w_n p^|k,n| E[g_n g′_k λ_h] − (k ↔ h)
            + η² v_k v_h (Σ_nm w_n w_m p^|k,h,n,m| E[g_n g_m g′_k g′_h] + σ² p^|k,h| E[g′_k g′_h])
    M′_kp = −η v_k Σ_n w_n p^|k,n| E[g_n g′_k λ*_p]

where |…| counts distinct hidden units; teacher units do not count.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from replan.check import Floats
from replan.core.compiled import compiled, inlined, inner
from replan.core.moments import TWO_OVER_PI, i2, norm, pull_tilt, tilted


class Parameters(NamedTuple):
    """What the kernels know about a model."""

    S: Floats  # (P, P) teacher overlaps
    weights: Floats  # (U,) w
    noise: float  # σ
    rescale: float  # the factor at test time, where it does not follow the state
    K: int


class Work(NamedTuple):
    """Scratch arrays, made once per roll-out."""

    weights: Floats  # (U,)
    noise: float
    rescale: float
    K: int
    cov: Floats  # (U, U) joint covariance
    once: Floats  # (U, U) tilted once
    norms: Floats  # (U,)
    norms_once: Floats  # (U,)
    norms_twice: Floats  # (U,)
    push: Floats  # (U,)
    powers: Floats  # (5,) of p
    slopes: Floats  # (5,) their derivatives


class VjpWork(NamedTuple):
    """Scratch arrays of the reverse: derivatives by the fields of the same name in `Work`."""

    forward: Work
    cov: Floats  # (U, U)
    once: Floats  # (U, U)
    twice: Floats  # (U, U)
    cotangent: Floats  # (K, U) what multiplies E[Δ g′_k λ_h]


@compiled
def make_work(p: Parameters) -> Work:
    """Allocate the scratch arrays and fill in what the teachers determine."""
    U = p.weights.size
    cov = np.zeros((U, U))
    for n in range(p.K, U):
        for m in range(p.K, U):
            cov[n, m] = p.S[n - p.K, m - p.K]
    return Work(
        p.weights, p.noise, p.rescale, p.K, cov, np.zeros((U, U)), np.zeros(U), np.zeros(U),
        np.zeros(U), np.zeros(U), np.zeros(5), np.zeros(5),
    )  # fmt: skip


@compiled
def make_vjp_work(p: Parameters) -> VjpWork:
    """Allocate the scratch arrays of the reverse."""
    U = p.weights.size
    return VjpWork(
        make_work(p), np.zeros((U, U)), np.zeros((U, U)), np.zeros((U, U)), np.zeros((p.K, U))
    )


@inlined
def _unpack(state: Floats, work: Work) -> None:
    """Fill in the covariance from the state."""
    K, cov = work.K, work.cov
    U = cov.shape[0]
    at = 0
    for k in range(K):
        for h in range(K):
            cov[k, h] = state[at]
            at += 1
    for k in range(K):
        for n in range(K, U):
            cov[k, n] = cov[n, k] = state[at]
            at += 1
    for n in range(U):
        work.norms[n] = norm(cov[n, n])


@inlined
def _set_powers(keep: float, work: Work) -> None:
    work.powers[0], work.slopes[0] = 1.0, 0.0
    for j in range(1, 5):
        work.powers[j] = keep * work.powers[j - 1]
        work.slopes[j] = j * work.powers[j - 1]


@inlined
def _tilt_by(k: int, work: Work) -> None:
    cov, once = work.cov, work.once
    inverse = work.norms[k] * work.norms[k]
    for a in range(cov.shape[0]):
        for b in range(a + 1):
            once[a, b] = once[b, a] = tilted(cov[a, b], cov[a, k], cov[b, k], inverse)
        work.norms_once[a] = norm(once[a, a])


@inner
def _count(k: int, h: int, n: int, m: int, K: int) -> int:
    """Return how many different hidden units are among k, h, n and m; k and h are."""
    new = n < K and n != k and n != h  # tuples take longer to compile
    newer = m < K and m != k and m != h and m != n
    return 1 + (h != k) + new + newer


@compiled
def rate(work: Work, state: Floats, shares: Floats, knobs: Floats, out: Floats) -> None:
    """Write the rate to `out` (n,); knobs are the learning rate and the probability to keep."""
    K, weights, once, powers = work.K, work.weights, work.once, work.powers
    U = weights.size
    lr, share = knobs[0], shares[0]
    _unpack(state, work)
    _set_powers(knobs[1], work)
    out.fill(0.0)
    for k in range(K):
        _tilt_by(k, work)
        scale = TWO_OVER_PI * work.norms[k] * share * lr * weights[k]
        for n in range(U):
            work.push[n] = scale * weights[n] * powers[_count(k, k, n, n, K)] * work.norms_once[n]
        for h in range(U):
            drift = 0.0
            for n in range(U):
                drift += work.push[n] * once[n, h]
            if h < K:
                out[k * K + h] -= drift
                out[h * K + k] -= drift
            else:
                out[K * K + k * (U - K) + h - K] -= drift
        for h in range(k, K):
            inverse = work.norms_once[h] * work.norms_once[h]
            total = work.noise * work.noise * powers[_count(k, h, k, k, K)]
            for n in range(U):
                twice = tilted(once[n, n], once[n, h], once[n, h], inverse)
                work.norms_twice[n] = norm(twice)
            for n in range(U):
                for m in range(n + 1):
                    weight = weights[n] * weights[m] * powers[_count(k, h, n, m, K)]
                    if m < n:
                        weight *= 2.0
                    overlap = tilted(once[n, m], once[n, h], once[m, h], inverse)
                    total += weight * i2(overlap, work.norms_twice[n], work.norms_twice[m])
            total *= share * lr * lr * weights[k] * weights[h]
            total *= TWO_OVER_PI * work.norms[k] * work.norms_once[h]
            out[k * K + h] += total
            if h != k:
                out[h * K + k] += total


@inlined
def _pull_drift(k: int, lr: float, share: float, pull: VjpWork) -> tuple[float, float]:
    """Add unit k's first-order part to the derivatives; return it without η, and that by p."""
    work = pull.forward
    K, weights, once = work.K, work.weights, work.once
    U = weights.size
    scale = -TWO_OVER_PI * work.norms[k] * weights[k]
    drift, by_keep = 0.0, 0.0
    for n in range(U):
        inner = 0.0
        for h in range(U):
            inner += pull.cotangent[k, h] * once[n, h]
        j = _count(k, k, n, n, K)
        part = scale * weights[n] * work.norms_once[n]
        by_keep += part * work.slopes[j] * inner
        part *= work.powers[j]
        drift += part * inner
        part *= share * lr
        pull.once[n, n] -= 0.5 * part * inner * work.norms_once[n] * work.norms_once[n]
        for h in range(U):
            pull.once[n, h] += part * pull.cotangent[k, h]
    pull.cov[k, k] -= 0.5 * share * lr * drift * work.norms[k] * work.norms[k]
    return drift, by_keep


@inlined
def _pull_diffusion(
    both: float, k: int, h: int, pace: float, pull: VjpWork
) -> tuple[float, float]:
    """Add the second-order part of Q_kh; return it without η², and that by p.

    pace: share × η².
    """
    work, twice = pull.forward, pull.twice
    K, weights, once, norms = work.K, work.weights, work.once, work.norms_twice
    U = weights.size
    inverse = work.norms_once[h] * work.norms_once[h]
    kappa = TWO_OVER_PI * work.norms[k] * work.norms_once[h] * both * weights[k] * weights[h]
    j = _count(k, h, k, k, K)
    total = work.noise * work.noise * work.powers[j]
    by_keep = work.noise * work.noise * work.slopes[j]
    twice.fill(0.0)
    for n in range(U):
        norms[n] = norm(tilted(once[n, n], once[n, h], once[n, h], inverse))
    for n in range(U):
        for m in range(n + 1):
            weight = weights[n] * weights[m] * (1.0 if m == n else 2.0)
            z = tilted(once[n, m], once[n, h], once[m, h], inverse) * norms[n] * norms[m]
            moment = weight * TWO_OVER_PI * math.asin(z)
            j = _count(k, h, n, m, K)
            total += work.powers[j] * moment
            by_keep += work.slopes[j] * moment
            bar = pace * kappa * weight * work.powers[j] * TWO_OVER_PI / math.sqrt(1.0 - z * z)
            twice[n, m] += bar * norms[n] * norms[m]
            twice[n, n] -= 0.5 * bar * z * norms[n] * norms[n]
            twice[m, m] -= 0.5 * bar * z * norms[m] * norms[m]
    total *= kappa
    pull.cov[k, k] -= 0.5 * pace * total * work.norms[k] * work.norms[k]
    pull.once[h, h] -= 0.5 * pace * total * inverse
    pull_tilt(twice, once, h, inverse, pull.once)
    return total, kappa * by_keep


@compiled
def rate_vjp(
    pull: VjpWork, state: Floats, cotangent: Floats, shares: Floats, knobs: Floats, scale: float,
    by_state: Floats, by_shares: Floats, by_knobs: Floats,
) -> None:  # fmt: skip
    """Reverse of `rate`; see `Kernels`."""
    work = pull.forward
    K = work.K
    U = work.weights.size
    lr, share = knobs[0], shares[0]
    _unpack(state, work)
    _set_powers(knobs[1], work)
    pull.cov.fill(0.0)
    for k in range(K):
        for h in range(K):
            pull.cotangent[k, h] = cotangent[k * K + h] + cotangent[h * K + k]
        for n in range(K, U):
            pull.cotangent[k, n] = cotangent[K * K + k * (U - K) + n - K]
    linear, square, linear_keep, square_keep = 0.0, 0.0, 0.0, 0.0
    for k in range(K):
        _tilt_by(k, work)
        pull.once.fill(0.0)
        found, by_keep = _pull_drift(k, lr, share, pull)
        linear += found
        linear_keep += by_keep
        for h in range(k, K):
            both = pull.cotangent[k, h] if h > k else 0.5 * pull.cotangent[k, h]
            found, by_keep = _pull_diffusion(both, k, h, share * lr * lr, pull)
            square += found
            square_keep += by_keep
        pull_tilt(pull.once, work.cov, k, work.norms[k] * work.norms[k], pull.cov)
    by_shares[0] += scale * lr * (linear + lr * square)
    by_knobs[0] += scale * share * (linear + 2.0 * lr * square)
    by_knobs[1] += scale * share * lr * (linear_keep + lr * square_keep)
    at = 0
    for k in range(K):
        for h in range(K):
            by_state[at] = 0.5 * (pull.cov[k, h] + pull.cov[h, k])
            at += 1
    for k in range(K):
        for n in range(K, U):
            by_state[at] = pull.cov[k, n] + pull.cov[n, k]
            at += 1


@compiled
def losses(work: Work, state: Floats, out: Floats) -> None:
    """Write ½ E[(r Σ_k v_k g_k − Σ_p A_p g_p)²] to `out`; r follows the state if it is free."""
    _unpack(state, work)
    U = work.weights.size
    factor = state[-1] if state.size > work.K * U else work.rescale
    total = 0.0
    for n in range(U):
        for m in range(U):
            weight = work.weights[n] * work.weights[m]
            if n < work.K:
                weight *= factor
            if m < work.K:
                weight *= factor
            total += weight * i2(work.cov[n, m], work.norms[n], work.norms[m])
    out[0] = 0.5 * total


@compiled
def losses_vjp(pull: VjpWork, state: Floats, cotangent: Floats, out: Floats) -> None:
    """Reverse of `losses`; see `Kernels`."""
    work = pull.forward
    _unpack(state, work)
    K, cov, norms, U = work.K, work.cov, work.norms, work.weights.size
    free = state.size > K * U
    factor = state[-1] if free else work.rescale
    out.fill(0.0)
    for n in range(U):
        for m in range(U):
            weight, hidden = cotangent[0] * work.weights[n] * work.weights[m], 0
            for unit in (n, m):
                if unit < K:
                    weight *= factor
                    hidden += 1
            z = cov[n, m] * norms[n] * norms[m]
            if free and hidden:  # r^hidden: its derivative without dividing by r, which may be 0
                bare = cotangent[0] * work.weights[n] * work.weights[m]
                slope = factor if hidden == 2 else 0.5
                out[-1] += bare * slope * TWO_OVER_PI * math.asin(z)
            bar = 0.5 * weight * TWO_OVER_PI / math.sqrt(1.0 - z * z)
            if n < K:
                out[n * K + n] -= 0.5 * bar * z * norms[n] * norms[n]
                if m < K:
                    out[n * K + m] += bar * norms[n] * norms[m]
                else:
                    out[K * K + n * (U - K) + m - K] += 2.0 * bar * norms[n] * norms[m]
            if m < K:
                out[m * K + m] -= 0.5 * bar * z * norms[m] * norms[m]
