"""Sizes for which there is no room are refused before anything is allocated."""

import math

import numpy as np
import pytest

import replan
from replan import Control, Problem, Protocol, TeacherStudent, evaluate, simulate, solve
from replan.core import memory


@pytest.fixture
def little(monkeypatch):
    """A machine with 1 GB free."""
    monkeypatch.setattr(memory, "free", lambda: 1e9)


@pytest.mark.parametrize(
    ("size", "text"),
    [(3e5, "0.3 MB"), (2.5e7, "25 MB"), (9.999e8, "1 GB"), (3.71e10, "37 GB"), (5e17, "5e+05 TB")],
)
def test_amounts(size, text):
    assert memory.amount(size) == text


def test_what_is_free_is_known_here():
    assert 0 < memory.free() < math.inf


def test_little_is_never_asked_about(monkeypatch):
    monkeypatch.setattr(memory, "free", lambda: pytest.fail("asked"))
    memory.require("`steps`", 10_000_000)


def test_the_message_has_the_numbers(little):
    with pytest.raises(ValueError, match=r"^`x` = 9 need about 37 GB of memory, 1 GB are free"):
        memory.require("`x` = 9", 37.1e9 / 8)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda: TeacherStudent.similar(0.3, hidden=10_000),
            "`hidden` = 10000 and 2 teacher units",
        ),
        (lambda: TeacherStudent.similar(0.3, hidden=500), "e.* s for a single step"),
        (lambda: TeacherStudent.similar(0.3, 3000, 2), "`hidden` = 2 and 3000 teacher units need"),
        (lambda: TeacherStudent.similar(0.3, 10**12), "`hidden` = 10{12} and 10{12} teacher units"),
        (lambda: TeacherStudent.soft_committee(10**6, 2), "1000000 teacher units need about"),
        (lambda: TeacherStudent(np.eye(2), hidden=10**9), "`hidden` = 1000000000 and 2"),
    ],
)
def test_models_without_room_or_time(little, build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_problems_without_room(little, problem):
    model, start = problem.model, problem.start
    for work in (
        lambda: Problem(model, start, 10.0, steps=1_000_000),
        lambda: evaluate(problem, Protocol(np.tile([0.5, 0.5], (500_000, 1)), 10.0)),
        lambda: solve(Problem(model, start, 10.0, steps=400_000, control=Control(lr=(0.0, 2.0)))),
    ):
        with pytest.raises(ValueError, match=r"need about \S+ GB of memory, 1 GB are free"):
            work()


def test_simulations_without_room(little, problem):
    protocol = replan.strategies.interleaved(problem)
    for sizes in ({"seeds": 10**9}, {"dimension": 10**9, "engine": "full"}):
        with pytest.raises(ValueError, match=r"`seeds` = .* GB of memory|TB of memory"):
            simulate(problem, protocol, **sizes)
    with pytest.raises(ValueError, match=r"`dimension` expects fewer than 2\^53 samples"):
        simulate(problem, protocol, dimension=10**18)
