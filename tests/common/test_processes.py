"""Workers that die at any moment: whoever waits for them is told, and nobody is left behind."""

import os
import pickle
import signal
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import pytest

from replan._common.processes import Processes, _Worker
from swept import unlucky

BIG = 10**7  # bytes: far more than a pipe holds


class Closed:
    def __reduce__(self):
        raise TypeError("cannot be sent")


def large():
    return bytes(BIG)


def divide(x):
    return 1 / x


def for_ever():
    while True:
        time.sleep(0.01)


def end(how):
    os.kill(os.getpid(), how)
    for_ever()


def blocked_signals():
    status = Path("/proc/self/status").read_text()
    return int(status.partition("SigBlk:")[2].split()[0], 16)


def make_a_child(path):
    child = os.fork()
    if child == 0:
        for_ever()
    Path(path).write_text(str(child))


def leave_a_child_behind(path):
    make_a_child(path)
    end(signal.SIGKILL)


def large_with_a_child(path):
    make_a_child(path)
    return large()


@pytest.fixture
def workers():
    executor = Processes(2)
    yield executor
    executor.kill()


def test_workers_compute(workers):
    tasks = [workers.submit(pow, x, 2) for x in range(40)]
    assert [task.result() for task in tasks] == [x * x for x in range(40)]
    assert len(workers.submit(large).result()) == BIG
    assert len({workers.submit(os.getpid).result() for _ in range(20)}) <= 2
    workers.close()
    assert all(worker.process.exitcode == 0 for worker in workers._workers)


def test_errors_come_back_with_the_place_they_came_from(workers):
    with pytest.raises(ZeroDivisionError) as error:
        workers.submit(divide, 0).result()
    assert "return 1 / x" in str(error.value.__cause__)
    with pytest.raises(RuntimeError, match="TwoWordsError: no luck"):
        workers.submit(unlucky, 1).result()
    with pytest.raises(TypeError, match="cannot be sent"):
        workers.submit(Closed).result()
    assert workers.submit(divide, 1).result() == 1


@pytest.mark.parametrize(
    ("how", "told"),
    [(signal.SIGKILL, "killed: is there enough memory"), (signal.SIGTERM, "ended by SIGTERM")],
)
def test_a_worker_that_dies_is_an_error(workers, how, told):
    with pytest.raises(ChildProcessError, match=told):
        workers.submit(end, how).result()


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="looks at masks in /proc")
def test_no_worker_hears_ctrl_c(workers):
    """It is the parent's to hear: a worker would take what it stops for a finished result."""
    for _ in range(2):
        worker = _Worker()
        try:
            blocked = worker.run((blocked_signals, ()))
        finally:
            worker.dismiss()
        assert blocked & 1 << (signal.SIGINT - 1)


def test_a_worker_whose_child_holds_the_pipe_is_missed_all_the_same(workers, tmp_path):
    with pytest.raises(ChildProcessError, match="killed"):
        workers.submit(leave_a_child_behind, str(tmp_path / "child")).result()
    os.kill(int((tmp_path / "child").read_text()), signal.SIGKILL)


def test_half_a_message_ends():
    worker = _Worker()
    try:
        worker._pipe.send_bytes(pickle.dumps((large, ())))
        assert worker._pipe.poll(None)  # it is writing, and nobody reads
        worker.process.kill()
        with pytest.raises((EOFError, OSError)):
            worker._pipe.recv_bytes()
    finally:
        worker.process.kill()
        worker.dismiss()


def test_half_a_message_ends_though_a_child_lives_on(tmp_path):
    worker = _Worker()
    try:
        worker._pipe.send_bytes(pickle.dumps((large_with_a_child, (str(tmp_path / "child"),))))
        assert worker._pipe.poll(None)
        worker.process.kill()
        with pytest.raises((EOFError, OSError)):
            worker._pipe.recv_bytes()
        os.kill(int((tmp_path / "child").read_text()), signal.SIGKILL)
    finally:
        worker.process.kill()
        worker.dismiss()


def test_a_message_to_a_dead_worker_ends():
    worker = _Worker()
    worker.process.kill()
    with pytest.raises(ChildProcessError, match="killed"):
        worker.run((len, (bytes(BIG),)))
    worker.dismiss()


def test_kill_ends_all_at_once():
    executor = Processes(2)
    tasks = [executor.submit(for_ever) for _ in range(6)]
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(lambda: list(as_completed(tasks)))
        executor.kill()
        assert len(waiting.result()) == 6  # whoever waits for them is told
    assert all(isinstance(task.exception(), ChildProcessError) for task in tasks)
    assert not any(worker.process.is_alive() for worker in executor._workers)
    with pytest.raises(RuntimeError):
        executor.submit(abs, 1)


@pytest.mark.parametrize("size", [10, 10**5, BIG])
def test_killed_at_any_moment_it_ends(size):
    """In the middle of starting, of computing, of a message."""
    for wait in range(6):
        executor = Processes(2)
        tasks = [executor.submit(bytes, size) for _ in range(8)]
        tasks[wait].result()
        executor.kill()
        assert all(task.done() for task in tasks)
        assert not any(worker.process.is_alive() for worker in executor._workers)
