"""Sweeps on the executors of users: what is true of worker processes is true of all of them."""

import asyncio
import contextlib
import functools
import json
import multiprocessing
import os
import sys
import threading
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

import swept
from replan import sweep, sweeps
from replan._common.executors import Borrowed
from replan.progress import Progress
from swept import square, wait


@contextlib.contextmanager
def dask():
    """A cluster within this process; tests/test_dask.py has a real one."""
    distributed = pytest.importorskip("distributed")
    with distributed.Client(
        processes=False, n_workers=1, threads_per_worker=2, dashboard_address=None,
        set_as_default=False,
    ) as client:  # fmt: skip
        yield client


@contextlib.contextmanager
def dask_executor():
    with dask() as client:
        yield client.get_executor(retries=1)


def executorlib():
    library = pytest.importorskip("executorlib")
    # Its thread for dependencies between calls dies of a call that is cancelled.
    return library.SingleNodeExecutor(2, block_allocation=True, disable_dependencies=True)


def processes():
    return ProcessPoolExecutor(2, multiprocessing.get_context("spawn"))


def threads():
    return ThreadPoolExecutor(2)


EXECUTORS = [threads, processes, executorlib, dask, dask_executor]


def cases(*values, **others):
    return [{"x": x} | others for x in values]


@pytest.mark.parametrize("make", EXECUTORS)
def test_all_of_them_do_what_worker_processes_do(make, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
    keep, kept = sweeps._keep, []
    monkeypatch.setattr(sweeps, "_keep", lambda *what: kept.append(what) or keep(*what))
    with make() as executor:
        told = []
        run = functools.partial(sweep, executor=executor, cache=tmp_path)
        assert run(square, cases(5, 1, 4)) == [{"y": 25}, {"y": 1}, {"y": 16}]
        assert run(square, cases(5, 3), progress=told.append) == [{"y": 25}, {"y": 9}]
        assert told == [Progress("cases", n, 2, "1 from the cache") for n in (1, 2)]
        assert len(kept) == len(list(tmp_path.iterdir())) == 4  # by this process

        (tmp_path / "picky").mkdir()
        jobs = cases(1, 2, 3, folder=str(tmp_path / "picky"))
        with pytest.raises(ValueError, match="anything but 3") as error:
            sweep(swept.picky, jobs, executor=executor, cache=tmp_path / "picky")
        assert error.value.__notes__ == [f"in the case {json.dumps(jobs[2])}"]
        assert len(list((tmp_path / "picky").iterdir())) == 2

        def stop(progress):
            if progress.done:
                raise KeyboardInterrupt

        jobs = cases(*range(100), folder=str(tmp_path))
        with pytest.raises(KeyboardInterrupt):
            sweep(swept.slow_from_3_on, jobs, executor=executor, progress=stop)
        (tmp_path / "go").touch()  # for the few that are under way
        assert sweep(square, cases(7), executor=executor) == [{"y": 49}]
        assert len(list(tmp_path.glob("call-*"))) < 20
        with pytest.raises(ValueError, match="`workers` expects None beside `executor`, got 2"):
            sweep(square, cases(7), executor=executor, workers=2)


def test_what_is_no_executor_is_refused():
    for executor in (3, ThreadPoolExecutor, "tcp://127.0.0.1:8786"):
        with pytest.raises(
            ValueError, match=r"`executor` expects a concurrent\.futures\.Executor or"
        ):
            sweep(square, cases(1), executor=executor)


def test_a_client_that_would_wait_for_itself_is_refused():
    distributed = pytest.importorskip("distributed")

    async def run():
        async with distributed.Client(
            processes=False, asynchronous=True, dashboard_address=None, set_as_default=False
        ) as client:
            sweep(square, cases(1), executor=client)

    with pytest.raises(ValueError, match="`executor` expects a client that waits"):
        asyncio.run(run())


def test_an_executor_that_was_shut_down_is_told():
    executor = threads()
    executor.shutdown()
    with pytest.raises(ChildProcessError, match=r"the executor failed: .* after shutdown"):
        sweep(square, cases(1), executor=executor)


def test_an_executor_that_is_shut_down_on_the_way_is_told(tmp_path):
    def shut_down():
        wait((tmp_path / "at-work").exists)
        executor.shutdown(wait=False, cancel_futures=True)

    with ThreadPoolExecutor(1) as executor:
        thread = threading.Thread(target=shut_down)
        thread.start()
        with pytest.raises(ChildProcessError, match="the executor cancelled a case"):
            sweep(swept.slow_from_3_on, cases(3, 4, folder=str(tmp_path)), executor=executor)
        (tmp_path / "go").touch()
        thread.join()


def test_processes_of_a_user(tmp_path):
    """Half a result of Ctrl-C is none; errors that cannot be sent, and dead workers, are told."""
    with processes() as executor:
        with pytest.raises(KeyboardInterrupt):
            sweep(swept.planned, cases(1), cache=tmp_path, executor=executor)
        with pytest.raises(RuntimeError, match="TwoWordsError: no luck"):
            sweep(swept.unlucky, cases(1), cache=tmp_path, executor=executor)
        assert not list(tmp_path.iterdir())
        with pytest.raises(ChildProcessError, match="the executor failed: BrokenProcessPool"):
            sweep(swept.deadly, cases(1), executor=executor)


def test_functions_that_cannot_be_imported(tmp_path, monkeypatch):
    function = swept.make()
    with threads() as executor:
        assert sweep(function, cases(1), executor=executor) == [{"y": 1}]
        with pytest.raises(ValueError, match="`function` expects a function defined by name"):
            sweep(function, cases(1), executor=executor, cache=tmp_path)
    with processes() as executor:
        monkeypatch.setitem(sys.modules, "cloudpickle", None)
        with pytest.raises(ValueError, match="`function` expects a function that can be sent to"):
            sweep(function, cases(1), executor=executor)


class AllAtOnce(Executor):
    """It has finished nothing until there are three calls, and then all of them."""

    def __init__(self):
        self._calls = []

    def submit(self, *call):
        self._calls.append((Future(), *call))
        if len(self._calls) == 3:
            for future, function, *args in self._calls:
                future.set_result(function(*args))
        return self._calls[-1][0]


def test_what_is_finished_when_an_error_comes_is_kept(tmp_path):
    with pytest.raises(ZeroDivisionError):
        sweep(swept.reciprocal, cases(0, 1, 2), executor=AllAtOnce(), cache=tmp_path)
    results = [json.loads(path.read_text())["result"]["y"] for path in tmp_path.iterdir()]
    assert sorted(results) == [0.5, 1.0]


class LostOnTheWay(Executor):
    """A Dask client and its executor in one, which loses all results on their way."""

    def __init__(self):
        self._client, self._kwargs, self.status = self, {}, "running"
        self.loop = SimpleNamespace(add_callback=self._call)
        self._threads = []

    def _call(self, function):
        self._threads.append(threading.Thread(target=asyncio.run, args=(function(),)))
        self._threads[-1].start()

    def submit(self, *_, **__):
        return SimpleNamespace(cancelled=lambda: True)

    async def gather(self, *_, **__):
        raise OSError("Stream is closed")

    def join(self):
        for thread in self._threads:
            thread.join()


def test_a_result_that_is_lost_with_the_scheduler_is_not_waited_for():
    lost = LostOnTheWay()
    with pytest.raises(ChildProcessError, match="the connection to the Dask scheduler was lost"):
        sweep(square, cases(1, 2), executor=lost)
    lost.join()


def test_a_call_says_nothing_of_replan_but_to_its_workers():
    """Else a scheduler or worker without replan could not even say so."""
    seen = []

    class Spy(Executor):
        def submit(self, function, *args):
            seen.append((function, args))
            return ThreadPoolExecutor.submit(pool, function, *args)

    with threads() as pool:
        borrowed = Borrowed(Spy())
        assert borrowed.result(borrowed.submit(square, 3)) == {"y": 9}
    [(function, (argument,))] = seen
    assert function.__module__ == "_pickle"
    assert type(argument) is bytes
