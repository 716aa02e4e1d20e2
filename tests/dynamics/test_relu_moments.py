"""Moments of ReLU and linear units against quadrature, a plain recursion, scaling and limits."""

import itertools
import math
from functools import cache

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from replan.models import auto_moments
from replan.core.moments import erf, linear, relu

UNITS = range(4)
QUADRUPLES = list(itertools.product(UNITS, repeat=4))


def gram(factor):
    return factor @ factor.T


# Quadrature


@cache
def simplex(m):
    """Points (n, m) with coordinates that sum to 1, and their weights: a folded unit cube."""
    u, weight = np.polynomial.legendre.leggauss(44)
    grid = np.array(list(itertools.product((u + 1) / 2, repeat=m - 1)))
    weights = np.prod(list(itertools.product(weight / 2, repeat=m - 1)), axis=1)
    points, left = [], np.ones(len(grid))
    for i in range(m - 1):
        points.append(left * grid[:, i])
        weights = weights * left
        left = left * (1 - grid[:, i])
    return np.stack([*points, left], axis=1), weights


def positive_part(cov, powers):
    """E[Π_i x_i^p_i; all x_i > 0] of a Gaussian, by quadrature over the directions of x.

    The radius is integrated by hand, as everything is homogeneous; the directions are a simplex,
    on which the integrand is rational and smooth.
    """
    m, degree = len(cov), sum(powers)
    precision = np.linalg.inv(cov)
    lengths = np.sqrt(np.diag(cov))  # so that the simplex suits the covariance
    y, weights = simplex(m)
    x = y * lengths
    form = np.sum((x @ precision) * x, axis=1)
    n = m + degree
    radius = 2 ** (n / 2 - 1) * math.gamma(n / 2)
    density = np.sqrt(np.linalg.det(precision) / (2 * np.pi) ** m) * np.prod(lengths)
    return density * radius * np.sum(weights * np.prod(x**powers, axis=1) / form ** (n / 2))


def by_quadrature(cov, products, gates):
    """E[Π g over products, Π g′ over gates]."""
    units = sorted({*products, *gates})
    return positive_part(cov[np.ix_(units, units)], [products.count(unit) for unit in units])


def third_by_quadrature(cov, n, k, h):
    """E[g_n g′_k λ_h], with λ_h in place of its regression on λ_n and λ_k."""
    units = sorted({n, k})
    slopes = np.linalg.solve(cov[np.ix_(units, units)], cov[units, h])
    return sum(
        slope * by_quadrature(cov, (n, unit), (k,))
        for unit, slope in zip(units, slopes, strict=True)
    )


@pytest.mark.parametrize("seed", range(2))
def test_relu_moments_of_all_indices_match_quadrature(seed):
    cov = gram(np.random.default_rng(seed).normal(size=(4, 12)))
    scale = np.diag(cov).max()
    for a, b in itertools.product(UNITS, repeat=2):
        expected = by_quadrature(cov, (a, b), ())
        assert relu.i2(cov, a, b) == pytest.approx(expected, abs=1e-11 * scale)
    for n, k, h in itertools.product(UNITS, repeat=3):
        expected = third_by_quadrature(cov, n, k, h)
        assert relu.i3(cov, n, k, h) == pytest.approx(expected, abs=1e-11 * scale)
    known = {}
    for n, m, k, h in QUADRUPLES:
        key = (*sorted((n, m)), *sorted({k, h} - {n, m}))
        if key not in known:
            known[key] = by_quadrature(cov, (n, m), (k, h))
        assert relu.i4(cov, n, m, k, h) == pytest.approx(known[key], abs=1e-11 * scale)


# The recursion of Stein's identity, plainly, in extended precision


def given_zero(cov, i):
    return cov - np.outer(cov[:, i], cov[i]) / cov[i, i]


def correlation(cov, i, j):
    return cov[i, j] / np.sqrt(cov[i, i] * cov[j, j])


def orthant(cov, units):
    """P(all units > 0), of at most four."""
    pi = np.longdouble(np.pi) + np.longdouble(1.2246467991473532e-16)
    if len(units) < 2:
        return np.longdouble(1) / 2 ** len(units)
    angles = [np.arcsin(correlation(cov, i, j)) for i, j in itertools.combinations(units, 2)]
    if len(units) == 2:
        return np.longdouble(1) / 4 + angles[0] / (2 * pi)
    if len(units) == 3:
        return np.longdouble(1) / 8 + sum(angles) / (4 * pi)
    pairs = [((0, 1), (2, 3)), ((0, 2), (1, 3)), ((0, 3), (1, 2))]
    splits = [([units[i] for i in A], [units[i] for i in B]) for A, B in pairs]
    A, B = max(splits, key=lambda split: abs(correlation(cov, *split[0])))
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
                rho = correlation(cov, i, j)
                left = given_zero(given_zero(scaled, i), j)
                rate = rho / (2 * pi * np.sqrt(1 - (t * rho) ** 2)) * orthant(left, [k, m])
                total += weight * (high - low) / 2 * rate
    return total


def first_moment(cov, gates, d):
    """E[Π Θ over gates · d⁺]."""
    units = [*gates, d]
    return sum(
        cov[d, i] / np.sqrt(2 * np.pi * cov[i, i])
        * orthant(given_zero(cov, i), [unit for unit in units if unit != i])
        for i in units
    )  # fmt: skip


def fourth_moment(cov, a, b, c, d):
    """E[Θ_a Θ_b c⁺ d⁺] of four units."""
    cov = cov.astype(np.longdouble)
    total = cov[c, d] * orthant(cov, [a, b, c, d])
    for i in (a, b, c):
        gates = [unit for unit in (a, b, c) if unit != i]
        edge = cov[c, i] / np.sqrt(2 * np.pi * cov[i, i])
        total += edge * first_moment(given_zero(cov, i), gates, d)
    return float(total)


def nearly_singular(kind, size, rng):
    """Four units that are close to lower dimensions, by about `size`."""
    x, noise = rng.normal(size=(4, 6)), size * rng.normal(size=(4, 6))
    match kind:
        case "a pair":
            x[1] = x[0]
        case "opposite":
            x[1] = -x[0]
        case "three":
            x[1] = x[2] = x[0]
        case "two pairs":
            x[1], x[3] = x[0], x[2]
        case "all":
            x[:] = x[0]
        case "a plane of three":
            x[2] = x[0] + x[1]
        case "three dimensions":
            x[3] = x[0] - x[1] + x[2]
        case "a plane":
            x[2], x[3] = x[0] + x[1], x[0] - 2 * x[1]
    return gram(x + noise)


KINDS = (
    "a pair", "opposite", "three", "two pairs", "all", "a plane of three", "three dimensions",
    "a plane",
)  # fmt: skip
SPLITS = [(0, 1, 2, 3), (0, 2, 1, 3), (2, 3, 0, 1)]  # steps, then products


@pytest.mark.skipif(np.finfo(np.longdouble).eps > 1e-18, reason="no extended precision here")
@pytest.mark.parametrize("kind", KINDS)
def test_fourth_moments_of_nearly_singular_units(kind):
    """The accuracy reached, relative to the lengths, as docs/mathematics.md states it."""
    rng = np.random.default_rng(1)
    two = kind in ("a pair", "opposite", "three dimensions")
    for size, of_more in ((1e-1, 1e-14), (1e-2, 1e-12), (1e-3, 1e-9), (1e-4, 1e-8), (1e-6, 1e-5)):
        bound = 1e-14 + 3e-15 / size if two else of_more
        cov = nearly_singular(kind, size, rng)
        for a, b, c, d in SPLITS:
            error = relu.i4(cov, c, d, a, b) - fourth_moment(cov, a, b, c, d)
            scale = np.sqrt(cov[c, c] * cov[d, d])
            assert abs(error) / scale < bound, (size, a, b, c, d)


@pytest.mark.parametrize("kind", KINDS)
def test_singular_units_are_the_limit_of_nearly_singular_ones(kind):
    for seed in range(5):
        cov, near = (
            nearly_singular(kind, size, np.random.default_rng(seed)) for size in (0.0, 1e-5)
        )
        for n, m, k, h in itertools.permutations(UNITS):
            value = relu.i4(cov, n, m, k, h)
            assert value == pytest.approx(relu.i4(near, n, m, k, h), abs=2e-4)


def test_aligned_units_are_one_unit_and_opposite_ones_are_never_both_positive():
    x = np.random.default_rng(2).normal(size=(4, 6))
    for factor, gates in ((1.0, (0, 0)), (2.5, (0, 0)), (-1.0, None)):
        x[1] = factor * x[0]
        cov = gram(x)
        expected = 0.0 if gates is None else relu.i4(cov, 2, 3, *gates)
        assert relu.i4(cov, 2, 3, 0, 1) == pytest.approx(expected, abs=1e-8)
        expected = 0.0 if gates is None else factor * relu.i4(cov, 0, 0, 2, 3)
        assert relu.i4(cov, 0, 1, 2, 3) == pytest.approx(expected, abs=1e-8)
    x[:] = x[0]
    assert relu.i4(gram(x), 0, 1, 2, 3) == pytest.approx(0.5 * x[0] @ x[0], rel=1e-6)


def test_a_unit_without_weights_is_like_one_that_is_tiny_and_uncorrelated():
    cov = gram(np.random.default_rng(3).normal(size=(4, 6)))
    dead, tiny = cov.copy(), cov.copy()
    for changed, variance in ((dead, 0.0), (tiny, 1e-12)):
        changed[0, :] = changed[:, 0] = 0.0
        changed[0, 0] = variance
    out = np.zeros((4, 4))
    for n, m, k, h in QUADRUPLES:
        assert relu.i4(dead, n, m, k, h) == pytest.approx(relu.i4(tiny, n, m, k, h), abs=1e-5)
        assert relu.i3(dead, n, m, k) == pytest.approx(relu.i3(tiny, n, m, k), abs=1e-5)
        relu.pull_i4(dead, n, m, k, h, 1.0, out)
        relu.pull_i3(dead, n, m, k, 1.0, out)
    assert np.all(np.isfinite(out))


factors = arrays(np.float64, (4, 6), elements=st.floats(-1.5, 1.5, width=32))
indices = st.tuples(*[st.integers(0, 3)] * 4)


@settings(max_examples=60, deadline=None)
@given(
    factors,
    indices,
    st.permutations(list(UNITS)),
    arrays(np.float64, 4, elements=st.floats(0.1, 9.0)),
)
def test_order_names_and_lengths_of_units(factor, chosen, order, lengths):
    """Like factors commute, renaming units changes nothing, and ReLU is homogeneous."""
    cov = gram(factor) + 0.01 * np.eye(4)
    n, m, k, h = chosen
    value = relu.i4(cov, n, m, k, h)
    scale = 1e-12 * np.sqrt(cov[n, n] * cov[m, m])
    for other in ((m, n, k, h), (n, m, h, k)):
        assert relu.i4(cov, *other) == pytest.approx(value, abs=scale)
    renamed = cov[np.ix_(order, order)]
    at = [order.index(unit) for unit in chosen]
    assert relu.i4(renamed, *at) == pytest.approx(value, abs=scale)
    longer = cov * np.outer(lengths, lengths)
    times = lengths[n] * lengths[m]
    assert relu.i4(longer, n, m, k, h) == pytest.approx(times * value, abs=times * scale)
    third = lengths[n] * lengths[h] * relu.i3(cov, n, k, h)
    assert relu.i3(longer, n, k, h) == pytest.approx(third, rel=1e-11, abs=1e-11)


def erf_i2(cov, a, b):
    return erf.i2(cov[a, b], erf.norm(cov[a, a]), erf.norm(cov[b, b]))


@pytest.mark.parametrize(("moments", "i2"), [(relu, relu.i2), (linear, linear.i2), (erf, erf_i2)])
@pytest.mark.parametrize("correlated", [0.0, 0.97])
def test_derivatives_match_differences(moments, i2, correlated):
    rng = np.random.default_rng(4)
    x = rng.normal(size=(4, 7))
    x[1] = correlated * x[0] + (1 - correlated) * x[1]
    cov = gram(x)
    direction = rng.normal(size=(4, 4))
    direction += direction.T
    step = 2e-6

    def check(moment, pull, *chosen):
        at = [moment(cov + n * step * direction, *chosen) for n in (-2, -1, 1, 2)]
        out = np.zeros((4, 4))
        pull(cov, *chosen, 1.0, out)
        expected = (8 * (at[2] - at[1]) - (at[3] - at[0])) / (12 * step)
        assert np.sum(out * direction) == pytest.approx(expected, rel=1e-8, abs=1e-8)

    for a, b in itertools.product(UNITS, repeat=2):
        check(i2, moments.pull_i2, a, b)
    for n, k, h in itertools.product(UNITS, repeat=3):
        check(moments.i3, moments.pull_i3, n, k, h)
    for chosen in QUADRUPLES:
        check(moments.i4, moments.pull_i4, *chosen)


def test_price_theorem_links_the_moments_to_probabilities():
    """∂²/∂C_ab… : E[Θ_a Θ_b c⁺ d⁺] falls back to P(a, b, c, d > 0), which Monte Carlo counts."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(4, 6))
    cov = gram(x)
    out = np.zeros((4, 4))
    relu.pull_i4(cov, 2, 3, 0, 1, 1.0, out)
    fields = rng.normal(size=(400_000, 6)) @ x.T
    counted = np.mean(np.all(fields > 0, axis=1))
    spread = np.sqrt(counted * (1 - counted) / len(fields))
    assert 2 * out[2, 3] == pytest.approx(counted, abs=5 * spread)


def test_linear_moments():
    cov = gram(np.random.default_rng(6).normal(size=(4, 7)))
    for n, m, k, h in QUADRUPLES:
        assert linear.i2(cov, n, m) == linear.i4(cov, n, m, k, h) == cov[n, m]
        assert linear.i3(cov, n, k, h) == cov[n, h]


def test_moments_in_jax_are_the_same_and_have_derivatives():
    jax.config.update("jax_enable_x64", True)
    cov = gram(np.random.default_rng(7).normal(size=(4, 7)))
    second, third = auto_moments.relu_i2(cov), auto_moments.relu_i3(cov)
    for a, b in itertools.product(UNITS, repeat=2):
        assert float(second[a, b]) == pytest.approx(relu.i2(cov, a, b), rel=1e-13)
    for n, k, h in itertools.product(UNITS, repeat=3):
        assert float(third[n, k, h]) == pytest.approx(relu.i3(cov, n, k, h), rel=1e-12, abs=1e-13)
        out = np.zeros((4, 4))
        relu.pull_i3(cov, n, k, h, 1.0, out)
        by_jax = jax.grad(lambda c, n=n, k=k, h=h: auto_moments.relu_i3(c)[n, k, h])(cov)
        np.testing.assert_allclose((by_jax + by_jax.T) / 2, out, atol=1e-12)


def limiting_units(kind, seed):
    """Return C of three units, of which two are aligned or opposite, or one has no weights."""
    x = np.random.default_rng(seed).normal(size=(3, 5))
    match kind:
        case "aligned":
            x[1] = 1.7 * x[0]
        case "opposite":
            x[1] = -0.6 * x[0]
        case "without weights":
            x[1] = 0.0
    return gram(x)


@pytest.mark.parametrize("kind", ["aligned", "opposite", "without weights"])
def test_moments_in_jax_of_units_at_their_limits(kind):
    """Rounding leaves correlations on both sides of 1; their derivatives keep 8 digits there."""
    jax.config.update("jax_enable_x64", True)
    covs = np.array([limiting_units(kind, seed) for seed in range(50)])
    second = jax.vmap(auto_moments.relu_i2)(covs)
    third = jax.vmap(auto_moments.relu_i3)(covs)
    by_second = jax.vmap(jax.jacrev(auto_moments.relu_i2))(covs)
    by_third = jax.vmap(jax.jacrev(auto_moments.relu_i3))(covs)
    for i, cov in enumerate(covs):
        for a, b in itertools.product(range(3), repeat=2):
            assert float(second[i, a, b]) == pytest.approx(relu.i2(cov, a, b), rel=1e-13, abs=1e-13)
            out = np.zeros((3, 3))
            relu.pull_i2(cov, a, b, 1.0, out)
            found = by_second[i, a, b]
            np.testing.assert_allclose((found + found.T) / 2, out, atol=1e-7)
        for n, k, h in itertools.product(range(3), repeat=3):
            value = float(third[i, n, k, h])
            assert value == pytest.approx(relu.i3(cov, n, k, h), rel=1e-13, abs=1e-13)
            out = np.zeros((3, 3))
            relu.pull_i3(cov, n, k, h, 1.0, out)
            found = by_third[i, n, k, h]
            np.testing.assert_allclose((found + found.T) / 2, out, atol=1e-7)
