"""AutoModel: mistakes in what it is made of are told in one line that names the argument."""

import jax.numpy as jnp
import numpy as np
import pytest

from replan import AutoModel, Control, IntegrationError, Problem, evaluate, solve, strategies
from replan.models import Model, Knob

pytest.importorskip("jax")


def rate(state, task, lr):
    return -lr * state


def losses(state):
    return state**2


def make(**changes):
    settings = {"rate": rate, "losses": losses, "tasks": 2, "like": np.ones(2)} | changes
    return AutoModel(settings.pop("rate"), settings.pop("losses"), **settings)


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
        (
            {"loss_names": ["a"]},
            "`losses` expects a function that returns an array of shape (1,), got (2,)",
        ),
        (
            {
                "rate": lambda x, task, lr, *, a: x,
                "losses": lambda x, *, a: a * x[0],
                "parameters": {"a": np.ones(3)},
            },
            "`losses` expects a function that returns an array of shape (2,), got (3,): give `loss",
        ),
        (
            {"loss_names": ["a", "cost"], "cost": lambda x, task, lr: lr},
            "`loss_names` expects other names than 'cost', that of the running cost",
        ),
        ({"knobs": ["lr"]}, "`knobs` expects a list of Knob(…), got 'lr'"),
        ({"end_knobs": 3}, "`end_knobs` expects a list of Knob(…), got 3"),
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


@pytest.mark.parametrize(
    "use", [lambda p: evaluate(p, strategies.interleaved(p), max_steps=4096), solve]
)
def test_a_rate_that_is_no_number_is_no_divergence(use):
    problem = Problem(make(rate=lambda x, task, lr: x * np.nan), np.ones(2), 1.0, steps=8)
    with pytest.raises(ValueError, match="`model` expects a rate of finite numbers, got NaN"):
        use(problem)


def test_a_rate_that_is_no_number_for_one_task():
    def later(x, task, lr):
        return jnp.where(task == 1, jnp.nan, -lr) * x

    problem = Problem(make(rate=later), np.ones(2), 1.0, steps=8)
    with pytest.raises(ValueError, match="`model` expects a rate of finite numbers, got NaN"):
        evaluate(problem, strategies.no_replay(problem), max_steps=4096)


@pytest.mark.parametrize(
    "changes",
    [
        {"rate": lambda x, task, lr: -lr * (1 + 0 * jnp.sqrt(x - 0.5))},
        {"rate": lambda x, task, lr: -lr + 0 * x, "losses": lambda x: jnp.sqrt(x - 0.5)},
    ],
)
def test_what_is_no_number_later_on_is_told_from_a_divergence(changes):
    problem = Problem(make(**changes), np.ones(2), 1.0, steps=8)
    where = r"`model` expects rates and losses of finite numbers, got others after time 0\.\d+ of 1"
    with pytest.raises(IntegrationError, match=where) as raised:
        evaluate(problem, strategies.interleaved(problem), max_steps=4096)
    assert "near the state [0.5, 0.5]: change its functions" in str(raised.value)
    assert len(str(raised.value).splitlines()) == 1
    grows = Problem(make(rate=lambda x, task, lr: lr * x**2), np.ones(2), 3.0, steps=8)
    with pytest.raises(IntegrationError, match=r"the trajectory diverged after time 0\.9"):
        evaluate(grows, strategies.interleaved(grows), max_steps=4096)


def test_parameters_cannot_change_the_number_of_losses():
    model = make(
        rate=lambda x, task, lr, *, a: x, losses=lambda x, *, a: a * x, parameters={"a": np.ones(2)}
    )
    with pytest.raises(ValueError, match=r"`a` expects the structure and shapes .*, got \(3,\)"):
        model.with_parameters(a=np.ones(3))


class Shrinking(Model):
    """Its losses are fewer once the state is small."""

    kind, tasks = "shrinking", 2

    def losses(self, states):
        return states if np.min(states) > 0.9 else states[..., :1]

    def roll_out(self, start, pieces):
        return start * np.exp(-np.cumsum([0.0, *pieces.lengths]))[:, None]


def test_losses_that_change_their_number():
    problem = Problem(Shrinking(), np.ones(2), 1.0, steps=4)
    with pytest.raises(ValueError, match=r"`losses` expects to return shape \(9, 2\) .*\(9, 1\)"):
        evaluate(problem, strategies.interleaved(problem))


WIDE = Knob("temperature", -np.inf, np.inf, default=0.0)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((0.0, np.inf), "`temperature` expects finite numbers, got inf"),
        (None, "`temperature` expects an array of numbers of shape (2,), got None"),
        (True, "`temperature` expects an array of numbers of shape (2,), got True"),
        ((1.0, 0.0), "`temperature` expects min ≤ max, got min 1 and max 0"),
    ],
)
def test_a_knob_is_controlled_within_a_range(given, message):
    with pytest.raises(ValueError) as raised:
        Problem(make(rate=lambda x, task, q: x, knobs=[WIDE]), np.ones(2), 1.0,
                control=Control(knobs={"temperature": given}))  # fmt: skip
    assert message in str(raised.value)


def test_end_knobs_have_ranges():
    model = make(losses=lambda x, temperature: x, end_knobs=[WIDE])
    with pytest.raises(ValueError, match="end knobs with finite ranges, got temperature from -inf"):
        Problem(model, np.ones(2), 1.0)
