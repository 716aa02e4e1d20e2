"""ReLU and linear networks: rates, gradients, exact solutions, real SGD, units at their limits."""

import jax
import jax.numpy as jnp
import numpy as np
import plain
import pytest
from test_adjoint import instance
from test_teacher_student import SHAPES, as_tuple, random_model

import replan
from replan import Overlaps, TeacherStudent
from replan.models import Schedule
from replan.core.moments import linear, relu

jax.config.update("jax_enable_x64", True)


def both_positive(cov, k, h):
    return 1 / 4 + np.arcsin(min(cov[k, h] / np.sqrt(cov[k, k] * cov[h, h]), 1.0)) / (2 * np.pi)


MOMENTS = {
    "relu": (relu.i2, relu.i3, relu.i4, both_positive),
    "linear": (linear.i2, linear.i3, linear.i4, lambda cov, k, h: 1.0),
}
FOURS = [*SHAPES, (3, 3, 1), (4, 2, 2)]  # K, P, T; from three units on, four differ


@pytest.mark.parametrize("activation", MOMENTS)
@pytest.mark.parametrize("shape", FOURS)
def test_rate_is_the_plain_equations(shape, activation):
    model, x = random_model(*shape, noise=0.7, head_lr=0.4, activation=activation)
    S, A = model.teacher_overlaps, model.teacher_heads
    for task in range(model.tasks):
        ours = model.rate(x, task, lr=1.3)
        theirs = plain.rate(
            *as_tuple(x), S, A, task, 1.3, noise=0.7, head_lr=0.4, moments=MOMENTS[activation]
        )
        for mine, other in zip(as_tuple(ours), theirs, strict=True):
            np.testing.assert_allclose(mine, other, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("activation", MOMENTS)
@pytest.mark.parametrize("shape", [(2, 2, 2), (2, 4, 3), (4, 3, 4)])
def test_mixed_shares_add_up_the_tasks(shape, activation):
    model, x = random_model(*shape, noise=0.3, activation=activation)
    rng = np.random.default_rng(1)
    shares, lr = rng.dirichlet(np.ones(model.tasks)), rng.random(model.tasks) * 2
    kernels, state = model.kernels(), model.pack(x)
    mixed = np.empty_like(state)
    [knobs] = model.layout.rows({"lr": lr[None], "feature_lr": 1.0, "head_lr": model.head_lr}, 1)
    kernels.rate(kernels.make_work(model.parameters), state, shares, knobs, mixed)
    parts = [np.concatenate([part.ravel() for part in as_tuple(model.rate(x, t, lr[t]))])
             for t in range(model.tasks)]  # fmt: skip
    np.testing.assert_allclose(mixed, shares @ parts, rtol=1e-11, atol=1e-12)


def product(activation, cov):
    """E[g_n g_m] in JAX."""
    if activation == "linear":
        return cov
    lengths = jnp.sqrt(jnp.diag(cov))
    rho = cov / jnp.outer(lengths, lengths)
    rho = jnp.where(jnp.eye(len(cov), dtype=bool), 0.0, rho)  # their own derivatives are simpler
    both = jnp.sqrt(1 - rho**2) + rho * (jnp.pi / 2 + jnp.arcsin(rho))
    own = jnp.diag(jnp.diag(cov)) / 2
    both = jnp.where(jnp.eye(len(cov), dtype=bool), 0.0, both)
    return jnp.outer(lengths, lengths) * both / (2 * jnp.pi) + own


@pytest.mark.parametrize("activation", MOMENTS)
@pytest.mark.parametrize("shape", [(2, 2, 2), (3, 2, 1), (2, 4, 3)])
def test_to_first_order_in_lr_training_is_gradient_flow_of_the_loss(shape, activation):
    model, x = random_model(*shape, activation=activation)
    S, A = jnp.array(model.teacher_overlaps), jnp.array(model.teacher_heads)

    def loss(Q, M, V, task):
        w = jnp.concatenate([V[task], -A[task]])
        return w @ product(activation, jnp.block([[Q, M], [M.T, S]])) @ w / 2

    Q, M, V = as_tuple(x)
    for task in range(model.tasks):
        G, H, dV = jax.grad(loss, argnums=(0, 1, 2))(Q, M, V, task)
        half, full = model.rate(x, task, 0.5), model.rate(x, task, 1.0)
        b_Q, b_M, b_V = (4 * a - b for a, b in zip(as_tuple(half), as_tuple(full), strict=True))
        G = G + G.T  # ∂/∂Q_kh and ∂/∂Q_hk are one
        push = G @ Q + H @ M.T
        np.testing.assert_allclose(b_Q, -(push + push.T), rtol=1e-9, atol=1e-11)
        np.testing.assert_allclose(b_M, -(G @ M + H @ S), rtol=1e-9, atol=1e-11)
        np.testing.assert_allclose(b_V, -dV, rtol=1e-9, atol=1e-11)
        assert float(loss(Q, M, V, task)) == pytest.approx(model.losses(x)[task], rel=1e-12)


@pytest.mark.parametrize("activation", MOMENTS)
@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 2, 2), (2, 4, 3), (4, 3, 4)])
def test_gradients_match_differences(shape, activation):
    model, start, pieces, cotangents = instance(shape, activation=activation)
    shares, knobs, *grid = pieces._replace(lengths=pieces.lengths / 4)
    x, K = model.pack(start), model.hidden

    def value(x, shares, knobs):
        return np.sum(model.roll_out(x, Schedule(shares, knobs, *grid)) * cotangents)

    states = model.roll_out(x, Schedule(shares, knobs, *grid))
    by_state, by_shares, by_knobs = model.roll_out_vjp(
        states, cotangents, Schedule(shares, knobs, *grid)
    )
    rng = np.random.default_rng(0)
    symmetric = np.arange(K * K).reshape(K, K).T.ravel()  # Q stays symmetric
    step = 1e-5
    for _ in range(6):
        dx, dshares, dknobs = (rng.normal(size=part.shape) for part in (x, shares, knobs))
        dx[: K * K] += dx[symmetric]

        def along(n, dx=dx, dshares=dshares, dknobs=dknobs):
            return value(x + n * step * dx, shares + n * step * dshares, knobs + n * step * dknobs)

        expected = (8 * (along(1) - along(-1)) - (along(2) - along(-2))) / (12 * step)
        found = by_state[0] @ dx + np.sum(by_shares * dshares) + np.sum(by_knobs * dknobs)
        assert found == pytest.approx(expected, rel=1e-7)
    weights = rng.random((5, model.tasks))
    pulled = model.losses_vjp(states, weights)
    direction = rng.normal(size=states.shape)
    direction[:, : K * K] += direction[:, symmetric]
    ends = [model.losses(states + sign * 1e-6 * direction) for sign in (-1, 1)]
    expected = np.sum(weights * (ends[1] - ends[0])) / 2e-6
    assert np.sum(pulled * direction) == pytest.approx(expected, rel=1e-7)


# Linear networks


def test_linear_networks_follow_their_exact_solution():
    """One hidden unit with a fixed head of 1: w′ = −η (w − w*), and Q as below, exactly.

    M′ = η (1 − M). With D = Q − 2M + 1 = E[Δ²]: Q′ = −2η (Q − M) + η² D, so D′ = −η (2 − η) D.
    """
    model = TeacherStudent([[1.0]], hidden=1, train_heads=False, activation="linear")
    start = Overlaps(Q=[[0.5]], M=[[0.2]], V=[[1.0]])
    for lr in (0.3, 1.0, 1.7):
        problem = replan.Problem(model, start, duration=3.0, lr=lr)
        end = replan.evaluate(problem, replan.strategies.one_task(problem), rtol=1e-10)
        M = 1 - 0.8 * np.exp(-lr * 3.0)
        D = (0.5 - 0.4 + 1) * np.exp(-lr * (2 - lr) * 3.0)
        np.testing.assert_allclose(end.states[-1][:2], [D + 2 * M - 1, M], rtol=1e-9)
        assert end.losses[-1, 0] == pytest.approx(D / 2, rel=1e-8)


def test_linear_networks_with_trained_heads_are_the_gradient_flow_of_their_product():
    """At small rates b = Σ_k V_k w_k obeys b′ = −η (w wᵀ + V·V) (b − w*), integrated by scipy."""
    from scipy.integrate import solve_ivp

    lr, N, K = 1e-3, 3, 2
    rng = np.random.default_rng(0)
    B = np.eye(1, N) * np.sqrt(N)
    w0, V0 = rng.normal(size=(K, N)), rng.normal(size=K)
    model = TeacherStudent([[1.0]], hidden=K, activation="linear")

    def flow(_, y):
        w, V = y[: K * N].reshape(K, N), y[K * N :]
        gap = V @ w - B[0]  # the error's dependence on the input, times √N
        return np.concatenate([-np.outer(V, gap).ravel(), -w @ gap / N])

    exact = solve_ivp(flow, (0, 2.0), np.concatenate([w0.ravel(), V0]), rtol=1e-11, atol=1e-12)
    w, V = exact.y[: K * N, -1].reshape(K, N), exact.y[K * N :, -1]
    expected = model.pack(model.from_weights(w, V[None], B))
    start = model.from_weights(w0, V0[None], B)
    ends = []
    for rate in (lr, lr / 2):  # what the second order adds is proportional to the rate
        problem = replan.Problem(model, start, duration=2.0 / rate, lr=rate)
        run = replan.evaluate(problem, replan.strategies.one_task(problem), rtol=1e-9)
        ends.append(run.states[-1])
    np.testing.assert_allclose(2 * ends[1] - ends[0], expected, rtol=1e-5, atol=1e-5)


# ReLU units


@pytest.mark.parametrize("activation", MOMENTS)
def test_the_integrator_keeps_order_four(activation):
    model, start = random_model(3, 2, 2, activation=activation)
    x = model.pack(start)

    def end(steps):
        shares, knobs = np.full((steps, 2), 0.5), np.full((steps, 6), 0.4)
        return model.roll_out(x, Schedule.single_steps(shares, knobs, np.full(steps, 0.8 / steps)))[-1]

    exact = end(512)
    errors = [np.abs(end(steps) - exact).max() for steps in (8, 16, 32, 64)]
    slope = np.polyfit(np.log([8, 16, 32, 64]), np.log(errors), 1)[0]
    assert -4.4 < slope < -3.6


def problem_for_sgd(activation, **settings):
    heads = np.array([[1.0, 0.5], [0.0, 1.0]])
    model = TeacherStudent(
        [[1, 0.4], [0.4, 1]], hidden=3, teacher_heads=heads, noise=0.3, head_lr=0.5,
        activation=activation, **settings,
    )  # fmt: skip
    rng = np.random.default_rng(3)
    frame = np.linalg.qr(rng.normal(size=(9, 5)))[0].T * 3.0
    B = np.linalg.cholesky(model.teacher_overlaps) @ frame[:2]
    V = [[0.8, -0.4, 0.5], [0.3, 0.9, -0.6]]
    start = model.from_weights(rng.normal(size=(3, 5)) @ frame / 2, V, B)
    return replan.Problem(model, start, duration=2.0, lr=0.6)


@pytest.mark.parametrize("activation", MOMENTS)
@pytest.mark.parametrize(("dimension", "runs"), [(1000, 12), (4000, 3)])
def test_the_ode_follows_real_sgd(activation, dimension, runs):
    problem = problem_for_sgd(activation)
    protocol = replan.strategies.interleaved(problem)
    found = replan.simulate(problem, protocol, dimension=dimension, seeds=runs, engine="full")
    ends = found.states[:, -1]
    spread = np.std(ends, axis=0, ddof=1) / np.sqrt(runs) + 1 / np.sqrt(dimension * runs)
    deviation = ends.mean(axis=0) - replan.evaluate(problem, protocol).states[-1]
    moved = np.abs(ends.mean(axis=0) - problem.state).max()
    assert np.all(np.abs(deviation) < 4 * spread + 5 / dimension)
    assert moved > 5 * np.abs(deviation).max()


@pytest.mark.parametrize("activation", MOMENTS)
def test_both_engines_have_the_same_law(activation):
    problem = problem_for_sgd(activation)
    protocol = replan.strategies.interleaved(problem)
    runs = 200
    reduced, full = (
        replan.simulate(problem, protocol, dimension=60, seeds=runs, engine=engine, seed=i)
        .states[:, -1]
        for i, engine in enumerate(("reduced", "full"))
    )  # fmt: skip
    for power in (1, 2):
        a, b = reduced**power, full**power
        error = np.sqrt((a.var(axis=0) + b.var(axis=0)) / runs)
        assert np.all(np.abs(a.mean(axis=0) - b.mean(axis=0)) < 4.5 * error + 1e-12)


def test_a_unit_without_weights_stays_as_it_is_and_the_others_go_on():
    """As in SGD, where its slope is 0; its head has nothing to learn from."""
    model = TeacherStudent.similar(0.3, activation="relu")
    dead = Overlaps(Q=[[0.5, 0], [0, 0]], M=[[0.2, 0.1], [0, 0]], V=[[0.3, 0.4], [0.1, 0.2]])
    rate = model.rate(dead, 0)
    assert rate.Q[0, 0] != 0
    for part in (rate.Q[1], rate.Q[:, 1], rate.M[1], rate.V[:, 1]):
        assert np.all(part == 0)
    pieces = Schedule.single_steps(np.full((3, 2), 0.5), np.ones((3, 6)), np.full(3, 0.1))
    states = model.roll_out(model.pack(dead), pieces)
    gradients = model.roll_out_vjp(states, np.ones_like(states), pieces)
    assert all(np.all(np.isfinite(part)) for part in gradients)
    problem = replan.Problem(model, dead, duration=1.0)
    protocol = replan.strategies.interleaved(problem)
    for engine in ("reduced", "full"):
        found = replan.simulate(problem, protocol, dimension=50, seeds=1, engine=engine)
        assert np.all(found.overlaps.Q[0, -1][1] == 0)


def test_a_unit_that_becomes_small_moves_as_a_small_one_does():
    """The rate is continuous in the length of a unit: only the direction counts."""
    model, x = random_model(3, 2, 2, activation="relu")
    rates = []
    for length in (1e-4, 1e-8):
        factors = np.array([length, 1.0, 1.0])
        small = Overlaps(x.Q * np.outer(factors, factors), x.M * factors[:, None], x.V)
        rates.append(model.rate(small, 0))
    assert np.abs(rates[1].M[0]).max() > 1e-2  # it does move
    np.testing.assert_allclose(rates[0].M, rates[1].M, atol=2e-4)
    np.testing.assert_allclose(rates[0].Q, rates[1].Q, atol=2e-4)


@pytest.mark.parametrize("gap", [1e-2, 1e-4, 1e-6, 0.0])
def test_rates_and_gradients_where_units_align_with_each_other_and_with_a_teacher(gap):
    """Losses vanish like the gap's square, the rate stays continuous, and gradients finite."""
    model = TeacherStudent.similar(0.3, hidden=3, activation="relu")
    rng = np.random.default_rng(5)
    frame = np.linalg.qr(rng.normal(size=(9, 6)))[0].T * 3.0
    B = np.linalg.cholesky(model.teacher_overlaps) @ frame[:2]
    w = np.stack([B[0] + gap * frame[2], B[0] + gap * frame[3], B[1] + gap * frame[4]])
    V = [[0.4, 0.6, 0.0], [0.0, 0.0, 1.0]]
    x = model.from_weights(w, V, B)
    losses = model.losses(x)
    assert np.all((losses > -1e-15) & (losses < gap**2 + 1e-15))
    rate = model.rate(x, 0)
    assert all(np.abs(part).max() < 2 * gap + 1e-6 for part in as_tuple(rate))
    pieces = Schedule.single_steps(np.full((3, 2), 0.5), np.ones((3, 6)), np.full(3, 0.1))
    states = model.roll_out(model.pack(x), pieces)
    gradients = model.roll_out_vjp(states, np.ones_like(states), pieces)
    assert all(np.all(np.isfinite(part)) for part in gradients)


@pytest.mark.parametrize(
    ("hidden", "tasks", "bounds"),
    [(2, 2, (1e-10, 1e-9, 1e-8, 1e-7)), (3, 1, (1e-10, 1e-9, 1e-6, 1e-4))],
)
def test_gradients_of_the_rate_near_alignment_match_differences(hidden, tasks, bounds):
    """Along weights, so that the covariance stays one; relative to the largest derivative."""
    model = TeacherStudent.similar(0.3, tasks, hidden, activation="relu")
    kernels, rng = model.kernels(), np.random.default_rng(6)
    N, shares, knobs = 8, np.ones(tasks) / tasks, np.full(3 * tasks, 0.8)
    frame = np.linalg.qr(rng.normal(size=(N, N)))[0] * np.sqrt(N)
    B = np.linalg.cholesky(model.teacher_overlaps) @ frame[:tasks]
    V, away = rng.normal(size=(tasks, hidden)), rng.normal(size=(hidden, N))
    cotangent = rng.normal(size=hidden * (hidden + 2 * tasks))

    def value(w):
        x, out = model.pack(model.from_weights(w, V, B)), np.empty_like(cotangent)
        kernels.rate(kernels.make_work(model.parameters), x, shares, knobs, out)
        return out @ cotangent

    for gap, bound in zip((1e-1, 1e-2, 1e-3, 1e-4), bounds, strict=True):
        w = B[np.arange(hidden) % tasks] + gap * away
        x, by_state = model.pack(model.from_weights(w, V, B)), np.empty_like(cotangent)
        work = kernels.make_vjp_work(model.parameters)
        kernels.rate_vjp(work, x, cotangent, shares, knobs, 1.0, by_state, 0 * shares, 0 * knobs)
        by = model.unpack(by_state)
        exact = ((by.Q + by.Q.T) @ w + by.M @ B) / N
        for _ in range(4):
            dw = rng.normal(size=w.shape)
            step = 3e-3 * gap
            at = [value(w + n * step * dw) for n in (-2, -1, 1, 2)]
            expected = (8 * (at[2] - at[1]) - (at[3] - at[0])) / (12 * step)
            found = np.sum(exact * dw)
            assert abs(found - expected) < bound * np.abs(exact).max()


def test_a_linear_teacher_is_two_relu_units():
    """z = max(z, 0) − max(−z, 0), what the refusal of mixed activations advises; by samples."""
    model = TeacherStudent(
        [[1.0, -1.0], [-1.0, 1.0]], hidden=2, teacher_heads=[1.0, -1.0], activation="relu"
    )
    V, lr = np.array([0.8, -0.5]), 0.7
    factor = np.array([[0.9, 0, 0], [0.3, 0.6, 0], [0.48, 0.6, 0.64]])
    C = factor @ factor.T  # of two hidden units and z
    x = Overlaps(Q=C[:2, :2], M=np.outer(C[:2, 2], [1, -1]), V=[V])
    fields = np.random.default_rng(0).normal(size=(400_000, 3)) @ factor.T
    h, z = fields[:, :2], fields[:, 2]
    error = np.maximum(h, 0) @ V - z
    push = lr * error[:, None] * V * (h > 0)
    first = push[:, :, None] * h[:, None, :]
    rate = model.rate(x, 0, lr)
    for found, samples in (
        (model.losses(x)[0], error**2 / 2),
        (rate.Q, push[:, :, None] * push[:, None, :] - first - first.swapaxes(1, 2)),
        (rate.M[:, 0], -push * z[:, None]),
        (rate.M[:, 1], push * z[:, None]),
        (rate.V[0], -lr * error[:, None] * np.maximum(h, 0)),
    ):
        spread = samples.std(axis=0) / np.sqrt(len(samples))
        assert np.all(spread < 5e-3)
        assert np.all(np.abs(found - samples.mean(axis=0)) < 4 * spread)


@pytest.mark.parametrize("activation", ["relu", "linear"])
def test_files_keep_the_activation(activation):
    model = TeacherStudent.similar(0.3, activation=activation)
    again = TeacherStudent.from_dict(model.to_dict())
    assert (again.activation, again.teacher_activation) == (activation, activation)
    problem = replan.Problem(model, model.fresh(), duration=1.0)
    assert replan.Problem.from_dict(problem.to_dict()).model.activation == activation


def test_plans_of_relu_networks_are_better_than_strategies():
    model = TeacherStudent.similar(0.3, activation="relu")
    problem = replan.Problem(
        model, model.pretrain(seed=1, duration=100.0), duration=10.0, steps=20,
        control=replan.Control(lr=(0.0, 3.0)),
    )  # fmt: skip
    plan = replan.solve(problem)
    assert plan.status == "converged"
    for strategy in (replan.strategies.interleaved, replan.strategies.no_replay):
        assert plan.loss < replan.evaluate(problem, strategy(problem)).loss


def test_limits_bind_plans_of_relu_networks():
    model = TeacherStudent.similar(0.3, activation="relu")
    start = model.pretrain(seed=1, duration=100.0)
    free, limited = (
        replan.Problem(model, start, duration=10.0, steps=10, limits=limits)
        for limits in (replan.Limits(), replan.Limits(max_share=[0.1, 1.0], max_switches=1))
    )
    plan, within = replan.solve(free, starts=1), replan.solve(limited, starts=1)
    assert plan.protocol.shares[:, 0].mean() > 0.1  # it would replay more
    assert within.protocol.shares[:, 0].mean() <= 0.1 + 1e-9
    assert np.count_nonzero(np.diff(within.protocol.shares[:, 0])) <= 1
    assert plan.loss < within.loss
    assert within.loss < replan.evaluate(limited, replan.strategies.no_replay(limited)).loss


def test_only_models_that_are_not_erf_name_their_activation():
    shown = "TeacherStudent(hidden=2, teacher_units=2, tasks=2"
    assert repr(TeacherStudent.similar(0.3)) == f"{shown})"
    assert repr(TeacherStudent.similar(0.3, activation="relu")) == f"{shown}, activation='relu')"
