"""Compiled kernels of the teacher-student model: the rate of change and the losses.

Notation: K hidden units, P teacher units, T tasks, U = K + P units in all. The state is one
vector [Q (K×K), M (K×P), V (T×K)]. Task t's error is Δ_t = Σ_n w_tn g(λ_n), w_t = (V_t, −A_t).
With learning rates η of the features and ρ of the heads, and label noise σ (paper, appendix A; I₃'s
index order corrected):

    Q′_kh = −η V_tk E[Δ g′_k λ_h] − η V_th E[Δ g′_h λ_k] + η² V_tk V_th E[(Δ² + σ²) g′_k g′_h]
    M′_kp = −η V_tk E[Δ g′_k λ*_p]
    V′_tk = −ρ E[Δ g_k]

Tasks mix linearly with their shares, so weights are mixed first and every special function is
evaluated once for all tasks.
"""

from __future__ import annotations

from replan._common.check import Floats
from replan._common.compiled import compiled, index, inlined
from replan.dynamics.moments import TWO_OVER_PI, i2, norm, tilted
from replan.dynamics.teacher_student._work import Work


@inlined
def _unpack(state: Floats, K: int, work: Work) -> None:
    """Fill the covariance and the weights from the state."""
    cov, weights = work.cov, work.weights
    T, U = weights.shape
    P = U - K
    at = 0
    for k in range(K):
        for h in range(K):
            cov[k, h] = state[index(at)]
            at += 1
    for k in range(K):
        for p in range(K, U):
            cov[k, p] = state[index(at)]
            cov[p, k] = state[index(at)]
            at += 1
    for t in range(T):
        for k in range(K):
            weights[t, k] = state[index(at)]
            at += 1
    for a in range(K + P):
        work.norms[a] = norm(cov[a, a])


@inlined
def _set_rates(knobs: Floats, work: Work) -> None:
    """Fill in the rates of features and heads on each task from the knobs [lr, factors of both]."""
    T = work.rates.size
    for t in range(T):
        lr = work.pace * knobs[t]
        work.rates[t] = lr * knobs[index(T + t)]
        work.head_rates[t] = lr * knobs[index(2 * T + t)] * work.trained[t]


@inlined
def _select(shares: Floats, K: int, work: Work) -> tuple[int, int]:
    """List the tasks that have a share and the units in their errors; return both counts."""
    T, U = work.weights.shape
    tasks = 0
    for t in range(T):
        if shares[t] != 0.0:
            work.active[index(tasks)] = t
            tasks += 1
    units = K
    for k in range(K):
        work.units[k] = k
    for p in range(K, U):
        for i in range(tasks):
            if work.weights[index(work.active[i]), p] != 0.0:
                work.units[index(units)] = p
                units += 1
                break
    return tasks, units


@inlined
def _add_head_rate(shares: Floats, K: int, tasks: int, units: int, work: Work, out: Floats) -> None:
    """Add V′ to `out`, the heads' part of the rate."""
    cov, weights, norms = work.cov, work.weights, work.norms
    heads = out.size - weights.shape[0] * K
    for k in range(K):
        for j in range(k, units):
            n = work.units[j]
            moment = i2(cov[k, index(n)], norms[k], norms[index(n)])
            for i in range(tasks):
                t = work.active[i]
                pace = shares[index(t)] * work.head_rates[index(t)] * moment
                out[index(heads + t * K + k)] -= pace * weights[index(t), index(n)]
                if k < n < K:
                    out[index(heads + t * K + n)] -= pace * weights[index(t), k]


@inlined
def _add_drift(
    shares: Floats, k: int, K: int, tasks: int, units: int, work: Work, out: Floats
) -> None:
    """Add what hidden unit k's first-order step does to Q and M; needs C tilted by k."""
    once, weights, rates = work.once, work.weights, work.rates
    U = once.shape[0]
    P = U - K
    scale = TWO_OVER_PI * work.norms[k]
    for j in range(units):
        n = index(work.units[j])
        push = 0.0
        for i in range(tasks):
            t = index(work.active[i])
            push += shares[t] * rates[t] * weights[t, k] * weights[t, n]
        work.push[j] = scale * push * work.norms_once[n]
    for h in range(U):
        drift = 0.0
        for j in range(units):
            drift += work.push[j] * once[index(work.units[j]), h]
        if h < K:
            out[index(k * K + h)] -= drift
            out[index(h * K + k)] -= drift
        else:
            out[index(K * K + k * P + h - K)] -= drift


@inlined
def _add_diffusion(
    shares: Floats, k: int, h: int, K: int, tasks: int, units: int, work: Work, out: Floats
) -> None:
    """Add the second-order term of Q_kh; needs C tilted by k."""
    once, weights, norms, rates = work.once, work.weights, work.norms_twice, work.rates
    inverse = 1.0 / (1.0 + once[h, h])
    total = 0.0
    for i in range(tasks):
        t = index(work.active[i])
        work.coefficients[i] = shares[t] * rates[t] * rates[t] * weights[t, k] * weights[t, h]
        total += work.coefficients[i] * work.noise * work.noise
    for j in range(units):
        n = index(work.units[j])
        norms[n] = norm(tilted(once[n, n], once[n, h], once[n, h], inverse))
    for j in range(units):
        n = index(work.units[j])
        for j2 in range(j + 1):
            m = index(work.units[j2])
            weight = 0.0
            for i in range(tasks):
                t = index(work.active[i])
                weight += work.coefficients[i] * weights[t, n] * weights[t, m]
            if weight == 0.0:  # two teacher units that no task combines
                continue
            if j2 < j:
                weight *= 2.0
            overlap = tilted(once[n, m], once[n, h], once[m, h], inverse)
            total += weight * i2(overlap, norms[n], norms[m])
    total *= TWO_OVER_PI * work.norms[k] * work.norms_once[h]
    out[index(k * K + h)] += total
    if h != k:
        out[index(h * K + k)] += total


@compiled
def rate(work: Work, state: Floats, shares: Floats, knobs: Floats, out: Floats) -> None:
    """Write Σ_t shares[t] f_t(state, knobs of task t) to `out` (n,).

    shares: (T,). knobs: (3T,), the learning rate of each task, and the factors for its features and
    for its head.
    """
    K = work.K
    _unpack(state, K, work)
    _set_rates(knobs, work)
    tasks, units = _select(shares, K, work)
    out[:] = 0.0
    _add_head_rate(shares, K, tasks, units, work, out)
    cov, once = work.cov, work.once
    U = cov.shape[0]
    for k in range(K):
        inverse = work.norms[k] * work.norms[k]
        for a in range(U):
            for b in range(a + 1):
                once[a, b] = once[b, a] = tilted(cov[a, b], cov[a, k], cov[b, k], inverse)
            work.norms_once[a] = norm(once[a, a])
        _add_drift(shares, k, K, tasks, units, work, out)
        for h in range(k, K):
            _add_diffusion(shares, k, h, K, tasks, units, work, out)


@compiled
def losses(work: Work, state: Floats, out: Floats) -> None:
    """Write ε_t = ½ E[Δ_t²] = ½ Σ_nm w_tn w_tm I₂(n, m) to `out` (T,)."""
    _unpack(state, work.K, work)
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
