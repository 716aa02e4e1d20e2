"""Compiled kernels of ReLU networks: the rate of change and the losses.

Notation and equations as in `erf`, with g(z) = max(z, 0). ReLU is homogeneous: units are
taken at variance 1, with correlations ρ, and their weights v = w σ hold their lengths σ. Then
E[Δ² g′_k g′_h] = Σ_nm v_n v_m E[Θ_k Θ_h n⁺ m⁺] is a sum over sets of one to four units: each set is
looked at once, for all the ways to choose steps and products from it and for all tasks.
"""

from __future__ import annotations

import math

from replan.check import Floats
from replan.core.compiled import REORDERED, compiled, index, inlined
from replan.core.moments import orthants, relu
from replan.core.moments.erf import arcsine
from replan.core.moments.orthants import OVER_TWO_PI
from replan.core.moments.quadruples import FIRST, LANES, LEAST, SECOND, set_quadruples
from replan.core.teacher_student.layout import select, set_rates, unpack
from replan.core.teacher_student.relu_work import ReluWork, set_lengths


@inlined
def set_state(state: Floats, work: ReluWork) -> None:
    """Fill in covariance, weights and lengths from the state."""
    unpack(state, work)
    set_lengths(0, work.K, work)
    for t in range(index(work.moving.shape[0])):
        for k in range(index(work.K)):
            work.moving[t, k] = work.weights[t, k] if work.inverses[k] > 0.0 else 0.0


@inlined
def set_correlations(tasks: int, units: int, work: ReluWork) -> None:
    """Fill in correlations and scaled weights of the units and tasks that matter now."""
    cov, inverses, rho = work.cov, work.inverses, work.rho
    sines, inverse_sines, angles = work.sines, work.inverse_sines, work.angles
    for a in range(index(units)):
        n = index(work.units[a])
        for i in range(index(tasks)):
            work.scaled[i, a] = work.weights[index(work.active[i]), n] * work.lengths[n]
        for b in range(a):
            m = index(work.units[b])
            rho[a, b] = orthants.bounded(cov[n, m] * inverses[n] * inverses[m], 1.0)
        for b in range(a):
            sines[a, b] = relu.sine(rho[a, b])
            inverse_sines[a, b] = 1.0 / max(sines[a, b], LEAST)
            angles[a, b] = arcsine(rho[a, b])
        rho[a, a], sines[a, a], angles[a, a] = 1.0, 0.0, 0.5 * math.pi
        for b in range(a):
            rho[b, a], sines[b, a], angles[b, a] = rho[a, b], sines[a, b], angles[a, b]
            inverse_sines[b, a] = inverse_sines[a, b]


@inlined
def _head_rate(shares: Floats, tasks: int, units: int, work: ReluWork, out: Floats) -> None:
    """Write V′ to `out`, the heads' part of the rate."""
    rho, sines, angles, scaled, K = work.rho, work.sines, work.angles, work.scaled, index(work.K)
    heads = index(out.size) - index(work.weights.shape[0]) * K
    for at in range(heads, index(out.size)):
        out[at] = 0.0
    for k in range(K):
        for b in range(index(units)):
            moment = work.lengths[k] * relu.product(rho[k, b], sines[k, b], angles[k, b])
            for i in range(index(tasks)):
                t = index(work.active[i])
                pace = shares[t] * work.head_rates[t]
                out[heads + t * K + k] -= pace * scaled[i, b] * moment


@inlined
def _drift(shares: Floats, tasks: int, units: int, work: ReluWork) -> None:
    """Fill in drift_kh = Σ_t s_t η_t V_tk E[Δ_t g′_k λ_h]."""
    cov, weights, moving, push, drift = work.cov, work.weights, work.moving, work.push, work.drift
    rates, K, U = work.rates, index(work.K), index(work.cov.shape[0])
    for k in range(K):
        along = 0.0
        for b in range(index(units)):
            n, total = index(work.units[b]), 0.0
            for i in range(index(tasks)):
                t = index(work.active[i])
                total += shares[t] * rates[t] * moving[t, k] * weights[t, n]
            push[b] = total * orthants.two(work.angles[k, b])
            along += total * work.lengths[n] * work.sines[k, b]
        along *= work.inverses[k] * OVER_TWO_PI
        for h in range(U):
            drift[k, h] = along * cov[k, h]
        for b in range(index(units)):
            n = index(work.units[b])
            for h in range(U):
                drift[k, h] += push[b] * cov[n, h]


@inlined
def set_meets(tasks: int, units: int, work: ReluWork) -> None:
    """Fill in whether a task has two units in its error; hidden ones are in all errors."""
    for a in range(index(work.K), index(units)):
        for b in range(a + index(1), index(units)):
            found = False
            for i in range(index(tasks)):
                found = found or work.scaled[i, a] * work.scaled[i, b] != 0.0
            work.meets[a, b] = found


@inlined
def _add_pairs(tasks: int, units: int, work: ReluWork) -> None:
    """Squares: what sets of one unit and of two add."""
    scaled, squares, K = work.scaled, work.squares, index(work.K)
    for a in range(K):
        for i in range(index(tasks)):
            squares[i, a, a] += 0.5 * scaled[i, a] * scaled[i, a]
        for b in range(a + index(1), index(units)):
            rho, sine, angle = work.rho[a, b], work.sines[a, b], work.angles[a, b]
            product = relu.product(rho, sine, angle)
            square = relu.gated_own_square(rho, sine, angle)
            for i in range(index(tasks)):
                by_a, by_b = scaled[i, a], scaled[i, b]
                both = 2.0 * by_a * by_b * product
                squares[i, a, a] += by_b * by_b * square + both
                if b < K:
                    squares[i, b, b] += by_a * by_a * square + both
                    squares[i, a, b] += (by_a * by_a + by_b * by_b) * square + both


@inlined
def _add_triples(tasks: int, units: int, work: ReluWork) -> None:
    """Squares: what sets of three units add; the first is a hidden one."""
    scaled, squares, K = work.scaled, work.squares, index(work.K)
    rho, sines, angles, meets = work.rho, work.sines, work.angles, work.meets
    for a in range(K):
        for b in range(a + index(1), index(units)):
            ab, s_ab = rho[a, b], sines[a, b]
            for c in range(b + index(1), index(units)):
                if not meets[b, c]:
                    continue
                ac, bc, s_ac, s_bc = rho[a, c], rho[b, c], sines[a, c], sines[b, c]
                p3 = orthants.three(angles[a, b], angles[a, c], angles[b, c])
                by_a = relu.gated_product(ab, ac, bc, s_ab, s_ac, s_bc, p3)
                for i in range(index(tasks)):
                    squares[i, a, a] += 2.0 * scaled[i, b] * scaled[i, c] * by_a
                if b < K:
                    by_b = relu.gated_product(ab, bc, ac, s_ab, s_bc, s_ac, p3)
                    by_ab = relu.gated_square(ab, ac, bc, s_ab, s_ac, s_bc, p3)
                    for i in range(index(tasks)):
                        v_a, v_b, v_c = scaled[i, a], scaled[i, b], scaled[i, c]
                        squares[i, b, b] += 2.0 * v_a * v_c * by_b
                        squares[i, a, b] += v_c * (v_c * by_ab + 2.0 * (v_b * by_a + v_a * by_b))
                    if c < K:
                        by_c = relu.gated_product(ac, bc, ab, s_ac, s_bc, s_ab, p3)
                        by_ac = relu.gated_square(ac, ab, bc, s_ac, s_ab, s_bc, p3)
                        by_bc = relu.gated_square(bc, ab, ac, s_bc, s_ab, s_ac, p3)
                        for i in range(index(tasks)):
                            v_a, v_b, v_c = scaled[i, a], scaled[i, b], scaled[i, c]
                            both = 2.0 * v_a * v_b * by_c
                            squares[i, c, c] += both
                            squares[i, a, c] += both + v_b * (v_b * by_ac + 2.0 * v_c * by_a)
                            squares[i, b, c] += both + v_a * (v_a * by_bc + 2.0 * v_c * by_b)


@inlined
def set_lane(lane: int, a: int, b: int, c: int, d: int, work: ReluWork) -> None:
    """Give four units a lane."""
    units, fours, at = (index(a), index(b), index(c), index(d)), work.fours, index(lane)
    angles = 0.0
    for pair in range(index(6)):
        n, m = units[FIRST[pair]], units[SECOND[pair]]
        fours.rho[pair, at] = work.rho[n, m]
        fours.sines[pair, at] = work.sines[n, m]
        fours.inverses[pair, at] = work.inverse_sines[n, m]
        angles += work.angles[n, m]
    fours.angles[at] = angles
    for i in range(4):
        fours.units[i, at] = units[i]


@compiled(fastmath=REORDERED, no_cpython_wrapper=True)
def _add_fours(count: int, tasks: int, work: ReluWork) -> None:
    """Squares: what four units add, in all lanes; the first two are hidden ones."""
    scaled, squares, fours = work.scaled, work.squares, work.fours
    set_quadruples(count, fours)
    for lane in range(index(count)):
        for pair in range(index(6)):
            k = index(fours.units[FIRST[pair], lane])
            h = index(fours.units[SECOND[pair], lane])
            if h < work.K:
                other, moment = index(5) - pair, 2.0 * fours.moments[pair, lane]
                n, m = fours.units[FIRST[other], lane], fours.units[SECOND[other], lane]
                for i in range(index(tasks)):
                    squares[i, k, h] += scaled[i, index(n)] * scaled[i, index(m)] * moment


@inlined
def have_fours(units: int, work: ReluWork) -> bool:
    """Whether there are four different units, two of them hidden, in one error."""
    found = work.K > 2 and units > 3
    for c in range(index(work.K), index(units)):
        for d in range(c + index(1), index(units)):
            found = found or (work.K == 2 and work.meets[c, d])
    return found


@compiled(fastmath=REORDERED, no_cpython_wrapper=True)
def _add_all_fours(tasks: int, units: int, work: ReluWork) -> None:
    """Squares: what all sets of four units add.

    A function of its own, because passing `work` is slow.
    """
    count = 0
    for a in range(work.K):
        for b in range(a + 1, work.K):
            for c in range(b + 1, units):
                for d in range(c + 1, units):
                    if work.meets[index(c), index(d)]:
                        set_lane(count, a, b, c, d, work)
                        count += 1
                        if count == LANES:
                            _add_fours(count, tasks, work)
                            count = 0
    if count > 0:
        _add_fours(count, tasks, work)


@inlined
def _squares(tasks: int, units: int, work: ReluWork) -> None:
    """Fill in E[Δ² g′_k g′_h] of each trained task for all pairs k ≤ h of hidden units."""
    squares, K = work.squares, index(work.K)
    for i in range(index(tasks)):
        for k in range(K):
            for h in range(k, K):
                squares[i, k, h] = 0.0
    set_meets(tasks, units, work)
    _add_pairs(tasks, units, work)
    _add_triples(tasks, units, work)
    if have_fours(units, work):
        _add_all_fours(tasks, units, work)


@inlined
def _feature_rate(shares: Floats, tasks: int, work: ReluWork, out: Floats) -> None:
    """Write Q′ and M′ to `out` from the first-order parts and the squares."""
    moving, rates, drift, squares = work.moving, work.rates, work.drift, work.squares
    noise, K, U = work.noise * work.noise, index(work.K), index(work.drift.shape[1])
    for k in range(K):
        for h in range(k, K):
            total, slopes = 0.0, noise * orthants.two(work.angles[k, h])
            for i in range(index(tasks)):
                t = index(work.active[i])
                pace = shares[t] * rates[t] * rates[t] * moving[t, k] * moving[t, h]
                total += pace * (squares[i, k, h] + slopes)
            out[k * K + h] = out[h * K + k] = total - drift[k, h] - drift[h, k]
        for p in range(K, U):
            out[K * K + k * (U - K) + p - K] = -drift[k, p]


@compiled(fastmath=REORDERED, forceinline=True)
def rate(work: ReluWork, state: Floats, shares: Floats, knobs: Floats, out: Floats) -> None:
    """Write Σ_t shares[t] f_t(state, knobs of task t) to `out` (n,), as `rate` of erf does."""
    set_state(state, work)
    set_rates(knobs, work)
    tasks, units = select(shares, work)
    set_correlations(tasks, units, work)
    _head_rate(shares, tasks, units, work, out)
    _drift(shares, tasks, units, work)
    _squares(tasks, units, work)
    _feature_rate(shares, tasks, work, out)


@compiled
def losses(work: ReluWork, state: Floats, out: Floats) -> None:
    """Write ε_t = ½ E[Δ_t²] = ½ Σ_nm v_tn v_tm E[n⁺ m⁺] to `out` (T,)."""
    set_state(state, work)
    T, U = work.weights.shape
    for t in range(T):
        work.active[t] = t
    for n in range(U):
        work.units[n] = n
    set_correlations(T, U, work)
    out[:] = 0.0
    for n in range(U):
        for m in range(n + 1):
            moment = relu.product(work.rho[n, m], work.sines[n, m], work.angles[n, m])
            if n == m:
                moment *= 0.5
            for t in range(T):
                out[t] += work.scaled[t, n] * work.scaled[t, m] * moment
