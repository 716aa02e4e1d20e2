"""Ctrl-C takes effect while compiled code runs."""

import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from replan import TeacherStudent
from replan.core import threads as core_threads
from replan.core.threads import Pace
from replan.models import Schedule


def press():
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)


def in_main_thread():
    return threading.current_thread() is threading.main_thread()


def test_calls_that_may_take_long_leave_the_main_thread_free(monkeypatch):
    now, threads = 0.0, []
    monkeypatch.setattr(core_threads.time, "perf_counter", lambda: now)

    def loop(seconds, stop=None):
        nonlocal now
        now += seconds
        threads.append(in_main_thread())
        return 7

    pace = Pace()
    for seconds, steps in ((0.1, 1000), (0.01, 10), (1.0, 10), (0.001, 10)):
        assert pace.run(loop, steps, seconds) == 7
    assert threads == [False, True, True, False]  # 0.1 ms a step, a millisecond, then 0.1 s


def test_an_error_in_the_background_is_raised():
    def loop(stop):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        Pace().run(loop, 10**6)


def test_ctrl_c_sets_the_flag_of_a_loop():
    """The loop ends by its flag alone."""
    stopped = threading.Event()

    def loop(stop):
        press()
        while not stop.value:
            pass
        stopped.set()

    with pytest.raises(KeyboardInterrupt):
        Pace().run(loop, 10**6)
    assert stopped.wait()


def test_other_threads_call_directly():
    called = []
    thread = threading.Thread(
        target=lambda: called.append(Pace().run(threading.current_thread, 10**6))
    )
    thread.start()
    thread.join()
    assert called == [thread]


@pytest.mark.parametrize("activation", ["erf", "relu", "linear"])
def test_compiled_loops_look_at_their_flag(activation):
    """Each would run for minutes or hours."""
    model, pieces = TeacherStudent.similar(0.3, activation=activation), 100
    x = model.pack(model.fresh(seed=1))
    steps = np.full(pieces, 10**9)
    schedule = Schedule(np.full((pieces, 2), 0.5), np.ones((pieces, 6)), np.ones(pieces), steps)
    with pytest.raises(KeyboardInterrupt):
        threading.Timer(0.1, press).start()
        model.roll_out(x, schedule)


@pytest.mark.parametrize("target", ["sweep", "simulate", "solve", "members", "compiled"])
def test_an_interrupt_at_any_instruction_ends_the_work(target):
    """No hang and no other error: tests/interrupted.py raises it at each instruction in turn."""
    program = Path(__file__).parents[1] / "interrupted.py"
    command = [sys.executable, str(program), target]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 50
