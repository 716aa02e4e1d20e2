import math

import numpy as np
import pytest

import replan
from replan import TeacherStudent, measure_readout_timescale, readout_timescale
from replan.models.teacher_student import _kernels
from replan.core.teacher_student.work import make_work


@pytest.mark.parametrize("similarity", [0.0, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 0.9, 0.95])
def test_the_formula_holds_for_fixed_features(similarity):
    measured = measure_readout_timescale(similarity, lr=0.7)
    assert measured == pytest.approx(readout_timescale(similarity, lr=0.7), rel=1e-4)


def slowest_mode(similarity):
    """The largest time-scale of the linearised dynamics of task 1 at the solution."""
    model = TeacherStudent.similar(similarity)
    S = model.teacher_overlaps
    x = np.concatenate([S.ravel(), S.ravel(), np.eye(2).ravel()])
    work = make_work(model.parameters)
    ones, shares = np.ones(model.layout.size), np.array([1.0, 0.0])

    def rate(x):
        out = np.empty_like(x)
        _kernels.rate(work, x, shares, ones, out)
        return out

    steps = 1e-5 * np.eye(len(x))
    jacobian = np.array([(rate(x + step) - rate(x - step)) / 2e-5 for step in steps])
    values = np.linalg.eigvals(jacobian).real
    return -1 / values[values < -1e-7].max()


def test_the_formula_diverges_as_printed():
    """α_conv → √3 π / (2η(1−γ))."""
    for gap in (1e-3, 1e-5):
        limit = math.sqrt(3) * math.pi / (2 * 0.5 * gap)
        assert readout_timescale(1 - gap, lr=0.5) == pytest.approx(limit, rel=gap)


def test_features_that_learn_along_are_slower():
    """A finding: with a trained first layer the slowest mode is not the paper's."""
    for similarity in (0.0, 0.5, 0.8):
        measured = measure_readout_timescale(similarity, train_features=True)
        assert measured == pytest.approx(slowest_mode(similarity), rel=2e-3)
        assert measured > 10 * readout_timescale(similarity)


def test_what_takes_too_long_is_said():
    with pytest.raises(replan.IntegrationError, match="too long to measure"):
        measure_readout_timescale(0.9999, train_features=True)


@pytest.mark.parametrize(
    ("similarity", "lr", "message"),
    [
        (1.0, 1.0, r"`similarity` expects .* at most 0.999999999, got 1.0"),
        (-0.1, 1.0, "`similarity` expects a finite number of at least 0"),
        (0.3, 0.0, "`lr` expects a finite number of at least 1e-280"),
        (math.nan, 1.0, "`similarity` expects a finite number"),
    ],
)
def test_bad_input_is_refused(similarity, lr, message):
    for function in (readout_timescale, measure_readout_timescale):
        with pytest.raises(ValueError, match=message):
            function(similarity, lr)
