"""Compiled kernels of the teacher-student model: the rate of change and the losses.

Notation: K hidden units, P teacher units, T tasks, U = K + P units in all. The state is one
vector [Q (K×K), M (K×P), V (T×K)]. Task t's error is Δ_t = Σ_n w_tn g(λ_n), w_t = (V_t, −A_t).
With learning rates η of the features and ρ of the heads, and label noise σ (paper, appendix A; I₃'s
index order corrected):

    Q′_kh = −η V_tk E[Δ g′_k λ_h] − η V_th E[Δ g′_h λ_k] + η² V_tk V_th E[(Δ² + σ²) g′_k g′_h]
    M′_kp = −η V_tk E[Δ g′_k λ*_p]
    V′_tk = −ρ E[Δ g_k]

Tasks mix linearly with their shares, so every arcsine is evaluated once for all tasks.
"""

from __future__ import annotations

import numpy as np

from replan.check import Floats
from replan.core.compiled import REORDERED, compiled, index, inlined
from replan.core.moments.erf import TWO_OVER_PI, arcsine, i2, norm
from replan.core.teacher_student.layout import select, set_rates, unpack
from replan.core.teacher_student.work import Work


@inlined
def set_state(state: Floats, work: Work) -> None:
    """Fill the covariance, the weights and the norms from the state."""
    unpack(state, work)
    for a in range(work.cov.shape[0]):
        work.norms[a] = norm(work.cov[a, a])


# The loops below run over numbers side by side, so that they are vectorised; `whole` says that
# there are no left-over ones.


@inlined
def whole(count: int) -> np.uint64:
    """Return a count, or the next one, that is a multiple of the length of a vector."""
    return index(4) * ((index(count) + index(3)) // index(4))


@inlined
def tilt_once(units: int, work: Work) -> None:
    """Tilt C by each hidden unit k, C^k_nm = C_nm − sides_nk sides_mk; I₂ of every unit with k."""
    cov, norms, sides, moments = work.cov, work.norms, work.sides, work.moments
    norms_once, K = work.norms_once, index(work.K)
    for j in range(index(units)):
        n = index(work.units[j])
        for k in range(K):
            side = cov[n, k] * norms[k]
            sides[j * K + k] = side
            moments[j * K + k] = side * norms[n]
            norms_once[j * K + k] = cov[n, n] - side * side
    for at in range(index(units) * K, whole(units * work.K)):
        moments[at] = 0.0  # what is left there would shrink with every call, to slow tiny numbers
    for at in range(whole(units * work.K)):
        moments[at] = TWO_OVER_PI * arcsine(moments[at])
        norms_once[at] = norm(norms_once[at])


@inlined
def tilt_twice(units: int, work: Work) -> None:
    """Tilt C by all pairs of hidden units: C^kh_nm = C_nm − first_n first_m − second_n second_m."""
    cov, sides, first, second = work.cov, work.sides, work.first, work.second
    norms_once, norms_twice, K = work.norms_once, work.norms_twice, index(work.K)
    for j in range(index(units)):
        n = index(work.units[j])
        at = index(0)
        for k in range(K):
            side = sides[j * K + k]
            for h in range(k, K):
                first[j, at] = side
                left = cov[n, h] - side * sides[h * K + k]
                second[j, at] = left * norms_once[h * K + k]
                at += index(1)
        for lane in range(whole(first.shape[1])):
            less = first[j, lane] * first[j, lane] + second[j, lane] * second[j, lane]
            norms_twice[j, lane] = norm(cov[n, n] - less)


@inlined
def _head_rate(shares: Floats, tasks: int, units: int, work: Work, out: Floats) -> None:
    """Write V′ to `out`, the heads' part of the rate."""
    weights, moments, K = work.weights, work.moments, index(work.K)
    heads = index(out.size) - index(weights.shape[0]) * K
    for at in range(heads, index(out.size)):
        out[at] = 0.0
    for i in range(tasks):
        t = index(work.active[i])
        pace = shares[t] * work.head_rates[t]
        for k in range(K):
            total = 0.0
            for j in range(index(units)):
                total += weights[t, index(work.units[j])] * moments[j * K + k]
            out[heads + t * K + k] = -pace * total


@inlined
def _drift(shares: Floats, tasks: int, units: int, work: Work) -> None:
    """Fill in drift_kh = Σ_t s_t η_t V_tk E[Δ_t g′_k λ_h]."""
    cov, weights, norms, push, drift = work.cov, work.weights, work.norms, work.push, work.drift
    sides, norms_once, rates = work.sides, work.norms_once, work.rates
    K, U = index(work.K), index(cov.shape[0])
    for k in range(K):
        along = 0.0
        for j in range(index(units)):
            n = index(work.units[j])
            total = 0.0
            for i in range(tasks):
                t = index(work.active[i])
                total += shares[t] * rates[t] * weights[t, k] * weights[t, n]
            push[j] = TWO_OVER_PI * norms[k] * total * norms_once[j * K + k]
            along += push[j] * sides[j * K + k]
        along *= norms[k]
        for h in range(U):
            drift[k, h] = push[0] * cov[0, h] - along * cov[k, h]
        for j in range(index(1), index(units)):
            n = index(work.units[j])
            for h in range(U):
                drift[k, h] += push[j] * cov[n, h]


@inlined
def _squares(tasks: int, units: int, work: Work) -> None:
    """Fill in E[Δ²] of each trained task under C tilted by all pairs of hidden units."""
    weights, squares, angles, cov = work.weights, work.squares, work.angles, work.cov
    first, second, norms = work.first, work.second, work.norms_twice
    lanes = whole(angles.size)
    for i in range(tasks):
        for lane in range(lanes):
            squares[i, lane] = 0.0
    for j in range(index(units)):
        n = index(work.units[j])
        for j2 in range(j + index(1)):
            m = index(work.units[j2])
            overlap, twice = cov[n, m], TWO_OVER_PI if j2 == j else 2.0 * TWO_OVER_PI
            known = False
            for i in range(tasks):
                t = index(work.active[i])
                weight = twice * weights[t, n] * weights[t, m]
                if (
                    weight == 0.0
                ):  # two teacher units that the task does not combine, or a head of 0
                    continue
                if known:
                    for lane in range(lanes):
                        squares[i, lane] += weight * angles[lane]
                    continue
                known = True
                for lane in range(lanes):
                    left = overlap - first[j, lane] * first[j2, lane]
                    left -= second[j, lane] * second[j2, lane]
                    angle = arcsine(left * norms[j, lane] * norms[j2, lane])
                    angles[lane] = angle
                    squares[i, lane] += weight * angle


@inlined
def _feature_rate(shares: Floats, tasks: int, work: Work, out: Floats) -> None:
    """Write Q′ and M′ to `out` from the first-order parts and the squares."""
    weights, rates, drift, squares = work.weights, work.rates, work.drift, work.squares
    norms, norms_once, noise = work.norms, work.norms_once, work.noise * work.noise
    K, U = index(work.K), index(drift.shape[1])
    lane = index(0)
    for k in range(K):
        for h in range(k, K):
            total = 0.0
            for i in range(tasks):
                t = index(work.active[i])
                pace = shares[t] * rates[t] * rates[t] * weights[t, k] * weights[t, h]
                total += pace * (squares[i, lane] + noise)
            total *= TWO_OVER_PI * norms[k] * norms_once[h * K + k]
            out[k * K + h] = out[h * K + k] = total - drift[k, h] - drift[h, k]
            lane += index(1)
        for p in range(K, U):
            out[K * K + k * (U - K) + p - K] = -drift[k, p]


@compiled(fastmath=REORDERED, forceinline=True)
def rate(work: Work, state: Floats, shares: Floats, knobs: Floats, out: Floats) -> None:
    """Write Σ_t shares[t] f_t(state, knobs of task t) to `out` (n,).

    shares: (T,). knobs: (3T,), the learning rate of each task, and the factors for its features and
    for its head.
    """
    set_state(state, work)
    set_rates(knobs, work)
    tasks, units = select(shares, work)
    tilt_once(units, work)
    _head_rate(shares, tasks, units, work, out)
    _drift(shares, tasks, units, work)
    tilt_twice(units, work)
    _squares(tasks, units, work)
    _feature_rate(shares, tasks, work, out)


@compiled
def losses(work: Work, state: Floats, out: Floats) -> None:
    """Write ε_t = ½ E[Δ_t²] = ½ Σ_nm w_tn w_tm I₂(n, m) to `out` (T,)."""
    set_state(state, work)
    cov, weights, norms = work.cov, work.weights, work.norms
    T, U = weights.shape
    out[:] = 0.0
    for n in range(U):
        for m in range(n + 1):
            moment = i2(cov[n, m], norms[n], norms[m])
            if n == m:
                moment *= 0.5
            for t in range(T):
                out[t] += weights[t, n] * weights[t, m] * moment
