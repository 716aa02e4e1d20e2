"""Compiled loops in short calls, and Ctrl-C between and during them."""

import signal
import threading

import numpy as np
import pytest

from replan import TeacherStudent
from replan.core import interrupt
from replan.core.interrupt import ChunkedLoop, interrupted, run_interruptibly
from replan.models import Schedule


class Clock:
    """Time that passes only where a loop works, by `each` for every step."""

    def __init__(self, monkeypatch, each):
        self.now, self.each, self.calls = 0.0, each, []
        monkeypatch.setattr(interrupt.time, "perf_counter", lambda: self.now)

    def watch(self, loop, scale=1):
        """Return the loop, with the number of steps of each call noted."""

        def call(*arguments):
            before = arguments[-3]
            after, part = loop(*arguments)
            self.calls.append((after - before) * scale)
            self.now += self.each * self.calls[-1]
            return after, part

        return call


def counting(position, part, steps):
    """A loop of single steps up to 10⁶."""
    return min(position + steps, 10**6), 0


@pytest.mark.parametrize("each", [1e-6, 1e-3, 0.05, 3.0])
def test_calls_last_a_tenth_of_a_second(monkeypatch, each):
    clock = Clock(monkeypatch, each)
    end = 10**6 if each < 0.01 else 50
    assert ChunkedLoop().run(clock.watch(counting), end) >= end
    assert max(clock.calls) * each <= max(0.1001, each)
    assert sorted(clock.calls[4:-1])[-1] * each >= min(0.0999, each)  # and no shorter than that


def test_a_loop_that_becomes_slower_is_cut_again(monkeypatch):
    clock, chunks = Clock(monkeypatch, 1e-6), ChunkedLoop()
    chunks.run(clock.watch(counting), 10**6)
    clock.each, clock.calls = 1e-3, []
    chunks.run(clock.watch(counting), 10**6)
    assert max(clock.calls[1:]) * clock.each <= 0.1001  # all but the first, which tells


def test_the_first_call_and_those_after_long_ones_leave_the_main_thread_free(monkeypatch):
    clock, threads = Clock(monkeypatch, 0.0), []

    def loop(position, part, steps):
        threads.append(threading.current_thread() is threading.main_thread())
        clock.now += 1.0 if position == 2 else 0.01
        return position + 1, 0

    ChunkedLoop().run(loop, 5)
    assert threads == [False, True, True, False, True]


def test_a_loop_that_cannot_go_on_ends():
    assert ChunkedLoop().run(lambda position, part, steps: (3, -1), 10) == 3


def test_the_same_states_and_gradients_in_one_call_and_in_many(monkeypatch):
    """Bit by bit: pieces are cut in their middle, gradients at their edges."""
    model, rows = TeacherStudent.similar(0.3), np.tile([0.3, 0.7], (7, 1))
    x = model.pack(model.fresh(seed=1, weight_variance=0.5))
    schedule = Schedule(rows, np.ones((7, 6)), np.linspace(0.1, 0.4, 7), np.arange(1, 8))
    results = []
    for each in (0.0, 0.06, 0.03):  # as many steps as one likes, one and three in a call
        clock, compiled = Clock(monkeypatch, each), model._loops
        watched = {name: clock.watch(loop) for name, loop in compiled._asdict().items()}
        model.__dict__["_loops"] = compiled._replace(**watched)
        model.__dict__.pop("_chunks", None)
        states = model.roll_out(x, schedule)
        back = model.roll_out_vjp(states, np.ones_like(states), schedule)
        weights = np.ones((8, 2))
        results.append([states, *back, model.losses(states), model.losses_vjp(states, weights)])
        assert len(clock.calls) >= (4 if each == 0.0 else 15)
        model.__dict__["_loops"] = compiled
    for other in results[1:]:
        for whole, chunked in zip(results[0], other, strict=True):
            np.testing.assert_array_equal(whole, chunked)


# Ctrl-C


def test_an_interruptible_call_gives_its_result_or_its_error():
    assert run_interruptibly(divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        run_interruptibly(divmod, 7, 0)


def test_ctrl_c_takes_effect_while_a_call_goes_on():
    """The call ends only after the main thread has been interrupted."""
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
            run_interruptibly(call)
    finally:
        over.set()
        presser.join()


def test_other_threads_call_directly():
    called = []
    thread = threading.Thread(
        target=lambda: called.append(run_interruptibly(threading.current_thread))
    )
    thread.start()
    thread.join()
    assert called == [thread]


def test_a_system_error_may_hide_ctrl_c():
    hidden = SystemError()
    hidden.__cause__ = KeyboardInterrupt()
    assert interrupted(hidden) and interrupted(KeyboardInterrupt())
    assert not interrupted(SystemError()) and not interrupted(None)
