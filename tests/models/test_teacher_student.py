"""Rates and losses against the plain equations, autodiff, exact solutions and real SGD."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from instances import flat, flat_rate, random_model
from scipy.integrate import solve_ivp
from scipy.special import erf

import plain
import replan
from replan import Overlaps, TeacherStudent
from replan.models import Schedule
from replan.models.integrator import integrate

SHAPES = [(1, 1, 1), (2, 2, 2), (3, 2, 1), (2, 4, 3), (4, 3, 4)]  # K, P, T
ACTIVATIONS = ("erf", "relu", "linear")


def parts(overlaps):
    return overlaps.Q, overlaps.M, overlaps.V


def plain_rate(model, x, task, lr):
    settings = {"noise": model.noise, "head_lr": model.head_lr, "activation": model.activation}
    teachers = model.teacher_overlaps, model.teacher_heads
    return np.concatenate(
        [a.ravel() for a in plain.rate(*parts(x), *teachers, task, lr, **settings)]
    )


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("shape", [*SHAPES[:4], (3, 3, 1)])
def test_rate_is_the_plain_equations(shape, activation):
    model, x = random_model(*shape, noise=0.7, head_lr=0.4, activation=activation)
    for task in range(min(model.tasks, 2)):
        found = flat(model.rate(x, task, lr=1.3))
        if activation == "erf":
            np.testing.assert_allclose(
                flat(model.rate(x, task, 1.3)), found, atol=1e-15, rtol=1e-13
            )
        np.testing.assert_allclose(found, plain_rate(model, x, task, 1.3), rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("shape", SHAPES[1:])
def test_mixed_shares_add_up_the_tasks(shape, activation):
    model, x = random_model(*shape, noise=0.3, activation=activation)
    rng = np.random.default_rng(1)
    shares, lr = rng.dirichlet(np.ones(model.tasks)), rng.random(model.tasks) * 2
    [knobs] = model.layout.rows({"lr": lr[None], "feature_lr": 1.0, "head_lr": model.head_lr}, 1)
    mixed = flat_rate(model, model.pack(x), shares, knobs)
    each = [flat(model.rate(x, t, lr[t])) for t in range(model.tasks)]
    np.testing.assert_allclose(mixed, shares @ each, rtol=1e-11, atol=1e-12)


def product(activation, cov):
    """E[g_n g_m] (n, n) in JAX."""
    if activation == "linear":
        return cov
    own = jnp.eye(len(cov), dtype=bool)
    if activation == "erf":
        norms = 1 / jnp.sqrt(1 + jnp.diag(cov))
        return 2 / jnp.pi * jnp.arcsin(cov * norms[:, None] * norms)
    lengths = jnp.sqrt(jnp.diag(cov))
    rho = jnp.where(own, 0.0, cov / jnp.outer(lengths, lengths))
    both = jnp.sqrt(1 - rho**2) + rho * (jnp.pi / 2 + jnp.arcsin(rho))
    return jnp.where(own, cov / 2, jnp.outer(lengths, lengths) * both / (2 * jnp.pi))


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("shape", SHAPES[1:4])
def test_to_first_order_in_lr_training_is_gradient_flow_of_the_loss(shape, activation):
    """b in f = bη + aη² from the gradient of the loss by autodiff; losses and their vjp too.

    With G = ∂ε/∂Q, H = ∂ε/∂M: w′ = −(2Gw + HB), hence M′ = −(2GM + HS) and so on.
    """
    model, x = random_model(*shape, activation=activation)
    S, A = model.teacher_overlaps, model.teacher_heads
    Q, M, V = parts(x)

    def loss(Q, M, V, task):
        w = jnp.concatenate([V[task], -jnp.array(A)[task]])
        return w @ product(activation, jnp.block([[Q, M], [M.T, jnp.array(S)]])) @ w / 2

    for task in range(model.tasks):
        with jax.enable_x64(True):
            value, gradient = jax.value_and_grad(loss, argnums=(0, 1, 2))(Q, M, V, task)
            G, H, dV = (np.array(a) for a in gradient)
        assert model.losses(x)[task] == pytest.approx(float(value), rel=1e-12)
        by_state = model.losses_vjp(model.pack(x), np.eye(model.tasks)[task])
        expected = np.concatenate([((G + G.T) / 2).ravel(), H.ravel(), dV.ravel()])
        np.testing.assert_allclose(by_state, expected, rtol=1e-9, atol=1e-11)
        first = 4 * flat(model.rate(x, task, 0.5)) - flat(model.rate(x, task, 1.0))
        G = G + G.T  # ∂/∂Q_kh and ∂/∂Q_hk are one
        push = G @ Q + H @ M.T
        flow = np.concatenate([(push + push.T).ravel(), (G @ M + H @ S).ravel(), dV.ravel()])
        np.testing.assert_allclose(first, -flow, rtol=1e-9, atol=1e-11)


FUNCTIONS = {  # g and g′
    "erf": (lambda z: erf(z / np.sqrt(2)), lambda z: np.sqrt(2 / np.pi) * np.exp(-(z**2) / 2)),
    "relu": (lambda z: np.maximum(z, 0), lambda z: z > 0),
    "linear": (lambda z: z, np.ones_like),
}


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_the_ode_follows_real_sgd(activation):
    """SGD on N-dimensional weights: two tasks, noise, teacher heads, slower heads."""
    N, duration, runs, lr = 1000, 3.0, 8, 1.5 if activation == "erf" else 0.6
    heads = np.array([[1.0, 0.5], [0.0, 1.0]])
    model = TeacherStudent(
        [[1, 0.4], [0.4, 1]], hidden=2, teacher_heads=heads, noise=0.5, head_lr=0.5,
        activation=activation,
    )  # fmt: skip
    g, slope = FUNCTIONS[activation]
    rng = np.random.default_rng(3)
    frame = np.linalg.qr(rng.normal(size=(N, 4)))[0].T * np.sqrt(N)
    B = np.linalg.cholesky(model.teacher_overlaps) @ frame[:2]
    w0 = rng.normal(size=(2, 4)) @ frame / 2
    V0 = np.array([[0.8, -0.4], [0.3, 0.9]])
    start = model.pack(model.from_weights(w0, V0, B))
    rows = np.tile([0.5, 0.5], (8, 1)), np.tile([lr, lr, 1, 1, 0.5, 0.5], (8, 1))
    schedule = Schedule.single_steps(*rows, np.full(8, duration / 8))
    theory = integrate(model, start, schedule).states[-1]
    finals = []
    for _ in range(runs):
        w, V = w0.copy(), V0.copy()
        for step in range(int(duration * N)):
            task, sample = step % 2, rng.standard_normal(N)
            fields = w @ sample / np.sqrt(N)
            label = heads[task] @ g(B @ sample / np.sqrt(N)) + 0.5 * rng.standard_normal()
            error = V[task] @ g(fields) - label
            w -= lr * error * np.outer(V[task] * slope(fields), sample) / np.sqrt(N)
            V[task] -= lr * 0.5 / N * error * g(fields)
        finals.append(model.pack(model.from_weights(w, V, B)))
    spread = np.std(finals, axis=0, ddof=1) / np.sqrt(runs)
    deviation = np.abs(np.mean(finals, axis=0) - theory)
    assert np.all(deviation < 5 * spread + 3 / N)
    assert np.abs(theory - start).max() > 20 * deviation.max()  # something happened


def test_published_generalisation_error():
    """nn2pp's value for its example network (N = 5, erf)."""
    B = [[-0.878181, -0.675171, 0.200794, -0.385201, -1.47387],
         [-0.0760653, -0.450636, 0.887182, 0.376101, -0.0873384]]  # fmt: skip
    w = [[1.04404, 0.583583, 1.43897, 0.963895, 0.795075],
         [-0.864295, -0.911849, 2.02883, 0.783554, -1.01488],
         [-0.451547, -0.772216, 0.780296, 0.799456, -0.0126815]]  # fmt: skip
    model = TeacherStudent(np.array(B) @ np.transpose(B) / 5, hidden=3,
                           teacher_heads=[0.965846, -1.40304])  # fmt: skip
    x = model.from_weights(w, [[-1.3598, -0.0671005, -0.395626]], B)
    # Six printed digits of the weights leave it uncertain by 6e-7 (standard deviation).
    assert model.losses(x)[0] == pytest.approx(0.0803271, abs=6e-7)


def test_fixed_heads_stay_and_may_be_chosen_per_task():
    model, x = random_model(2, 2, 2, train_heads=[True, False])
    assert np.any(model.rate(x, 0).V[0] != 0)
    assert np.all(model.rate(x, 1).V == 0)
    assert np.any(model.rate(x, 1).Q != 0)


def test_a_committee_learns_its_task():
    """Saad & Solla: with fixed heads and matched sizes the error vanishes at a small rate."""
    model = TeacherStudent(np.eye(2), hidden=2, teacher_heads=np.ones(2), train_heads=False)
    start = model.fresh(seed=0, weight_variance=0.25, dimension=500)
    end = model.pretrain(task=0, duration=2000.0, lr=0.5, start=start)
    assert model.losses(start)[0] > 1e-2
    assert model.losses(end)[0] < 1e-9


# Linear networks


@pytest.mark.parametrize("lr", [0.3, 1.7])
def test_linear_networks_follow_their_exact_solution(lr):
    """One hidden unit with a fixed head of 1: w′ = −η (w − w*), and Q as below, exactly.

    M′ = η (1 − M). With D = Q − 2M + 1 = E[Δ²]: Q′ = −2η (Q − M) + η² D, so D′ = −η (2 − η) D.
    """
    model = TeacherStudent([[1.0]], hidden=1, train_heads=False, activation="linear")
    end = model.pretrain(duration=3.0, lr=lr, start=Overlaps(Q=[[0.5]], M=[[0.2]], V=[[1.0]]))
    M = 1 - 0.8 * np.exp(-lr * 3.0)
    D = (0.5 - 0.4 + 1) * np.exp(-lr * (2 - lr) * 3.0)
    np.testing.assert_allclose(flat(end), [D + 2 * M - 1, M, 1.0], rtol=1e-8)
    assert model.losses(end)[0] == pytest.approx(D / 2, rel=1e-8)


def test_linear_networks_with_trained_heads_are_the_gradient_flow_of_their_product():
    """At small rates b = Σ_k V_k w_k obeys b′ = −η (w wᵀ + V·V) (b − w*), integrated by scipy."""
    N, K = 3, 2
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
    expected = flat(model.from_weights(w, V[None], B))
    start = model.from_weights(w0, V0[None], B)
    # what the second order adds is proportional to the rate
    coarse, fine = (flat(model.pretrain(0, 2 / lr, lr=lr, start=start)) for lr in (1e-3, 5e-4))
    np.testing.assert_allclose(2 * fine - coarse, expected, rtol=1e-5, atol=1e-5)


# ReLU units at their limits


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
    return (x + noise) @ (x + noise).T


KINDS = (
    "a pair", "opposite", "three", "two pairs", "all", "a plane of three", "three dimensions",
    "a plane",
)  # fmt: skip


def relu_rate(cov, order):
    """The rate of two hidden units and two teachers with heads of 1, by model and plainly."""
    cov = cov[np.ix_(order, order)]
    model = TeacherStudent(cov[2:, 2:], hidden=2, teacher_heads=[1.0, 1.0], activation="relu")
    x = Overlaps(cov[:2, :2], cov[:2, 2:], [[1.0, 1.0]])
    return model, x, np.trace(cov)


@pytest.mark.skipif(np.finfo(np.longdouble).eps > 1e-18, reason="no extended precision here")
@pytest.mark.parametrize("kind", KINDS)
def test_rates_of_nearly_singular_relu_units(kind):
    """The accuracy reached, relative to the lengths, as docs/mathematics.md states it."""
    rng = np.random.default_rng(1)
    two = kind in ("a pair", "opposite", "three dimensions")
    orders = itertools.cycle([(0, 1, 2, 3), (0, 2, 1, 3), (2, 3, 0, 1)])
    for size, of_more in ((1e-1, 1e-14), (1e-2, 1e-12), (1e-3, 1e-9), (1e-6, 1e-5)):
        bound = 1e-14 + 3e-15 / size if two else of_more
        model, x, scale = relu_rate(nearly_singular(kind, size, rng), next(orders))
        error = flat(model.rate(x, 0)) - plain_rate(model, x, 0, 1.0)
        # Σ_nm σ_n σ_m ≤ 4 Σ σ²: the moments' errors are below bound × σ_n σ_m
        assert np.abs(error).max() < 4 * bound * scale, size


@pytest.mark.parametrize("kind", KINDS)
def test_rates_of_singular_relu_units_are_the_limit_of_nearly_singular_ones(kind):
    for seed, order in itertools.product(range(3), [(0, 1, 2, 3), (0, 2, 1, 3), (2, 3, 0, 1)]):
        singular, near = (
            flat(model.rate(x, 0)) / scale
            for model, x, scale in (
                relu_rate(nearly_singular(kind, size, np.random.default_rng(seed)), order)
                for size in (0.0, 1e-5)
            )
        )
        np.testing.assert_allclose(singular, near, atol=2e-4)


def test_relu_rates_are_homogeneous_and_do_not_mind_names():
    """Longer units with smaller heads are the same network; so is one with units exchanged."""
    model, x = random_model(3, 2, 1, activation="relu", train_heads=False)
    before, lengths, order = model.rate(x, 0), np.array([0.3, 2.0, 5.0]), [2, 0, 1]
    both = np.outer(lengths, lengths)
    scaled = Overlaps(x.Q * both, x.M * lengths[:, None], x.V / lengths)
    first, second = 4 * flat(model.rate(scaled, 0, 0.5)), flat(model.rate(scaled, 0, 1.0))
    assert model.losses(scaled) == pytest.approx(model.losses(x), rel=1e-12)
    expected = 4 * flat(model.rate(x, 0, 0.5)) - flat(before)
    # to first order in the rate M_k′ is proportional to V_k, hence to 1 / length
    found = model.unpack(first - second).M * lengths[:, None]
    np.testing.assert_allclose(found, model.unpack(expected).M, rtol=1e-10, atol=1e-12)
    renamed = model.rate(Overlaps(x.Q[np.ix_(order, order)], x.M[order], x.V[:, order]), 0)
    np.testing.assert_allclose(renamed.Q, before.Q[np.ix_(order, order)], rtol=1e-11, atol=1e-12)


def test_a_unit_without_weights_stays_as_it_is_and_the_others_go_on():
    """As in SGD, where its slope is 0; its head has nothing to learn from."""
    model = TeacherStudent.similar(0.3, activation="relu")
    dead = Overlaps(Q=[[0.5, 0], [0, 0]], M=[[0.2, 0.1], [0, 0]], V=[[0.3, 0.4], [0.1, 0.2]])
    found = model.rate(dead, 0)
    assert found.Q[0, 0] != 0
    for part in (found.Q[1], found.Q[:, 1], found.M[1], found.V[:, 1]):
        assert np.all(part == 0)
    schedule = Schedule.single_steps(np.full((3, 2), 0.5), np.ones((3, 6)), np.full(3, 0.1))
    states = model.roll_out(model.pack(dead), schedule)
    gradients = model.roll_out_vjp(states, np.ones_like(states), schedule)
    assert all(np.all(np.isfinite(part)) for part in gradients)
    for engine in ("reduced", "full"):
        chain = model.begin_chain(engine, model.pack(dead), 50)
        run = chain.resume(np.random.default_rng(0))
        run.advance(np.zeros(50, np.int64), np.ones((50, 3)))
        assert np.all(model.unpack(run.state()).Q[1] == 0)


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


@pytest.mark.parametrize("gap", [1e-2, 1e-6, 0.0])
def test_rates_and_gradients_where_units_align_with_each_other_and_with_a_teacher(gap):
    """Losses vanish like the gap's square, the rate stays continuous, and gradients finite."""
    model = TeacherStudent.similar(0.3, hidden=3, activation="relu")
    rng = np.random.default_rng(5)
    frame = np.linalg.qr(rng.normal(size=(9, 6)))[0].T * 3.0
    B = np.linalg.cholesky(model.teacher_overlaps) @ frame[:2]
    w = np.stack([B[0] + gap * frame[2], B[0] + gap * frame[3], B[1] + gap * frame[4]])
    x = model.from_weights(w, [[0.4, 0.6, 0.0], [0.0, 0.0, 1.0]], B)
    losses = model.losses(x)
    assert np.all((losses > -1e-15) & (losses < gap**2 + 1e-15))
    assert np.abs(flat(model.rate(x, 0))).max() < 2 * gap + 1e-6
    schedule = Schedule.single_steps(np.full((3, 2), 0.5), np.ones((3, 6)), np.full(3, 0.1))
    states = model.roll_out(model.pack(x), schedule)
    gradients = model.roll_out_vjp(states, np.ones_like(states), schedule)
    assert all(np.all(np.isfinite(part)) for part in gradients)


def test_a_linear_teacher_is_two_relu_units():
    """z = max(z, 0) − max(−z, 0); by samples."""
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
    speed = model.rate(x, 0, lr)
    for found, samples in (
        (model.losses(x)[0], error**2 / 2),
        (speed.Q, push[:, :, None] * push[:, None, :] - first - first.swapaxes(1, 2)),
        (speed.M[:, 0], -push * z[:, None]),
        (speed.M[:, 1], push * z[:, None]),
        (speed.V[0], -lr * error[:, None] * np.maximum(h, 0)),
    ):
        spread = samples.std(axis=0) / np.sqrt(len(samples))
        assert np.all(spread < 5e-3)
        assert np.all(np.abs(found - samples.mean(axis=0)) < 4 * spread)


def test_plans_of_relu_networks_are_better_than_strategies():
    model = TeacherStudent.similar(0.3, activation="relu")
    start = model.pretrain(seed=1, duration=100.0)
    problem = replan.Problem(model, start, duration=10.0, steps=20)
    plan = replan.solve(problem)
    assert plan.status == "converged"
    for strategy in (replan.strategies.interleaved, replan.strategies.no_replay):
        assert plan.loss < replan.evaluate(problem, strategy(problem)).loss
