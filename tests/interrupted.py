"""Interrupt the main thread at every instruction: `python tests/interrupted.py TARGET`.

A trace raises KeyboardInterrupt before the n-th instruction that the main thread executes in the
modules below, for n = 1, 2, … until the work ends before that. What follows must end by the
KeyboardInterrupt or with the right result, in this process and with the same threads.
"""

import concurrent.futures
import faulthandler
import queue
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor, _base, thread
from pathlib import Path

import replan
from replan import progress, simulation, sweeps
from replan.control import multistart
from replan.core import threads
from swept import square

MODULES = (sweeps, simulation, multistart, threads, progress, threading, queue, _base,
           thread, concurrent.futures)  # fmt: skip
LIMIT = 60  # seconds without an end, until all stacks are printed

model = replan.TeacherStudent.similar(0.3)
problem = replan.Problem(model, model.fresh(1), duration=2.0, steps=4)
mixed = replan.strategies.interleaved(problem)
pool = ThreadPoolExecutor(2)


def swept():
    with tempfile.TemporaryDirectory() as folder:
        cases = [{"x": x} for x in range(2)]
        kept = replan.sweep(square, cases, cache=folder, executor=pool)
        return [len(list(Path(folder).iterdir())), *kept]


def simulated():
    runs = replan.simulate(problem, mixed, dimension=10, runs=2)
    return [runs.final_losses.tolist(), runs.failures] if not runs.failures else "stopped"


def solved():
    plan = replan.solve(problem, replan.Relax(starts=2), max_gradients=8)
    return plan.loss if plan.status == "limit" else "stopped"


def looped():
    pace = threads.Pace()
    pace.seconds = 1.0
    return pace.run(lambda stop: 7, 1)


TARGETS = {
    "sweep": swept,
    "simulate": simulated,
    "solve": solved,
    "members": lambda: threads.in_threads(lambda i: i * i, 20),
    "compiled": looped,
}


def interrupt_everywhere(work, modules, slow):
    """Return how many instructions there are; where work is `slow`, only every third line."""
    files = {module.__file__ for module in modules}
    threads.free_cores = multistart.free_cores = simulation.free_cores = lambda: 2
    expected, n = work(), 0
    event, fired = ("line" if slow else "opcode"), True

    def trace(frame, what, _):
        nonlocal left, fired
        if frame.f_code.co_filename not in files:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = not slow, slow
        if what == event:
            left -= 1
            if left == 0:
                fired = True
                raise KeyboardInterrupt
        return trace

    while fired:
        n += 3 if slow else 1
        left, fired = n, False
        faulthandler.dump_traceback_later(LIMIT, exit=True)
        sys.settrace(trace)
        try:
            found = work()
            sys.settrace(None)
            assert found in (expected, "stopped"), (n, found)
        except KeyboardInterrupt:
            sys.settrace(None)
    return n


if __name__ == "__main__":
    name = sys.argv[1]
    slow = name == "solve"
    modules = (multistart, threads) if slow else MODULES
    print(interrupt_everywhere(TARGETS[name], modules, slow))
