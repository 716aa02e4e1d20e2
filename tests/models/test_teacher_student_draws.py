"""Random numbers of the reduced simulator: numpy's, in blocks."""

import numpy as np
import pytest

from replan import TeacherStudent
from replan.core import draws
from replan.errors import ArgumentError
from replan.models.teacher_student import sgd


@pytest.mark.parametrize(("freedom", "noise"), [(5, 0.1), (40, 0.0), (0, 0.1), (0, 0.0)])
def test_blocks_hold_the_numbers_a_generator_gives_one_by_one(freedom, noise):
    block, rng = np.empty((50, 6)), np.random.default_rng(1)
    draws.draw(np.random.default_rng(1), freedom, noise, block)
    for row in block:
        expected = [rng.standard_normal() for _ in range(4)]
        expected.append(np.sqrt(rng.chisquare(freedom)) if freedom else 0.0)
        expected.append(rng.standard_normal() if noise else 0.0)
        np.testing.assert_array_equal(row, expected)


def test_other_numbers_of_the_same_law_where_numpy_hides_its_functions(monkeypatch):
    monkeypatch.setattr(draws, "_numpy_functions", lambda: None)
    block = np.empty((20_000, 4))
    draws.draw(np.random.default_rng(1), 7, 0.1, block)
    np.testing.assert_allclose(block.mean(axis=0)[[0, 1, 3]], 0, atol=0.03)
    np.testing.assert_allclose((block**2).mean(axis=0), [1, 1, 7, 1], rtol=0.03)
    draws.draw(np.random.default_rng(1), 0, 0.0, block)
    assert not block[:, 2:].any()


@pytest.mark.parametrize("chain", [sgd.Reduced, sgd.Full])
def test_tasks_that_a_model_does_not_have_are_refused(chain):
    model = TeacherStudent.similar(0.3)
    run = chain(model, model.fresh(), 10).resume(np.random.default_rng(0))
    for task in (-1, 2):
        with pytest.raises(ArgumentError) as error:
            run.advance(np.array([0, task]), np.ones((2, 3)))
        assert error.value.name == "tasks"
