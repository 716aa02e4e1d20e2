"""The equations a second time, as the paper prints them, with I₃'s index order corrected."""

import numpy as np


def i2(q, a, b):
    return 2 / np.pi * np.arcsin(q[a, b] / np.sqrt((1 + q[a, a]) * (1 + q[b, b])))


def i3(q, n, k, h):
    """E[g(λ_n) g′(λ_k) λ_h]: the printed closed form with β = k, ρ = n, ζ = h."""
    top = 2 * q[n, h] * (1 + q[k, k]) - 2 * q[k, n] * q[k, h]
    lambda3 = (1 + q[k, k]) * (1 + q[n, n]) - q[k, n] ** 2
    return top / (np.pi * np.sqrt(lambda3) * (1 + q[k, k]))


def i4(q, b, r, z, t):
    """E[g(λ_b) g(λ_r) g′(λ_z) g′(λ_t)]."""
    l4 = (1 + q[z, z]) * (1 + q[t, t]) - q[z, t] ** 2
    l0 = (
        l4 * q[b, r]
        - q[b, t] * q[r, t] * (1 + q[z, z])
        - q[b, z] * q[r, z] * (1 + q[t, t])
        + q[z, t] * q[b, z] * q[r, t]
        + q[z, t] * q[r, z] * q[b, t]
    )
    l1, l2 = (
        l4 * (1 + q[a, a])
        - q[a, t] ** 2 * (1 + q[z, z])
        - q[a, z] ** 2 * (1 + q[t, t])
        + 2 * q[z, t] * q[a, z] * q[a, t]
        for a in (b, r)
    )
    return 4 / (np.pi**2 * np.sqrt(l4)) * np.arcsin(l0 / np.sqrt(l1 * l2))


def both_slopes(q, k, h):
    """E[g′(λ_k) g′(λ_h)]."""
    return 2 / (np.pi * np.sqrt((1 + q[k, k]) * (1 + q[h, h]) - q[k, h] ** 2))


PRINTED = i2, i3, i4, both_slopes


def rate(Q, M, V, S, A, task, lr, *, noise=0.0, head_lr=1.0, moments=None):
    """(Q′, M′, V′) while training on `task`; of erf units, unless `moments` are given."""
    i2, i3, i4, both_slopes = moments or PRINTED
    K, P = M.shape
    q = np.block([[Q, M], [M.T, S]])
    v = V[task]
    w = np.concatenate([v, -A[task]])
    units = range(K + P)
    dQ, dM, dV = np.zeros_like(Q), np.zeros_like(M), np.zeros_like(V)
    for k in range(K):
        for h in range(K):
            dQ[k, h] -= lr * v[k] * sum(w[n] * i3(q, n, k, h) for n in units)
            dQ[k, h] -= lr * v[h] * sum(w[n] * i3(q, n, h, k) for n in units)
            square = sum(w[n] * w[m] * i4(q, n, m, k, h) for n in units for m in units)
            slopes = both_slopes(q, k, h)
            dQ[k, h] += lr**2 * v[k] * v[h] * (square + noise**2 * slopes)
        for p in range(P):
            dM[k, p] = -lr * v[k] * sum(w[n] * i3(q, n, k, K + p) for n in units)
        dV[task, k] = -lr * head_lr * sum(w[n] * i2(q, k, n) for n in units)
    return dQ, dM, dV
