"""The reverse of the kernels of ReLU networks: the exact gradients of rate and losses.

Notation as in _relu`erf` and _reverse.py: H = p · Σ_t s_t f_t(x), and a bar is a derivative
of H. Derivatives by correlations ρ, lengths σ and scaled weights v come first, those by C and w
follow from them at the end. Positions are units here: all of them matter.
"""

from __future__ import annotations

import math
from typing import Any

from replan.check import Floats
from replan.core.compiled import REORDERED, compiled, index, inlined
from replan.core.moments import orthants, relu
from replan.core.moments.orthants import OVER_TWO_PI
from replan.core.moments.quadruples import FIRST, LANES, SECOND, set_meetings, set_quadruples
from replan.core.teacher_student.layout import add_by_controls, set_rates, write_by_state
from replan.core.teacher_student.relu import (
    have_fours,
    set_correlations,
    set_lane,
    set_meets,
    set_state,
)
from replan.core.teacher_student.relu_work import ReluBars, ReluVjpWork, ReluWork


@inlined
def _clear(work: ReluWork, bars: ReluBars) -> None:
    """Set all derivatives to 0."""
    bars.cov[:] = 0.0
    bars.weights[:] = 0.0
    bars.lengths[:] = 0.0
    bars.rho[:] = 0.0
    bars.scaled[:] = 0.0
    bars.linear[:] = 0.0
    bars.quadratic[:] = 0.0
    bars.heads[:] = 0.0
    work.squares[:] = 0.0


@inlined
def _set_cotangent(cotangent: Floats, work: ReluWork, bars: ReluBars) -> None:
    """List what multiplies E[Δ g′_k λ_h] in H."""
    K, U, both = index(work.K), index(work.cov.shape[0]), bars.cotangent
    for k in range(K):
        for h in range(K):
            both[k, h] = cotangent[k * K + h] + cotangent[h * K + k]
        for p in range(K, U):
            both[k, p] = cotangent[K * K + k * (U - K) + p - K]


@inlined
def _pull_heads(cotangent: Floats, shares: Floats, work: ReluWork, bars: ReluBars) -> None:
    """V′: D_t −= Σ_kn p_tk σ_k v_tn E[k⁺ n⁺] of units of variance 1."""
    K, T, U = index(work.K), index(work.weights.shape[0]), index(work.weights.shape[1])
    heads = index(cotangent.size) - T * K
    for k in range(K):
        for n in range(U):
            moment = relu.product(work.rho[k, n], work.sines[k, n], work.angles[k, n])
            total = 0.0
            for t in range(T):
                p = cotangent[heads + t * K + k]
                pace = shares[t] * work.head_rates[t] * p
                bars.heads[t] -= work.trained[t] * p * work.lengths[k] * work.scaled[t, n] * moment
                bars.scaled[t, n] -= pace * work.lengths[k] * moment
                total -= pace * work.scaled[t, n]
            bars.lengths[k] += total * moment
            if n != k:
                slope = total * work.lengths[k] * orthants.two(work.angles[k, n])
                bars.rho[min(k, n), max(k, n)] += slope


@inlined
def _pull_drift(shares: Floats, work: ReluWork, bars: ReluBars) -> None:
    """First-order part: B_t −= Σ_kn V_tk w_tn (row_n P(n, k > 0) + own σ_n s_nk / (2π σ_k)).

    row_n = Σ_h R_kh C_hn, own = row_k, R is `bars.cotangent`.
    """
    cov, weights, moving, rates = work.cov, work.weights, work.moving, work.rates
    cotangent, row, by_cov = bars.cotangent, bars.row, bars.cov
    K, T, U = index(work.K), index(weights.shape[0]), index(weights.shape[1])
    for k in range(K):
        alive = 1.0 if work.inverses[k] > 0.0 else 0.0
        for n in range(U):
            row[n] = 0.0
            for h in range(U):
                row[n] += cov[n, h] * cotangent[k, h]
        own, along = row[k] * work.inverses[k] * OVER_TWO_PI, 0.0
        for n in range(U):
            p2, sine, length = orthants.two(work.angles[k, n]), work.sines[k, n], work.lengths[n]
            moment, coupling = row[n] * p2 + own * length * sine, 0.0
            for t in range(T):
                pace = shares[t] * rates[t]
                bars.linear[t] -= moving[t, k] * weights[t, n] * moment
                bars.weights[t, k] -= alive * pace * weights[t, n] * moment
                bars.weights[t, n] -= pace * moving[t, k] * moment
                coupling -= pace * moving[t, k] * weights[t, n]
            along += coupling * length * sine
            for h in range(U):
                by_cov[n, h] += coupling * p2 * cotangent[k, h]
            bars.lengths[n] += coupling * own * sine
            if n != k:
                turned = OVER_TWO_PI * row[n] - own * length * work.rho[k, n]
                slope = coupling * turned * work.inverse_sines[k, n]
                bars.rho[min(k, n), max(k, n)] += slope
        for h in range(U):
            by_cov[k, h] += along * work.inverses[k] * OVER_TWO_PI * cotangent[k, h]
        by_cov[k, k] -= 0.5 * along * own * work.inverses[k] * work.inverses[k]


@inlined
def _set_scales(shares: Floats, work: ReluWork, bars: ReluBars) -> None:
    """Fill in what multiplies E[Δ_t² g′_k g′_h] in H: s_t η_t² V_tk V_th R_kh, half where k = h."""
    moving, rates, K = work.moving, work.rates, index(work.K)
    for t in range(index(rates.size)):
        for k in range(K):
            for h in range(k, K):
                both = bars.cotangent[k, h] if h > k else 0.5 * bars.cotangent[k, h]
                pace = shares[t] * rates[t] * rates[t]
                bars.scales[t, k, h] = pace * both * moving[t, k] * moving[t, h]


@inlined
def _pull_pairs(work: ReluWork, bars: ReluBars) -> None:
    """Reverse of what sets of one unit and of two add to the squares; fills in that too."""
    scaled, squares, scales, by_scaled = work.scaled, work.squares, bars.scales, bars.scaled
    K, T, U = index(work.K), index(scaled.shape[0]), index(scaled.shape[1])
    for a in range(K):
        for t in range(T):
            squares[t, a, a] += 0.5 * scaled[t, a] * scaled[t, a]
            by_scaled[t, a] += scales[t, a, a] * scaled[t, a]
        for b in range(a + index(1), U):
            rho, sine, angle = work.rho[a, b], work.sines[a, b], work.angles[a, b]
            product = relu.product(rho, sine, angle)
            square = relu.gated_own_square(rho, sine, angle)
            by_product, by_square = 0.0, 0.0
            for t in range(T):
                v_a, v_b = scaled[t, a], scaled[t, b]
                both = 2.0 * v_a * v_b * product
                squares[t, a, a] += v_b * v_b * square + both
                squares[t, b, b] += v_a * v_a * square + both
                squares[t, a, b] += (v_a * v_a + v_b * v_b) * square + both
                aa, bb, ab = scales[t, a, a], scales[t, b, b], scales[t, a, b]
                total = aa + bb + ab
                by_square += (aa + ab) * v_b * v_b + (bb + ab) * v_a * v_a
                by_product += 2.0 * v_a * v_b * total
                by_scaled[t, a] += 2.0 * (v_a * square * (bb + ab) + v_b * product * total)
                by_scaled[t, b] += 2.0 * (v_b * square * (aa + ab) + v_a * product * total)
            bars.rho[a, b] += by_square * sine / math.pi + by_product * orthants.two(angle)


@inlined
def _pull_triple(a: Any, b: Any, c: Any, work: ReluWork, bars: ReluBars) -> None:
    """Reverse of what three units add to the squares; fills in that too."""
    scaled, squares, scales, by_scaled = work.scaled, work.squares, bars.scales, bars.scaled
    rho, sines, angles, by_rho = work.rho, work.sines, work.angles, bars.rho
    ab, ac, bc = rho[a, b], rho[a, c], rho[b, c]
    s_ab, s_ac, s_bc = sines[a, b], sines[a, c], sines[b, c]
    p3 = orthants.three(angles[a, b], angles[a, c], angles[b, c])
    by_a = relu.gated_product(ab, ac, bc, s_ab, s_ac, s_bc, p3)
    by_b = relu.gated_product(ab, bc, ac, s_ab, s_bc, s_ac, p3)
    by_c = relu.gated_product(ac, bc, ab, s_ac, s_bc, s_ab, p3)
    by_ab = relu.gated_square(ab, ac, bc, s_ab, s_ac, s_bc, p3)
    by_ac = relu.gated_square(ac, ab, bc, s_ac, s_ab, s_bc, p3)
    by_bc = relu.gated_square(bc, ab, ac, s_bc, s_ab, s_ac, p3)
    bar_a, bar_b, bar_c, bar_ab, bar_ac, bar_bc = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    for t in range(index(scaled.shape[0])):
        v_a, v_b, v_c = scaled[t, a], scaled[t, b], scaled[t, c]
        squares[t, a, a] += 2.0 * v_b * v_c * by_a
        squares[t, b, b] += 2.0 * v_a * v_c * by_b
        squares[t, c, c] += 2.0 * v_a * v_b * by_c
        squares[t, a, b] += v_c * (v_c * by_ab + 2.0 * (v_b * by_a + v_a * by_b))
        squares[t, a, c] += v_b * (v_b * by_ac + 2.0 * (v_c * by_a + v_a * by_c))
        squares[t, b, c] += v_a * (v_a * by_bc + 2.0 * (v_c * by_b + v_b * by_c))
        k_ab, k_ac, k_bc = scales[t, a, b], scales[t, a, c], scales[t, b, c]
        k_a = scales[t, a, a] + k_ab + k_ac
        k_b = scales[t, b, b] + k_ab + k_bc
        k_c = scales[t, c, c] + k_ac + k_bc
        bar_a += 2.0 * v_b * v_c * k_a
        bar_b += 2.0 * v_a * v_c * k_b
        bar_c += 2.0 * v_a * v_b * k_c
        bar_ab += v_c * v_c * k_ab
        bar_ac += v_b * v_b * k_ac
        bar_bc += v_a * v_a * k_bc
        by_scaled[t, a] += 2.0 * (v_c * by_b * k_b + v_b * by_c * k_c + v_a * by_bc * k_bc)
        by_scaled[t, b] += 2.0 * (v_c * by_a * k_a + v_a * by_c * k_c + v_b * by_ac * k_ac)
        by_scaled[t, c] += 2.0 * (v_b * by_a * k_a + v_a * by_b * k_b + v_c * by_ab * k_ab)
    a_c, a_b = relu.crossing(ab, ac, bc, s_ab, s_ac), relu.crossing(ac, ab, bc, s_ac, s_ab)
    b_c, b_a = relu.crossing(ab, bc, ac, s_ab, s_bc), relu.crossing(bc, ab, ac, s_bc, s_ab)
    c_b, c_a = relu.crossing(ac, bc, ab, s_ac, s_bc), relu.crossing(bc, ac, ab, s_bc, s_ac)
    by_rho[a, b] += bar_c * p3 + bar_ab * relu.meeting(ab, ac, bc, s_ab, s_ac)
    by_rho[a, b] += bar_a * a_c + bar_b * b_c + 2.0 * (bar_ac * a_b + bar_bc * b_a)
    by_rho[a, c] += bar_b * p3 + bar_ac * relu.meeting(ac, ab, bc, s_ac, s_ab)
    by_rho[a, c] += bar_a * a_b + bar_c * c_b + 2.0 * (bar_ab * a_c + bar_bc * c_a)
    by_rho[b, c] += bar_a * p3 + bar_bc * relu.meeting(bc, ab, ac, s_bc, s_ab)
    by_rho[b, c] += bar_b * b_a + bar_c * c_a + 2.0 * (bar_ab * b_c + bar_ac * c_b)


@compiled(fastmath=REORDERED, no_cpython_wrapper=True)
def _pull_fours(count: int, work: ReluWork, bars: ReluBars) -> None:
    """Reverse of what four units add to the squares, in all lanes; fills in that too."""
    fours = work.fours
    set_quadruples(count, fours)
    set_meetings(count, fours)
    for lane in range(index(count)):
        for pair in range(index(6)):
            if fours.units[SECOND[pair], lane] < work.K:
                _pull_four(lane, pair, work, bars)


@inlined
def _pull_four(lane: Any, ab: Any, work: ReluWork, bars: ReluBars) -> None:
    """Reverse of E[Θ_a Θ_b c⁺ d⁺] in the squares."""
    scaled, scales, fours, by_rho = work.scaled, bars.scales, work.fours, bars.rho
    cd = index(5) - ab
    a, b, c, d = FIRST[ab], SECOND[ab], FIRST[cd], SECOND[cd]
    k, h = index(fours.units[a, lane]), index(fours.units[b, lane])
    n, m = index(fours.units[c, lane]), index(fours.units[d, lane])
    moment, bar = 2.0 * fours.moments[ab, lane], 0.0
    for t in range(index(scaled.shape[0])):
        product, scale = scaled[t, n] * scaled[t, m], scales[t, k, h]
        work.squares[t, k, h] += product * moment
        bar += 2.0 * scale * product
        bars.scaled[t, n] += scale * moment * scaled[t, m]
        bars.scaled[t, m] += scale * moment * scaled[t, n]
    by_rho[k, h] += bar * fours.meetings[ab, lane]
    by_rho[n, m] += bar * fours.whole[lane]
    by_rho[min(k, n), max(k, n)] += bar * fours.crossings[a, d, lane]
    by_rho[min(k, m), max(k, m)] += bar * fours.crossings[a, c, lane]
    by_rho[min(h, n), max(h, n)] += bar * fours.crossings[b, d, lane]
    by_rho[min(h, m), max(h, m)] += bar * fours.crossings[b, c, lane]


@compiled(fastmath=REORDERED, no_cpython_wrapper=True)
def _pull_all_fours(work: ReluWork, bars: ReluBars) -> None:
    """Reverse of what all sets of four units add to the squares."""
    U = work.weights.shape[1]
    count = 0
    for a in range(work.K):
        for b in range(a + 1, work.K):
            for c in range(b + 1, U):
                for d in range(c + 1, U):
                    if work.meets[index(c), index(d)]:
                        set_lane(count, a, b, c, d, work)
                        count += 1
                        if count == LANES:
                            _pull_fours(count, work, bars)
                            count = 0
    if count > 0:
        _pull_fours(count, work, bars)


@inlined
def _pull_squares(work: ReluWork, bars: ReluBars) -> None:
    """Second-order part: E[Δ_t² g′_k g′_h], and derivatives by what it depends on."""
    K, T, U = work.K, work.weights.shape[0], work.weights.shape[1]
    set_meets(T, U, work)
    _pull_pairs(work, bars)
    for a in range(K):
        for b in range(a + 1, U):
            for c in range(b + 1, U):
                if work.meets[index(b), index(c)]:
                    _pull_triple(index(a), index(b), index(c), work, bars)
    if have_fours(U, work):
        _pull_all_fours(work, bars)


@inlined
def _pull_scales(shares: Floats, work: ReluWork, bars: ReluBars) -> None:
    """Add what the scales of E[(Δ_t² + σ²) g′_k g′_h] depend on, and the noise."""
    moving, rates, noise = work.moving, work.rates, work.noise * work.noise
    K, T = index(work.K), index(work.weights.shape[0])
    for k in range(K):
        for h in range(k, K):
            both = bars.cotangent[k, h] if h > k else 0.5 * bars.cotangent[k, h]
            slopes, bar = noise * orthants.two(work.angles[k, h]), 0.0
            for t in range(T):
                square = work.squares[t, k, h] + slopes
                bars.quadratic[t] += both * moving[t, k] * moving[t, h] * square
                pace = shares[t] * rates[t] * rates[t] * both * square
                if work.inverses[k] > 0.0:
                    bars.weights[t, k] += pace * moving[t, h]
                if work.inverses[h] > 0.0:
                    bars.weights[t, h] += pace * moving[t, k]
                bar += bars.scales[t, k, h]
            if h > k:
                bars.rho[k, h] += OVER_TWO_PI * bar * noise * work.inverse_sines[k, h]


@inlined
def _pull_state(work: ReluWork, bars: ReluBars) -> None:
    """Pull derivatives by correlations, lengths and scaled weights back to C and w."""
    inverses, by_cov = work.inverses, bars.cov
    T, U = index(work.weights.shape[0]), index(work.weights.shape[1])
    for n in range(U):
        for t in range(T):
            bars.weights[t, n] += bars.scaled[t, n] * work.lengths[n]
            bars.lengths[n] += bars.scaled[t, n] * work.weights[t, n]
        by_cov[n, n] += 0.5 * bars.lengths[n] * inverses[n]
        for m in range(n + index(1), U):
            bar = bars.rho[n, m]
            turned = 0.5 * bar * work.rho[n, m]
            by_cov[n, m] += bar * inverses[n] * inverses[m]
            by_cov[n, n] -= turned * inverses[n] * inverses[n]
            by_cov[m, m] -= turned * inverses[m] * inverses[m]


@compiled(fastmath=REORDERED)
def rate_vjp(
    pull_work: ReluVjpWork,
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
    set_correlations(work.weights.shape[0], work.weights.shape[1], work)
    _clear(work, bars)
    _set_cotangent(cotangent, work, bars)
    _pull_heads(cotangent, shares, work, bars)
    _pull_drift(shares, work, bars)
    _set_scales(shares, work, bars)
    _pull_squares(work, bars)
    _pull_scales(shares, work, bars)
    _pull_state(work, bars)
    write_by_state(work, bars, by_state)
    add_by_controls(shares, knobs, scale, work, bars, by_shares, by_knobs)


@compiled
def losses_vjp(pull_work: ReluVjpWork, state: Floats, cotangent: Floats, out: Floats) -> None:
    """Reverse of `losses`: write the gradient (n,) of Σ_t cotangent[t] ε_t to `out`."""
    work, bars = pull_work
    T, U = work.weights.shape
    set_state(state, work)
    set_correlations(T, U, work)
    _clear(work, bars)
    for n in range(U):
        for m in range(n + 1):
            moment = relu.product(work.rho[n, m], work.sines[n, m], work.angles[n, m])
            total = 0.0
            for t in range(T):
                bar = cotangent[t] if m < n else 0.5 * cotangent[t]
                bars.scaled[t, n] += bar * work.scaled[t, m] * moment
                bars.scaled[t, m] += bar * work.scaled[t, n] * moment
                total += bar * work.scaled[t, n] * work.scaled[t, m]
            if m < n:
                bars.rho[m, n] += total * orthants.two(work.angles[n, m])
    _pull_state(work, bars)
    write_by_state(work, bars, out)
