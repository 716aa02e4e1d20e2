"""Sweeps on a real Dask cluster: a scheduler and workers, each a process, over TCP."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import threading
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

import replan
import swept
from replan import sweep
from swept import square, wait

distributed = pytest.importorskip("distributed")

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
        client = self._stack.enter_context(distributed.Client(self.address, set_as_default=False))
        client.wait_for_workers(workers)
        return client


@pytest.fixture
def cluster(tmp_path):
    with contextlib.ExitStack() as stack:
        yield Cluster(tmp_path, stack)


def cases(*values, **others):
    return [{"x": x} | others for x in values]


def test_the_cases_of_a_killed_worker_are_done_elsewhere(cluster, write, tmp_path, monkeypatch):
    victim, _ = cluster.start_worker(), cluster.start_worker()
    client = cluster.connect(2)
    monkeypatch.setenv("REPLAN_IMPORT", str(tmp_path / "model.py"))
    write("model.py", "")
    found = sweep(swept.imports, cases(1), executor=client, cache=tmp_path / "cache")
    assert found == [{"y": str(tmp_path / "model.py")}]
    (tmp_path / "script.py").write_text("def cube(x):\n    return {'y': x**3}\n")
    spec = spec_from_file_location("__main__", tmp_path / "script.py")
    script = module_from_spec(spec)
    spec.loader.exec_module(script)
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "__main__", script)
        found = sweep(script.cube, cases(2), executor=client, cache=tmp_path / "cache")
    assert found == [{"y": 8}]
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
    absent, edited, old = (tmp_path / name for name in ("absent", "edited", "old"))
    (absent / "replan").mkdir(parents=True)
    (absent / "replan" / "__init__.py").write_text(
        "raise ModuleNotFoundError(\"No module named 'replan'\", name='replan')\n"
    )
    shutil.copytree(SOURCES / "replan", edited / "replan")
    with (edited / "replan" / "trajectory" / "_trajectory.py").open("a") as file:
        file.write("# edited\n")
    old.mkdir()
    (old / "swept.py").write_text("def square(x):\n    return {'y': 0}\n")
    kinds = {
        r"a worker .* cannot load replan .*No module named 'replan'.*: install": (absent, HERE),
        r"a worker has other sources of replan than this process": (edited, HERE),
        r"a worker .* cannot import `function` \(ModuleNotFound.*'swept'\): put": (SOURCES,),
        r"a worker .* has other sources of `swept`": (SOURCES, old),
        r"the executor failed: KilledWorker": (SOURCES, HERE),
    }
    with contextlib.ExitStack() as stack:
        cluster = Cluster(tmp_path, stack)
        workers = {message: cluster.start_worker(*places) for message, places in kinds.items()}
        client = cluster.connect(len(kinds))
        ids = client.run(os.getpid)
        for message, worker in workers.items():
            [address] = [address for address, pid in ids.items() if pid == worker.pid]
            function = swept.deadly if "Killed" in message else square
            executor = client.get_executor(workers=[address])
            with pytest.raises(ChildProcessError, match=message) as error:
                sweep(function, cases(1, 2), executor=executor, cache=tmp_path / "cache")
            assert "\n" not in str(error.value)
        assert client.status == "running"
    assert not list((tmp_path / "cache").iterdir())


def test_without_its_scheduler_it_ends_and_the_next_run_goes_on(cluster, tmp_path):
    cluster.start_worker()
    client = cluster.connect(1)
    cache, jobs = tmp_path / "cache", cases(*range(6), folder=str(tmp_path))
    with (
        killed(cluster.scheduler, lambda: cache.exists() and len(list(cache.glob("*.json"))) == 3),
        pytest.raises(ChildProcessError, match="the connection to the Dask scheduler was lost"),
    ):
        sweep(swept.slow_from_3_on, jobs, executor=client, cache=cache)
    with pytest.raises(ChildProcessError, match="the connection to the Dask scheduler was lost"):
        sweep(swept.slow_from_3_on, jobs, executor=client, cache=cache)
    assert len(list(cache.glob("*.json"))) == 3
    (tmp_path / "go").touch()
    found = sweep(swept.slow_from_3_on, jobs, cache=cache, workers=1)
    assert found == [{"y": x} for x in range(6)]
