import contextlib
import functools
import json
import multiprocessing
import os
import pty
import random
import signal
import subprocess
import sys
import termios
import threading
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import replan
import swept
from replan import sweep
from replan.errors import ArgumentError
from replan.sweeps import SweepError
from stressed import SIZES, TRIGGERS, disturbed, kept, started, workers_of
from swept import Machine, echo, square, wait

PROC = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at /proc")


def cases(*values, **others):
    return [{"x": x} | others for x in values]


def refused(name, *args, **settings):
    with pytest.raises(ArgumentError) as caught:
        sweep(*args, **settings)
    assert caught.value.name == name
    return caught.value


# Results and failures


def test_a_partial_of_functions_is_kept_under_the_names_of_all_of_them(tmp_path):
    run = functools.partial(sweep, cases=cases(1, 2), cache=tmp_path)
    for function, count in ((square, 2), (swept.reciprocal, 4)):
        applied = functools.partial(swept.applied, function)
        found = run(applied, workers=2)
        assert found == run(applied, workers=1) == [function(x) | {"applied": True} for x in (1, 2)]
        assert len(kept(tmp_path)) == count
    run(square, workers=1)
    assert len(kept(tmp_path)) == 6


@pytest.mark.parametrize("workers", [1, 2])
def test_results_come_in_order_and_failures_at_the_end(workers, tmp_path):
    assert sweep(square, cases(5, 1, 4), workers=workers) == [{"y": 25}, {"y": 1}, {"y": 16}]
    assert sweep(square, [], workers=workers) == []
    with pytest.raises(SweepError) as caught:
        sweep(swept.unlucky, cases(0, 1, 2), workers=workers, cache=tmp_path)
    error = caught.value
    assert error.results == [{"y": 0}, None, {"y": 2}]
    assert list(error.failures) == [1]
    line, *trace = error.failures[1].splitlines()
    assert line == "TwoWordsError: no luck"
    assert any("in unlucky" in text for text in trace)
    assert "1 of 3" in str(error) and '{"x": 1}' in str(error) and line in str(error)
    assert "in unlucky" in error.__notes__[0]
    assert len(list(tmp_path.iterdir())) == 2  # failures are not kept


def test_a_dead_worker_fails_the_cases_under_way_and_the_sweep_continues():
    with pytest.raises(SweepError) as caught:
        sweep(swept.deadly, cases(*range(2, 8), 1, *range(8, 20)), workers=2)
    error = caught.value
    assert 6 in error.failures  # the deadly one, and at most two beside it
    assert len(error.failures) <= 3
    assert error.results[-1] == {"y": 19}
    assert "memory" in error.failures[6]


def test_workers_that_cannot_even_start_are_not_started_for_ever(tmp_path):
    (tmp_path / "script.py").write_text(
        f"import sys; sys.path[:0] = {sys.path!r}\nimport swept\nfrom replan import sweep\n"
        "sweep(swept.square, [{'x': x} for x in range(50)], workers=2)  # without its guard\n"
    )
    command = [sys.executable, str(tmp_path / "script.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 1
    assert "50 of 50 cases failed" in done.stderr


def test_a_failure_is_short_enough_for_a_pipe_and_says_its_end():
    def deep(x):
        raise ValueError("word " * 10_000) if x == 0 else deep(x - 1)

    with pytest.raises(SweepError) as caught:
        sweep(deep, [{"x": 50}], workers=1)
    assert len(caught.value.failures[0].encode()) < 3500


def test_a_result_of_ctrl_c_is_none(tmp_path):
    """`solve` returns the best plan so far, which is not the result of the case."""
    with pytest.raises(KeyboardInterrupt):
        sweep(swept.planned, cases(1), cache=tmp_path, workers=1)
    assert not list(tmp_path.iterdir())
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


VALUES = st.recursive(
    st.one_of(
        st.none().map(lambda x: (x, x)),
        st.text(max_size=5).map(lambda x: (x, x)),
        st.booleans().map(lambda x: (np.bool_(x), x)),
        st.integers(-(2**63), 2**63 - 1).map(lambda x: (np.int64(x), x)),
        st.floats(allow_nan=False, allow_infinity=False).map(lambda x: (np.float64(x), x)),
        st.floats(-1, 1, width=32).map(lambda x: (np.float32(x), x)),
        st.lists(st.integers(-9, 9), max_size=3).map(lambda x: (np.array(x, np.int32), x)),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda x: (tuple(a for a, _ in x), [b for _, b in x])),
        st.dictionaries(st.text(max_size=3), inner, max_size=3).map(
            lambda x: ({k: a for k, (a, _) in x.items()}, {k: b for k, (_, b) in x.items()})
        ),
    ),
    max_leaves=6,
)


@settings(max_examples=50, deadline=None)
@given(VALUES)
def test_numpy_becomes_json_in_cases_and_results(pair):
    def spied(value):
        seen.append(value)
        return pair[0]

    seen = []
    [result] = sweep(spied, [{"value": pair[0]}], workers=1)
    for found in (seen[0], result):
        assert json.dumps(found) == json.dumps(pair[1])


@pytest.mark.parametrize("value", [{1, 2}, [0.0, np.nan], {"a": np.array([np.inf])}, 1j, b"x", ...])
def test_what_is_no_json_is_refused(value):
    refused("cases", echo, [{"value": 1}, {"value": value}], workers=1)
    with pytest.raises(SweepError) as caught:
        sweep(lambda: {"value": value}, [{}], workers=1)
    assert caught.value.failures[0].startswith("ArgumentError: `result` must be JSON")


def test_bad_input_is_refused(tmp_path):
    with pytest.raises(SweepError):
        sweep(square, [3, {"z": 1}], workers=1)
    refused("workers", square, cases(1), workers=0)
    refused("workers", square, cases(1), workers=1.5)
    refused("function", "square", cases(1))
    refused("cases", square, cases(1), cache=tmp_path, key=object(), workers=1)
    for executor in (3, ThreadPoolExecutor, "tcp://127.0.0.1:8786"):
        refused("executor", square, cases(1), executor=executor)
    (tmp_path / "file").touch()
    with pytest.raises(OSError):
        sweep(swept.deadly, cases(1), cache=tmp_path / "file", workers=1)


@pytest.mark.parametrize(
    "function",
    [lambda x: {"y": x}, functools.partial(square, x=1), Machine().run],
    ids=["lambda", "partial", "method"],
)
def test_functions_that_cannot_be_imported_run_here_without_a_cache(function, tmp_path):
    assert sweep(function, cases(1), workers=1) == [{"y": 1}]
    refused("function", function, cases(1), workers=2)
    refused("function", function, cases(1), workers=1, cache=tmp_path)
    assert sweep(Machine.turn, cases(1), workers=1, cache=tmp_path) == [{"y": 1}]


def test_functions_of_a_session_run_here(monkeypatch):
    session = ModuleType("__main__")
    exec("def f(x):\n    return {'y': x}\n", vars(session))
    monkeypatch.setitem(sys.modules, "__main__", session)
    assert sweep(session.f, cases(1), workers=1) == [{"y": 1}]
    refused("function", session.f, cases(1), workers=2)


# What is kept


def test_finished_cases_are_read_and_new_ones_computed(tmp_path):
    def calls(*values, **options):
        (tmp_path / "calls").write_text("")
        jobs = [{"folder": str(tmp_path), "x": x} for x in values]
        found = sweep(swept.counted, jobs, cache=tmp_path / "cache", workers=1, **options)
        assert found == [{"y": x} for x in values]
        return (tmp_path / "calls").read_text().split()

    assert calls(1, 2) == ["1", "2"]
    assert calls(1, 2, 3) == ["3"]
    assert calls(1, 1.0, key="edited") == ["1", "1.0"]
    assert calls(1, key="edited") == calls(3) == []
    for path in (tmp_path / "cache").iterdir():
        entry = json.loads(path.read_text())
        assert entry["function"] == "swept:counted"
        assert entry["replan"] == replan.__version__
        assert entry["case"]["x"] == entry["result"]["y"]


def test_another_version_or_function_computes_again(tmp_path, monkeypatch):
    sweep(square, cases(5), cache=tmp_path, workers=1)
    sweep(Machine.turn, cases(5), cache=tmp_path, workers=1)
    monkeypatch.setattr("replan.sweeps.VERSION", "99")
    sweep(square, cases(5), cache=tmp_path, workers=1)
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.parametrize(
    "content", [b"", b'{"result": {"y"', b"\xff\x00", b"null", b"[]", b"{}", b"[" * 100_000]
)
def test_a_broken_file_is_computed_again(tmp_path, content):
    sweep(square, cases(7), cache=tmp_path, workers=1)
    [path] = tmp_path.iterdir()
    path.write_bytes(content)
    assert sweep(square, cases(7), cache=tmp_path, workers=1) == [{"y": 49}]
    assert json.loads(path.read_text())["result"] == {"y": 49}


def test_results_are_the_same_from_the_cache_and_not(tmp_path):
    for _ in range(2):
        [found] = sweep(swept.impure, cases(1), cache=tmp_path, workers=1)
        assert found == {"y": [1, [0.0, 1.0]], "3": 1, "z": [4, True, "red"]}
        assert type(found["z"][2]) is str


# Executors


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
    return library.SingleNodeExecutor(2, block_allocation=True, disable_dependencies=True)


def processes():
    return ProcessPoolExecutor(2, multiprocessing.get_context("spawn"))


@pytest.mark.parametrize(
    "make", [functools.partial(ThreadPoolExecutor, 2), processes, executorlib, dask, dask_executor]
)
def test_any_executor_will_do(make, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
    with make() as executor:
        run = functools.partial(sweep, executor=executor, cache=tmp_path / "cache")
        assert run(square, cases(5, 1, 4)) == [{"y": 25}, {"y": 1}, {"y": 16}]
        assert run(square, cases(5, 3)) == [{"y": 25}, {"y": 9}]
        with pytest.raises(SweepError) as caught:
            run(swept.unlucky, cases(*range(5)))
        assert caught.value.results == [None if x == 1 else {"y": x} for x in range(5)]
        assert len(list((tmp_path / "cache").iterdir())) == 8

        def interrupt():
            wait((tmp_path / "call-3").exists)
            signal.raise_signal(signal.SIGINT)

        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            run(swept.slow_from_3_on, cases(*range(100), folder=str(tmp_path)))
        thread.join()
        (tmp_path / "go").touch()  # for the few that are under way
        assert run(square, cases(7)) == [{"y": 49}]
        assert len(list(tmp_path.glob("call-*"))) < 20


def test_what_goes_wrong_with_an_executor_is_told(tmp_path):
    with processes() as executor, pytest.raises(SweepError) as caught:
        sweep(swept.deadly, cases(1, 2), executor=executor)
    assert "BrokenProcessPool" in caught.value.failures[0]
    with ThreadPoolExecutor(1) as executor:
        executor.shutdown()
        with pytest.raises(SweepError) as caught:
            sweep(square, cases(1, 2), executor=executor)
    assert sorted(caught.value.failures) == [0, 1]
    assert "shutdown" in caught.value.failures[1]


def test_workers_with_another_version_are_refused(monkeypatch):
    class Elsewhere(Executor):
        def submit(self, function, *args):
            with monkeypatch.context() as patch:
                patch.setattr("replan.sweeps.VERSION", "99")
                future = Future()
                future.set_result(function(*args))
                return future

    with pytest.raises(SweepError) as caught:
        sweep(square, cases(1), executor=Elsewhere())
    assert "99" in caught.value.failures[0]


# Stopping


def test_a_bar_is_shown_on_a_terminal(tmp_path):
    """Drawn by a thread that signals do not interrupt, for any kind of workers."""
    script = tmp_path / "script.py"
    script.write_text(
        f"import sys; sys.path[:0] = {sys.path!r}\nimport swept\nfrom replan import sweep\n"
        "if __name__ == '__main__':\n"
        "    for workers in (1, 2):\n"
        f"        sweep(swept.counted, [{{'x': x, 'folder': {str(tmp_path)!r}}} for x in range(9)],"
        " workers=workers, progress=True)\n"
    )
    main, terminal = pty.openpty()
    termios.tcsetwinsize(terminal, (24, 80))
    done = subprocess.run([sys.executable, str(script)], stderr=terminal, timeout=600)
    os.write(terminal, b".")  # else reading nothing would wait
    text = os.read(main, 100_000).decode()
    os.close(terminal)
    os.close(main)
    assert done.returncode == 0
    assert text.count("cases:") >= 2 and "/9" in text


@PROC
def test_whatever_kills_it_leaves_what_is_whole_and_nobody_behind(tmp_path):
    """Several at once, which keep each other from the cores; more: benchmarks/stress.py."""
    kinds = list(zip((10**7, 10**5, 10**7, 10**7, 100), TRIGGERS, strict=True))
    with ThreadPoolExecutor(len(kinds)) as threads:
        runs = [
            threads.submit(disturbed, tmp_path / str(i), size, trigger, random.Random())
            for i, (size, trigger) in enumerate(kinds)
        ]
        for run in runs:
            run.result()


@PROC
@pytest.mark.parametrize("count", [0, 1, 40])
def test_ctrl_c_ends_it_without_a_word_of_workers(tmp_path, count):
    """A terminal sends it to all processes, also to workers that have only begun to import."""
    with started(tmp_path, 100_000, held=True) as process:
        wait(lambda: workers_of(process) and len(kept(tmp_path)) >= count)
        os.killpg(process.pid, signal.SIGINT)
        errors = process.communicate()[1]
    assert errors.count("KeyboardInterrupt") == 1  # of the script itself
    assert "Process" not in errors
    assert all(json.loads(path.read_text())["result"] for path in kept(tmp_path))


def test_two_processes_with_one_cache_are_both_right(tmp_path):
    size = 100_000
    with started(tmp_path, size) as one, started(tmp_path, size) as other:
        assert [one.communicate()[1], other.communicate()[1]] == ["", ""]
        assert (one.returncode, other.returncode) == (0, 0)
    assert len(kept(tmp_path)) == len(list(tmp_path.iterdir())) == SIZES[size]
