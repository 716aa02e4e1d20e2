"""Sweeps on a real Dask cluster: a scheduler and workers, each a process, over TCP."""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import replan
import swept
from replan import sweep
from replan.errors import ArgumentError
from replan.sweeps import SweepError
from swept import square, wait

distributed = pytest.importorskip("distributed")

HERE = Path(__file__).parent
SOURCES = Path(replan.__file__).parents[1]


class Cluster:
    """Processes of Dask's; `start_worker` starts one more, with modules from the given folders."""

    def __init__(self, folder, stack):
        self._folder, self._stack = folder, stack
        file = folder / "scheduler.json"
        words = ("scheduler", "--port", "0", "--scheduler-file", str(file))
        self.scheduler = self._start(*words, path=os.pathsep.join(map(str, (SOURCES, HERE))))
        wait(lambda: file.exists() and file.read_text().endswith("}"))
        self.address = json.loads(file.read_text())["address"]

    def start_worker(self, *folders):
        path = os.pathsep.join(map(str, folders or (SOURCES, HERE)))
        options = ("--nthreads", "1", "--no-nanny", "--local-directory", str(self._folder))
        return self._start("worker", self.address, *options, path=path)

    def _start(self, what, *words, path=None):
        process = subprocess.Popen(
            [sys.executable, "-m", f"distributed.cli.dask_{what}", *words, "--no-dashboard"],
            env=os.environ | ({} if path is None else {"PYTHONPATH": path}),
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        return process

    def connect(self, workers):
        client = self._stack.enter_context(distributed.Client(self.address, set_as_default=False))
        client.wait_for_workers(workers)
        return client


@pytest.fixture
def cluster(tmp_path):
    with contextlib.ExitStack() as stack:
        yield Cluster(tmp_path, stack)


def cases(*values, **others):
    return [{"x": x} | others for x in values]


def test_the_cases_of_a_killed_worker_are_done_elsewhere(cluster, tmp_path):
    victim, _ = cluster.start_worker(), cluster.start_worker()
    client = cluster.connect(2)
    factor = 3
    assert sweep(lambda x: {"y": factor * x}, cases(1), executor=client) == [{"y": 3}]
    jobs = cases(*range(6), folder=str(tmp_path), victim=victim.pid)
    with killed(victim, (tmp_path / "at-work").exists):
        assert sweep(swept.slow_on, jobs, executor=client) == [{"y": x} for x in range(6)]
    assert client.status == "running"


@contextlib.contextmanager
def killed(process, condition):
    """Kill a process as soon as a condition holds, while something else is done."""

    def kill():
        wait(condition)
        process.kill()

    thread = threading.Thread(target=kill)
    thread.start()
    yield
    thread.join()


def test_what_is_wrong_with_workers_is_told_in_a_line(tmp_path, monkeypatch):
    monkeypatch.setenv("DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES", "0")
    absent = tmp_path / "absent"
    (absent / "replan").mkdir(parents=True)
    (absent / "replan" / "__init__.py").write_text("raise ImportError('no replan here')\n")
    kinds = [(square, (absent, HERE)), (square, (SOURCES,)), (swept.deadly, (SOURCES, HERE))]
    with contextlib.ExitStack() as stack:
        cluster = Cluster(tmp_path, stack)
        workers = [cluster.start_worker(*places) for _, places in kinds]
        client = cluster.connect(len(kinds))
        ids = client.run(os.getpid)
        for (function, _), worker in zip(kinds, workers, strict=True):
            [address] = [address for address, pid in ids.items() if pid == worker.pid]
            executor = client.get_executor(workers=[address])
            with pytest.raises(SweepError) as caught:
                sweep(function, cases(1), executor=executor, cache=tmp_path / "cache")
            assert len(str(caught.value).splitlines()) == 1
        assert client.status == "running"
    assert not list((tmp_path / "cache").iterdir())


def test_without_its_scheduler_it_ends_and_the_next_run_goes_on(cluster, tmp_path):
    cluster.start_worker()
    client = cluster.connect(1)
    cache, jobs = tmp_path / "cache", cases(*range(6), folder=str(tmp_path))
    with (
        killed(cluster.scheduler, lambda: len(list(cache.glob("*.json"))) == 3),
        pytest.raises(SweepError) as caught,
    ):
        sweep(swept.slow_from_3_on, jobs, executor=client, cache=cache)
    assert sorted(caught.value.failures) == [3, 4, 5]
    with pytest.raises(SweepError):
        sweep(swept.slow_from_3_on, jobs, executor=client, cache=cache)
    (tmp_path / "go").touch()
    found = sweep(swept.slow_from_3_on, jobs, cache=cache, workers=1)
    assert found == [{"y": x} for x in range(6)]


def test_a_client_that_would_wait_for_itself_is_refused():
    async def run():
        async with distributed.Client(
            processes=False, asynchronous=True, dashboard_address=None, set_as_default=False
        ) as client:
            sweep(square, cases(1), executor=client)

    with pytest.raises(ArgumentError) as caught:
        asyncio.run(run())
    assert caught.value.name == "executor"
