"""The door to the compiled core: nothing unchecked passes it, and nothing beyond it crashes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.instances import flat_rate
from replan import ArgumentError, TeacherStudent
from replan.core import library
from replan.core.library import Function
from replan.models import Kernels, Schedule


def arguments():
    """Those of a good call: the losses at two states."""
    model = TeacherStudent.similar(0.3)
    return model, {"states": np.zeros((2, model.state_size)), "out": np.zeros((2, 2))}


def call(model, states, out):
    return model._call("losses", library.LOSSES, 2, states, out)


@pytest.mark.parametrize("name", ["states", "out"])
@pytest.mark.parametrize(
    "spoil",
    [
        lambda a: a.astype(np.float32),
        lambda a: a.astype(">f8"),
        lambda a: a.astype(complex),
        lambda a: a.tolist(),
        lambda a: None,
        lambda a: a[0],
        lambda a: a[None],
        lambda a: a[:, ::2],
        lambda a: np.asfortranarray(a),
        lambda a: a[:1],
    ],
)
def test_arrays_that_do_not_fit_are_refused(name, spoil):
    model, good = arguments()
    assert call(model, **good) == 2
    with pytest.raises(ArgumentError) as error:
        call(model, **good | {name: spoil(good[name])})
    assert error.value.name in good


def test_arrays_that_cannot_be_written_or_are_not_aligned_are_refused():
    model, good = arguments()
    fixed, shifted = np.zeros((2, 2)), np.zeros(33, np.uint8)[1:].view(np.float64).reshape(2, 2)
    fixed.flags.writeable = False
    for out in (fixed, shifted):
        with pytest.raises(ArgumentError) as error:
            call(model, good["states"], out)
        assert error.value.name == "out"


def test_a_function_must_be_given_all_of_its_arguments():
    model, good = arguments()
    with pytest.raises(ValueError):
        model._call("losses", library.LOSSES, 2, good["states"])


def test_every_declaration_names_a_function_of_the_core():
    functions = [value for value in vars(library).values() if isinstance(value, Function)]
    assert len(functions) > 8
    assert all(callable(function._c_function) for function in functions)


schedules = st.tuples(st.integers(0, 3), st.integers(1, 3), st.integers(1, 7), st.integers(-1, 3))


@given(schedules)
@settings(max_examples=60, deadline=None)
def test_schedules_that_are_not_for_the_model_are_refused(sizes):
    pieces, T, C, substeps = sizes
    model = TeacherStudent.similar(0.3)
    x = model.pack(model.fresh(seed=1))
    steps = np.full(pieces, substeps)
    schedule = Schedule(np.full((pieces, T), 0.5), np.ones((pieces, C)), np.ones(pieces), steps)
    if (T, C) == (2, 6) and (pieces == 0 or substeps > 0):
        assert model.roll_out(x, schedule).shape == (pieces + 1, 12)
    else:
        with pytest.raises(ArgumentError):
            model.roll_out(x, schedule)


numbers = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True), st.sampled_from([0.0, -0.0, 1.0, 1e300, 5e-324])
)


@given(st.data())
@settings(max_examples=150, deadline=None)
@pytest.mark.parametrize("activation", ["erf", "relu", "linear"])
def test_any_numbers_give_numbers_and_no_crash(activation, data):
    """NaN, infinities and states that are no overlaps of anything."""
    K, P, T = (data.draw(st.integers(1, 4)) for _ in range(3))
    model = TeacherStudent(
        np.eye(P), hidden=K, teacher_heads=np.ones((T, P)), noise=0.1, activation=activation
    )
    draw = lambda size: np.array(data.draw(st.lists(numbers, min_size=size, max_size=size)))  # noqa: E731
    x, shares, knobs = draw(model.state_size), draw(T), draw(3 * T)
    with np.errstate(all="ignore"):
        assert flat_rate(model, x, shares, knobs).shape == x.shape
        schedule = Schedule.single_steps(shares[None], knobs[None], np.ones(1))
        states, tape = model.roll_out_with_tape(x, schedule)
        if len(states) == 2:
            model.roll_out_vjp(states, states, schedule, tape)
        assert model.losses(states).shape == (len(states), T)
        model.losses_vjp(states, model.losses(states))


def test_models_do_not_change_behind_the_kernels():
    model = TeacherStudent.similar(0.3)
    for change in (lambda: setattr(model, "hidden", 3), lambda: setattr(model, "noise", 1.0)):
        with pytest.raises(AttributeError):
            change()
    with pytest.raises(ValueError):
        model.parameters[0] = 50


def test_a_number_of_steps_that_overflows_is_refused():
    model = TeacherStudent.similar(0.3)
    steps = np.array([2**63 - 1, 2**63 - 1, 4])
    schedule = Schedule(np.full((3, 2), 0.5), np.ones((3, 6)), np.ones(3), steps)
    with pytest.raises(ArgumentError) as error:
        model.roll_out_with_tape(model.pack(model.fresh()), schedule)
    assert error.value.name == "schedule"


def test_schedules_of_any_memory_order_have_gradients():
    model = TeacherStudent.similar(0.3)
    rows = np.asfortranarray(np.tile([0.3, 0.7], (3, 1))), np.asfortranarray(np.ones((3, 6)))
    schedule = Schedule.single_steps(*rows, np.ones(3))
    states = model.roll_out(model.pack(model.fresh()), schedule)
    gradients = model.roll_out_vjp(states, np.ones_like(states), schedule)
    assert np.all(np.isfinite(gradients.by_shares))


def test_parameters_of_a_users_model_are_checked():
    class Whole(TeacherStudent):
        parameters = np.arange(15)  # integers

    model = Whole([[1.0]], hidden=1)
    with pytest.raises(ArgumentError) as error:
        model.losses(np.ones(3))
    assert error.value.name == "parameters"


def test_kernels_without_addresses_are_refused():
    class Empty(TeacherStudent):
        def kernels(self):
            return Kernels(0, 0, 0, 0)

    with pytest.raises(ArgumentError) as error:
        Empty([[1.0]], hidden=1).losses(np.ones(3))
    assert error.value.name == "kernels"
