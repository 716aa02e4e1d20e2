import contextlib
import functools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import swept
from mounted import can_mount, with_mounts
from replan import sweep
from replan.progress import Progress
from replan.sweeps import Sweep
from stressed import SIZES, TRIGGERS, disturbed, kept, started
from swept import Machine, echo, square, wait

JOBS = """
import time
from pathlib import Path

def job(x, folder):
    with (Path(folder) / "calls").open("a") as calls:
        calls.write(f"{x}\\n")
    while x > 3 and not (Path(folder) / "go").exists():
        time.sleep(0.01)
    return {"y": x * x}

def large(x, folder):
    return {"y": str(x) * 100_000}
"""
SCRIPT = """
import sys
import jobs
from replan import sweep

if __name__ == "__main__":
    folder, name, count = sys.argv[1:]
    cases = [{"x": x, "folder": folder} for x in range(int(count))]
    sweep(getattr(jobs, name), cases, cache=folder + "/cache", workers=2)
"""


def cases(*values):
    return [{"x": x} for x in values]


def test_results_come_in_the_order_of_the_cases():
    assert sweep(square, cases(5, 1, 4), workers=1) == [{"y": 25}, {"y": 1}, {"y": 16}]


def test_workers_keep_the_order_stop_at_errors_and_do_not_die_unnoticed(tmp_path):
    jobs = [case | {"folder": str(tmp_path)} for case in cases(1, 2, 3)]
    with pytest.raises(ChildProcessError, match="enough memory"), Sweep(tmp_path, workers=2) as run:
        with pytest.raises(ValueError, match="anything but 3") as error:
            run(swept.picky, jobs)
        assert '"x": 3' in error.value.__notes__[0]
        assert len(list(tmp_path.iterdir())) == 2
        assert run(square, cases(5, 1, 4)) == [{"y": 25}, {"y": 1}, {"y": 16}]
        run(swept.deadly, cases(1, 2, 3, 4))


def test_an_error_ends_it_and_finished_cases_stay(tmp_path):
    jobs = [case | {"folder": str(tmp_path)} for case in cases(1, 2, 3)]
    with pytest.raises(ValueError, match="anything but 3") as error:
        sweep(swept.picky, jobs, cache=tmp_path, workers=1)
    assert '"x": 3' in error.value.__notes__[0]
    assert len(list(tmp_path.iterdir())) == 2


def test_finished_cases_are_read_and_changed_ones_computed(tmp_path):
    sweep(square, cases(1, 2), cache=tmp_path, workers=1)
    kept = {path: path.stat().st_ino for path in tmp_path.iterdir()}
    assert len(kept) == 2
    assert sweep(square, cases(1, 2, 3), cache=tmp_path, workers=1) == [
        {"y": 1},
        {"y": 4},
        {"y": 9},
    ]
    found = {path: path.stat().st_ino for path in tmp_path.iterdir()}
    assert len(found) == 3
    assert kept.items() <= found.items()  # a file that is written again is another one


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b'{"result": {"y"',
        b"\xff\x00\x01",
        b"null",
        b"[]",
        b"3",
        b"{}",
        b'{"result": {}}',
        b'{"result": {"y": 0}, "case": {"x": 7}}',
        b"[" * 100_000,
    ],
)
def test_a_broken_file_in_the_cache_is_computed_again(tmp_path, content):
    sweep(square, cases(7), cache=tmp_path, workers=1)
    [path] = tmp_path.iterdir()
    path.write_bytes(content)
    assert sweep(square, cases(7), cache=tmp_path, workers=1) == [{"y": 49}]
    assert json.loads(path.read_text())["result"] == {"y": 49}


@pytest.mark.parametrize("result", [None, {}, {"y": 50}, {"y": None}, {"y": 49, "z": 0}])
def test_a_result_that_was_changed_is_computed_again(tmp_path, result):
    sweep(square, cases(7), cache=tmp_path, workers=1)
    [path] = tmp_path.iterdir()
    path.write_text(json.dumps(json.loads(path.read_text()) | {"result": result}))
    assert sweep(square, cases(7), cache=tmp_path, workers=1) == [{"y": 49}]


@pytest.mark.parametrize("case", [{"x": 8}, {"x": 7.0}, {"x": True}])
def test_a_file_copied_over_that_of_another_case_is_not_believed(tmp_path, case):
    sweep(square, [case], cache=tmp_path / "other", workers=1)
    sweep(square, cases(7), cache=tmp_path / "cache", workers=1)
    [other], [path] = ((tmp_path / name).iterdir() for name in ("other", "cache"))
    path.write_bytes(other.read_bytes())
    [result] = sweep(square, cases(7), cache=tmp_path / "cache", workers=1)
    assert (result, type(result["y"])) == ({"y": 49}, int)
    assert json.loads(path.read_text())["case"] == {"x": 7}


def test_a_file_of_another_function_or_other_sources_is_not_believed(tmp_path, monkeypatch):
    sweep(square, cases(7), cache=tmp_path / "cache", workers=1)
    [path] = (tmp_path / "cache").iterdir()
    sweep(swept.Machine.turn, cases(7), cache=tmp_path / "function", workers=1)
    with monkeypatch.context() as patch:
        patch.setattr("replan._common.sources.package_digest", lambda: "another")
        sweep(square, cases(7), cache=tmp_path / "sources", workers=1)
    for name in ("function", "sources"):
        [other] = (tmp_path / name).iterdir()
        path.write_text(other.read_text().replace("49", "50").replace('"y": 7', '"y": 50'))
        assert sweep(square, cases(7), cache=tmp_path / "cache", workers=1) == [{"y": 49}]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_cache_that_fails_on_the_way_is_said_once_and_loses_nothing(tmp_path, workers):
    jobs = [case | {"folder": str(tmp_path / "cache")} for case in cases(1, 2, 3)]
    with pytest.warns(UserWarning, match="`cache` cannot keep results from now on: .*") as warned:
        found = sweep(swept.destructive, jobs, cache=tmp_path / "cache", workers=workers)
    assert found == [{"y": 1}, {"y": 2}, {"y": 3}]
    assert [Path(warning.filename).name for warning in warned] == ["test_sweeps.py"]


def test_a_cache_that_cannot_be_written_is_refused_before_the_work(tmp_path):
    (tmp_path / "file").touch()
    for cache in (tmp_path / "file", tmp_path / "file" / "cache"):
        with pytest.raises(ValueError, match="`cache` expects a folder that can be written to"):
            sweep(swept.deadly, cases(1), cache=cache, workers=1)


def test_what_ctrl_c_left_half_done_is_not_kept(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        sweep(swept.planned, cases(1), cache=tmp_path, workers=1)
    assert not list(tmp_path.iterdir())


def test_an_edit_of_what_the_function_reaches_is_computed_again(write, tmp_path):
    """The function's module imports a second one, which imports a third one with a constant."""
    write("study/__init__.py", "")
    write(
        "study/first.py",
        "from study.second import scaled\n\ndef f(x):\n    return {'y': scaled(x)}\n",
    )
    write(
        "study/second.py",
        "def scaled(x):\n    from .third import FACTOR\n    return FACTOR * x\n",
    )
    write("study/third.py", "FACTOR = 2\n")

    def run():
        f = import_module("study.first").f
        found = sweep(f, cases(5), cache=tmp_path / "cache", workers=1)
        return found[0]["y"], len(list((tmp_path / "cache").iterdir()))

    assert run() == (10, 1)
    write("study/unrelated.py", "FACTOR = 3\n")
    assert run() == (10, 1)
    write("study/third.py", "FACTOR = 3\n")
    assert run() == (15, 2)
    write("study/third.py", "FACTOR = 2\n")
    assert run() == (10, 2)  # as it was at first


def test_a_changed_function_is_computed_again(write, tmp_path):
    for i in range(2):
        write("mine.py", f"def f(x):\n    return {{'y': x + {i}}}\n")
        f = import_module("mine").f
        assert sweep(f, cases(1), cache=tmp_path / "cache", workers=1) == [{"y": 1 + i}]


def test_an_edited_model_that_the_environment_names_is_computed_again(write, tmp_path, monkeypatch):
    """The function knows it by its kind alone."""
    monkeypatch.setenv("REPLAN_IMPORT", str(tmp_path / "model.py"))
    for count, factor in enumerate((1, 3), start=1):
        write("model.py", f"FACTOR = {factor}\n")
        sweep(square, cases(5), cache=tmp_path / "cache", workers=1)
        assert len(list((tmp_path / "cache").iterdir())) == count


def test_what_a_script_sets_under_its_guard_counts_where_it_is_used(write, tmp_path):
    text = "def f(x):\n    return {{'y': FACTOR * x}}\n\nif __name__ == '__main__':\n    {}\n"
    for i, guarded in enumerate(("FACTOR = 2", "FACTOR = 5", "print(1)", "print(2)")):
        write("mine.py", text.format(guarded))
        mine = import_module("mine")
        mine.FACTOR = 3  # as the guard would
        sweep(mine.f, cases(1), cache=tmp_path / "cache", workers=1)
        assert len(list((tmp_path / "cache").iterdir())) == min(i, 2) + 1


def test_workers_with_another_replan_are_refused(monkeypatch, tmp_path):
    monkeypatch.setattr("replan._common.sources.package_digest", lambda: "before the edit")
    with pytest.raises(ChildProcessError, match="a worker has other sources of replan"):
        sweep(square, cases(5), cache=tmp_path, workers=2)
    assert not list(tmp_path.iterdir())


def test_another_replan_computes_again(tmp_path, monkeypatch):
    sweep(square, cases(5), cache=tmp_path, workers=1)
    monkeypatch.setattr("replan._common.sources.package_digest", lambda: "another")
    sweep(square, cases(5), cache=tmp_path, workers=1)
    assert len(list(tmp_path.iterdir())) == 2


def test_what_a_cache_cannot_see_is_said_once(write, tmp_path):
    write(
        "mine.py",
        "import importlib\n\ndef f(x):\n    return {'y': importlib.import_module(x).pi}\n",
    )
    f = import_module("mine").f
    with pytest.warns(UserWarning, match=r"mine \(runs code by `import_module`\)") as warned:
        sweep(f, cases("math", "numpy"), cache=tmp_path / "cache", workers=1)
    assert [Path(warning.filename).name for warning in warned] == ["test_sweeps.py"]
    sweep(f, cases("math", "numpy"), workers=1)  # no cache, no warning


def test_functions_of_a_session_run_here(monkeypatch, tmp_path):
    session = ModuleType("session")
    monkeypatch.setitem(sys.modules, "session", session)
    exec("def f(x):\n    return {'y': x}\n", vars(session))
    assert sweep(session.f, cases(1), workers=1) == [{"y": 1}]
    with pytest.warns(UserWarning, match=r"session \(has no file\)"):
        assert sweep(session.f, cases(1), cache=tmp_path, workers=1) == [{"y": 1}]
    with pytest.raises(ValueError, match="got `f` of an interactive session: put it in a module"):
        sweep(session.f, cases(1), workers=2)


UNNAMED = {
    "lambda": lambda x: {"y": x},
    "local": swept.make(),
    "partial": functools.partial(square),
    "bound": Machine().run,
    "class": Machine.make,
}


@pytest.mark.parametrize("function", UNNAMED.values(), ids=UNNAMED)
def test_functions_that_cannot_be_imported_run_here_without_a_cache(function, tmp_path):
    assert sweep(function, cases(1), workers=1) == [{"y": 1}]
    for options in ({"workers": 2}, {"workers": 1, "cache": tmp_path}):
        with pytest.raises(ValueError, match="`function` expects a function defined by name"):
            sweep(function, cases(1), **options)
    assert not list(tmp_path.iterdir())


def test_static_methods_can_be_imported(tmp_path):
    assert sweep(Machine.turn, cases(1), cache=tmp_path, workers=1) == [{"y": 1}]


def test_results_are_the_same_from_the_cache_and_not(tmp_path):
    expected = {"y": [1, [0.0, 1.0]], "3": 1, "z": {"4": True, "0.5": "red"}}
    for _ in range(2):
        [found] = sweep(swept.impure, cases(1), cache=tmp_path, workers=1)
        assert found == expected
        assert type(found["z"]["0.5"]) is str
        assert type(found["z"]["4"]) is bool


NUMBERS = st.one_of(
    st.none().map(lambda x: (x, x)),
    st.text(max_size=5).map(lambda x: (x, x)),
    st.booleans().map(lambda x: (np.bool_(x), x)),
    st.integers(-(2**63), 2**63 - 1).map(lambda x: (np.int64(x), x)),
    st.integers(0, 255).map(lambda x: (np.uint8(x), x)),
    st.floats(allow_nan=False, allow_infinity=False).map(lambda x: (np.float64(x), x)),
    st.floats(allow_nan=False, allow_infinity=False, width=32).map(lambda x: (np.float32(x), x)),
    st.lists(st.integers(-9, 9), max_size=3).map(lambda x: (np.array(x, dtype=np.int32), x)),
    st.lists(st.lists(st.floats(-1, 1), min_size=2, max_size=2), min_size=1, max_size=3).map(
        lambda x: (np.array(x), x)
    ),
)
VALUES = st.recursive(
    NUMBERS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda x: ([a for a, _ in x], [b for _, b in x])),
        st.lists(inner, max_size=3).map(lambda x: (tuple(a for a, _ in x), [b for _, b in x])),
        st.dictionaries(st.text(max_size=3), inner, max_size=3).map(
            lambda x: ({k: a for k, (a, _) in x.items()}, {k: b for k, (_, b) in x.items()})
        ),
    ),
    max_leaves=6,
)


def types(value):
    if isinstance(value, list | dict):
        inner = value.values() if isinstance(value, dict) else value
        return [type(value), *map(types, inner)]
    return type(value)


@settings(max_examples=50, deadline=None)
@given(VALUES)
def test_numpy_becomes_json_in_cases_and_results(pair):
    value, plain = pair
    given = []

    def spied(value):
        given.append(value)
        return {"value": pair[0]}

    [result] = sweep(spied, [{"value": value}], workers=1)
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(2):
            [kept] = sweep(echo, [{"value": value}], cache=folder, workers=1)
            assert kept == result
    for found in (given[0], result["value"], kept["value"]):
        assert found == plain
        assert types(found) == types(plain)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({1, 2}, "got {1, 2} in `value`"),
        ([0.0, float("nan")], r"got nan in `value\[1\]`"),
        ({"a": [np.array([[1.0, np.inf]])]}, r"got inf in `value.a\[0\]\[0\]\[1\]`"),
        ({"a": Path("x")}, r"got .*Path\('x'\) in `value.a`"),
        (1j, "got 1j in `value`"),
        (np.complex128(1j), "got 1j in `value`"),
        (b"x", "got b'x' in `value`"),
        ({(1, 2): 3}, r"got {\(1, 2\): 3} in `value`"),
        ({1: 2, "1": 3}, "got {1: 2, '1': 3} in `value`"),
        ({float("nan"): 1}, "got nan in `value`"),
    ],
)
def test_what_is_no_json_is_refused_by_the_name_of_its_place(value, message):
    with pytest.raises(ValueError, match="`cases` expects JSON types, " + message):
        sweep(echo, [{"value": 1}, {"value": value}], workers=1)
    with pytest.raises(
        ValueError, match="`function` expects a result of JSON types, " + message
    ) as error:
        sweep(lambda x: {"value": value}, cases(1), workers=1)
    assert error.value.__notes__ == ['in the case {"x": 1}']


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="`cases` expects dicts of arguments, got 3"):
        sweep(square, [3])
    with pytest.raises(
        ValueError,
        match=r"`cases` expects dicts of arguments of `function`, got {'z': 1}: .* argument",
    ):
        sweep(square, [{"z": 1}])
    with pytest.raises(ValueError, match=r"`cases` expects dicts of arguments, got {1: 2}"):
        sweep(square, [{1: 2}])
    with pytest.raises(ValueError, match="`cases` expects a list of dicts of arguments, got 3"):
        sweep(square, 3)
    with pytest.raises(ValueError, match="`workers` expects an integer of at least 1, got 0"):
        sweep(square, cases(1), workers=0)
    with pytest.raises(ValueError, match="`function` expects a function, got 'square'"):
        sweep("square", cases(1))
    with pytest.raises(ValueError, match="`progress` expects True, False or a function"):
        sweep(square, cases(1), progress="bar")
    with pytest.raises(ValueError, match="`function` expects a dict as its result, got 1"):
        sweep(lambda x: x, cases(1), workers=1)


def test_cases_may_be_generated_and_progress_is_told(tmp_path):
    sweep(square, cases(2), cache=tmp_path, workers=1)
    told = []
    sweep(square, (case for case in cases(1, 2)), cache=tmp_path, workers=1, progress=told.append)
    note = "1 from the cache"
    assert told == [Progress("cases", 1, 2, note), Progress("cases", 2, 2, note)]


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


@pytest.fixture
def start(write, tmp_path):
    """Start a sweep over a number of cases of a function of JOBS in a process of its own."""
    write("jobs.py", JOBS)
    write("script.py", SCRIPT)
    with contextlib.ExitStack() as runs:

        def start(name, count):
            run = subprocess.Popen(
                [sys.executable, str(tmp_path / "script.py"), str(tmp_path), name, str(count)],
                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                start_new_session=True,
            )  # fmt: skip
            runs.callback(end, run)
            return run

        yield start


def end(run):
    with contextlib.suppress(ProcessLookupError):
        os.killpg(run.pid, signal.SIGKILL)
    run.wait()
    run.stderr.close()


@pytest.fixture
def script(start):
    """A sweep of eight cases, four of which wait for the file "go"."""
    return start("job", 8)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at processes in /proc")
def test_ctrl_c_while_workers_start_is_the_parents_matter(script):
    """A terminal sends it to all of them, when they have only begun to import."""
    wait(lambda: children(script.pid) or script.poll() is not None)
    os.killpg(script.pid, signal.SIGINT)
    wait(lambda: script.poll() is not None)
    errors = script.stderr.read()
    assert errors.count("KeyboardInterrupt") == 1  # of the script itself
    assert "SpawnProcess" not in errors


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at processes in /proc")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_run_that_was_killed_goes_on_where_it_was(script, tmp_path, how):
    kept = functools.partial((tmp_path / "cache").glob, "[0-9a-f]*.json")
    wait(lambda: len(list(kept())) == 4 or script.poll() is not None)
    workers = children(script.pid)
    assert len(workers) == 2
    os.kill(script.pid, how)
    wait(lambda: script.poll() is not None)
    wait(lambda: not any(alive(worker) for worker in workers))  # nobody is left behind
    assert len(list(kept())) == 4
    (tmp_path / "go").touch()
    todo = [{"x": x, "folder": str(tmp_path)} for x in range(8)]
    found = sweep(import_module("jobs").job, todo, cache=tmp_path / "cache", workers=1)
    assert found == [{"y": x * x} for x in range(8)]
    calls = (tmp_path / "calls").read_text().split()
    assert len(calls) <= 8 + 2  # at most what was under way is computed twice
    assert sorted(set(map(int, calls))) == list(range(8))


def test_ctrl_c_among_large_results_ends_it(start, tmp_path):
    """Whoever is stopped in the middle of sending one is not waited for."""
    for least in (1, 20, 40):
        run = start("large", 1000)
        kept = functools.partial((tmp_path / "cache").glob, "[0-9a-f]*.json")
        wait(lambda kept=kept, run=run, least=least: len(list(kept())) >= least or run.poll())
        os.killpg(run.pid, signal.SIGINT)
        assert "KeyboardInterrupt" in run.communicate()[1]
        assert all(json.loads(path.read_text())["result"] for path in kept())


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at processes in /proc")
def test_whatever_kills_it_leaves_what_is_whole_and_nobody_behind(tmp_path):
    """Several at once, which keep each other from the cores; more: benchmarks/stress.py."""
    kinds = [(10**7, "SIGINT"), (10**5, "SIGTERM"), (10**7, "SIGKILL"), (10**5, TRIGGERS[3])]
    with ThreadPoolExecutor(len(kinds)) as threads:
        runs = [
            threads.submit(disturbed, tmp_path / str(i), size, trigger, random.Random())
            for i, (size, trigger) in enumerate(kinds)
        ]
        for run in runs:
            run.result()


def test_two_processes_with_one_cache_are_both_right(tmp_path):
    size = 100_000
    with started(tmp_path, size) as one, started(tmp_path, size) as other:
        assert [one.communicate()[1], other.communicate()[1]] == ["", ""]
        assert (one.returncode, other.returncode) == (0, 0)
    assert len(kept(tmp_path)) == len(list(tmp_path.iterdir())) == SIZES[size]
    assert all(json.loads(path.read_text())["result"] for path in kept(tmp_path))


DISK = """
import sys, warnings
sys.path[:0] = {path!r}
import stressed
from concurrent.futures import ThreadPoolExecutor

if __name__ == "__main__":
    warnings.simplefilter("always")
    warnings.showwarning = lambda message, *_: print(message)
    cases = stressed.cases(100_000)[:30]
    with ThreadPoolExecutor(2) as threads:
        for options in ({{"workers": 2}}, {{"executor": threads}}):
            try:
                found = stressed.sweep(stressed.job, cases, cache={cache!r}, **options)
                assert found == stressed.expected(100_000)[:30]
            except ValueError as error:
                print(error)
    for path in stressed.Path({cache!r}).iterdir():
        assert stressed.json.loads(path.read_text())["result"]
        print("whole")
"""


@pytest.mark.skipif(not can_mount(), reason="no mounts in a name space of its own")
@pytest.mark.parametrize("disk", ["size=1m", "ro"])
def test_a_full_or_read_only_disk_is_a_line_and_nothing_is_half_written(tmp_path, disk):
    cache = tmp_path / "cache"
    cache.mkdir()
    (tmp_path / "script.py").write_text(DISK.format(path=sys.path, cache=str(cache)))
    command = with_mounts(
        f"mount -t tmpfs -o {disk} none {cache}", sys.executable, str(tmp_path / "script.py")
    )
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.stderr, done.returncode) == ("", 0)
    told = [line for line in done.stdout.splitlines() if line != "whole"]
    if disk == "ro":
        refused = "`cache` expects a folder that can be written to, got "
        assert told == [f"{refused}'{cache}' (Read-only file system)"] * 2
    else:
        assert len(told) == 2  # in each sweep once
        assert all(line.endswith(": No space left on device") for line in told)
        assert 5 <= done.stdout.count("whole") <= 10
