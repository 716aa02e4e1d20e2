"""I₂, I₃, I₄ against quadrature and against the printed formulas."""

import itertools

import jax
import numpy as np
import plain
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.special import erf

from replan.models import moments

jax.config.update("jax_enable_x64", True)

UNITS = range(4)


def gram(factor):
    return factor @ factor.T


def unit_gram(factor):
    """A covariance with variances up to 1, which the quadrature below resolves."""
    return gram(factor / np.sqrt(np.diag(gram(factor)).max()))


def covariances():
    """Covariances of four units: ordinary, near-singular, singular, with a unit that is zero."""
    rng = np.random.default_rng(0)
    for _ in range(3):
        yield "random", unit_gram(rng.normal(size=(4, 4)))
    base = rng.normal(size=(4, 2))
    yield "near-singular", unit_gram(base) + 1e-10 * np.eye(4)
    yield "singular", unit_gram(base)
    aligned = np.array([[1.0, 0.0], [1.0, 1e-7], [-0.7, 0.0], [0.0, 1.0]])
    yield "aligned", gram(aligned)
    yield "zero unit", np.diag([0.0, 1.0, 0.5, 0.9])


def quadrature(cov):
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


@pytest.mark.parametrize(("name", "cov"), list(covariances()))
def test_all_moments_match_quadrature(name, cov):
    m2, m3, m4 = quadrature(cov)
    norms = 1 / np.sqrt(1 + np.diag(cov))
    for a, b in itertools.product(UNITS, UNITS):
        assert moments.i2(cov[a, b], norms[a], norms[b]) == pytest.approx(m2[a, b], abs=1e-10)
    for n, k, h in itertools.product(UNITS, UNITS, UNITS):
        assert moments.i3(cov, n, k, h) == pytest.approx(m3[n, k, h], abs=1e-10)
    for n, m, k, h in itertools.product(UNITS, UNITS, UNITS, UNITS):
        assert moments.i4(cov, n, m, k, h) == pytest.approx(m4[n, m, k, h], abs=1e-10)


factors = arrays(np.float64, (4, 4), elements=st.floats(-1.5, 1.5, width=32))


@settings(max_examples=60, deadline=None)
@given(factors, st.tuples(*[st.integers(0, 3)] * 4))
def test_moments_match_the_printed_formulas(factor, indices):
    cov = gram(factor)
    n, m, k, h = indices
    assert moments.i3(cov, n, k, h) == pytest.approx(plain.i3(cov, n, k, h), abs=1e-12)
    assert moments.i4(cov, n, m, k, h) == pytest.approx(plain.i4(cov, n, m, k, h), abs=1e-12)


@settings(max_examples=40, deadline=None)
@given(factors, st.tuples(*[st.integers(0, 3)] * 4))
def test_i4_does_not_mind_the_order_of_like_factors(factor, indices):
    cov = gram(factor)
    n, m, k, h = indices
    value = moments.i4(cov, n, m, k, h)
    assert value == pytest.approx(moments.i4(cov, m, n, k, h), abs=1e-13)
    assert value == pytest.approx(moments.i4(cov, n, m, h, k), abs=1e-13)


@settings(max_examples=20, deadline=None)
@given(factors)
def test_price_theorem_links_i2_to_the_slopes(factor):
    """∂I₂/∂C_ab = E[g′_a g′_b], the left side by automatic differentiation."""
    cov = gram(factor)

    def i2(c_ab):
        return (
            2
            / jax.numpy.pi
            * jax.numpy.arcsin(c_ab / jax.numpy.sqrt((1 + cov[0, 0]) * (1 + cov[1, 1])))
        )

    once = moments.tilt(cov, 0)
    slopes = 2 / np.pi * moments.norm(cov[0, 0]) * moments.norm(once[1, 1])
    assert slopes == pytest.approx(float(jax.grad(i2)(cov[0, 1])), rel=1e-10)


def test_arcsine_to_the_last_digits():
    x = np.concatenate([np.linspace(-1, 1, 20_001), [-0.0, 1e-300, np.nextafter(0.5, 1)]])
    found = np.array([moments.i2(value, 1.0, 1.0) for value in x]) / moments.TWO_OVER_PI
    exact = np.arcsin(x.astype(np.longdouble))
    assert np.max(np.abs(found - exact)) < 6e-16
    assert np.array_equal(np.signbit(found), np.signbit(x))
    assert np.isnan(moments.i2(1.1, 1.0, 1.0))
    assert np.isnan(moments.i2(np.nan, 1.0, 1.0))
