"""The reverse of the kernels: the exact gradients of rate and losses.

Notation as in `erf`. For a cotangent p of the rate, H = p · Σ_t s_t f_t(x) is one number, H =
Σ_t s_t (η_t B_t + η_t² A_t + ρ_t D_t), so pulling p back through the rate means differentiating H
with respect to the covariance C and the weights w. A bar over a name is the derivative of H by it;
C̄ and the like are defined so that dH = Σ_ab C̄_ab dC_ab over all a, b, with C symmetric.
"""

from __future__ import annotations

import math

from replan.check import Floats
from replan.core.compiled import REORDERED, compiled, index, inlined
from replan.core.moments.erf import TWO_OVER_PI, arcsine
from replan.core.teacher_student.erf import set_state, tilt_once, tilt_twice, whole
from replan.core.teacher_student.layout import add_by_controls, set_rates, write_by_state
from replan.core.teacher_student.work import Bars, VjpWork, Work


@inlined
def _start(cotangent: Floats, work: Work, bars: Bars) -> None:
    """Set all derivatives to 0, and list what multiplies E[Δ g′_k λ_h] in H."""
    K, U, both = index(work.K), index(work.cov.shape[0]), bars.cotangent
    bars.cov[:] = 0.0
    bars.weights[:] = 0.0
    bars.sides[:] = 0.0
    bars.first[:] = 0.0
    bars.second[:] = 0.0
    bars.stretch[:] = 0.0
    bars.linear[:] = 0.0
    bars.quadratic[:] = 0.0
    bars.heads[:] = 0.0
    work.squares[:] = 0.0
    for k in range(K):
        for h in range(K):
            both[k, h] = cotangent[k * K + h] + cotangent[h * K + k]
        for p in range(K, U):
            both[k, p] = cotangent[K * K + k * (U - K) + p - K]


@inlined
def _pull_heads(cotangent: Floats, shares: Floats, work: Work, bars: Bars) -> None:
    """V′: D_t −= Σ_kn p_tk w_tn I₂(k, n), p the cotangent of the rate."""
    weights, norms, sides, moments = work.weights, work.norms, work.sides, work.moments
    rates, trained = work.head_rates, work.trained
    by_heads, by_weights, by_sides, by_cov = bars.heads, bars.weights, bars.sides, bars.cov
    K, T, U = index(work.K), index(weights.shape[0]), index(weights.shape[1])
    heads = index(cotangent.size) - T * K
    for n in range(U):
        total = 0.0
        for k in range(K):
            bar, moment = 0.0, moments[n * K + k]
            for t in range(T):
                p = cotangent[heads + t * K + k]
                pace = shares[t] * rates[t] * p
                by_heads[t] -= trained[t] * p * weights[t, n] * moment
                by_weights[t, n] -= pace * moment
                bar -= pace * weights[t, n]
            z = sides[n * K + k] * norms[n]
            bar *= TWO_OVER_PI / math.sqrt(1.0 - z * z)
            by_sides[n * K + k] += bar * norms[n]
            total += bar * z
        by_cov[n, n] -= 0.5 * total * norms[n] * norms[n]


@inlined
def _pull_drift(shares: Floats, work: Work, bars: Bars) -> None:
    """First-order part: B_t −= (2/π) Σ_k norm_k w_tk Σ_n w_tn norm_nk Σ_h R_kh C^k_nh.

    R is `bars.cotangent`. The drift's array holds the derivatives by C^k_nh over R_kh.
    """
    cov, weights, norms, sides = work.cov, work.weights, work.norms, work.sides
    norms_once, rates, push, row = work.norms_once, work.rates, work.drift, bars.row
    by_cov, by_weights, by_sides = bars.cov, bars.weights, bars.sides
    by_rates, cotangent = bars.linear, bars.cotangent
    K, T, U = index(work.K), index(weights.shape[0]), index(weights.shape[1])
    for k in range(K):
        scale, along, total, back = TWO_OVER_PI * norms[k], 0.0, 0.0, 0.0
        for h in range(U):
            along += sides[h * K + k] * cotangent[k, h]
        for n in range(U):
            left = 0.0
            for h in range(U):
                left += cov[n, h] * cotangent[k, h]
            row[n] = (left - sides[n * K + k] * along) * norms_once[n * K + k]
        for t in range(T):
            inner, pace = 0.0, scale * shares[t] * rates[t]
            for n in range(U):
                inner += weights[t, n] * row[n]
            by_rates[t] -= scale * weights[t, k] * inner
            by_weights[t, k] -= pace * inner
            total -= pace * weights[t, k] * inner
            for n in range(K):
                by_weights[t, n] -= pace * weights[t, k] * row[n]
        by_cov[k, k] -= 0.5 * total * norms[k] * norms[k]
        for n in range(U):
            side, size, bar = sides[n * K + k], norms_once[n * K + k], 0.0
            for t in range(T):
                bar -= scale * shares[t] * rates[t] * weights[t, k] * weights[t, n]
            stretch = -0.5 * bar * row[n] * size * size
            by_cov[n, n] += stretch
            by_sides[n * K + k] -= bar * size * along + 2.0 * stretch * side
            back -= bar * size * side
            push[k, n] = bar * size
        for h in range(U):
            by_sides[h * K + k] += back * cotangent[k, h]
    for n in range(U):
        for h in range(U):
            total = 0.0
            for k in range(K):
                total += push[k, n] * cotangent[k, h]
            by_cov[n, h] += total


@inlined
def _set_scales(work: Work, bars: Bars) -> None:
    """Fill in what multiplies E[Δ_t²] + σ² of C tilted by k and h in A_t."""
    weights, norms, norms_once = work.weights, work.norms, work.norms_once
    cotangent, all_both, scales = bars.cotangent, bars.both, bars.scales
    K, T = index(work.K), index(weights.shape[0])
    lane = index(0)
    for k in range(K):
        for h in range(k, K):
            both = cotangent[k, h] if h > k else 0.5 * cotangent[k, h]
            both *= TWO_OVER_PI * norms[k] * norms_once[h * K + k]
            all_both[lane] = both
            for t in range(T):
                scales[t, lane] = both * weights[t, k] * weights[t, h]
            lane += index(1)


@inlined
def _pull_squares(shares: Floats, work: Work, bars: Bars) -> None:
    """Second-order part: E[Δ_t²] of every C^kh, and derivatives by what it depends on."""
    first, second, norms, angles = work.first, work.second, work.norms_twice, work.angles
    cov, weights, squares, rates = work.cov, work.weights, work.squares, work.rates
    scales, slopes, by_cov, by_weights = bars.scales, bars.slopes, bars.cov, bars.weights
    by_first, by_second, stretch, turns = bars.first, bars.second, bars.stretch, bars.turns
    K, T, U = index(work.K), index(weights.shape[0]), index(weights.shape[1])
    for n in range(U):
        for m in range(n + index(1)):
            used = m < K  # a head of exactly 0 still has a derivative
            for t in range(T):
                used = used or weights[t, n] * weights[t, m] != 0.0
            if not used:
                continue
            overlap, twice = cov[n, m], TWO_OVER_PI if n == m else 2.0 * TWO_OVER_PI
            for lane in range(whole(angles.size)):
                left = overlap - first[n, lane] * first[m, lane]
                left -= second[n, lane] * second[m, lane]
                z = left * norms[n, lane] * norms[m, lane]
                turns[lane] = z
                angles[lane] = arcsine(z)
                slopes[lane] = 0.0
            moved = False
            for t in range(T):
                if weights[t, n] == 0.0 and weights[t, m] == 0.0:
                    continue
                pace = twice * shares[t] * rates[t] * rates[t]
                weight = weights[t, n] * weights[t, m]
                moved = moved or pace * weight != 0.0
                along = 0.0
                for lane in range(whole(angles.size)):
                    along += scales[t, lane] * angles[lane]
                    squares[t, lane] += twice * weight * angles[lane]
                    slopes[lane] += pace * weight * scales[t, lane]
                by_weights[t, n] += pace * weights[t, m] * along
                by_weights[t, m] += pace * weights[t, n] * along
            if not moved:
                continue
            total = 0.0
            for lane in range(whole(angles.size)):
                z = turns[lane]
                slope = slopes[lane] / math.sqrt(1.0 - z * z)
                turns[lane] = slope * z
                slope *= norms[n, lane] * norms[m, lane]
                slopes[lane] = slope
                total += slope
            by_cov[n, m] += total
            for a, b in ((n, m), (m, n)):
                for lane in range(whole(angles.size)):
                    by_first[a, lane] -= slopes[lane] * first[b, lane]
                    by_second[a, lane] -= slopes[lane] * second[b, lane]
                    stretch[a, lane] += turns[lane]


@inlined
def _pull_scales(shares: Floats, work: Work, bars: Bars) -> None:
    """Add what the scales of E[Δ_t²] + σ² depend on; `slopes` are now by log norms_once."""
    weights, norms, rates, squares = work.weights, work.norms, work.rates, work.squares
    scales, all_both, slopes = bars.scales, bars.both, bars.slopes
    by_cov, by_weights, quadratic = bars.cov, bars.weights, bars.quadratic
    K, T, noise = index(work.K), index(weights.shape[0]), work.noise * work.noise
    at = index(0)
    for k in range(K):
        for h in range(k, K):
            total, both = 0.0, all_both[at]
            for t in range(T):
                square = squares[t, at] + noise
                quadratic[t] += scales[t, at] * square
                pace = shares[t] * rates[t] * rates[t] * square
                by_weights[t, k] += pace * both * weights[t, h]
                by_weights[t, h] += pace * both * weights[t, k]
                total += pace * scales[t, at]
            by_cov[k, k] -= 0.5 * total * norms[k] * norms[k]
            slopes[at] = total
            at += index(1)


@inlined
def _pull_second_tilt(work: Work, bars: Bars) -> None:
    """Pull derivatives by first, second, norms_twice and log norms_once back to sides and C."""
    first, second, norms_twice = work.first, work.second, work.norms_twice
    sides, norms_once, stretch, slopes = work.sides, work.norms_once, bars.stretch, bars.slopes
    by_cov, by_sides, by_first, by_second = bars.cov, bars.sides, bars.first, bars.second
    K, U = index(work.K), index(first.shape[0])
    for n in range(U):
        total = 0.0
        for lane in range(whole(slopes.size)):
            longer = -0.5 * stretch[n, lane] * norms_twice[n, lane] * norms_twice[n, lane]
            total += longer
            by_first[n, lane] -= 2.0 * longer * first[n, lane]
            by_second[n, lane] -= 2.0 * longer * second[n, lane]
            slopes[lane] += by_second[n, lane] * second[n, lane]
        by_cov[n, n] += total
        at = index(0)
        for k in range(K):
            side = 0.0
            for h in range(k, K):
                bar = by_second[n, at] * norms_once[h * K + k]
                by_cov[n, h] += bar
                side += by_first[n, at] - bar * sides[h * K + k]
                by_sides[h * K + k] -= bar * sides[n * K + k]
                at += index(1)
            by_sides[n * K + k] += side
    at = index(0)
    for k in range(K):
        for h in range(k, K):
            longer = -0.5 * slopes[at] * norms_once[h * K + k] * norms_once[h * K + k]
            by_cov[h, h] += longer
            by_sides[h * K + k] -= 2.0 * longer * sides[h * K + k]
            at += index(1)


@inlined
def _pull_sides(work: Work, bars: Bars) -> None:
    """sides_nk = C_nk norm_k."""
    norms, sides, by_sides, by_cov = work.norms, work.sides, bars.sides, bars.cov
    K, U = index(work.K), index(work.cov.shape[0])
    for n in range(U):
        for k in range(K):
            bar = by_sides[n * K + k]
            by_cov[n, k] += bar * norms[k]
            by_cov[k, k] -= 0.5 * bar * sides[n * K + k] * norms[k] * norms[k]


@compiled(fastmath=REORDERED)
def rate_vjp(
    pull_work: VjpWork,
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
    set_state(state, work)
    set_rates(knobs, work)
    _start(cotangent, work, bars)
    tilt_once(work.cov.shape[0], work)
    tilt_twice(work.cov.shape[0], work)
    _pull_heads(cotangent, shares, work, bars)
    _pull_drift(shares, work, bars)
    _set_scales(work, bars)
    _pull_squares(shares, work, bars)
    _pull_scales(shares, work, bars)
    _pull_second_tilt(work, bars)
    _pull_sides(work, bars)
    write_by_state(work, bars, by_state)
    add_by_controls(shares, knobs, scale, work, bars, by_shares, by_knobs)


@compiled
def losses_vjp(pull_work: VjpWork, state: Floats, cotangent: Floats, out: Floats) -> None:
    """Reverse of `losses`: write the gradient (n,) of Σ_t cotangent[t] ε_t to `out`."""
    work, bars = pull_work
    K = work.K
    set_state(state, work)
    cov, weights, norms, variances = work.cov, work.weights, work.norms, bars.row
    T, U = weights.shape
    P = U - K
    out[:] = 0.0
    variances[:] = 0.0
    heads = K * (K + P)
    for n in range(U):
        for m in range(U):
            z = cov[n, m] * norms[n] * norms[m]
            moment = TWO_OVER_PI * arcsine(z)
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
