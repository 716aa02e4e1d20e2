"""The compiled loops over controls: what they refuse, copies of domains, Ctrl-C."""

import copy
import ctypes
import pickle

import numpy as np
import pytest

from replan.core import library
from replan.core.projection import Domain, project
from replan.core.rounding import sum_up
from replan.core.shortest_path import cheapest_path
from replan.core.spectral import model_minimum
from replan.errors import ArgumentError


def domain(rows=4, tasks=3, **changes):
    given = {
        "available": np.ones((0, tasks), bool),
        "low": np.zeros(tasks),
        "high": np.full(tasks, 0.6),
        "weights": np.full((1, 2), 0.5),
        "least": np.array([0.2]),
        "most": np.array([0.4]),
    }
    return Domain(rows, **(given | changes))


def replay(rows, first, last):
    return {"old": np.ones((rows, 3), bool), "spans": np.array([[first, last]]), "caps": np.ones(1)}


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"available": np.ones((3, 3), bool)}, "available"),
        ({"available": np.ones((4, 2), bool)}, "low"),
        ({"high": np.ones(2)}, "high"),
        ({"high": np.ones(3, np.float32)}, "high"),
        ({"weights": np.ones((2, 2))}, "least"),
        (replay(3, 0, 3), "old"),
        (replay(4, -1, 3), "spans"),
        (replay(4, 2, 2), "spans"),
        (replay(4, 0, 5), "spans"),
    ],
)
def test_domains_that_do_not_fit_together_are_refused(changes, name):
    with pytest.raises(ArgumentError) as error:
        project(np.zeros(14), domain(**changes))
    assert error.value.name == name


def test_vectors_of_another_size_are_refused():
    for call in (project, lambda x, d: model_minimum(x, x, np.ones((1, 2, 13)), d)):
        with pytest.raises(ArgumentError) as error:
            call(np.zeros(13), domain())
        assert error.value.name == "x"
    with pytest.raises(ArgumentError) as error:
        model_minimum(np.zeros(14), np.zeros(14), np.ones((1, 2, 13)), domain())
    assert error.value.name == "x"


def test_copies_of_a_domain_have_their_own_arrays():
    x, first = np.linspace(-1.0, 2.0, 14), domain()
    expected = project(x, first)
    for other in (copy.copy(first), copy.deepcopy(first), pickle.loads(pickle.dumps(first))):
        assert other._as_parameter_ != first._as_parameter_
        assert project(x, other).tolist() == expected.tolist()


def test_a_set_flag_ends_every_loop():
    stop, flat = ctypes.c_int64(1), domain()
    x, out, work = np.ones(14), np.empty(14), np.empty(1000)
    assert library.PROJECT(flat, x, out, work, stop=stop) == 1
    sides = np.ones((2, 14))
    assert library.DESCEND(flat, 1.0, sides, np.eye(2), x, -x, work, stop=stop) == 0


def test_a_step_without_a_task_is_refused():
    shares, there = np.full((5, 2), 0.5), np.ones((5, 2), bool)
    assert sum_up(shares, np.ones(5), 0.0, there).tolist() == [0, 1, 0, 1, 0]
    there[3] = False
    with pytest.raises(ArgumentError) as error:
        sum_up(shares, np.ones(5), 0.0, there)
    assert error.value.name == "there"


@pytest.mark.parametrize(
    ("at", "value", "name"),
    [(7, 0, "dwell"), (6, np.full(4, -1), "replays"), (9, np.array([-1, 0]), "sizes")],
)
def test_limits_that_no_table_has_room_for_are_refused(at, value, name):
    arguments = [
        np.ones((4, 2)), np.ones((4, 2), bool), np.zeros(2, np.int64), np.full(2, 4),
        np.zeros((4, 2), bool), np.arange(4) == 0, np.zeros(4, np.int64), 1, -1,
        np.zeros(2, np.int64),
    ]  # fmt: skip
    assert cheapest_path(*arguments).tolist() == [0, 0, 0, 0]
    arguments[at] = value
    with pytest.raises(ArgumentError) as error:
        cheapest_path(*arguments)
    assert error.value.name == name
