"""Ensembles in problem files."""

import numpy as np
import pytest

from replan import Ensemble, Problem

SECTIONS = {
    "model": {"hidden": 2, "similarity": 0.3},
    "start": {"pretrain": {"duration": 5.0, "seeds": [1, 4]}},
    "training": {"duration": 2.0, "steps": 4},
}


def posed(**changes):
    return Problem.from_dict(SECTIONS | changes)


def test_seeds_make_an_ensemble():
    ensemble = posed()
    assert isinstance(ensemble, Ensemble)
    assert ensemble.names == ("seed 1", "seed 4")
    for seed, member in zip((1, 4), ensemble.members, strict=True):
        start = {"pretrain": {"duration": 5.0, "seed": seed}}
        alone = Problem.from_dict(SECTIONS | {"start": start})
        assert not isinstance(alone, Ensemble)
        assert np.array_equal(alone.state, member.state)


def test_a_count_of_seeds_begins_with_0():
    assert posed(start={"fresh": {"seeds": 3}}).names == ("seed 0", "seed 1", "seed 2")


def test_keys_of_the_model_and_seeds_make_a_product():
    section = {"similarity": [0.2, 0.4], "noise": [0.0, 0.1], "risk": 0.25}
    ensemble = posed(ensemble=section)
    assert len(ensemble.members) == 8
    assert ensemble.names[:3] == (
        "similarity 0.2, noise 0.0, seed 1",
        "similarity 0.2, noise 0.0, seed 4",
        "similarity 0.2, noise 0.1, seed 1",
    )
    assert [one.model.teacher_overlaps[0, 1] for one in ensemble.members[::4]] == [0.2, 0.4]
    assert ensemble.risk.level == 0.25
    single = {"pretrain": {"duration": 5.0, "seed": 1}}
    assert len(posed(start=single, ensemble={"similarity": [0.2, 0.4]}).members) == 2


def test_test_seeds_are_unseen():
    ensemble = posed(ensemble={"test_seeds": 2, "similarity": [0.2, 0.4]})
    assert ensemble.unseen.names[:2] == ("similarity 0.2, seed 5", "similarity 0.2, seed 6")
    assert len(ensemble.unseen.members) == 4
    assert posed(ensemble={"test_seeds": [9]}).unseen.names == ("seed 9",)
    assert posed().unseen is None


def test_weights_and_risk_of_a_file():
    ensemble = posed(ensemble={"weights": [0.25, 0.75], "risk": "worst"})
    assert ensemble.risk.weights.tolist() == [0.25, 0.75]
    assert ensemble.risk.level == 0.0


def test_members_to_test_on_have_the_weights_of_their_models():
    section = {"similarity": [0.2, 0.4], "weights": [0.1, 0.2, 0.3, 0.4], "test_seeds": 3}
    ensemble = posed(ensemble=section)
    assert ensemble.unseen.risk.weights == pytest.approx([0.1] * 3 + [0.7 / 3] * 3)
    again = Problem.from_dict(ensemble.to_dict())
    assert again.unseen.risk.weights == pytest.approx(ensemble.unseen.risk.weights)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ensemble": {"similarity": []}}, "`ensemble.similarity` expects a list of values"),
        ({"ensemble": {"similarity": 0.3}}, "`ensemble.similarity` expects a list of values"),
        ({"ensemble": {"similarity": [0.3, 2.0]}}, "`ensemble.similarity` expects"),
        ({"ensemble": {"similarty": [0.3]}}, "similarty.*similarity"),
        ({"ensemble": {"risk": 2.0}}, "`ensemble.risk` expects"),
        ({"ensemble": {"risk": "wurst"}}, '`ensemble.risk` expects "mean", "worst" or a number'),
        ({"ensemble": {"weights": [0.5, 0.6]}}, "`ensemble.weights` expects numbers above 0 of"),
        ({"ensemble": {"weights": [1.0]}}, "`ensemble.weights` expects"),
        ({"ensemble": {"test_seeds": [4]}}, "`ensemble.test_seeds` expects seeds that are not in"),
        ({"ensemble": {"test_seeds": 0}}, "`ensemble.test_seeds` expects an integer"),
        ({"ensemble": 3}, "`ensemble` expects a table"),
        ({"ensemble": {"members": [{"model": {}}]}}, r"`ensemble.members\[0\].start` is missing"),
        ({"ensemble": {"members": []}}, "`ensemble.members` expects at least one member"),
        (
            {"ensemble": {"members": [{"model": {}, "start": {}, "nam": "a"}]}},
            r"`ensemble.members\[0\].nam` is not a known key, did you mean `name`",
        ),
        (
            {"ensemble": {"members": [{"model": {}, "start": {}, "name": 3}]}},
            r"`ensemble.members\[0\].name` expects a word, got 3",
        ),
        (
            {"ensemble": {"members": [{"model": {}, "start": {}, "name": "a"}] * 2}},
            '`ensemble.members` expects different names, got "a" twice',
        ),
        (
            {"ensemble": {"members": [], "test_seeds": 3}},
            "`ensemble.test_seeds` does not go with `ensemble.members`",
        ),
        (
            {"ensemble": {"test_members": []}},
            "`ensemble.test_members` goes with `ensemble.members`",
        ),
        (
            {"ensemble": {"noise": [0, 0.1, 0.0]}},
            "`ensemble.noise` expects different values, got 0.0",
        ),
        (
            {
                "ensemble": {
                    "weights": [1.0],
                    "members": [{"model": {}, "start": {}}],
                    "test_members": [{"model": {}, "start": {}}],
                }
            },
            "`ensemble.test_weights` is missing",
        ),
        ({"ensemble": {"weigths": [0.5, 0.5]}}, "got 0.5 twice, did you mean `weights`"),
        ({"ensemble": {"riks": "mean"}}, "`ensemble.riks` expects a list.*did you mean `risk`"),
        ({"ensemble": {"head_lr": [1.0, 0.5]}}, "same knobs, got .'head_lr = 1 .*'head_lr = 0.5"),
        ({"model": "x"}, "`model` expects a table of keys, got 'x'"),
        (
            {"start": {"pretrain": {"seeds": 2}, "fresh": {"seeds": 2}}},
            "`start` expects `seeds` in one table, got pretrain and fresh",
        ),
        (
            {"start": {"pretrain": {"seeds": []}}},
            "`start.pretrain.seeds` expects at least one seed",
        ),
        ({"start": {"pretrain": {"seeds": [1, 1]}}}, "`start.pretrain.seeds` expects different"),
        ({"start": {"pretrain": {"seeds": 0}}}, "`start.pretrain.seeds` expects an integer"),
        ({"start": {"pretrain": {"seeds": "x"}}}, "`start.pretrain.seeds` expects an integer"),
        ({"start": {"pretrain": {"seeds": 2, "seed": 1}}}, "expects `seed` or `seeds`, got both"),
        (
            {"start": {"fresh": {"seed": 1}}, "ensemble": {"test_seeds": 2}},
            "`ensemble.test_seeds` expects `seeds` in",
        ),
    ],
)
def test_mistakes_name_their_key(changes, message):
    with pytest.raises(ValueError, match=message):
        posed(**changes)


def test_an_ensemble_without_a_start_is_refused():
    sections = {key: x for key, x in SECTIONS.items() if key != "start"}
    with pytest.raises(ValueError, match="`start` is missing"):
        Problem.from_dict(sections | {"ensemble": {"similarity": [0.2, 0.4]}})
