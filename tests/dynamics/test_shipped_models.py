"""Curriculum, dropout and denoising: published numbers, gradients, simulation and files."""

import tomllib
from itertools import product

import jax.numpy as jnp
import numpy as np
import pytest

from replan import AutoModel, Limits, Problem, Protocol, evaluate, simulate, solve, strategies
from replan.models import Curriculum, Denoising, Dropout, Schedule
from replan.models.auto_moments import i2, i3, i4
from replan.problem import example

START = {
    "curriculum": [1.2, 0.8, 0.5],
    "dropout": ([[0.5, 0.1], [0.1, 0.4]], [[0.2, 0.1], [-0.1, 0.3]]),
    "denoising": [0.3, 0.4, 0.2],
}
MODELS = {
    "curriculum": Curriculum([0.0, 2.0, 0.7], teacher=2.0),
    "dropout": Dropout(
        [[1.0, 0.2], [0.2, 0.9]], hidden=2, teacher_heads=[1.0, 0.4], heads=[1.0, 0.7], noise=0.3
    ),
    "denoising": Denoising(mean=1.2, variance=0.3, test_noise=0.4),
}


# The equations a second time, in JAX


def curriculum_rate(x, task, lr, *, difficulties, teacher):
    q1, q2, m = x
    delta = difficulties[task]
    s = q1 + delta * q2
    root = jnp.sqrt((2 + s) * teacher - m**2)
    angle = jnp.pi / 2 + jnp.arcsin(s / (2 + 3 * s))
    angle -= 2 * jnp.arcsin(m / jnp.sqrt((2 + 3 * s) * ((1 + s) * teacher - m**2)))
    spread = 2 * lr**2 / jnp.pi**2 / jnp.sqrt(1 + s) * angle
    c = 4 * lr / (jnp.pi * (2 + s))
    return jnp.array(
        [
            c * (-q1 / jnp.sqrt(1 + s) + m * (2 + delta * q2) / root) + spread,
            -c * delta * q2 * (1 / jnp.sqrt(1 + s) + m / root) + delta * spread,
            c / 2 * (-m / jnp.sqrt(1 + s) + root),
        ]
    )


def curriculum_losses(x, *, difficulties, teacher):
    q1, q2, m = x
    return jnp.arccos(m / jnp.sqrt((q1 + difficulties * q2) * teacher)) / jnp.pi


def auto_curriculum(model):
    return AutoModel(
        curriculum_rate, curriculum_losses, tasks=model.tasks, like=np.zeros(3),
        parameters={"difficulties": model.difficulties, "teacher": model.teacher},
    )  # fmt: skip


def auto_dropout(model):
    K, U = model.hidden, model.hidden + len(model.teacher_overlaps)
    w = np.concatenate([model.heads, -model.teacher_heads])
    hidden = [frozenset([n]) if n < K else frozenset() for n in range(U)]
    two = np.array([[len(hidden[k] | hidden[n]) for k in range(K)] for n in range(U)])
    four = np.array([len(frozenset().union(*(hidden[u] for u in units)))
                     for units in product(range(U), range(U), range(K), range(K))])  # fmt: skip
    four = four.reshape(U, U, K, K)

    def joint(x):
        Q, M = x[: K * K].reshape(K, K), x[K * K :].reshape(K, U - K)
        Q = (Q + Q.T) / 2
        return jnp.block([[Q, M], [M.T, jnp.array(model.teacher_overlaps)]])

    def rate(x, task, lr, keep):
        cov, v = joint(x), w[:K]
        drift = v[:, None] * jnp.einsum("n,nk,nkh->kh", w, keep**two, i3(cov)[:, :K])
        square = jnp.einsum("n,m,nmkh,nmkh->kh", w, w, keep**four, i4(cov)[:, :, :K, :K])
        slopes = 2 / jnp.pi * jnp.array(
            [[1 / jnp.sqrt((1 + cov[k, k]) * (1 + cov[h, h]) - cov[k, h] ** 2) for h in range(K)]
             for k in range(K)]
        )  # fmt: skip
        square += model.noise**2 * keep ** two[:K] * slopes
        dQ = -lr * (drift[:, :K] + drift[:, :K].T) + lr**2 * jnp.outer(v, v) * square
        return jnp.concatenate([dQ.ravel(), -lr * drift[:, K:].ravel()])

    def losses(x, rescale):
        scaled = jnp.concatenate([rescale * w[:K], w[K:]])
        return jnp.array([0.5 * scaled @ i2(joint(x)) @ scaled])

    return AutoModel(
        rate, losses, tasks=["teacher"], like=np.zeros(K * U), knobs=model.knobs,
        loss_names=["error"], end_knobs=model.end_knobs,
    )  # fmt: skip


def auto_denoising(model):
    """From the fields' covariance, given the sign of the cluster, instead of the averages."""
    a, variance = model.mean, model.variance

    def fields(x, noise):
        """E of the products of (λ, λ̃, τ, τ̃): fields of weights and clusters, clean and noisy."""
        m, q, _ = x
        mean = jnp.array([m, a])
        clean = variance * jnp.array([[q, m], [m, a]]) + jnp.outer(mean, mean)
        kappa = jnp.sqrt(1 - noise)
        noisy = kappa**2 * clean + noise * jnp.array([[q, m], [m, a]])
        return clean, kappa * clean, noisy  # clean × clean, clean × noisy, noisy × noisy

    def skip(b, noise):
        kappa = jnp.sqrt(1 - noise)
        rest = jnp.array([1 - b * kappa, -b * jnp.sqrt(noise)])  # of the clean input and the noise
        seen = jnp.array([kappa, jnp.sqrt(noise)])
        power = jnp.array([variance, 1.0])
        return rest**2 @ power, seen**2 @ power, (rest * seen) @ power

    def rate(x, task, lr, noise):
        m, q, b = x
        cc, cn, nn = fields(x, noise)
        e = b + q
        first = cn[0, 0] - e * nn[0, 0]
        second = cc[0, 0] - 2 * e * cn[0, 0] + e**2 * nn[0, 0]
        R, X, Y = skip(b, noise)
        back = cn[1, 0] - b * nn[0, 1] - m * nn[0, 0] + cn[0, 1] - e * nn[0, 1]
        spread = nn[0, 0] * R + 2 * first * Y + second * X
        return jnp.array([lr * back, 4 * lr * first + lr**2 * spread, lr * Y])

    def losses(x):
        _, q, b = x
        _, cn, nn = fields(x, model.test_noise)
        kappa = jnp.sqrt(1 - model.test_noise)
        total = a * (1 - b * kappa) ** 2 - 2 * cn[0, 0] + (2 * b + q) * nn[0, 0]
        return jnp.array([skip(b, model.test_noise)[0], total])

    return AutoModel(
        rate, losses, tasks=1, like=np.zeros(3), knobs=model.knobs, loss_names=model.loss_names
    )


AUTO = {"curriculum": auto_curriculum, "dropout": auto_dropout, "denoising": auto_denoising}


def pieces_of(model, rng):
    knobs = rng.uniform(0.2, 0.8, size=(4, model.layout.size))
    shares = rng.dirichlet(np.ones(model.tasks), size=4)
    if model.tasks > 1:
        shares[1] = np.eye(model.tasks)[0]
    return Schedule(shares, knobs, rng.uniform(0.1, 0.4, 4), np.array([1, 2, 3, 1]))


@pytest.mark.parametrize("kind", MODELS)
def test_gradients_match_autodiff(kind):
    model, rng = MODELS[kind], np.random.default_rng(0)
    auto, x, pieces = AUTO[kind](model), model.pack(START[kind]), pieces_of(model, rng)
    states = model.roll_out(x, pieces)
    np.testing.assert_allclose(states, auto.roll_out(x, pieces), rtol=1e-11, atol=1e-13)
    cotangents = rng.normal(size=states.shape)
    if kind == "dropout":  # Q is symmetric
        square = cotangents[:, :4].reshape(5, 2, 2)
        square += np.swapaxes(square, 1, 2).copy()
    mine, other = (one.roll_out_vjp(states, cotangents, pieces) for one in (model, auto))
    for ours, theirs in zip(mine, other, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-10)
    ends = np.tile(rng.uniform(0.3, 0.9, len(model.end_knobs)), (5, 1))
    whole = np.hstack([states, ends])
    np.testing.assert_allclose(model.losses(whole), auto.losses(whole), rtol=1e-11)
    weights = rng.normal(size=(5, len(model.loss_names)))
    mine, other = (one.losses_vjp(whole, weights) for one in (model, auto))
    np.testing.assert_allclose(mine, other, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("kind", MODELS)
def test_gradients_match_finite_differences(kind):
    model, rng = MODELS[kind], np.random.default_rng(1)
    x, pieces = model.pack(START[kind]), pieces_of(model, rng)
    states = model.roll_out(x, pieces)
    cotangents = rng.normal(size=states.shape)
    _, by_shares, by_knobs = model.roll_out_vjp(states, cotangents, pieces)

    def value(shares, knobs):
        changed = pieces._replace(shares=shares, knobs=knobs)
        return np.sum(model.roll_out(x, changed) * cotangents)

    for _ in range(5):
        ways = rng.normal(size=pieces.shares.shape), rng.normal(size=pieces.knobs.shape)
        up, down = (
            value(pieces.shares + h * ways[0], pieces.knobs + h * ways[1]) for h in (1e-6, -1e-6)
        )
        slope = np.sum(by_shares * ways[0]) + np.sum(by_knobs * ways[1])
        assert (up - down) / 2e-6 == pytest.approx(slope, rel=1e-6, abs=1e-8)


# Numbers from elsewhere


@pytest.mark.parametrize(("order", "known"), [((0, 1), 0.1555469343), ((1, 0), 0.1624795304)])
def test_orders_of_a_curriculum_under_euler(order, known):
    from replan.models.curriculum._kernels import rate

    model, x, out = Curriculum(), np.array([1.0, 1.0, 0.0]), np.empty(3)
    for step in range(240):
        rate(model.parameters, x, np.eye(2)[order[step // 120]], np.full(2, 3.0), out)
        x = x + 0.05 * out
    assert model.losses(x).mean() == pytest.approx(known, abs=5e-11)


def test_the_error_of_dropout():
    model = Dropout([[0.99990622]], hidden=2, noise=0.3, rescale=0.7)
    start = np.zeros((2, 2)), np.zeros((2, 1))
    problem = Problem(model, start, duration=5.0, lr=1.0, knobs={"keep": 0.7})
    run = evaluate(problem, strategies.interleaved(problem))
    assert run.loss == pytest.approx(0.0364760, abs=5e-8)


def test_dropout_that_keeps_all_is_the_teacher_student():
    from replan import Overlaps, TeacherStudent

    model = Dropout([[1.0]], hidden=2, noise=0.2, rescale=1.0)
    student = TeacherStudent([[1.0]], hidden=2, noise=0.2, train_heads=False)
    Q, M = np.array([[0.3, 0.1], [0.1, 0.2]]), np.array([[0.1], [0.2]])
    problem = Problem(model, (Q, M), duration=3.0, lr=1.0)
    other = Problem(student, Overlaps(Q, M, np.ones((1, 2))), duration=3.0, lr=1.0)
    losses = [evaluate(p, strategies.interleaved(p)).loss for p in (problem, other)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-9)


def test_the_best_factor_is_no_worse_than_any_other():
    model, start = Dropout([[1.0]], hidden=2, noise=0.2), (np.zeros((2, 2)), np.zeros((2, 1)))
    problem = Problem(model, start, duration=5.0, lr=1.0, knobs={"keep": 0.6})
    run = evaluate(problem, strategies.interleaved(problem))
    fixed = [
        evaluate(
            Problem(Dropout([[1.0]], hidden=2, noise=0.2, rescale=r), start, 5.0, 1.0,
                    knobs={"keep": 0.6}),
            run.protocol,
        ).loss
        for r in np.linspace(0.3, 1.2, 10)
    ]  # fmt: skip
    assert run.loss <= min(fixed)
    best = Dropout([[1.0]], hidden=2, noise=0.2, rescale=run.best_ends["rescale"])
    again = Problem(best, start, 5.0, 1.0, knobs={"keep": 0.6})
    assert evaluate(again, run.protocol).loss == pytest.approx(run.loss, rel=1e-12)


# Simulation


@pytest.mark.parametrize("kind", MODELS)
def test_sgd_follows_the_theory(kind):
    """Means of runs within four standard errors and what is left at finite N, which shrinks."""
    model = MODELS[kind]
    problem = Problem(model, START[kind], duration=2.0, lr=0.7, steps=8)
    shares = np.tile(np.full(model.tasks, 1 / model.tasks), (8, 1))
    knobs = {"lr": np.linspace(0.7, 0.3, 8)}
    for knob in model.knobs[1:]:
        knobs[knob.name] = np.linspace(0.8, 0.3, 8)
    protocol = Protocol(shares, 2.0, knobs=knobs)
    runs = simulate(problem, protocol, dimension=300, seeds=40, times=[1.0, 2.0], order="random")
    overlaps = runs.states.mean(axis=0)
    errors = runs.states.std(axis=0) / np.sqrt(40)
    theory = np.array([runs.theory.states[np.searchsorted(runs.theory.times, t)]
                       for t in runs.times])  # fmt: skip
    assert np.all(np.abs(overlaps - theory) < 4 * errors + 3 / 300)
    assert np.all(np.abs(overlaps - theory[0]).max() > 0.02)  # something happened


# Files and plans


@pytest.mark.parametrize("kind", MODELS)
def test_the_example_is_solved_saved_and_loaded(kind, tmp_path):
    from replan import Plan

    problem = Problem.from_dict(tomllib.loads(example(kind)))
    plan = solve(problem)
    assert plan.status == "converged"
    base = strategies.interleaved(problem)
    assert plan.loss < evaluate(problem, base).loss
    plan.save(tmp_path / "plan.json")
    again = Plan.load(tmp_path / "plan.json")
    assert again.loss == pytest.approx(plan.loss, rel=1e-12)
    assert again.protocol == plan.protocol
    plan.protocol.save(tmp_path / "plan.csv")
    assert Protocol.load(tmp_path / "plan.csv") == plan.protocol
    problem.save(tmp_path / "problem.toml")
    assert Problem.load(tmp_path / "problem.toml").to_dict() == problem.to_dict()
    plan.plot(tmp_path / "plan.png")
    if kind == "curriculum":
        counts = np.bincount(plan.protocol.sequence)
        assert counts.tolist() == [120, 120]


@pytest.mark.parametrize(("low", "high"), [(0.5, 0.5), (0.8, 0.9)])
def test_the_mean_of_a_knob_is_kept_exactly(low, high):
    model, start = Dropout([[1.0]], hidden=2, noise=0.2), (np.zeros((2, 2)), np.zeros((2, 1)))
    from replan import Control

    problem = Problem(
        model, start, 5.0, 1.0, steps=25, control=Control(knobs={"keep": (0.1, 1.0)}),
        limits=Limits(mean={"keep": (low, high)}), knobs={"keep": 0.6},
    )  # fmt: skip
    plan = solve(problem)
    keep = plan.protocol.knobs["keep"]
    assert low - 1e-12 <= keep.mean() <= high + 1e-12
    free = solve(Problem(model, start, 5.0, 1.0, steps=25,
                         control=Control(knobs={"keep": (0.1, 1.0)})))  # fmt: skip
    assert free.loss <= plan.loss
    # no move of two steps against each other that keeps the mean is better
    rng = np.random.default_rng(0)
    for _ in range(20):
        i, j = rng.choice(25, 2, replace=False)
        moved = keep.copy()
        moved[[i, j]] += 0.05 * np.array([1, -1])
        if moved.min() >= 0.1 and moved.max() <= 1.0:
            other = evaluate(problem, plan.protocol.with_knobs(keep=moved)).loss
            assert other > plan.loss - 1e-7


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Curriculum([]), "`difficulties` expects at least one variance"),
        (lambda: Curriculum([-1.0]), "`difficulties` expects at least one variance"),
        (lambda: Curriculum([1.0, 1.0]), "`difficulties` expects different variances, got"),
        (lambda: Curriculum(teacher=0.0), "`teacher` expects a finite number above 0"),
        (lambda: Problem(Curriculum(), [1.0, 1.0, 2.0], 1.0), r"`start` expects \(q1, q2, m\)"),
        (lambda: Dropout([[1.0]], hidden=2, heads=[1.0]), "`heads` expects"),
        (lambda: Problem(Dropout([[1.0]], hidden=1), 3, 1.0), r"`start` expects a pair \(Q, M\)"),
        (lambda: Denoising(variance=-1), "`variance` expects a finite number above 0"),
        (lambda: Problem(Denoising(), [1.0, 0.1, 0.0], 1.0), r"`start` expects \(m, q, b\)"),
        (
            lambda: Problem(Denoising(), [0.1, 0.1, 0.0], 1.0, knobs={"noise": 2.0}),
            "`noise` expects a finite number of at least 0 and at most 0.999, got 2.0",
        ),
        (
            lambda: Problem(Denoising(), [0.1, 0.1, 0.0], 1.0, knobs={"nois": 0.1}),
            "`knobs` expects one of lr, noise; got 'nois', did you mean `noise`",
        ),
    ],
)
def test_mistakes(make, message):
    with pytest.raises(ValueError, match=message):
        make()
