"""The equations a second time: the paper's for erf, from the page that shows them, and for ReLU the
recursion of Stein's identity in extended precision."""

import itertools
import re
from functools import lru_cache
from pathlib import Path

import numpy as np

_PAGE = Path(__file__).parents[1] / "docs" / "mathematics.md"
[_CODE] = re.findall(r"^```python\n# equations.py\n(.*?)^```$", _PAGE.read_text(), re.S | re.M)
_equations = {}
exec(compile(_CODE, str(_PAGE), "exec"), _equations)
i2, i3, i4, both_slopes = (_equations[name] for name in ("i2", "i3", "i4", "both_slopes"))

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


def rate(*arguments, activation="erf", **settings):
    """(Q′, M′, V′) while training on a task."""
    return _equations["rate"](*arguments, moments=MOMENTS[activation], **settings)
