"""Sweeps on a real Dask cluster: a scheduler and workers, each a process, over TCP."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from distributed import Client

import replan
import swept
from replan import sweep
from replan._common.progress import Progress
from swept import square, wait

HERE = Path(__file__).parent
SOURCES = Path(replan.__file__).parents[1]


class Cluster:
    """Processes of Dask's; `start_worker` starts one more, with modules from the given folders."""

    def __init__(self, folder, stack):
        self._folder, self._stack = folder, stack
        file = folder / "scheduler.json"
        self.scheduler = self._start("scheduler", "--port", "0", "--scheduler-file", str(file))
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
        client = self._stack.enter_context(Client(self.address, set_as_default=False))
        client.wait_for_workers(workers)
        return client


@pytest.fixture
def cluster(tmp_path):
    with contextlib.ExitStack() as stack:
        yield Cluster(tmp_path, stack)


def cases(*values, **others):
    return [{"x": x} | others for x in values]


def test_a_cluster_does_what_processes_do(cluster, tmp_path):
    victim, _ = cluster.start_worker(), cluster.start_worker()
    client = cluster.connect(2)
    told = []
    found = sweep(square, cases(5, 1, 4), executor=client, cache=tmp_path / "cache")
    found += sweep(
        square, cases(5, 1, 3), executor=client, cache=tmp_path / "cache", progress=told.append
    )
    assert found == [{"y": y} for y in (25, 1, 16, 25, 1, 9)]
    note = "2 from the cache"
    assert told == [Progress("cases", 2, 3, note), Progress("cases", 3, 3, note)]
    assert len(list((tmp_path / "cache").iterdir())) == 4

    (tmp_path / "picky").mkdir()
    jobs = cases(1, 2, 3, folder=str(tmp_path / "picky"))
    with pytest.raises(ValueError, match="anything but 3") as error:
        sweep(swept.picky, jobs, executor=client, cache=tmp_path / "picky")
    assert error.value.__notes__ == [f"in the case {json.dumps(jobs[2])}"]
    assert len(list((tmp_path / "picky").iterdir())) == 2

    offset = 3
    assert sweep(lambda x: {"y": x + offset}, cases(1), executor=client) == [{"y": 4}]

    jobs = cases(*range(6), folder=str(tmp_path), victim=victim.pid)
    killer = threading.Thread(target=kill, args=(victim, tmp_path / "at-work"))
    killer.start()
    assert sweep(swept.slow_on, jobs, executor=client) == [{"y": x} for x in range(6)]
    killer.join()
    assert client.status == "running"


def kill(victim, file):
    wait(file.exists)
    victim.kill()


def test_workers_of_another_kind_are_told_in_a_line(cluster, tmp_path):
    """One has no replan, one has a replan with an edited file, one has not the function."""
    (tmp_path / "none" / "replan").mkdir(parents=True)
    (tmp_path / "none" / "replan" / "__init__.py").write_text(
        "raise ModuleNotFoundError(\"No module named 'replan'\", name='replan')\n"
    )
    shutil.copytree(SOURCES / "replan", tmp_path / "edited" / "replan")
    with (tmp_path / "edited" / "replan" / "trajectory.py").open("a") as file:
        file.write("# edited\n")
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "swept.py").write_text(swept.square.__doc__ or "def square(x): return {}\n")
    folders = {
        r"a worker .* cannot load replan .*No module named 'replan'.*: install": ["none", HERE],
        "a worker has other sources of replan than this process": ["edited", HERE],
        r"a worker .* cannot import `function` \(ModuleNotFound.*'swept'\): put": [SOURCES],
        "a worker .* has other sources of `swept`": [SOURCES, "old"],
    }
    for message, (first, *more) in folders.items():
        places = [tmp_path / first, *(tmp_path / other for other in more)]
        worker = cluster.start_worker(*places)
        client = cluster.connect(1)
        with pytest.raises(ChildProcessError, match=message):
            sweep(square, cases(1, 2), executor=client, cache=tmp_path / "cache")
        assert client.status == "running"
        worker.kill()
        wait(lambda client=client: not client.nthreads())
    assert not list((tmp_path / "cache").iterdir())


def test_without_its_scheduler_it_ends_and_the_next_run_goes_on(cluster, tmp_path, caplog):
    cluster.start_worker()
    client = cluster.connect(1)
    jobs = cases(*range(6), folder=str(tmp_path))
    killer = threading.Thread(target=kill, args=(cluster.scheduler, tmp_path / "at-work"))
    killer.start()
    with pytest.raises(ChildProcessError, match="the connection to the Dask scheduler was lost"):
        sweep(swept.slow_from_3_on, jobs, executor=client, cache=tmp_path / "cache")
    killer.join()
    assert len(list((tmp_path / "cache").iterdir())) == 3
    with pytest.raises(ChildProcessError, match="the connection to the Dask scheduler was lost"):
        sweep(swept.slow_from_3_on, jobs, executor=client, cache=tmp_path / "cache")
    (tmp_path / "go").touch()
    found = sweep(swept.slow_from_3_on, jobs, cache=tmp_path / "cache", workers=1)
    assert found == [{"y": x} for x in range(6)]
