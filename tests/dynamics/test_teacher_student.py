"""The rate of change against the plain equations, autodiff and real SGD; starts; bad input."""

import jax
import jax.numpy as jnp
import numpy as np
import plain
import pytest
from scipy.special import erf

import replan
from replan import Overlaps, TeacherStudent
from replan.core.teacher_student.erf import rate
from replan.core.teacher_student.work import make_work

jax.config.update("jax_enable_x64", True)

SHAPES = [(1, 1, 1), (2, 2, 2), (3, 2, 1), (2, 4, 3), (4, 3, 4)]  # K, P, T


def random_model(K, P, T, **settings):
    """A model with correlated teachers, mixed heads with zeros among them, and overlaps of it."""
    rng = np.random.default_rng([K, P, T])
    w, B = rng.normal(size=(K, 9)), rng.normal(size=(P, 9))
    heads = rng.normal(size=(T, P)) * (rng.random((T, P)) < 0.7)
    model = TeacherStudent(B @ B.T / 9, hidden=K, teacher_heads=heads, **settings)
    return model, model.from_weights(w, rng.normal(size=(T, K)), B)


def as_tuple(overlaps):
    return overlaps.Q, overlaps.M, overlaps.V


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("noise", [0.0, 0.7])
def test_rate_is_the_plain_equations(shape, noise):
    model, x = random_model(*shape, noise=noise, head_lr=0.4)
    for task in range(model.tasks):
        ours = model.rate(x, task, lr=1.3)
        theirs = plain.rate(
            *as_tuple(x),
            model.teacher_overlaps,
            model.teacher_heads,
            task,
            1.3,
            noise=noise,
            head_lr=0.4,
        )
        for mine, other in zip(as_tuple(ours), theirs, strict=True):
            np.testing.assert_allclose(mine, other, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("shape", SHAPES)
def test_mixed_shares_add_up_the_tasks(shape):
    model, x = random_model(*shape, noise=0.3)
    rng = np.random.default_rng(1)
    shares, lr = rng.dirichlet(np.ones(model.tasks)), rng.random(model.tasks) * 2
    state = model.pack(x)
    mixed = np.empty_like(state)
    [knobs] = model.layout.rows({"lr": lr[None], "feature_lr": 1.0, "head_lr": model.head_lr}, 1)
    rate(make_work(model.parameters), state, shares, knobs, mixed)
    parts = [model.rate(x, t, lr[t]) for t in range(model.tasks)]
    total = sum(
        share * np.concatenate([p.Q.ravel(), p.M.ravel(), p.V.ravel()])
        for share, p in zip(shares, parts, strict=True)
    )
    np.testing.assert_allclose(mixed, total, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("shape", SHAPES)
def test_to_first_order_in_lr_training_is_gradient_flow_of_the_loss(shape):
    """b in f = bη + aη² from the gradient of the loss by autodiff.

    With G = ∂ε/∂Q, H = ∂ε/∂M: w′ = −(2Gw + HB), hence M′ = −(2GM + HS) and so on.
    """
    model, x = random_model(*shape)
    S, A = jnp.array(model.teacher_overlaps), jnp.array(model.teacher_heads)

    def loss(Q, M, V, task):
        cov = jnp.block([[Q, M], [M.T, S]])
        norm = 1 / jnp.sqrt(1 + jnp.diag(cov))
        w = jnp.concatenate([V[task], -A[task]])
        return w @ jnp.arcsin(cov * norm[:, None] * norm) @ w / jnp.pi

    Q, M, V = as_tuple(x)
    for task in range(model.tasks):
        G, H, dV = jax.grad(loss, argnums=(0, 1, 2))(Q, M, V, task)
        half, full = model.rate(x, task, 0.5), model.rate(x, task, 1.0)
        b_Q, b_M, b_V = (4 * a - b for a, b in zip(as_tuple(half), as_tuple(full), strict=True))
        G = G + G.T  # ∂/∂Q_kh and ∂/∂Q_hk are one
        push = G @ Q + H @ M.T
        np.testing.assert_allclose(b_Q, -(push + push.T), rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(b_M, -(G @ M + H @ S), rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(b_V, -dV, rtol=1e-10, atol=1e-12)
        assert float(loss(Q, M, V, task)) == pytest.approx(model.losses(x)[task], rel=1e-12)


def test_the_ode_follows_real_sgd():
    """SGD on N-dimensional weights: two tasks, noise, teacher heads, slower heads."""
    N, duration, runs = 1000, 3.0, 8
    heads = np.array([[1.0, 0.5], [0.0, 1.0]])
    model = TeacherStudent(
        [[1, 0.4], [0.4, 1]], hidden=2, teacher_heads=heads, noise=0.5, head_lr=0.5
    )
    rng = np.random.default_rng(3)
    frame = np.linalg.qr(rng.normal(size=(N, 4)))[0].T * np.sqrt(N)
    B = np.linalg.cholesky(model.teacher_overlaps) @ frame[:2]
    w0 = rng.normal(size=(2, 4)) @ frame / 2
    V0 = np.array([[0.8, -0.4], [0.3, 0.9]])
    problem = replan.Problem(model, model.from_weights(w0, V0, B), duration=duration, lr=1.5)
    theory = replan.evaluate(problem, replan.strategies.interleaved(problem))
    tasks = theory.protocol.sample(N)
    finals = []
    for _ in range(runs):
        w, V = w0.copy(), V0.copy()
        for task in tasks:
            sample = rng.standard_normal(N)
            lam, lam_star = w @ sample / np.sqrt(N), B @ sample / np.sqrt(N)
            g = erf(lam / np.sqrt(2))
            label = heads[task] @ erf(lam_star / np.sqrt(2)) + 0.5 * rng.standard_normal()
            delta = V[task] @ g - label
            slope = np.sqrt(2 / np.pi) * np.exp(-(lam**2) / 2)
            w -= 1.5 * delta * np.outer(V[task] * slope, sample) / np.sqrt(N)
            V[task] -= 1.5 * 0.5 / N * delta * g
        finals.append(model.pack(model.from_weights(w, V, B)))
    spread = np.std(finals, axis=0, ddof=1) / np.sqrt(runs)
    deviation = np.mean(finals, axis=0) - theory.states[-1]
    moved = np.abs(theory.states[-1] - problem.state).max()
    assert np.all(np.abs(deviation) < 5 * spread + 3 / N)
    assert moved > 20 * np.abs(deviation).max()  # something happened


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


def test_similar_and_committee_are_the_general_model():
    similar = TeacherStudent.similar(0.3, tasks=3, hidden=4)
    assert similar.teacher_overlaps.tolist() == [[1, 0.3, 0.3], [0.3, 1, 0.3], [0.3, 0.3, 1]]
    assert (similar.hidden, similar.tasks) == (4, 3)
    assert similar.teacher_heads.tolist() == np.eye(3).tolist()
    committee = TeacherStudent.soft_committee(3, hidden=2)
    assert (committee.tasks, committee.teacher_units) == (1, 3)
    assert committee.teacher_heads.tolist() == [[1, 1, 1]]
    assert committee.train_heads == (False,)


def test_teachers_that_drift_are_random_or_come_in_blocks():
    drift = TeacherStudent.stream(4, 0.5, hidden=3)
    assert drift.teacher_overlaps[0].tolist() == [1, 0.5, 0.25, 0.125]
    assert (drift.hidden, drift.tasks) == (3, 4)
    assert TeacherStudent.stream(3, 0.0).teacher_overlaps.tolist() == np.eye(3).tolist()
    blocks = TeacherStudent.stream(5, 0.5, teachers="blocks", blocks=2, between=0.25)
    assert blocks.teacher_overlaps[0].tolist() == [1, 0.5, 0.5, 0.25, 0.25]
    assert blocks.teacher_overlaps[4].tolist() == [0.25, 0.25, 0.25, 0.5, 1]
    one, again, other = (
        TeacherStudent.stream(5, 0.3, teachers="random", seed=seed).teacher_overlaps
        for seed in (1, 1, 2)
    )
    assert np.array_equal(one, again)
    assert not np.allclose(one, other)


@pytest.mark.parametrize("similarity", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("tasks", [1, 2, 3, 10, 20])
@pytest.mark.parametrize("teachers", ["drift", "random", "blocks"])
def test_streams_are_of_unit_teachers(teachers, tasks, similarity):
    for seed in range(10 if teachers == "random" else 1):
        own = {"seed": seed} if teachers == "random" else {}
        S = TeacherStudent.stream(tasks, similarity, teachers=teachers, **own).teacher_overlaps
        np.testing.assert_array_equal(np.diag(S), 1)
        assert np.linalg.eigvalsh(S).min() > -1e-12
        others = S[~np.eye(tasks, dtype=bool)]
        if teachers == "random" and tasks > 1:
            assert others.mean() == pytest.approx(similarity, abs=1e-12)
            assert tasks == 2 or similarity == 1 or np.ptp(others) > 0.1


def test_a_committee_learns_its_task():
    """Saad & Solla: with fixed heads and matched sizes the error vanishes at a small rate."""
    model = TeacherStudent.soft_committee(2, hidden=2)
    start = model.fresh(seed=0, weight_variance=0.25, dimension=500)
    end = model.pretrain(task=0, duration=2000.0, lr=0.5, start=start)
    assert model.losses(start)[0] > 1e-2
    assert model.losses(end)[0] < 1e-9


def test_fresh_overlaps_have_the_law_of_real_weights():
    """Mean and covariance over many draws against weights that are really made."""
    N, K, draws = 12, 3, 8_000
    model = TeacherStudent([[1, 0.5], [0.5, 2]], hidden=K)
    drawn = np.array(
        [model.pack(model.fresh(seed, dimension=N, weight_variance=0.5)) for seed in range(draws)]
    )[:, : K * K + 2 * K]
    rng = np.random.default_rng(7)
    B = np.linalg.cholesky(model.teacher_overlaps) @ np.eye(2, N) * np.sqrt(N)
    w = rng.normal(scale=np.sqrt(0.5), size=(draws, K, N))
    Q, M = w @ np.swapaxes(w, 1, 2) / N, w @ B.T / N
    made = np.concatenate([Q.reshape(draws, -1), M.reshape(draws, -1)], axis=1)
    error = np.sqrt((drawn.var(axis=0) + made.var(axis=0)) / draws)
    assert np.all(np.abs(drawn.mean(axis=0) - made.mean(axis=0)) < 4.5 * error)
    ours, theirs = np.cov(drawn.T), np.cov(made.T)
    scale = np.sqrt(np.outer(np.diag(theirs), np.diag(theirs)))
    assert np.abs((ours - theirs) / scale).max() < 6 * np.sqrt(2 / draws)


def test_fresh_heads_have_their_variance():
    model = TeacherStudent.similar(0.1, tasks=2)
    heads = np.array([model.fresh(seed, head_variance=0.09).V for seed in range(4000)])
    assert heads.mean() == pytest.approx(0, abs=4 * 0.3 / np.sqrt(heads.size))
    assert heads.var() == pytest.approx(0.09, rel=4 * np.sqrt(2 / heads.size))


def test_fresh_is_seeded_and_takes_aligned_teachers():
    model = TeacherStudent.similar(1.0)  # S is singular
    a, b, c = model.fresh(3), model.fresh(3), model.fresh(4)
    assert a.Q.tolist() == b.Q.tolist() != c.Q.tolist()
    np.testing.assert_allclose(a.M[:, 0], a.M[:, 1], atol=1e-12)
    assert np.diag(a.Q) == pytest.approx([1e-3, 1e-3], rel=0.1)


def test_pretraining_learns_the_task():
    model = TeacherStudent.similar(0.3)
    losses = model.losses(model.pretrain(task=1, duration=300.0, seed=2))
    assert losses[1] < 1e-3 < losses[0]


def test_cosines_are_one_for_aligned_units():
    model = TeacherStudent([[4.0, 0.0], [0.0, 1.0]], hidden=2)
    x = Overlaps(Q=[[1, 0], [0, 9]], M=[[2, 0], [0, -3]], V=np.zeros((2, 2)))
    np.testing.assert_allclose(model.cosines(x), np.eye(2), atol=1e-12)


def test_cosines_of_a_unit_without_weights_are_zero():
    model = TeacherStudent.similar(0.3)
    assert model.cosines(model.fresh(weight_variance=0.0)).tolist() == [[0, 0], [0, 0]]


def test_fixed_heads_start_at_one_where_none_are_given():
    model = TeacherStudent.similar(0.3, train_heads=[True, False])
    V = model.fresh().V
    assert np.all(np.abs(V[0]) < 0.5)
    assert V[1].tolist() == [1, 1]


GOOD = {"Q": np.eye(2), "M": np.zeros((2, 2)), "V": np.ones((2, 2))}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"Q": [[1, 0.5], [0, 1]]},
            "`Q` expects a symmetric matrix, got entries that differ by 0.5",
        ),
        ({"Q": [[1, 2], [2, 1]]}, "`Q` expects a positive semi-definite matrix.*eigenvalue of -1"),
        (
            {"Q": np.eye(3)},
            r"`Q` expects an array of numbers of shape \(2, 2\), got shape \(3, 3\)",
        ),
        ({"M": [[2, 0], [0, 2]]}, "Q, M and teacher_overlaps.*positive semi-definite"),
        ({"V": [[1, np.nan], [1, 1]]}, r"`V` expects finite numbers, got nan at index \[0, 1\]"),
        ({"V": [[1, 2], [1]]}, "`V` expects an array of numbers"),
        ({"V": [["a", "b"], ["c", "d"]]}, "`V` expects an array of numbers"),
    ],
)
def test_bad_overlaps_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        TeacherStudent.similar(0.3).pack(Overlaps(**(GOOD | change)))
    with pytest.raises(ValueError, match=message):
        TeacherStudent.similar(0.3).losses(Overlaps(**(GOOD | change)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"teacher_overlaps": [[1, 0.3], [0.2, 1]]},
            "`teacher_overlaps` expects a symmetric matrix",
        ),
        ({"teacher_overlaps": [[1, 2], [2, 1]]}, "`teacher_overlaps` expects a positive semi-def"),
        (
            {"teacher_overlaps": [[1, 2, 3], [2, 1, 0]]},
            "`teacher_overlaps` expects a square matrix",
        ),
        ({"teacher_overlaps": [[1, np.nan], [np.nan, 1]]}, "`teacher_overlaps` expects finite"),
        ({"hidden": 0}, "`hidden` expects an integer of at least 1, got 0"),
        ({"hidden": 2.0}, "`hidden` expects an integer"),
        ({"noise": -0.1}, "`noise` expects a finite number of at least 0, got -0.1"),
        ({"head_lr": np.nan}, "`head_lr` expects a finite number"),
        (
            {"teacher_heads": [[1, 1, 1]]},
            r"`teacher_heads` expects .* \(T, 2\), got shape \(1, 3\)",
        ),
        ({"train_heads": 0}, "`train_heads` expects a list of bools, got 0"),
        ({"train_heads": [True]}, "`train_heads` expects .* each of 2 tasks"),
        ({"activation": "tanh"}, "`activation` expects one of erf, relu, linear; got 'tanh'"),
        (
            {"activation": "erf", "teacher_activation": "relu"},
            "`teacher_activation` expects the same .*, 'erf', since .* not implemented, got 'relu'",
        ),
        (
            {"activation": "relu", "teacher_activation": "linear"},
            r"got 'linear' \(z = max\(z, 0\) − max\(−z, 0\): take ReLU teacher units",
        ),
        (
            {"activation": "relu", "hidden": 250},
            "`hidden` = 250 ReLU units .* sets of four, .*: use smaller sizes",
        ),
    ],
)
def test_bad_models_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        TeacherStudent(**({"teacher_overlaps": [[1, 0.3], [0.3, 1]], "hidden": 2} | arguments))


def test_bad_starts_are_refused():
    model = TeacherStudent.similar(0.3)
    with pytest.raises(ValueError, match="`task` expects a task index from 0 to 1, got 2"):
        model.pretrain(task=2)
    with pytest.raises(ValueError, match=r"`weight_variance` expects .* at least 0, got -1"):
        model.fresh(weight_variance=-1)
    with pytest.raises(ValueError, match="`dimension` expects an integer of at least 4, got 3"):
        model.fresh(dimension=3)
    with pytest.raises(ValueError, match="`seed` or `start`: expects one of the two"):
        model.pretrain(seed=1, start=model.fresh())
    with pytest.raises(ValueError, match=r"`lr` expects .* at least 0"):
        model.pretrain(lr=-1.0)
    with pytest.raises(ValueError, match=r"`duration` expects .* above 0"):
        model.pretrain(duration=-1.0)
    with pytest.raises(ValueError, match="`teacher_weights` expects teachers with the model's"):
        model.from_weights(np.ones((2, 5)), np.ones((2, 2)), np.ones((2, 5)))
    with pytest.raises(ValueError, match=r"`similarity` expects .* at most 1, got 1.5"):
        TeacherStudent.similar(1.5)
    with pytest.raises(ValueError, match=r"`similarity` expects .* at most 1, got -0.1"):
        TeacherStudent.stream(3, -0.1)
    with pytest.raises(ValueError, match="`teachers` expects one of drift, random, blocks; got"):
        TeacherStudent.stream(3, 0.1, teachers="drifting")
    with pytest.raises(ValueError, match="`seed` expects other `teachers`, got it with 'drift'"):
        TeacherStudent.stream(3, 0.1, seed=1)
    with pytest.raises(ValueError, match=r"`between` expects .* at most 0.1, got 0.2"):
        TeacherStudent.stream(3, 0.1, teachers="blocks", between=0.2)
    with pytest.raises(ValueError, match=r"`blocks` expects .* at most 3, got 4"):
        TeacherStudent.stream(3, 0.1, teachers="blocks", blocks=4)
    with pytest.raises(replan.IntegrationError, match="pretraining: the trajectory diverged"):
        model.pretrain(lr=1e7, duration=10.0)
