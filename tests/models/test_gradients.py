"""Gradients of roll-outs: by finite differences and by automatic differentiation; order four."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from compiled_averaging import Averaging
from instances import flat_rate, instance, random_model, rate_vjp, symmetric

from problems.models import averaging_model
from replan import ArgumentError, Problem, TeacherStudent
from replan.models import AutoModel, Schedule, compiled_model
from replan.models.gallery.erf_moments import i2, i3, i4, slopes
from replan.models.stacked import StackedModel, as_stacked

SHAPES = [(1, 1, 1), (2, 2, 2), (3, 2, 1), (2, 4, 3), (4, 3, 4)]  # K, P, T
K_MAX, P_MAX, T_MAX = 4, 4, 4


@pytest.fixture(scope="module")
def oracle():
    """The equations a third time, in JAX, from the tilted moments.

    Compiled once, for the largest shape: smaller models have units and tasks without weight there.
    """
    K = K_MAX

    def rate(state, task, lr, feature_lr, head_lr, S, A, noise, trained):
        eta, M, V = lr * feature_lr, state["M"], state["V"]
        Q = (state["Q"] + state["Q"].T) / 2
        v, w = V[task], jnp.concatenate([V[task], -A[task]])
        cov = jnp.block([[Q, M], [M.T, S]])
        first = eta * v[:, None] * jnp.einsum("n,nkh->kh", w, i3(cov, K))
        square = jnp.einsum("n,m,nmkh->kh", w, w, i4(cov, K))
        square += noise**2 * slopes(cov, K)
        dQ = -first[:, :K] - first[:, :K].T + eta**2 * jnp.outer(v, v) * square
        dV = jnp.zeros_like(V).at[task].set(-lr * head_lr * trained[task] * (i2(cov) @ w)[:K])
        return {"Q": dQ, "M": -first[:, K:], "V": dV}

    def losses(state, S, A, **_):
        moments = i2(jnp.block([[state["Q"], state["M"]], [state["M"].T, S]]))
        w = jnp.concatenate([state["V"], -A], axis=1)
        return 0.5 * jnp.einsum("tn,nm,tm->t", w, moments, w)

    like = {"M": np.ones((K, P_MAX)), "Q": np.eye(K), "V": np.ones((T_MAX, K))}
    parameters = {
        "S": np.eye(P_MAX), "A": np.ones((T_MAX, P_MAX)), "noise": 0.0, "trained": np.ones(T_MAX),
    }  # fmt: skip
    knobs = random_model(1, 1, 1)[0].knobs
    return AutoModel(rate, losses, tasks=T_MAX, like=like, knobs=knobs, parameters=parameters)


def padded(array, *shape):
    """An array with zeros behind, up to the last axes of the given lengths."""
    lead = array.ndim - len(shape)
    pairs = zip(array.shape[lead:], shape, strict=True)
    return np.pad(array, [(0, 0)] * lead + [(0, most - n) for n, most in pairs])


@pytest.mark.parametrize("shape", SHAPES)
def test_hand_written_gradients_match_autodiff(shape, oracle):
    model, x, schedule, cotangents = instance(shape)
    _, P, T = shape
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

    used = to_auto(np.ones_like(x)) == 1.0  # the entries of the state that the model has
    knobs = padded(schedule.knobs.reshape(-1, 3, T), T_MAX).reshape(4, -1)
    whole = schedule._replace(shares=padded(schedule.shares, T_MAX), knobs=knobs)
    states, auto_states = model.roll_out(x, schedule), auto.roll_out(to_auto(x), whole)
    np.testing.assert_allclose(to_auto(states), auto_states, rtol=1e-11, atol=1e-13)
    ours = model.roll_out_vjp(states, cotangents, schedule)
    theirs = auto.roll_out_vjp(auto_states, to_auto(cotangents), whole)
    scale = max(np.abs(part).max() for part in theirs)
    for mine, other in (
        (to_auto(ours.adjoints)[:, used], theirs.adjoints[:, used]),
        (ours.by_shares, theirs.by_shares[:, :T]),
        (ours.by_knobs.reshape(-1, 3, T), theirs.by_knobs.reshape(-1, 3, T_MAX)[..., :T]),
    ):
        np.testing.assert_allclose(mine, other, atol=1e-10 * scale)
    weights = np.random.default_rng(0).random((5, T))
    np.testing.assert_allclose(model.losses(states), auto.losses(auto_states)[:, :T], rtol=1e-10)
    pulled = to_auto(model.losses_vjp(states, weights))[:, used]
    expected = auto.losses_vjp(auto_states, padded(weights, T_MAX))[:, used]
    np.testing.assert_allclose(pulled, expected, atol=1e-11)


@pytest.mark.parametrize("activation", ["erf", "relu", "linear"])
@pytest.mark.parametrize("shape", SHAPES)
def test_gradients_match_differences(shape, activation):
    """Along random directions, and along each share and knob alone."""
    model, x, schedule, cotangents = instance(shape, activation=activation)
    states = model.roll_out(x, schedule)
    by_state, by_shares, by_knobs = model.roll_out_vjp(states, cotangents, schedule)
    gradient = np.concatenate([by_state[0], by_shares.ravel(), by_knobs.ravel()])
    n, shares = len(x), schedule.shares.size
    rng = np.random.default_rng(0)
    directions = rng.normal(size=(6, len(gradient)))
    directions[:, :n] = symmetric(directions[:, :n], model.hidden)
    alone = np.eye(len(gradient))[n:] if activation == "erf" else []

    def value(move):
        changed = schedule._replace(
            shares=schedule.shares + move[n : n + shares].reshape(schedule.shares.shape),
            knobs=schedule.knobs + move[n + shares :].reshape(schedule.knobs.shape),
        )
        return np.sum(model.roll_out(x + move[:n], changed) * cotangents)

    step = 1e-5
    for direction in [*directions, *alone]:
        at = [value(k * step * direction) for k in (-2, -1, 1, 2)]
        expected = (8 * (at[2] - at[1]) - (at[3] - at[0])) / (12 * step)
        assert gradient @ direction == pytest.approx(expected, rel=1e-7, abs=1e-7)
    weights = rng.random((5, model.tasks))
    direction = symmetric(rng.normal(size=states.shape), model.hidden)
    ends = [model.losses(states + sign * 1e-6 * direction) for sign in (-1, 1)]
    expected = np.sum(weights * (ends[1] - ends[0])) / 2e-6
    assert np.sum(model.losses_vjp(states, weights) * direction) == pytest.approx(
        expected, rel=1e-7
    )


@pytest.mark.parametrize(
    ("hidden", "tasks", "bounds"),
    [(2, 2, (1e-10, 1e-9, 1e-8, 1e-7)), (3, 1, (1e-10, 1e-9, 1e-6, 1e-4))],
)
def test_gradients_of_relu_rates_near_alignment_match_differences(hidden, tasks, bounds):
    """Along weights, so that the covariance stays one; relative to the largest derivative."""
    model = TeacherStudent.similar(0.3, tasks, hidden, activation="relu")
    rng = np.random.default_rng(6)
    N, shares, knobs = 8, np.ones(tasks) / tasks, np.full(3 * tasks, 0.8)
    frame = np.linalg.qr(rng.normal(size=(N, N)))[0] * np.sqrt(N)
    B = np.linalg.cholesky(model.teacher_overlaps) @ frame[:tasks]
    V, away = rng.normal(size=(tasks, hidden)), rng.normal(size=(hidden, N))
    cotangent = rng.normal(size=hidden * (hidden + 2 * tasks))

    def value(w):
        x = model.pack(model.from_weights(w, V, B))
        return flat_rate(model, x, shares, knobs) @ cotangent

    for gap, bound in zip((1e-1, 1e-2, 1e-3, 1e-4), bounds, strict=True):
        w = B[np.arange(hidden) % tasks] + gap * away
        x = model.pack(model.from_weights(w, V, B))
        by = model.unpack(rate_vjp(model, x, cotangent, shares, knobs))
        exact = ((by.Q + by.Q.T) @ w + by.M @ B) / N
        for _ in range(4):
            dw = rng.normal(size=w.shape)
            step = 3e-3 * gap
            at = [value(w + n * step * dw) for n in (-2, -1, 1, 2)]
            expected = (8 * (at[2] - at[1]) - (at[3] - at[0])) / (12 * step)
            assert abs(np.sum(exact * dw) - expected) < bound * np.abs(exact).max()


@pytest.mark.parametrize("activation", ["erf", "relu", "linear"])
def test_the_integrator_keeps_order_four(activation):
    model, start = random_model(3, 2, 2, activation=activation)
    x = model.pack(start)

    def end(steps):
        rows = np.full((steps, 2), 0.5), np.full((steps, 6), 0.4), np.full(steps, 0.8 / steps)
        return model.roll_out(x, Schedule.single_steps(*rows))[-1]

    exact = end(512)
    errors = [np.abs(end(steps) - exact).max() for steps in (8, 16, 32, 64)]
    slope = np.polyfit(np.log([8, 16, 32, 64]), np.log(errors), 1)[0]
    assert -4.4 < slope < -3.6


def test_batch_and_momentum_scale_the_rate_and_its_gradient():
    plain, x, schedule, cotangents = instance((2, 4, 3))
    model = TeacherStudent(**(plain.to_dict() | {"batch": 4, "momentum": 0.5}))
    knobs = schedule.knobs.copy()
    knobs[:, :3] *= 4 * (1 - 0.5)  # lr, for each task
    slow = schedule._replace(knobs=knobs)
    states = model.roll_out(x, slow)
    np.testing.assert_allclose(states, plain.roll_out(x, schedule), rtol=1e-12)
    ours = model.roll_out_vjp(states, cotangents, slow)
    theirs = plain.roll_out_vjp(states, cotangents, schedule)
    np.testing.assert_allclose(2 * ours.by_knobs[:, :3], theirs.by_knobs[:, :3], atol=1e-10)
    np.testing.assert_allclose(ours.by_knobs[:, 3:], theirs.by_knobs[:, 3:], atol=1e-10)
    np.testing.assert_allclose(ours.by_shares, theirs.by_shares, atol=1e-10)


def test_a_head_of_exactly_zero_has_a_derivative():
    model, x, schedule, cotangents = instance((2, 2, 2))
    x = model.pack(dataclasses.replace(model.unpack(x), V=np.eye(2)))
    adjoint = model.roll_out_vjp(model.roll_out(x, schedule), cotangents, schedule).adjoints[0]
    for unit in np.eye(len(x))[-4:]:
        up, down = (np.sum(model.roll_out(x + h * unit, schedule) * cotangents)
                    for h in (1e-6, -1e-6))  # fmt: skip
        assert adjoint @ unit == pytest.approx((up - down) / 2e-6, rel=1e-6)


def test_the_adjoint_of_a_later_edge_is_the_gradient_by_its_state():
    model, x, schedule, cotangents = instance((2, 2, 2))
    states = model.roll_out(x, schedule)
    whole = model.roll_out_vjp(states, cotangents, schedule).adjoints
    tail = model.roll_out_vjp(states[2:], cotangents[2:], schedule.rows(2, 4)).adjoints
    np.testing.assert_allclose(whole[2:], tail, rtol=1e-13)


# Users' compiled models


def test_gradients_of_compiled_models_match_autodiff():
    model, auto, x, tasks = Averaging(3), averaging_model(3), np.array([1.0, 0.5, 2.0]), 3
    rng = np.random.default_rng(0)
    schedule = Schedule(
        rng.dirichlet(np.ones(tasks), size=4),
        0.2 + rng.random((4, tasks)),
        0.1 + rng.random(4),
        np.array([1, 2, 3, 1]),
    )
    states = model.roll_out(x, schedule)
    np.testing.assert_allclose(states, auto.roll_out(x, schedule), rtol=1e-12)
    cotangents, weights = rng.normal(size=states.shape), rng.normal(size=(len(states), tasks))
    mine, other = (one.roll_out_vjp(states, cotangents, schedule) for one in (model, auto))
    for ours, theirs in zip(mine, other, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(model.losses(states), auto.losses(states), rtol=1e-12)
    mine, other = (one.losses_vjp(states, weights) for one in (model, auto))
    np.testing.assert_allclose(mine, other, rtol=1e-12)


def test_a_start_of_another_length_is_named_start():
    with pytest.raises(ArgumentError) as caught:
        Problem(Averaging(3), np.ones(2), 1.0)
    assert caught.value.name == "start"


@pytest.mark.parametrize("kept", [0, 3, 10**6])
def test_gradients_do_not_depend_on_the_length_of_the_tape(kept, monkeypatch):
    model, x, schedule, cotangents = instance((2, 2, 2))
    states, tape = model.roll_out_with_tape(x, schedule)
    assert tape.shape == (7, 4, len(x))
    np.testing.assert_array_equal(states, model.roll_out(x, schedule))
    whole = model.roll_out_vjp(states, cotangents, schedule, tape)
    monkeypatch.setattr(compiled_model, "_KEPT", kept * 4 * len(x))
    assert (model.roll_out_with_tape(x, schedule)[1] is None) == (kept < 7)
    for ours, expected in zip(model.roll_out_vjp(states, cotangents, schedule), whole, strict=True):
        np.testing.assert_array_equal(ours, expected)


def test_groups_of_pieces_have_at_most_so_many_steps_or_one_piece():
    schedule = Schedule(np.ones((5, 1)), np.ones((5, 1)), np.ones(5), np.array([1, 2, 9, 1, 2]))
    assert list(compiled_model._groups(schedule, 3)) == [(3, 5), (2, 3), (0, 2)]


# Ensembles


@pytest.mark.parametrize("count", [1, 3])
def test_a_stacked_model_is_its_members_side_by_side(count):
    """Bit by bit, for a single model that is wrapped too."""
    model, x, schedule, cotangents = instance((2, 2, 2))
    starts = [(1 + 0.1 * m) * x for m in range(count)]
    weights = np.arange(1.0, count + 1) / np.arange(1, count + 1).sum()
    stacked = StackedModel([model] * count, [len(x)] * count, weights)
    if count == 1:
        stacked = as_stacked(model, len(x))
        assert as_stacked(stacked, len(x)) is stacked
    states, tape = stacked.roll_out_with_tape(np.concatenate(starts), schedule)
    rows = [model.roll_out(start, schedule) for start in starts]
    np.testing.assert_array_equal(states, np.hstack(rows))
    np.testing.assert_array_equal(states, stacked.roll_out(np.concatenate(starts), schedule))
    each = stacked.losses_each(states)
    np.testing.assert_array_equal(each, [model.losses(row) for row in rows])
    np.testing.assert_allclose(stacked.losses(states), np.tensordot(weights, each, 1), rtol=1e-14)
    wide = np.hstack([cotangents] * count)
    gradients = stacked.roll_out_vjp_each(states, wide, schedule, tape)
    for m, row in enumerate(rows):
        alone = model.roll_out_vjp(row, cotangents, schedule)
        part = slice(m * len(x), (m + 1) * len(x))
        np.testing.assert_array_equal(gradients.adjoints[:, part], alone.adjoints)
        np.testing.assert_array_equal(gradients.by_shares[m], alone.by_shares)
        np.testing.assert_array_equal(gradients.by_knobs[m], alone.by_knobs)
        pulled = stacked.losses_vjp_each(states, np.ones((count, 5, 2)))
        np.testing.assert_array_equal(pulled[:, part], model.losses_vjp(row, np.ones((5, 2))))
    spread = np.broadcast_to(stacked.spread(weights), states.shape[1:])
    assert spread.tolist() == np.repeat(weights, len(x)).tolist()
    ends = stacked.roll_out_each(states[:-1], schedule)
    np.testing.assert_allclose(ends, states[1:], rtol=1e-13)
