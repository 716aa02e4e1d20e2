"""AutoDynamics: mistakes in what it is made of are told in one line that names the argument."""

import numpy as np
import pytest

from replan import AutoDynamics, Problem, evaluate, solve, strategies

pytest.importorskip("jax")


def rate(state, task, lr):
    return -lr * state


def losses(state):
    return state**2


def make(**changes):
    settings = {"rate": rate, "losses": losses, "tasks": 2, "like": np.ones(2)} | changes
    return AutoDynamics(settings.pop("rate"), settings.pop("losses"), **settings)


CODE = "in JAX code, with functions of `jax.numpy` and no `if` that depends on the state, got "


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"like": None}, "`like` expects a state of at least one number, got None"),
        ({"like": "abc"}, "`like` expects an array of numbers, got 'abc'"),
        ({"rate": 3}, "`rate` expects a function, got 3"),
        ({"losses": None}, "`losses` expects a function, got None"),
        ({"rate": lambda x, task: x}, f"`rate` expects a function of (state, task, lr) {CODE}Type"),
        ({"losses": lambda: 0}, f"`losses` expects a function of (state) {CODE}TypeError"),
        ({"rate": lambda x, task, lr: 1j * x}, "(2,), got ShapeDtypeStruct(shape=(2,), dtype=comp"),
        ({"losses": lambda x: 1j * x}, "(2,), got ShapeDtypeStruct(shape=(2,), dtype=complex128)"),
        ({"losses": lambda x: x > 0}, "(2,), got ShapeDtypeStruct(shape=(2,), dtype=bool)"),
        ({"rate": lambda x, task, lr: np.exp(x)}, f"lr) {CODE}TracerArrayConversionError: The"),
        ({"rate": lambda x, task, lr: x if x[0] > 0 else -x}, f"{CODE}TracerBoolConversionError"),
    ],
)
def test_mistakes_in_the_arguments(changes, message):
    with pytest.raises(ValueError) as raised:
        make(**changes)
    assert message in str(raised.value)
    assert len(str(raised.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("start", "got"), [([1.0, 1.0], "[(), ()]"), (np.ones(3), "(3,)"), (None, "None")]
)
def test_a_start_of_another_structure(start, got):
    with pytest.raises(
        ValueError, match=r"`start` expects arrays with the structure .*, \(2,\)"
    ) as e:
        Problem(make(), start, duration=1.0)
    assert str(e.value).endswith(f"got {got}")


@pytest.mark.parametrize("use", [lambda p: evaluate(p, strategies.interleaved(p)), solve])
def test_a_rate_that_is_no_number_is_no_divergence(use):
    problem = Problem(make(rate=lambda x, task, lr: x * np.nan), np.ones(2), 1.0, steps=8)
    with pytest.raises(ValueError, match="`model` expects a rate of finite numbers, got NaN"):
        use(problem)
