"""Sweeps that are disturbed at random moments; what they leave is whole, and nobody is left behind.

tests/test_sweeps.py disturbs a few of them at once, benchmarks/stress.py a hundred under load.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from replan import sweep
from swept import wait

# bytes of a result: how many cases
SIZES = {100: 1000, 100_000: 200, 1_000_000: 40, 10_000_000: 8}
TRIGGERS = ("SIGINT", "SIGTERM", "SIGKILL", "SIGKILL of a worker", "an error in a case")
ERROR = "STRESSED_ERROR"  # an environment variable: the case that fails
HELD = "STRESSED_HELD"  # another: the first case that takes too long to end before the signal


def job(x, size):
    if os.environ.get(ERROR) == str(x):
        raise ValueError("no luck")
    if x >= int(os.environ.get(HELD, x + 1)):
        time.sleep(600)
    return {"y": f"{x} " * (size // len(f"{x} "))}


def run(folder, size, workers):
    return sweep(job, cases(size), cache=folder, workers=workers)


def cases(size):
    return [{"x": x, "size": size} for x in range(SIZES[size])]


def expected(size):
    return [job(**case) for case in cases(size)]


def kept(folder):
    return list(Path(folder).glob("[0-9a-f]*.json"))


@contextlib.contextmanager
def started(folder, size, failing=None, held=False):
    """Start a sweep in a process and a session of its own, both ended whatever happens."""
    program = (
        f"import sys; sys.path[:0] = {sys.path!r}; import stressed; "
        f"found = stressed.run({str(folder)!r}, {size}, workers=2); "
        f"sys.exit(found != stressed.expected({size}))"
    )
    settings = {ERROR: str(failing), HELD: str(SIZES[size] * 3 // 4 if held else SIZES[size])}
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        text=True, start_new_session=True, env=os.environ | settings,
    )  # fmt: skip
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stderr.close()


def alive(session):
    """Return the processes of a session that are not over, with their command lines."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            status = (path / "stat").read_text().rpartition(")")[2].split()
            if int(status[3]) == session and status[0] != "Z":
                found[int(path.name)] = (path / "cmdline").read_text()
    return found


def workers_of(process):
    return [pid for pid, command in alive(process.pid).items() if "spawn_main" in command]


def disturb(process, trigger):
    """Send the signal; the worker that it is sent to may not be there yet, or no more."""
    with contextlib.suppress(ProcessLookupError):
        if trigger == "SIGKILL of a worker":
            wait(lambda: workers_of(process) or process.poll() is not None)
            for worker in workers_of(process)[:1]:
                os.kill(worker, signal.SIGKILL)
        elif trigger == "SIGINT":
            os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        elif trigger != "an error in a case":
            process.send_signal(getattr(signal, trigger))


def disturbed(folder, size, trigger, random):
    """Disturb a sweep, and return what came of it; raise an AssertionError if that is not right.

    The moment is somewhere among the first half of the cases or, one time in four, in the start.
    """
    least = random.randint(1, SIZES[size] // 2) if random.random() < 0.75 else 0
    failing = least if trigger == "an error in a case" else None
    to_parent = trigger in ("SIGINT", "SIGTERM", "SIGKILL")  # else the sweep goes on to its end
    with started(folder, size, failing, held=to_parent) as process:
        wait(lambda: Path(folder).exists() or process.poll() is not None)  # imports are over
        moment = time.perf_counter() + random.uniform(0, 2.0)
        wait(
            lambda: (
                len(kept(folder)) >= max(least, 1)
                or (least == 0 and time.perf_counter() > moment)
                or process.poll() is not None
            )
        )
        disturb(process, trigger)
        begin = time.perf_counter()
        wait(lambda: process.poll() is not None)
        ended = time.perf_counter() - begin
        wait(lambda: not alive(process.pid))
        left = time.perf_counter() - begin
        errors = process.stderr.read()
    finished = {path: json.loads(path.read_text())["result"] for path in kept(folder)}
    if trigger != "SIGKILL of a worker":  # which may not have had a case yet
        assert process.returncode != 0, errors
        assert len(finished) < SIZES[size], "it went on"
    if trigger == "SIGINT":
        assert errors.strip().endswith("KeyboardInterrupt"), errors
        assert errors.count("Traceback") == 1, errors
    times = {path: path.stat().st_mtime_ns for path in finished}
    assert run(folder, size, workers=1) == expected(size)
    assert times == {path: path.stat().st_mtime_ns for path in finished}, "computed again"
    assert len(kept(folder)) == SIZES[size]
    return {"kept": len(finished), "ended": ended, "left": left}
