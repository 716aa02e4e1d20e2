"""The reference moments against quadrature, for all that is tested against them; the arcsine."""

import itertools
import math
from functools import cache

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.special import erf

import plain
from models.instances import flat_rate
from replan import TeacherStudent
from replan.models.gallery import erf_moments

UNITS = range(4)


def gram(factor):
    return factor @ factor.T


def unit_gram(factor):
    """A covariance with variances up to 1, which the quadrature below resolves."""
    return gram(factor / np.sqrt(np.diag(gram(factor)).max()))


def covariances():
    """Covariances of four units: ordinary, near-singular, singular, with a unit that is zero."""
    rng = np.random.default_rng(0)
    base = rng.normal(size=(4, 2))
    return {
        "random": unit_gram(rng.normal(size=(4, 4))),
        "near-singular": unit_gram(base) + 1e-10 * np.eye(4),
        "singular": unit_gram(base),
        "aligned": gram(np.array([[1.0, 0.0], [1.0, 1e-7], [-0.7, 0.0], [0.0, 1.0]])),
        "zero unit": np.diag([0.0, 1.0, 0.5, 0.9]),
    }


def erf_quadrature(cov):
    """E[g_n g_m], E[g_n g′_k λ_h], E[g_n g_m g′_k g′_h] for all indices by the trapezoidal rule.

    On a whitened grid the integrands are entire and decay like a Gaussian, so that the plain
    trapezoidal rule converges faster than any power of its step. They are even: half the grid will
    do. Outside a ball of radius 8.4 lies 2e-14 of the weight.
    """
    values, vectors = np.linalg.eigh(cov)
    root = vectors * np.sqrt(np.maximum(values, 0))
    z = np.arange(-8.4, 8.41, 0.4)
    weight = np.exp(-(z**2) / 2) * 0.4 / np.sqrt(2 * np.pi)
    grid = np.stack(np.meshgrid(z, z, z, indexing="ij"), -1).reshape(-1, 3)
    grid_weight = np.einsum("a,b,c->abc", weight, weight, weight).ravel()
    m2, m3, m4 = np.zeros((16,)), np.zeros((16, 4)), np.zeros((16, 16))
    middle = len(z) // 2
    for first, first_weight in zip(z[middle:], weight[middle:] * [1, *[2] * middle], strict=True):
        near = first**2 + np.sum(grid**2, axis=1) < 8.5**2
        inner, inner_weight = grid[near], grid_weight[near]
        lam = np.column_stack([np.full(len(inner), first), inner]) @ root.T
        g = erf(lam / np.sqrt(2))
        slope = np.sqrt(2 / np.pi) * np.exp(-(lam**2) / 2)
        gg, ss, gs = (
            (a[:, :, None] * b[:, None, :]).reshape(-1, 16)
            for a, b in ((g, g), (slope, slope), (g, slope))
        )
        w = (first_weight * inner_weight)[:, None]
        m2 += np.sum(gg * w, axis=0)
        m3 += (gs * w).T @ lam
        m4 += (gg * w).T @ ss
    return m2.reshape(4, 4), m3.reshape(4, 4, 4), m4.reshape(4, 4, 4, 4)


@jax.jit
def _by_tilts(cov):
    with_slopes = erf_moments.i3, erf_moments.i4, erf_moments.slopes
    return [erf_moments.i2(cov), *(moment(cov, 4) for moment in with_slopes)]


def by_tilts(cov):
    """I₂, I₃, I₄ and E[g′ g′] of all indices."""
    with jax.enable_x64(True):
        return [np.array(moment) for moment in _by_tilts(cov)]


@pytest.mark.parametrize("name", covariances())
def test_erf_moments_match_quadrature(name):
    cov = covariances()[name]
    expected = erf_quadrature(cov)
    for found, exact in zip(by_tilts(cov)[:3], expected, strict=True):
        np.testing.assert_allclose(found, exact, atol=1e-10)


factors = arrays(np.float64, (4, 4), elements=st.floats(-1.5, 1.5, width=32))


@settings(max_examples=40, deadline=None)
@given(factors)
def test_the_tilted_and_the_printed_formulas_agree(factor):
    cov = gram(factor)
    second, third, fourth, slopes = by_tilts(cov)
    for n, m, k, h in itertools.product(UNITS, repeat=4):
        assert fourth[n, m, k, h] == pytest.approx(plain.i4(cov, n, m, k, h), abs=1e-12)
    for n, k, h in itertools.product(UNITS, repeat=3):
        assert third[n, k, h] == pytest.approx(plain.i3(cov, n, k, h), abs=1e-12)
    for a, b in itertools.product(UNITS, repeat=2):
        assert second[a, b] == pytest.approx(plain.i2(cov, a, b), abs=1e-13)
        assert slopes[a, b] == pytest.approx(plain.both_slopes(cov, a, b), rel=1e-12)


# ReLU


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


@pytest.mark.parametrize(
    ("products", "gates"),
    [
        ((0, 1), ()),
        ((0, 0), ()),
        ((0, 0), (1,)),
        ((0, 1), (2,)),
        ((2, 2), (0, 1)),
        ((2, 3), (0, 1)),
    ],
)
def test_relu_moments_match_quadrature(products, gates):
    for seed in range(2):
        cov = gram(np.random.default_rng(seed).normal(size=(4, 12)))
        units = sorted({*products, *gates})
        expected = positive_part(cov[np.ix_(units, units)], [products.count(u) for u in units])
        assert plain.relu_moment(cov, products, gates) == pytest.approx(expected, rel=1e-11)
        fields = np.random.default_rng(9).multivariate_normal(np.zeros(4), cov, 100_000)
    third = np.maximum(fields[:, 0], 0) * (fields[:, 1] > 0) * fields[:, 2]
    error = third.std() / np.sqrt(len(third))
    assert plain.relu_i3(cov, 0, 1, 2) == pytest.approx(third.mean(), abs=4.5 * error)


def test_arcsine_to_the_last_digits():
    """V′ = (2/π) asin M where Q and S are 0, the student's head is 0 and the teacher's is 1."""
    model = TeacherStudent([[0.0]], hidden=1)

    def arcsine(x):
        head = flat_rate(model, np.array([0.0, x, 0.0]), np.ones(1), np.ones(3))[2]
        return head * np.pi / 2

    x = np.concatenate([np.linspace(-1, 1, 2_001), [1e-150, np.nextafter(0.5, 1)]])
    found, exact = np.array([arcsine(value) for value in x]), np.arcsin(x.astype(np.longdouble))
    assert np.max(np.abs(found - exact)) < 6e-16
    assert np.array_equal(np.sign(found), np.sign(x))
    assert np.isnan(arcsine(1.1))
    assert np.isnan(arcsine(np.nan))
