import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import pytest

from replan import sweep

LONG = """
import sys, time
from pathlib import Path
from replan import sweep

def slow(x):
    time.sleep(0.2)
    with (Path(sys.argv[1]) / "calls").open("a") as calls:
        calls.write(f"{x}\\n")
    return {"y": x * x}

if __name__ == "__main__":
    cases = [{"x": x} for x in range(30)]
    print(sweep(slow, cases, cache=Path(sys.argv[1]) / "cache", workers=2))
"""


def square(x):
    return {"y": x * x}


def picky(x, folder):
    if x == 3:
        wait(lambda: len(list(Path(folder).iterdir())) == 2)  # the others are done by then
        raise ValueError("`x` expects anything but 3")
    return {"y": x}


def deadly(x):
    if x == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.1)
    return {"y": x}


def planned(x):
    """Return what `solve` and `simulate` make of Ctrl-C: a result."""
    try:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(5.0)
    except KeyboardInterrupt:
        pass
    return {"y": "half done"}


def impure(x):
    return {"y": (1, 2), 3: FACTOR * x}


FACTOR = 1


def cases(*values):
    return [{"x": x} for x in values]


@pytest.mark.parametrize("workers", [1, 2])
def test_results_come_in_the_order_of_the_cases(workers):
    found = sweep(square, cases(5, 1, 4), workers=workers)
    assert found == [{"y": 25}, {"y": 1}, {"y": 16}]


def test_finished_cases_are_read_and_changed_ones_computed(tmp_path):
    sweep(square, cases(1, 2), cache=tmp_path, workers=1)
    kept = sorted(tmp_path.iterdir())
    assert len(kept) == 2
    content = json.loads(kept[0].read_text())
    content["result"] = {"y": "kept"}
    kept[0].write_text(json.dumps(content))
    found = sweep(square, cases(1, 2, 3), cache=tmp_path, workers=1)
    assert {"y": "kept"} in found
    assert found[2] == {"y": 9}
    assert len(list(tmp_path.iterdir())) == 3


def test_a_changed_function_is_computed_again(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    for i, body in enumerate(("x + 1", "x + 2")):
        (tmp_path / f"made_{i}.py").write_text(f"def f(x):\n    return {{'y': {body}}}\n")
        module = __import__(f"made_{i}")
        module.f.__module__ = "made"
        assert sweep(module.f, cases(1), cache=tmp_path / "cache", workers=1) == [{"y": 2 + i}]
    assert len(list((tmp_path / "cache").iterdir())) == 2


def test_a_broken_file_in_the_cache_is_computed_again(tmp_path):
    sweep(square, cases(7), cache=tmp_path, workers=1)
    [path] = tmp_path.iterdir()
    path.write_text('{"result": {"y"')
    assert sweep(square, cases(7), cache=tmp_path, workers=1) == [{"y": 49}]
    assert json.loads(path.read_text())["result"] == {"y": 49}


@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_ends_it_and_finished_cases_stay(tmp_path, workers):
    jobs = [case | {"folder": str(tmp_path)} for case in cases(1, 2, 3)]
    with pytest.raises(ValueError, match="anything but 3") as error:
        sweep(picky, jobs, cache=tmp_path, workers=workers)
    assert '"x": 3' in error.value.__notes__[0]
    assert len(list(tmp_path.iterdir())) == 2


def test_the_death_of_a_worker_is_an_error_not_a_wait():
    with pytest.raises(BrokenProcessPool):
        sweep(deadly, cases(1, 2, 3, 4), workers=2)


def test_what_ctrl_c_left_half_done_is_not_kept(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        sweep(planned, cases(1), cache=tmp_path, workers=1)
    assert not list(tmp_path.iterdir())


def test_results_are_the_same_from_the_cache_and_not(tmp_path):
    first = sweep(impure, cases(1), cache=tmp_path, workers=1)
    assert first == sweep(impure, cases(1), cache=tmp_path, workers=1) == [{"y": [1, 2], "3": 1}]


def test_a_changed_constant_of_the_module_is_noticed(tmp_path, monkeypatch):
    sweep(impure, cases(5), cache=tmp_path, workers=1)
    monkeypatch.setitem(globals(), "FACTOR", 7)
    assert sweep(impure, cases(5), cache=tmp_path, workers=1)[0]["3"] == 35


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="`cases` expects dicts of arguments, got 3"):
        sweep(square, [3])
    with pytest.raises(ValueError, match="`workers` expects an integer of at least 1, got 0"):
        sweep(square, cases(1), workers=0)


def children(parent):
    """Return the ids of the workers that a process started."""
    return [
        int(path.name)
        for path in Path("/proc").glob("[0-9]*")
        if read(path / "stat").rpartition(")")[2].split()[1:2] == [str(parent)]
        and "spawn_main" in read(path / "cmdline")
    ]


def read(path):
    try:
        return path.read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def alive(pid):
    return read(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()[:1] not in ([], ["Z"])


def wait(condition, seconds=60.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at processes in /proc")
def test_ctrl_c_while_workers_start_is_the_parents_matter(tmp_path):
    """A terminal sends it to all of them, when they have only begun to import."""
    script = tmp_path / "script.py"
    script.write_text(LONG)
    run = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path)],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    wait(lambda: children(run.pid))
    os.killpg(run.pid, signal.SIGINT)
    _, errors = run.communicate(timeout=60)
    assert errors.count("KeyboardInterrupt") == 1  # of the script itself
    assert "SpawnProcess" not in errors


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at processes in /proc")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_run_that_was_killed_goes_on_where_it_was(tmp_path, how):
    script = tmp_path / "script.py"
    script.write_text(LONG)
    command = [sys.executable, str(script), str(tmp_path)]
    cache = tmp_path / "cache"
    first = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait(lambda: len(list(cache.glob("[0-9a-f]*.json"))) >= 3)
    workers = children(first.pid)
    assert len(workers) == 2
    os.kill(first.pid, how)
    first.wait(timeout=60)
    wait(lambda: not any(alive(worker) for worker in workers))  # nobody is left behind
    finished = len(list(cache.glob("[0-9a-f]*.json")))
    assert 3 <= finished < 30
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str([{"y": x * x} for x in range(30)])
    calls = (tmp_path / "calls").read_text().split()
    assert len(calls) <= 30 + 2  # at most what was under way is computed twice
    assert sorted(set(map(int, calls))) == list(range(30))
