"""Compiled models of one's own: their gradients against automatic differentiation."""

import numpy as np
import pytest

from problems.models import Averaging, Fishing, auto_averaging, auto_fishing
from replan.models import Schedule, _compiled_dynamics

CASES = {
    "fishing": (Fishing(), auto_fishing, [0.5, 0.7, 0.0]),
    "averaging": (Averaging(3), lambda: auto_averaging(3), [1.0, 0.5, 2.0]),
}


@pytest.mark.parametrize("name", CASES)
def test_gradients_of_compiled_models_match_autodiff(name):
    model, make_auto, start = CASES[name]
    auto, x, tasks = make_auto(), np.array(start), model.tasks
    rng = np.random.default_rng(0)
    pieces = Schedule(
        rng.dirichlet(np.ones(tasks), size=4),
        0.2 + rng.random((4, tasks)),
        0.1 + rng.random(4),
        np.array([1, 2, 3, 1]),
    )
    states = model.roll_out(x, pieces)
    np.testing.assert_allclose(states, auto.roll_out(x, pieces), rtol=1e-12)
    cotangents = rng.normal(size=states.shape)
    mine, other = (one.roll_out_vjp(states, cotangents, pieces) for one in (model, auto))
    for ours, theirs in zip(mine, other, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(model.losses(states), auto.losses(states), rtol=1e-12)
    weights = rng.normal(size=(len(states), tasks))
    np.testing.assert_allclose(
        model.losses_vjp(states, weights), auto.losses_vjp(states, weights), rtol=1e-12
    )


@pytest.mark.parametrize("kept", [0, 12, 10**6])
def test_gradients_do_not_depend_on_how_many_stages_are_kept(kept, monkeypatch):
    model, x = Fishing(), np.array([0.5, 0.7, 0.0])
    rng = np.random.default_rng(1)
    pieces = Schedule(
        rng.dirichlet(np.ones(2), size=5), np.ones((5, 2)), np.ones(5), np.array([1, 2, 3, 1, 2])
    )
    states, record = model.record(x, pieces)
    assert record[0].shape == (9, 4, 3)
    np.testing.assert_array_equal(states, model.roll_out(x, pieces))
    cotangents = rng.normal(size=states.shape)
    whole = model.roll_out_vjp(states, cotangents, pieces, *record)
    monkeypatch.setattr(_compiled_dynamics, "_KEPT", kept * 4 * 3 // 4)
    assert len(model.record(x, pieces)[1]) == (kept == 10**6)
    for ours, expected in zip(model.roll_out_vjp(states, cotangents, pieces), whole, strict=True):
        np.testing.assert_array_equal(ours, expected)


def test_groups_of_pieces_end_at_most_steps_or_after_one_piece():
    pieces = Schedule(np.ones((5, 1)), np.ones((5, 1)), np.ones(5), np.array([1, 2, 9, 1, 2]))
    assert list(_compiled_dynamics._groups(pieces, 3)) == [(3, 5), (2, 3), (0, 2)]
