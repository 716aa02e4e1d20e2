"""The equations a second time: the paper's for erf, with I₃'s index order corrected, and for ReLU
the recursion of Stein's identity in extended precision."""

import itertools
from functools import lru_cache

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


# ReLU

_PI = np.longdouble(np.pi) + np.longdouble(1.2246467991473532e-16)


def given_zero(cov, i):
    return cov - np.outer(cov[:, i], cov[i]) / cov[i, i]


def orthant(cov, units):
    """P(all units > 0), of at most four."""

    def correlation(i, j):
        return np.clip(cov[i, j] / np.sqrt(cov[i, i] * cov[j, j]), -1, 1)

    if len(units) < 2:
        return np.longdouble(1) / 2 ** len(units)
    angles = [np.arcsin(correlation(i, j)) for i, j in itertools.combinations(units, 2)]
    if len(units) == 2:
        return np.longdouble(1) / 4 + angles[0] / (2 * _PI)
    if len(units) == 3:
        return np.longdouble(1) / 8 + sum(angles) / (4 * _PI)
    pairs = [((0, 1), (2, 3)), ((0, 2), (1, 3)), ((0, 3), (1, 2))]
    splits = [([units[i] for i in A], [units[i] for i in B]) for A, B in pairs]
    A, B = max(splits, key=lambda split: abs(correlation(*split[0])))
    nodes, weights = np.polynomial.legendre.leggauss(20)
    ends = 1 - np.longdouble(1) / 8 ** np.arange(17)
    total = orthant(cov, A) * orthant(cov, B)
    for low, high in itertools.pairwise([*ends, 1]):
        for node, weight in zip(nodes, weights, strict=True):
            t = low + (high - low) * (node + 1) / 2
            scaled = cov.copy()
            scaled[np.ix_(A, B)] *= t
            scaled[np.ix_(B, A)] *= t
            for (i, k), (j, m) in itertools.product((A, A[::-1]), (B, B[::-1])):
                rho = correlation(i, j)
                left = given_zero(given_zero(scaled, i), j)
                rate = rho / (2 * _PI * np.sqrt(1 - (t * rho) ** 2)) * orthant(left, [k, m])
                total += weight * (high - low) / 2 * rate
    return total


def positive_moment(cov, powers):
    """E[Π λ_i^p_i; all λ_i > 0], powers p by unit: E[λ_c F] = Σ_i C_ci E[∂_i F]."""
    if not any(powers.values()):
        return orthant(cov, list(powers))
    c = max(powers, key=powers.get)
    rest, total = powers | {c: powers[c] - 1}, np.longdouble(0)
    for i, power in rest.items():
        if power > 0:
            total += cov[c, i] * power * positive_moment(cov, rest | {i: power - 1})
        else:  # the derivative of the step
            others = {unit: p for unit, p in rest.items() if unit != i}
            edge = cov[c, i] / np.sqrt(2 * _PI * cov[i, i])
            total += edge * positive_moment(given_zero(cov, i), others)
    return total


@lru_cache(maxsize=10_000)
def _relu(content, size, products, gates):
    cov = np.frombuffer(content).reshape(size, size).astype(np.longdouble)
    units = sorted({*products, *gates})
    return float(positive_moment(cov, {unit: products.count(unit) for unit in units}))


def relu_moment(cov, products, gates=()):
    """E[Π g over products, Π g′ over gates]."""
    return _relu(cov.tobytes(), len(cov), tuple(sorted(products)), tuple(sorted({*gates})))


def relu_i3(cov, n, k, h):
    if n == k:
        return cov[n, h] / 2
    step = cov[h, k] / np.sqrt(2 * np.pi * cov[k, k]) * relu_moment(given_zero(cov, k), (n,))
    return cov[h, n] * relu_moment(cov, (), (n, k)) + step


MOMENTS = {
    "erf": (i2, i3, i4, both_slopes),
    "relu": (
        lambda cov, a, b: relu_moment(cov, (a, b)),
        relu_i3,
        lambda cov, n, m, k, h: relu_moment(cov, (n, m), (k, h)),
        lambda cov, k, h: relu_moment(cov, (), (k, h)),
    ),
    "linear": (
        lambda cov, a, b: cov[a, b],
        lambda cov, n, k, h: cov[n, h],
        lambda cov, n, m, k, h: cov[n, m],
        lambda cov, k, h: 1.0,
    ),
}


def rate(Q, M, V, S, A, task, lr, *, noise=0.0, head_lr=1.0, activation="erf"):
    """(Q′, M′, V′) while training on `task`."""
    i2, i3, i4, both_slopes = MOMENTS[activation]
    K, P = M.shape
    q = np.block([[Q, M], [M.T, S]])
    v = V[task]
    w = np.concatenate([v, -A[task]])
    units = np.flatnonzero(w)
    dQ, dM, dV = np.zeros_like(Q), np.zeros_like(M), np.zeros_like(V)
    for k in range(K):
        for h in range(K):
            dQ[k, h] -= lr * v[k] * sum(w[n] * i3(q, n, k, h) for n in units)
            dQ[k, h] -= lr * v[h] * sum(w[n] * i3(q, n, h, k) for n in units)
            square = sum(w[n] * w[m] * i4(q, n, m, k, h) for n in units for m in units)
            dQ[k, h] += lr**2 * v[k] * v[h] * (square + noise**2 * both_slopes(q, k, h))
        for p in range(P):
            dM[k, p] = -lr * v[k] * sum(w[n] * i3(q, n, k, K + p) for n in units)
        dV[task, k] = -lr * head_lr * sum(w[n] * i2(q, k, n) for n in units)
    return dQ, dM, dV
