"""Constructors and starts of the teacher-student model, its files, and what it refuses."""

import numpy as np
import pytest

import replan
from replan import ArgumentError, Overlaps, TeacherStudent


def test_similar_and_committee_are_the_general_model():
    similar = TeacherStudent.similar(0.3, tasks=3, hidden=4)
    assert similar.teacher_overlaps.tolist() == [[1, 0.3, 0.3], [0.3, 1, 0.3], [0.3, 0.3, 1]]
    assert (similar.hidden, similar.tasks) == (4, 3)
    assert similar.teacher_heads.tolist() == np.eye(3).tolist()
    committee = TeacherStudent(np.eye(3), hidden=2, teacher_heads=np.ones(3), train_heads=False)
    assert (committee.tasks, committee.teacher_units) == (1, 3)
    assert committee.teacher_heads.tolist() == [[1, 1, 1]]
    assert committee.train_heads == (False,)


def test_streams_drift_are_random_or_come_in_blocks():
    drift = TeacherStudent.stream(4, 0.5, hidden=3)
    assert drift.teacher_overlaps[0].tolist() == [1, 0.5, 0.25, 0.125]
    assert (drift.hidden, drift.tasks) == (3, 4)
    blocks = TeacherStudent.stream(5, 0.5, teachers="blocks", between=0.25).teacher_overlaps
    assert blocks[0].tolist() == [1, 0.5, 0.5, 0.25, 0.25]
    assert blocks[4].tolist() == [0.25, 0.25, 0.25, 0.5, 1]
    first, again, other = (
        TeacherStudent.stream(5, 0.3, seed=seed, teachers="random").teacher_overlaps
        for seed in (1, 1, 2)
    )
    assert np.array_equal(first, again)
    assert not np.allclose(first, other)


@pytest.mark.parametrize("similarity", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("tasks", [1, 2, 10])
def test_streams_are_of_unit_teachers(tasks, similarity):
    random = [
        TeacherStudent.stream(tasks, similarity, seed=seed, teachers="random") for seed in range(5)
    ]
    others = [TeacherStudent.stream(tasks, similarity)]
    others += [TeacherStudent.stream(tasks, similarity, blocks=1, teachers="blocks")]
    for model in random + others:
        S = model.teacher_overlaps
        np.testing.assert_array_equal(np.diag(S), 1)
        assert np.linalg.eigvalsh(S).min() > -1e-12
        if model in random and tasks > 1:
            assert S[~np.eye(tasks, dtype=bool)].mean() == pytest.approx(similarity, abs=1e-12)


def test_fresh_overlaps_have_the_law_of_real_weights():
    """Mean and covariance over many draws against weights that are really made."""
    N, K, draws = 12, 3, 8_000
    model = TeacherStudent([[1, 0.5], [0.5, 2]], hidden=K)
    starts = [
        model.fresh(seed, dimension=N, weight_variance=0.5, head_variance=0.09)
        for seed in range(draws)
    ]
    drawn = np.array([np.concatenate([x.Q.ravel(), x.M.ravel()]) for x in starts])
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
    heads = np.array([x.V for x in starts])
    assert heads.mean() == pytest.approx(0, abs=4 * 0.3 / np.sqrt(heads.size))
    assert heads.var() == pytest.approx(0.09, rel=4 * np.sqrt(2 / heads.size))


def test_fresh_is_seeded_and_takes_aligned_teachers_and_fixed_heads():
    model = TeacherStudent.similar(1.0, train_heads=[True, False])  # S is singular
    a, b, c = model.fresh(3), model.fresh(3), model.fresh(4)
    assert a.Q.tolist() == b.Q.tolist() != c.Q.tolist()
    np.testing.assert_allclose(a.M[:, 0], a.M[:, 1], atol=1e-12)
    assert np.diag(a.Q) == pytest.approx([1e-3, 1e-3], rel=0.1)
    assert np.all(np.abs(a.V[0]) < 0.5)
    assert a.V[1].tolist() == [1, 1]


def test_pretraining_learns_the_task_for_as_long_as_one_likes():
    model = TeacherStudent.similar(0.3)
    losses = model.losses(model.pretrain(task=1, duration=300.0, seed=2))
    assert losses[1] < 1e-3 < losses[0]
    long = model.pretrain(duration=1e5, seed=1)
    assert model.losses(long)[0] < model.losses(model.pretrain(duration=1e4, seed=1))[0]
    with pytest.raises(replan.IntegrationError, match="max_steps"):
        model.pretrain(duration=1e6, max_steps=1000)
    with pytest.raises(replan.IntegrationError, match="diverged"):
        model.pretrain(lr=1e7, duration=10.0)
    with pytest.raises(replan.IntegrationError, match="diverged"):  # long before the most steps
        model.pretrain(lr=1e6, duration=2.0)
    rough = model.pretrain(duration=300.0, seed=1, rtol=1e-4)
    fine = model.pretrain(duration=300.0, seed=1)
    assert 0 < np.abs(rough.Q - fine.Q).max() < 1e-3


def test_cosines():
    model = TeacherStudent([[4.0, 0.0], [0.0, 1.0]], hidden=2)
    x = Overlaps(Q=[[1, 0], [0, 9]], M=[[2, 0], [0, -3]], V=np.zeros((2, 2)))
    np.testing.assert_allclose(model.cosines(x), np.eye(2), atol=1e-12)
    assert model.cosines(model.fresh(weight_variance=0.0)).tolist() == [[0, 0], [0, 0]]


@pytest.mark.parametrize(
    ("section", "model"),
    [
        ({"similarity": 0.3}, TeacherStudent.similar(0.3)),
        ({"similarity": 0.3, "tasks": 3, "activation": "relu"},
         TeacherStudent.similar(0.3, 3, 2, activation="relu")),
        ({"similarity": 0.3, "teachers": "drift", "tasks": 4}, TeacherStudent.stream(4, 0.3)),
        ({"similarity": 0.3, "teachers": "random", "seed": 3},
         TeacherStudent.stream(2, 0.3, seed=3, teachers="random")),
        ({"similarity": 0.3, "teachers": "blocks", "tasks": 5, "blocks": 3, "between": 0.1},
         TeacherStudent.stream(5, 0.3, blocks=3, between=0.1, teachers="blocks")),
        ({"teacher_overlaps": [[1.0, 0.3], [0.3, 1.0]], "teacher_heads": [1.0, 0.5],
          "noise": 0.2, "teacher_activation": "erf"},
         TeacherStudent([[1.0, 0.3], [0.3, 1.0]], hidden=2, teacher_heads=[1.0, 0.5], noise=0.2)),
    ],
)  # fmt: skip
def test_files_describe_models(section, model):
    made = TeacherStudent.from_dict(section | {"hidden": 2})
    assert made.to_dict() == model.to_dict() | {"hidden": 2}
    assert TeacherStudent.from_dict(made.to_dict()).to_dict() == made.to_dict()


@pytest.mark.parametrize(
    "section",
    [
        {},
        {"similarity": 0.3, "teacher_overlaps": [[1.0]]},
        {"teacher_overlaps": [[1.0]], "tasks": 2},
        {"similarity": 0.3, "seed": 1},
        {"similarity": 0.3, "teachers": "drift", "blocks": 2},
        {"similarity": 0.3, "teachers": "drifting"},
        {"similarity": 0.3, "activation": "relu", "teacher_activation": "linear"},
        {"similarity": 0.3, "hiden": 3},
    ],
)
def test_files_that_contradict_themselves_are_refused(section):
    with pytest.raises(ValueError, match="model"):
        TeacherStudent.from_dict(section | {"hidden": 2})


def test_starts_in_files():
    model = TeacherStudent.similar(0.3)
    start = model.pretrain(task=1, duration=20.0, seed=2)
    made = model.start_from_dict({"pretrain": {"task": 2, "duration": 20.0, "seed": 2}})
    for again in (made, model.start_from_dict(model.start_to_dict(start))):
        assert model.pack(again).tolist() == model.pack(start).tolist()
    fresh = model.start_from_dict({"fresh": {"seed": 3}})
    assert fresh.Q.tolist() == model.fresh(3).Q.tolist()
    for bad in ({}, {"Q": [[1.0]]}, {"fresh": {}, "pretrain": {}}, {"pretrain": {"task": 3}}):
        with pytest.raises(ValueError, match="start"):
            model.start_from_dict(bad)


# Bad arguments


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"Q": [[1, 0.5], [0, 1]]}, "Q"),
        ({"Q": [[1, 2], [2, 1]]}, "Q"),
        ({"Q": np.eye(3)}, "Q"),
        ({"M": [[2, 0], [0, 2]]}, "Q, M and teacher_overlaps [[Q, M], [Mᵀ, S]]"),
        ({"V": [[1, np.nan], [1, 1]]}, "V"),
        ({"V": [[1, 2], [1]]}, "V"),
        ({"V": [["a", "b"], ["c", "d"]]}, "V"),
    ],
)
def test_bad_overlaps_are_refused(change, name):
    with pytest.raises(ArgumentError) as error:
        good = {"Q": np.eye(2), "M": np.zeros((2, 2)), "V": np.ones((2, 2))}
        TeacherStudent.similar(0.3).pack(Overlaps(**(good | change)))
    assert error.value.name == name


@pytest.mark.parametrize(
    "change",
    [
        {"teacher_overlaps": [[1, 0.3], [0.2, 1]]},
        {"teacher_overlaps": [[1, 2], [2, 1]]},
        {"teacher_overlaps": [[1, 2, 3], [2, 1, 0]]},
        {"teacher_overlaps": [[1, np.nan], [np.nan, 1]]},
        {"hidden": 0},
        {"hidden": 2.0},
        {"noise": -0.1},
        {"head_lr": np.nan},
        {"teacher_heads": [[1, 1, 1]]},
        {"teacher_heads": np.zeros((0, 2))},
        {"train_heads": 0},
        {"train_heads": [True]},
        {"activation": "tanh"},
        {"momentum": 1.0},
        {"batch": 0},
    ],
)
def test_bad_models_are_refused(change):
    with pytest.raises(ArgumentError) as error:
        TeacherStudent(**({"teacher_overlaps": [[1, 0.3], [0.3, 1]], "hidden": 2} | change))
    assert [error.value.name] == list(change)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda model: model.pretrain(task=2), "task"),
        (lambda model: model.fresh(weight_variance=-1), "weight_variance"),
        (lambda model: model.fresh(dimension=3), "dimension"),
        (lambda model: model.pretrain(seed=1, start=model.fresh()), "seed"),
        (lambda model: model.pretrain(lr=-1.0), "lr"),
        (lambda model: model.pretrain(duration=0.0), "duration"),
        (lambda model: model.pretrain(start=np.ones(12)), "start"),
        (lambda model: model.losses(3), "start"),
        (lambda model: model.unpack(np.ones(5)), "states"),
        (
            lambda model: model.from_weights(np.ones((2, 5)), np.ones((2, 2)), np.ones((2, 5))),
            "teacher_weights",
        ),
        (lambda model: TeacherStudent.similar(-0.6, 3), "similarity"),
        (lambda model: TeacherStudent.stream(3, -0.1), "similarity"),
        (lambda model: TeacherStudent.stream(3, 0.1, between=0.2, teachers="blocks"), "between"),
        (lambda model: TeacherStudent.stream(3, 0.1, blocks=4, teachers="blocks"), "blocks"),
        (lambda model: TeacherStudent.stream(3, 0.1, seed=-1, teachers="random"), "seed"),
    ],
)
def test_bad_arguments_of_methods_are_refused(make, name):
    with pytest.raises(ArgumentError) as error:
        make(TeacherStudent.similar(0.3))
    assert error.value.name == name
