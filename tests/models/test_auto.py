"""Models by autodiff: what they are made of, how they run, and what they refuse."""

import jax.numpy as jnp
import numpy as np
import pytest

from replan import ArgumentError, AutoModel
from replan.models import Knob, Schedule, auto


def rate(state, task, lr):
    return -lr * state


def losses(state):
    return state**2


def make(**changes):
    settings = {"rate": rate, "losses": losses, "tasks": 2, "like": np.ones(2)} | changes
    return AutoModel(settings.pop("rate"), settings.pop("losses"), **settings)


LIKE = {"M": np.ones((2, 1)), "Q": np.eye(2)}


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("like", {"like": None}),
        ("like", {"like": "abc"}),
        ("tasks", {"tasks": 0}),
        ("tasks", {"tasks": ["a", "a"]}),
        ("rate", {"rate": 3}),
        ("losses", {"losses": None}),
        ("rate", {"rate": lambda x, task: x}),
        ("losses", {"losses": lambda: 0}),
        ("rate", {"rate": lambda x, task, lr: 1j * x}),
        ("losses", {"losses": lambda x: 1j * x}),
        ("losses", {"losses": lambda x: x > 0}),
        ("losses", {"losses": lambda x: 0.0}),
        ("losses", {"losses": lambda x: (x[0], x[1])}),
        ("rate", {"rate": lambda x, task, lr: np.exp(x)}),
        ("rate", {"rate": lambda x, task, lr: x if x[0] > 0 else -x}),
        ("losses", {"loss_names": ["a"]}),
        ("knobs", {"knobs": ["lr"]}),
        # the structure and shapes of a rate
        ("rate", {"rate": lambda x, task, lr: (x["Q"], x["M"]), "like": LIKE}),
        ("rate", {"rate": lambda x, task, lr: {"Q": 0.0, "M": x["M"]}, "like": LIKE}),
        ("rate", {"rate": lambda x, task, lr: {"Q": x["Q"]}, "like": LIKE}),
        ("rate", {"rate": lambda x, task, lr: x if task == 0 else x["Q"], "like": LIKE}),
    ],
)
def test_mistakes_in_the_arguments(name, changes):
    with pytest.raises(ArgumentError) as error:
        make(**changes)
    assert error.value.name == name
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize(
    "start", [[1.0, 1.0, 1.0], [[1.0], 1.0], np.ones(3), None, {}, np.array([1.0, np.nan])]
)
def test_a_start_of_another_structure(start):
    with pytest.raises(ArgumentError) as error:
        make().pack(start)
    assert error.value.name == "start"


def test_lists_may_stand_for_arrays():
    assert make().pack([1.0, 2.0]).tolist() == [1.0, 2.0]
    model = make(rate=lambda x, task, lr: x, losses=lambda x: x["M"][:, 0], like=LIKE)
    arrays = {"M": np.array([[1.0], [2.0]]), "Q": np.arange(4.0).reshape(2, 2)}
    lists = {name: value.tolist() for name, value in arrays.items()}
    assert model.pack(lists).tolist() == model.pack(arrays).tolist()
    for wrong in ({"M": lists["M"]}, lists | {"Q": [1.0, 2.0]}, lists | {"Q": "x"}):
        with pytest.raises(ArgumentError) as error:
            model.pack(wrong)
        assert error.value.name == "start"


def test_a_state_of_the_wrong_length_in_a_file_is_named_by_its_key():
    assert make().start_from_dict({"state": [1.0, 2.0]}).tolist() == [1.0, 2.0]
    with pytest.raises(ArgumentError) as error:
        make().start_from_dict({"state": [1.0, 2.0, 3.0]})
    assert error.value.name == "start.state"


def test_states_have_the_structure_of_the_example():
    model = make(
        rate=lambda x, task, lr: {"M": -x["M"], "Q": -lr * x["Q"]},
        losses=lambda x: x["M"][:, 0],
        like=LIKE,
    )
    start = {"M": np.array([[1.0], [2.0]]), "Q": np.arange(4.0).reshape(2, 2)}
    x = model.pack(start)
    again = model.unpack(np.stack([x, 2 * x]))
    assert again["Q"].tolist() == [start["Q"].tolist(), (2 * start["Q"]).tolist()]
    assert model.losses(x).tolist() == [1.0, 2.0]


def test_tasks_may_be_python_ints_and_have_names():
    def branching(x, task, lr):
        return -lr * x if task == 0 else 0 * x  # a traced task cannot be compared in an `if`

    model = make(rate=branching, tasks=["first", "second"])
    rows = np.eye(2), np.ones((2, 2)), np.full(2, 0.5)
    states = model.roll_out(np.ones(2), Schedule.single_steps(*rows))
    assert model.task_names == ("first", "second")
    np.testing.assert_allclose(states[:, 0], [1, np.exp(-0.5), np.exp(-0.5)], rtol=1e-3)


def test_knobs_and_the_integral_of_a_cost():
    model = make(
        rate=lambda x, task, heat: jnp.array([heat, 3 * heat**2]),
        knobs=[Knob("temperature", -np.inf, np.inf, default=0.0)],
        losses=lambda x: jnp.array([x[0] ** 2, x[1]]),
        loss_names=["gap", "cost"],
    )
    schedule = Schedule.single_steps(np.full((2, 2), 0.5), np.array([[1.0], [2.0]]), np.ones(2))
    states = model.roll_out(model.pack(np.zeros(2)), schedule)
    np.testing.assert_allclose(model.losses(states)[-1], [9.0, 3 * (1 + 4)], rtol=1e-12)
    cotangents = np.zeros_like(states)
    cotangents[-1, -1] = 1.0
    by_knobs = model.roll_out_vjp(states, cotangents, schedule).by_knobs
    np.testing.assert_allclose(by_knobs, [[6.0], [12.0]], rtol=1e-12)


def test_parameters_are_changed_but_not_their_shapes():
    model = make(
        rate=lambda x, task, lr, *, a: -a * x,
        losses=lambda x, *, a: a * x,
        parameters={"a": np.ones(2)},
    )
    other = model.with_parameters(a=np.array([2.0, 3.0]))
    assert other._program is model._program
    assert other.losses(np.ones(2)).tolist() == [2.0, 3.0]
    for name, parameters in (("a", {"a": np.ones(3)}), ("parameters", {"b": 1.0})):
        with pytest.raises(ArgumentError) as error:
            model.with_parameters(**parameters)
        assert error.value.name == name


def test_models_of_the_same_functions_share_what_is_compiled():
    assert make()._program is make()._program
    assert make()._program is not make(tasks=3, losses=lambda x: jnp.ones(3))._program


def test_a_roll_out_stops_where_it_diverges():
    model = make(rate=lambda x, task, lr: lr * x * x, tasks=1, like=np.ones(1))
    ones = np.ones((20, 1))
    states = model.roll_out(np.ones(1), Schedule.single_steps(ones, ones, np.ones(20)))
    assert 1 < len(states) < 21
    assert np.all(np.isfinite(states))


def test_calls_are_short_and_chunks_change_nothing(monkeypatch):
    model = make(rate=lambda x, task, lr: lr * (1.0 + task - x))
    rows = np.tile([0.3, 0.7], (5, 1))
    schedule = Schedule(rows, np.ones_like(rows), np.full(5, 0.3), np.array([1, 4, 2, 3, 1]))
    sizes, results = [], []
    forward = model._program.compiled["forward"]
    watched = lambda p, count, *rest: (sizes.append(count), forward(p, count, *rest))[1]  # noqa: E731
    monkeypatch.setitem(model._program.compiled, "forward", watched)
    for chunk in (4096, 4):
        monkeypatch.setattr(auto, "_CHUNK", chunk)
        states = model.roll_out(np.array([0.5, 0.2]), schedule)
        results.append([states, *model.roll_out_vjp(states, np.ones_like(states), schedule)])
    for whole, chunked in zip(*results, strict=True):
        np.testing.assert_allclose(whole, chunked, rtol=1e-13)
    assert sizes == [11, 11, 4, 4, 3, 4, 4, 3]
