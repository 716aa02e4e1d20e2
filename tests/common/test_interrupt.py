"""Compiled loops in short calls, and Ctrl-C heard between and during them."""

import signal
import threading

import numpy as np
import pytest

from replan import TeacherStudent, evaluate, simulate, solve, strategies
from replan._common import interrupt
from replan._common.interrupt import Pace, heard
from replan.control import _quasi_newton
from replan.control._projection import Domain
from replan.dynamics import AutoDynamics, Pieces, auto
from replan.dynamics.teacher_student._reduced import Reduced
from replan.problem import Limits, _discrete
from replan.simulation import _simulate


class Clock:
    """Time that passes only where a loop works, by `each` for every step."""

    def __init__(self, monkeypatch, each):
        self.now, self.each, self.calls = 0.0, each, []
        monkeypatch.setattr(interrupt.time, "perf_counter", lambda: self.now)

    def watch(self, loop, count):
        """Return the loop, with each call noted as its number of steps: count(before, after)."""

        def call(*arguments):
            *_, position, part, _ = arguments
            found = loop(*arguments)
            self.calls.append(count(arguments, (position, part), found))
            self.now += self.each * self.calls[-1]
            return found

        return call


def counting(*arguments):
    """A loop of single steps up to 10⁶."""
    position, _, most = arguments
    return min(position + most, 10**6), 0


@pytest.mark.parametrize("each", [1e-6, 1e-3, 0.05, 3.0])
def test_calls_last_a_tenth_of_a_second(monkeypatch, each):
    clock, pace = Clock(monkeypatch, each), Pace()
    loop = clock.watch(counting, lambda _, before, after: after[0] - before[0])
    end = 10**6 if each < 0.01 else 50
    assert pace.run(loop, end) >= end
    assert max(clock.calls) * each <= max(0.1001, each)
    assert sorted(clock.calls[4:-1])[-1] * each >= min(0.0999, each)  # and no shorter than that


def test_a_loop_that_becomes_slower_is_cut_again(monkeypatch):
    clock, pace = Clock(monkeypatch, 1e-6), Pace()
    loop = clock.watch(counting, lambda _, before, after: after[0] - before[0])
    pace.run(loop, 10**6)
    clock.each, clock.calls = 1e-3, []
    pace.run(loop, 10**6)
    assert max(clock.calls[1:]) * clock.each <= 0.1001  # all but the first, which tells


def test_a_loop_that_cannot_go_on_ends(monkeypatch):
    assert Pace().run(lambda position, part, most: (3, -1), 10) == 3


def test_the_same_states_and_gradients_in_one_call_and_in_many(problem):
    """Bit by bit: pieces are cut in their middle, gradients at their edges."""
    model, rows = problem.model, np.tile([0.3, 0.7], (7, 1))
    pieces = Pieces(rows, np.ones((7, 6)), np.linspace(0.1, 0.4, 7), np.arange(1, 8))
    weights = np.ones((8, 2))
    found = []
    for most in (10**6, 1, 3):
        for pace in model._paces:
            pace.most, pace._alone = most, False
            pace._learn = lambda *_: None
        states = model.roll_out(problem.state, pieces)
        back = model.pull_back(states, np.ones_like(states), pieces)
        found.append([states, *back, model.losses(states), model.pull_losses(states, weights)])
    for other in found[1:]:
        for one, another in zip(found[0], other, strict=True):
            np.testing.assert_array_equal(one, another)


def test_no_call_of_a_solve_does_much(problem, monkeypatch):
    """Where a step takes 20 ms, no call takes more than five of them, or one piece."""
    clock = Clock(monkeypatch, 0.02)
    model = problem.model
    for name in ("_paces", "_forward"):  # of when the problem was made, on a real clock
        del model.__dict__[name]

    def steps(arguments, before, after):
        pieces = next(x for x in arguments if isinstance(x, Pieces))
        if after[1] < 0:
            return 1
        done = np.concatenate([[0], np.cumsum(pieces.substeps)])
        return int(done[after[0]] + after[1] - done[before[0]] - before[1])

    for name in ("roll_out", "pull_back"):
        watched = clock.watch(getattr(model._loops, name), steps)
        model.__dict__["_loops"] = model._loops._replace(**{name: watched})
    evaluate(problem, strategies.interleaved(problem))
    solve(problem, starts=0, max_gradients=3)
    assert len(clock.calls) > 1000
    assert max(clock.calls) <= 5


def test_tables_of_limits_are_filled_in_short_calls(monkeypatch):
    clock = Clock(monkeypatch, 1e-3)
    steps = 60
    limits = Limits(max_share=[0.5, 0.7, 1.0], min_dwell=0.05).on_grid(
        np.ones((steps, 3), bool), 1.0
    )
    costs = np.random.default_rng(0).random((steps, 3))
    expected = _discrete.cheapest(costs, limits)
    layer = 9 * 31 * 43  # changes of task × counts of two tasks
    loop = clock.watch(_discrete._fill, lambda _, before, after: (after[0] - before[0]) * layer)
    monkeypatch.setattr(_discrete, "_fill", loop)
    monkeypatch.setattr(_discrete, "_PACE", Pace())
    np.testing.assert_array_equal(_discrete.cheapest(costs, limits), expected)
    assert max(clock.calls) <= 4 * layer  # the first layers are those before any stay can end
    assert len(clock.calls) > steps / 2


def test_a_model_is_minimised_in_short_calls(monkeypatch):
    clock = Clock(monkeypatch, 0.2)
    loop = clock.watch(_quasi_newton._descend, lambda _, before, after: after[0] - before[0])
    monkeypatch.setattr(_quasi_newton, "_descend", loop)
    target = np.random.default_rng(0).random(40)
    sizes = np.geomspace(1.0, 30.0, 40)

    def function(x):
        return float(sizes @ (x - target) ** 2), 2 * sizes * (x - target)

    nothing = np.zeros((0, 0)), np.zeros(0), np.zeros(0)
    descent = _quasi_newton.QuasiNewton(
        function,
        Domain(20, np.ones((0, 2), bool), np.zeros(2), np.full(2, 0.6), *nothing),
        np.full(40, 0.5),
    )
    for _ in range(5):
        descent.step()
    assert len(clock.calls) > 10
    assert max(clock.calls) == 1


# Ctrl-C


def test_calls_of_uneven_steps_have_threads_of_their_own(monkeypatch):
    """However long one of them lasts, Ctrl-C is heard."""
    threads = []

    def loop(position, part, most):
        threads.append(threading.current_thread())
        return position + 1, 0

    Pace(uneven=True).run(loop, 5)
    assert len(set(threads)) == 5
    assert threading.main_thread() not in threads
    for tasks, uneven in ((5, False), (6, True)):
        paces = TeacherStudent.similar(0.3, tasks=tasks)._paces
        assert [pace._uneven for pace in paces] == 4 * [uneven]


def test_what_is_heard_gives_its_result_or_its_error():
    assert heard(divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        heard(divmod, 7, 0)


def test_ctrl_c_is_heard_while_a_call_goes_on():
    """The call ends only after the main thread has heard of it."""
    begun, over = threading.Event(), threading.Event()

    def call():
        begun.set()
        over.wait()

    def press():
        begun.wait()
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    presser = threading.Thread(target=press)
    presser.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            heard(call)
    finally:
        over.set()
        presser.join()


def test_other_threads_call_directly():
    found = []
    thread = threading.Thread(target=lambda: found.append(heard(threading.current_thread)))
    thread.start()
    thread.join()
    assert found == [thread]


# Work of other kinds, by how much of it there is in a call


def test_runs_of_sgd_advance_by_little(problem, monkeypatch):
    calls = []
    advance = Reduced.advance

    def watched(self, tasks, knobs):
        calls.append(len(tasks))
        return advance(self, tasks, knobs)

    monkeypatch.setattr(Reduced, "advance", watched)
    monkeypatch.setattr(_simulate, "_AT_ONCE", 600)
    simulate(problem, strategies.interleaved(problem), dimension=100, seeds=2, times=[10.0])
    assert max(calls) == 600 // problem.state.size
    assert sum(calls) == 2 * 1000


def test_automatic_models_run_in_short_calls(monkeypatch):
    def rate(x, task, lr):
        return lr * (1.0 + task - x)

    model = AutoDynamics(rate, lambda x: x**2, tasks=2, like=np.zeros(2))
    rows = np.tile([0.3, 0.7], (5, 1))
    pieces = Pieces(rows, np.ones_like(rows), np.full(5, 0.3), np.array([1, 4, 2, 3, 1]))
    start, sizes, found = np.array([0.5, 0.2]), [], []
    compiled = model._program.compiled
    forward = compiled["forward"]
    compiled["forward"] = lambda p, count, *rest: (sizes.append(count), forward(p, count, *rest))[1]
    for most in (4096, 4):
        monkeypatch.setattr(auto, "_AT_ONCE", most)
        states = model.roll_out(start, pieces)
        found.append([states, *model.pull_back(states, np.ones_like(states), pieces)])
    for one, another in zip(*found, strict=True):
        np.testing.assert_allclose(one, another, rtol=1e-13)
    assert sizes == [11, 11, 4, 4, 3, 4, 4, 3]
