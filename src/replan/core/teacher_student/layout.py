"""How the kernels of every activation read teachers, state and controls, and write derivatives.

Notation as in `erf`. `work` and `bars` are the scratch arrays of any of them: the fields used
here have the same names in all.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from replan.check import Floats
from replan.core.compiled import index, inlined


@inlined
def with_teachers(p: Any) -> tuple[Floats, Floats]:
    """Return a covariance (U, U) and weights (T, U) with the teachers' part of both filled in."""
    T, P = p.A.shape
    cov, weights = np.zeros((p.K + P, p.K + P)), np.zeros((T, p.K + P))
    for a in range(P):
        for b in range(P):
            cov[p.K + a, p.K + b] = p.S[a, b]
        for t in range(T):
            weights[t, p.K + a] = -p.A[t, a]
    return cov, weights


@inlined
def unpack(state: Floats, work: Any) -> None:
    """Fill the covariance and the weights from the state."""
    cov, weights, K = work.cov, work.weights, work.K
    T, U = weights.shape
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


@inlined
def set_rates(knobs: Floats, work: Any) -> None:
    """Fill in the rates of features and heads on each task from the knobs [lr, factors of both]."""
    T = work.rates.size
    for t in range(T):
        lr = work.pace * knobs[t]
        work.rates[t] = lr * knobs[index(T + t)]
        work.head_rates[t] = lr * knobs[index(2 * T + t)] * work.trained[t]


@inlined
def select(shares: Floats, work: Any) -> tuple[int, int]:
    """List the tasks that have a share and the units in their errors; return both counts."""
    T, U = work.weights.shape
    K, tasks = work.K, 0
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
def write_by_state(work: Any, bars: Any, by_state: Floats) -> None:
    """Write the derivatives by Q, M and V to `by_state` (n,)."""
    by_cov, by_weights, K = bars.cov, bars.weights, index(work.K)
    T, U = index(by_weights.shape[0]), index(by_weights.shape[1])
    at = index(0)
    for k in range(K):
        for h in range(K):
            by_state[at] = 0.5 * (by_cov[k, h] + by_cov[h, k])
            at += index(1)
    for k in range(K):
        for p in range(K, U):
            by_state[at] = by_cov[k, p] + by_cov[p, k]
            at += index(1)
    for t in range(T):
        for k in range(K):
            by_state[at] = by_weights[t, k]
            at += index(1)


@inlined
def add_by_controls(
    shares: Floats, knobs: Floats, scale: float, work: Any, bars: Any,
    by_shares: Floats, by_knobs: Floats,
) -> None:  # fmt: skip
    """Add `scale` × the derivatives by shares and knobs."""
    rates, linear, quadratic, heads = work.rates, bars.linear, bars.quadratic, bars.heads
    T = index(shares.size)
    for t in range(T):
        rate, lr = rates[t], scale * work.pace * knobs[t]
        by_shares[t] += scale * rate * (linear[t] + rate * quadratic[t])
        by_shares[t] += lr * knobs[index(2) * T + t] * heads[t]
        by_rate = shares[t] * (linear[t] + 2.0 * rate * quadratic[t])
        by_head_rate = shares[t] * heads[t]
        by_knobs[t] += (scale * work.pace) * (
            knobs[T + t] * by_rate + knobs[index(2) * T + t] * by_head_rate
        )
        by_knobs[T + t] += lr * by_rate
        by_knobs[index(2) * T + t] += lr * by_head_rate
