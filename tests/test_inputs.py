"""Bad arguments of the public face: each is refused on entry, by name, in one short line."""

import json
from dataclasses import dataclass
from decimal import Decimal
from functools import cache

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import replan
from replan import ArgumentError, check, strategies

NUMBERS = [
    None,
    "1",
    True,
    float("nan"),
    float("inf"),
    [1.0],
    1j,
    10**400,
    Decimal(1),
    np.ma.masked,
]
INTEGERS = [*NUMBERS, 1.5, -(10**30), 2**63]
ARRAYS = [None, "x", {"a": 1}, [[1.0, 2.0], [3.0]], np.array([1j, 2.0]), [True, False], ["1", "0"]]
WORDS = [None, 1, "nonsense", ["x"]]
OBJECTS = [None, 3, "x", {}]
TASKS = [None, -1, 99, 0.5, "0", True]


@dataclass
class Call:
    """A function, arguments that it takes, and values that are bad for some of them."""

    function: object
    good: dict
    bad: dict


@cache
def problem():
    model = replan.TeacherStudent.similar(0.3)
    return replan.Problem(model, model.fresh(seed=1), duration=2.0, steps=4)


@cache
def calls():
    p, mixed = problem(), strategies.interleaved(problem())
    shares = [[1.0, 0.0], [0.5, 0.5]]
    both = {"problem": p, "protocol": mixed}
    return {
        "Protocol": Call(
            replan.Protocol,
            {"shares": shares, "duration": 1.0},
            {"shares": ARRAYS, "duration": NUMBERS[1:], "lr": [*ARRAYS, -1.0]},
        ),
        "from_sequence": Call(
            replan.Protocol.from_sequence,
            {"sequence": [0, 1], "tasks": 2, "duration": 1.0},
            {"sequence": [None, 5, "01", [9], [0.5]], "tasks": INTEGERS[:4]},
        ),
        "evaluate": Call(
            replan.evaluate,
            both,
            {"problem": OBJECTS, "protocol": OBJECTS, "rtol": NUMBERS, "max_steps": INTEGERS},
        ),
        "simulate": Call(
            replan.simulate,
            both | {"dimension": 10, "runs": 1},
            {
                "problem": OBJECTS, "dimension": [*INTEGERS[:5], 0], "runs": [*INTEGERS, 0],
                "seed": INTEGERS, "order": ["nonsense", None, [0, 5], 3], "engine": WORDS[1:],
                "times": ARRAYS[1:], "after": OBJECTS[1:], "progress": [None, 3, "x"],
            },
        ),
        "compare": Call(
            replan.compare,
            {"problem": p, "strategies": ["interleaved"]},
            {"problem": OBJECTS, "strategies": [3, "x", [], ["x"], [3]], "optimum": [None, 1]},
        ),
        "losses_at": Call(
            replan.evaluate(p, mixed).losses_at, {"times": [1.0]}, {"times": [*ARRAYS, [9.0]]}
        ),
        "one_task": Call(strategies.one_task, {"problem": p}, {"problem": OBJECTS, "task": TASKS}),
        "interleaved": Call(strategies.interleaved, {"problem": p}, {"shares": ARRAYS[1:]}),
        "sequential": Call(
            strategies.sequential, {"problem": p}, {"order": [3, "01", [9], [0.5], []]}
        ),
        "focus_then_replay": Call(
            strategies.focus_then_replay, {"problem": p}, {"focus": [*NUMBERS[1:], -1, 9]}
        ),
        "random_order": Call(strategies.random_order, {"problem": p}, {"seed": INTEGERS}),
        "constant_lr": Call(strategies.constant_lr, {"problem": p}, {"lr": [*NUMBERS[1:], -1.0]}),
    }  # fmt: skip


CASES = [
    (name, argument, i)
    for name, call in calls().items()
    for argument, values in call.bad.items()
    for i in range(len(values))
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "argument", "i"), CASES)
def test_bad_arguments_are_refused_by_name(name, argument, i):
    call = calls()[name]
    with pytest.raises(ArgumentError) as caught:
        call.function(**call.good | {argument: call.bad[argument][i]})
    assert caught.value.name == argument
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


VALUES = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.text(max_size=3), st.integers(-3, 12),
        st.sampled_from([2**63, 10**400, -1.0, 0.0, 5e-324, 0.5, 2.5, np.nan, np.inf, 1e308]),
        st.sampled_from([1j, b"1", np.float32(0.5), np.int8(1), np.ma.masked, pd.NA]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.text(max_size=2), inner, max_size=2),
        st.lists(inner, max_size=3).map(lambda items: pd.Series(items, dtype=object)),
        st.lists(inner, max_size=3).map(iter),
    ),
    max_leaves=8,
)  # fmt: skip
PLACES = sorted({(name, argument) for name, argument, _ in CASES if argument != "progress"})


@pytest.mark.slow
@settings(
    max_examples=300, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
@given(st.sampled_from(PLACES), VALUES)
def test_any_argument_is_taken_or_refused(place, value):
    name, argument = place
    call = calls()[name]
    try:
        call.function(**call.good | {argument: value})
    except replan.IntegrationError as error:  # taken, but it cannot be computed
        assert "\n" not in str(error)
    except ArgumentError as error:
        assert "\n" not in str(error)
        assert len(str(error)) < 500


def test_any_value_is_shown_in_one_short_line():
    items = []
    items.append(items)
    for value in ("x" * 10**6, ["x"] * 10**6, np.zeros(10**6), 10**4000, "two\nlines", items):
        assert len(check.show(value)) < 110
        assert "\n" not in check.show(value)


def test_numbers_of_other_libraries_are_taken():
    p = problem()
    whole = replan.evaluate(p, strategies.interleaved(p, shares=pd.Series([0.5, 0.5])))
    single = strategies.interleaved(p, shares=np.array([0.5, 0.5], dtype=np.float32))
    assert replan.evaluate(p, single).loss == whole.loss
    run = replan.simulate(p, single, dimension=np.int64(10), runs=np.int8(1))
    assert json.loads(json.dumps(run.settings))["dimension"] == 10
