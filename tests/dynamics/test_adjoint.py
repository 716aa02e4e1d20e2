"""Gradients of roll-outs: by hand, by finite differences and by automatic differentiation."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_teacher_student import random_model

from replan import Overlaps, TeacherStudent
from replan.models import AutoModel, Schedule

SHAPES = [(1, 1, 1), (2, 2, 2), (3, 2, 1), (2, 4, 3), (3, 3, 3), (4, 3, 4)]  # K, P, T


K_MAX, P_MAX, T_MAX = 4, 4, 4


@pytest.fixture(scope="module")
def oracle():
    """The equations a third time, in JAX, with the tilts as in DESIGN: E[Δ g′ λ], E[Δ² g′ g′].

    Compiled once, for the largest shape: smaller models have units and tasks without weight there.
    """
    K = K_MAX

    def tilt(cov, k):
        return cov - jnp.outer(cov[:, k], cov[k]) / (1 + cov[k, k])

    def i2(cov):
        norm = 1 / jnp.sqrt(1 + jnp.diag(cov))
        return 2 / jnp.pi * jnp.arcsin(cov * norm[:, None] * norm)

    def rate(state, task, lr, feature_lr, head_lr, S, A, noise, trained):
        eta = lr * feature_lr
        Q = (state["Q"] + state["Q"].T) / 2
        M, V = state["M"], state["V"]
        v = V[task]
        w = jnp.concatenate([v, -A[task]])
        cov = jnp.block([[Q, M], [M.T, S]])

        def unit(k):
            once = tilt(cov, k)
            scale = jnp.sqrt(2 / jnp.pi / (1 + cov[k, k]))
            push = w * jnp.sqrt(2 / jnp.pi) / jnp.sqrt(1 + jnp.diag(once))
            slopes = scale * jnp.sqrt(2 / jnp.pi / (1 + jnp.diag(once)[:K]))
            pairs = jax.vmap(lambda h: w @ i2(tilt(once, h)) @ w + noise**2)(units)
            return scale * (push @ once), slopes * pairs

        units = jnp.arange(K)
        drift, square = jax.vmap(unit)(units)  # loops would take minutes to compile
        first = eta * v[:, None] * drift
        dQ = -first[:, :K] - first[:, :K].T + eta**2 * jnp.outer(v, v) * square
        head = lr * head_lr * trained[task]
        dV = jnp.zeros_like(V).at[task].set(-head * (i2(cov) @ w)[:K])
        return {"Q": dQ, "M": -first[:, K:], "V": dV}

    def losses(state, S, A, **_):
        M = state["M"]
        moments = i2(jnp.block([[state["Q"], M], [M.T, S]]))
        w = jnp.concatenate([state["V"], -A], axis=1)
        return 0.5 * jnp.einsum("tn,nm,tm->t", w, moments, w)

    knobs = random_model(1, 1, 1)[0].knobs
    like = {
        "M": np.ones((K, P_MAX)),
        "Q": np.eye(K),
        "V": np.ones((T_MAX, K)),
    }
    parameters = {
        "S": np.eye(P_MAX), "A": np.ones((T_MAX, P_MAX)), "noise": 0.0, "trained": np.ones(T_MAX),
    }  # fmt: skip
    return AutoModel(
        rate, losses, tasks=T_MAX, like=like, knobs=knobs, parameters=parameters
    )  # fmt: skip


def instance(shape, **settings):
    """A model with noise and a fixed head among trained ones, controls with a zero share."""
    K, P, T = shape
    flags = [t != 1 for t in range(T)]
    model, start = random_model(K, P, T, noise=0.6, head_lr=0.7, train_heads=flags, **settings)
    rng = np.random.default_rng(5)
    shares = rng.dirichlet(np.ones(T), size=4)
    shares[1] = np.eye(T)[T - 1]
    knobs = 0.3 + rng.random((4, 3 * T))  # rates, factors of the features and of the heads
    lengths, substeps = 0.05 + 0.3 * rng.random(4), np.array([1, 2, 3, 1])
    controls = Schedule(shares, knobs, lengths, substeps)
    cotangents = rng.normal(size=(5, K * K + K * P + T * K))
    symmetric = cotangents[:, : K * K].reshape(5, K, K)
    symmetric += np.swapaxes(symmetric, 1, 2).copy()
    return model, start, controls, cotangents


def padded(array, *shape):
    """An array with zeros behind, up to the last axes of the given lengths."""
    lead = array.ndim - len(shape)
    missing = [(0, 0)] * lead + [
        (0, most - n) for n, most in zip(array.shape[lead:], shape, strict=True)
    ]
    return np.pad(array, missing)


@pytest.mark.parametrize("shape", SHAPES)
def test_hand_written_gradients_match_autodiff(shape, oracle):
    model, start, controls, cotangents = instance(shape)
    K, P, T = shape
    S = padded(model.teacher_overlaps, P_MAX, P_MAX)
    S[range(P, P_MAX), range(P, P_MAX)] = 1.0
    auto = oracle.with_parameters(
        S=S,
        A=padded(model.teacher_heads, T_MAX, P_MAX),
        noise=model.noise,
        trained=padded(np.array(model.train_heads, float), T_MAX),
    )

    def to_auto(states):  # JAX keeps the keys of a dict sorted: M, Q, V
        x, lead = model.unpack(states), states.shape[:-1]
        parts = (padded(x.M, K_MAX, P_MAX), padded(x.Q, K_MAX, K_MAX), padded(x.V, T_MAX, K_MAX))
        return np.concatenate([part.reshape(*lead, -1) for part in parts], axis=-1)

    there = to_auto(np.ones(K * K + K * P + T * K)) == 1.0  # of the numbers, those of the model
    knobs = controls.knobs.reshape(-1, 3, T)
    whole = controls._replace(
        shares=padded(controls.shares, T_MAX),
        knobs=padded(knobs, T_MAX).reshape(len(knobs), -1),
    )
    x = model.pack(start)
    states = model.roll_out(x, controls)
    auto_states = auto.roll_out(to_auto(x), whole)
    np.testing.assert_allclose(to_auto(states), auto_states, rtol=1e-11, atol=1e-13)
    ours = model.roll_out_vjp(states, cotangents, controls)
    theirs = auto.roll_out_vjp(auto_states, to_auto(cotangents), whole)
    scale = max(np.abs(part).max() for part in theirs)
    for mine, other in (
        (to_auto(ours.adjoints)[:, there], theirs.adjoints[:, there]),
        (ours.by_shares, theirs.by_shares[:, :T]),
        (ours.by_knobs.reshape(-1, 3, T), theirs.by_knobs.reshape(-1, 3, T_MAX)[..., :T]),
    ):
        np.testing.assert_allclose(mine, other, atol=1e-10 * scale)
    weights = np.random.default_rng(0).random((5, T))
    np.testing.assert_allclose(model.losses(states), auto.losses(auto_states)[:, :T], rtol=1e-10)
    pulled = to_auto(model.losses_vjp(states, weights))[:, there]
    expected = auto.losses_vjp(auto_states, padded(weights, T_MAX))[:, there]
    np.testing.assert_allclose(pulled, expected, atol=1e-11)


@pytest.mark.parametrize("shape", SHAPES)
def test_hand_written_gradients_match_finite_differences(shape):
    model, start, controls, cotangents = instance(shape)
    shares, knobs, *grid = controls
    x = model.pack(start)
    K = model.hidden

    def value(x, shares, knobs):
        return np.sum(model.roll_out(x, Schedule(shares, knobs, *grid)) * cotangents)

    states = model.roll_out(x, controls)
    by_state, by_shares, by_knobs = model.roll_out_vjp(states, cotangents, controls)
    step = 1e-6

    def difference(dx, dshares, dknobs):
        up = value(x + step * dx, shares + step * dshares, knobs + step * dknobs)
        down = value(x - step * dx, shares - step * dshares, knobs - step * dknobs)
        return (up - down) / (2 * step)

    none, nothing, still = np.zeros_like(x), np.zeros_like(shares), np.zeros_like(knobs)
    for i in range(len(x)):
        direction = none.copy()
        direction[i] = 1.0
        if i < K * K:  # Q stays symmetric
            direction[i % K * K + i // K] = 1.0
        expected = difference(direction, nothing, still)
        assert by_state[0] @ direction == pytest.approx(expected, rel=1e-6, abs=1e-7)
    for index in np.ndindex(shares.shape):
        unit = nothing.copy()
        unit[index] = 1.0
        expected = difference(none, unit, still)
        assert by_shares[index] == pytest.approx(expected, rel=1e-6, abs=1e-7)
    for index in np.ndindex(knobs.shape):
        unit = still.copy()
        unit[index] = 1.0
        expected = difference(none, nothing, unit)
        assert by_knobs[index] == pytest.approx(expected, rel=1e-6, abs=1e-7)


def test_batch_and_momentum_scale_the_rate_and_its_gradient():
    plain, start, controls, cotangents = instance((2, 4, 3))
    model = TeacherStudent(**(plain.to_dict() | {"batch": 4, "momentum": 0.5}))
    knobs = controls.knobs.copy()
    knobs[:, :3] *= 4 * (1 - 0.5)  # lr, for each task
    slow, x = controls._replace(knobs=knobs), plain.pack(start)
    states = model.roll_out(x, slow)
    np.testing.assert_allclose(states, plain.roll_out(x, controls), rtol=1e-12)
    ours, theirs = (
        one.roll_out_vjp(states, cotangents, pieces)
        for one, pieces in ((model, slow), (plain, controls))
    )
    np.testing.assert_allclose(2 * ours.by_knobs[:, :3], theirs.by_knobs[:, :3], atol=1e-10)
    np.testing.assert_allclose(ours.by_knobs[:, 3:], theirs.by_knobs[:, 3:], atol=1e-10)
    np.testing.assert_allclose(ours.by_shares, theirs.by_shares, atol=1e-10)


def test_a_head_of_exactly_zero_has_a_derivative():
    model, _, controls, cotangents = instance((2, 2, 2))
    _, start = random_model(2, 2, 2)
    x = model.pack(dataclasses.replace(start, V=np.eye(2)))
    adjoint = model.roll_out_vjp(model.roll_out(x, controls), cotangents, controls).adjoints[0]

    def value(x):
        return np.sum(model.roll_out(x, controls) * cotangents)

    for i in range(len(x) - 4, len(x)):
        unit = np.eye(len(x))[i]
        expected = (value(x + 1e-6 * unit) - value(x - 1e-6 * unit)) / 2e-6
        assert adjoint[i] == pytest.approx(expected, rel=1e-6)


def test_the_adjoint_of_a_later_edge_is_the_gradient_by_its_state():
    model, start, pieces, cotangents = instance((2, 2, 2))
    states = model.roll_out(model.pack(start), pieces)
    whole = model.roll_out_vjp(states, cotangents, pieces).adjoints
    tail = model.roll_out_vjp(states[2:], cotangents[2:], pieces.only(2, 4)).adjoints
    np.testing.assert_allclose(whole[2:], tail, rtol=1e-13)


def test_auto_dynamics_refuses_what_does_not_fit():
    def rate(state, task, lr):
        return -lr * state

    with pytest.raises(ValueError, match=r"`losses` expects .* of shape \(2,\), got \(1,\)"):
        AutoModel(rate, lambda state: state[:1], tasks=2, like=np.ones(3))
    auto = AutoModel(rate, lambda state: state[:2], tasks=2, like=np.ones(3))
    with pytest.raises(ValueError, match="`start` expects arrays with the structure"):
        auto.pack(Overlaps(np.eye(2), np.eye(2), np.eye(2)).Q.tolist())
    with pytest.raises(ValueError, match="`start` expects finite numbers"):
        auto.pack(np.array([1.0, np.nan, 0.0]))
    with pytest.raises(ValueError, match="`tasks` expects an integer"):
        AutoModel(rate, lambda state: state, tasks=0, like=np.ones(3))


def test_auto_dynamics_stops_where_it_diverges():
    auto = AutoModel(lambda x, task, lr: lr * x * x, lambda x: x, tasks=1, like=np.ones(1))
    ones = np.ones((20, 1))
    states = auto.roll_out(np.ones(1), Schedule.single_steps(ones, ones, np.full(20, 1.0)))
    assert 1 < len(states) < 21
    assert np.all(np.isfinite(states))
    assert auto.unpack(states).shape == (len(states), 1)


LIKE = {"M": np.ones((2, 1)), "Q": np.eye(2)}


@pytest.mark.parametrize(
    ("rate", "got"),
    [
        (lambda x, task, lr: (x["Q"], x["M"]), r"\(\(2, 2\), \(2, 1\)\) for task 0"),
        (lambda x, task, lr: {"Q": 0.0, "M": x["M"]}, r"'Q': \(\)"),
        (lambda x, task, lr: {"Q": x["Q"][:, 0], "M": x["M"]}, r"'Q': \(2,\)"),
        (lambda x, task, lr: {"Q": x["Q"]}, r"got \{'Q': \(2, 2\)\}"),
        (lambda x, task, lr: x if task == 0 else x["Q"], r"got \(2, 2\) for task 1"),
    ],
)
def test_the_structure_and_shapes_of_a_rate_are_checked_when_the_model_is_made(rate, got):
    with pytest.raises(ValueError, match=rf"`rate` expects .*'M': \(2, 1\).*{got}"):
        AutoModel(rate, lambda x: x["M"][:, 0], tasks=2, like=LIKE)


def test_losses_that_broadcast_are_refused():
    for losses in (lambda x: 0.0, lambda x: x["M"], lambda x: (x["M"][0, 0], x["M"][1, 0])):
        with pytest.raises(ValueError, match=r"`losses` expects .* of shape \(2,\), got"):
            AutoModel(lambda x, task, lr: x, losses, tasks=2, like=LIKE)
