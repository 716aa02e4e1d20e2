"""simulate(problem, protocol) → Simulation: the same training with real samples at finite N."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from replan._common import check
from replan._common.check import Floats, Ints
from replan.dynamics import IntegrationError, Overlaps, TeacherStudent
from replan.problem import Problem
from replan.protocol import Protocol
from replan.protocol._samples import ORDERS, Samples
from replan.simulation._simulation import Simulation

ENGINES = ("reduced", "full")

Watch = Callable[[int], object]

_POINTS = 101  # times at which runs are looked at
_AT_ONCE = 100_000  # samples between two looks at the clock and the keyboard


def simulate(
    problem: Problem,
    protocol: Protocol,
    *,
    dimension: int = 20_000,
    seeds: int = 8,
    seed: int = 0,
    order: str | Sequence[int] = "spread",
    engine: str = "reduced",
    times: ArrayLike | None = None,
    weights: tuple[ArrayLike, ArrayLike] | None = None,
    after: Simulation | None = None,
    threads: int | None = None,
    watch: Watch | None = None,
) -> Simulation:
    """Train by SGD, sample by sample, in `dimension` input dimensions, once for every seed.

    **Main arguments**

    - `problem`: of a `TeacherStudent`; `protocol`: one for it.
    - `dimension`: N. A protocol of duration α expects α N samples.
    - `seeds`: how many runs. `seed`: of all of them together.

    **Other arguments**

    - `order`: the task of every sample: "spread" (as evenly as the shares allow), "random" (drawn
      from the shares), or the tasks themselves, from 0, one a sample.
    - `engine`: "reduced" (the overlaps as a Markov chain, exact in law) or "full" (plain SGD on
      N-dimensional weights).
    - `times`: when to look at the runs, by default 101 times. The result's `times` are these,
      sorted, at whole samples, and the end.
    - `weights`: with the engine "full": weights (K, N) and teachers (P, N) to start from, which
      have the overlaps of `problem.start`.
    - `after`: an earlier simulation; its runs go on where they ended, instead of `problem.start`.
    - `threads`: runs at a time, by default one a core; the result does not depend on it.
    - `watch`: called with the samples done since the last call, now and then, from any thread.

    A run diverges where the network's error on a sample, or that times lr / N, exceeds 1e10, and
    ends there; the others go on. Ctrl-C keeps the runs that are finished.
    """
    if not isinstance(problem, Problem) or not isinstance(problem.model, TeacherStudent):
        raise ValueError(f"`problem` expects a Problem of a TeacherStudent, got {problem!r}")
    problem.accept(protocol)
    model = problem.model
    check.one_of("engine", engine, ENGINES)
    dimension = check.integer("dimension", dimension)
    if dimension < model.hidden + model.teacher_units:
        raise ValueError(
            f"`dimension` expects at least {model.hidden + model.teacher_units} dimensions, room for "
            f"{model.hidden} hidden units and {model.teacher_units} teachers, got {dimension}"
        )
    seeds = check.integer("seeds", seeds, at_least=1)
    seed = check.integer("seed", seed)
    threads = (os.cpu_count() or 1) if threads is None else threads
    threads = check.integer("threads", threads, at_least=1)
    samples = round(protocol.duration * dimension)
    if samples == 0:
        raise ValueError(f"`dimension` expects enough dimensions for a sample, got {dimension}")
    looks = _looks(times, protocol.duration, dimension, samples)
    tasks = _order(order, samples, model.tasks)
    if weights is not None and (not isinstance(weights, tuple) or len(weights) != 2):
        raise ValueError(
            "`weights` expects a tuple of students (K, N) and teachers (P, N), "
            f"got {type(weights).__name__}"
        )
    if weights is not None and engine != "full":
        raise ValueError("`weights` expects weights only with the engine 'full'")
    if after is not None and weights is not None:
        raise ValueError("`weights` expects None where `after` is given")
    if after is not None:
        _accept(after, model, dimension, seeds, engine)
        if after.theory.status != "ok":
            raise IntegrationError(after.theory.advice)
        problem = replace(problem, start=model.unpack(after.theory.states[-1]))
    begins = _begins(model, problem.state, dimension, seeds, engine, weights, after)
    phase = 0 if after is None else after.settings["phase"] + 1
    streams = np.random.SeedSequence([seed, phase]).spawn(seeds)
    stop = threading.Event()
    at_once = _AT_ONCE if engine == "reduced" else max(1, _AT_ONCE // (dimension // 100 + 1))

    def run(number: int) -> _Run:
        noise, choice = (np.random.default_rng(s) for s in streams[number].spawn(2))
        chain = _chain(engine, model, dimension, begins[number], noise)
        samples = Samples(protocol, dimension, tasks, choice)
        return _run(chain, samples, looks, problem.state.size, at_once, watch, stop)

    with ThreadPoolExecutor(min(threads, seeds)) as pool:
        futures = []
        try:
            futures = [pool.submit(run, number) for number in range(seeds)]
            runs = [future.result() for future in futures]
        except KeyboardInterrupt:  # keep what is finished, if anything is
            stop.set()
            runs = [future.result() for future in futures]
            if len(runs) < seeds or not any(run.end for run in runs):
                raise
        except BaseException:
            stop.set()
            raise
    settings = {
        "dimension": dimension, "seeds": seeds, "seed": seed,
        "order": order if isinstance(order, str) else "given", "engine": engine,
        "phase": phase,
    }  # fmt: skip
    return Simulation(
        problem,
        protocol,
        times=np.minimum(looks / dimension, protocol.duration),
        states=np.array([run.states for run in runs]),
        ends=[run.end for run in runs],
        failures={i: run.failure for i, run in enumerate(runs) if run.failure},
        settings=settings,
    )


class _Run(NamedTuple):
    states: Floats
    end: Any
    failure: str


def _run(
    chain: Any,
    samples: Samples,
    looks: Ints,
    size: int,
    at_once: int,
    watch: Watch | None,
    stop: threading.Event,
) -> _Run:
    """Take a chain through all samples and look at its overlaps (looks, size) where asked."""
    states, done = np.full((len(looks), size), np.nan), 0
    for i, look in enumerate(looks.tolist()):
        while done < look:
            if stop.is_set():
                return _Run(states, None, "stopped")
            last = min(look, done + at_once)
            made = chain.advance(*samples.take(last - done))
            if watch is not None:
                watch(made)
            if made < last - done:
                return _Run(states, None, _diverged(done + made + 1))
            done = last
        now = chain.overlaps()
        row = np.concatenate([np.ravel(part) for part in (now.Q, now.M, now.V)])
        states[i] = row
    return _Run(states, chain, "")


def _diverged(sample: int) -> str:
    return f"diverged at sample {sample}: try a smaller `lr`"


def _chain(
    engine: str, model: TeacherStudent, dimension: int, begin: Any, rng: np.random.Generator
) -> Any:
    if engine == "reduced":
        from replan.dynamics.teacher_student._reduced import Reduced

        along, rest, heads = begin
        return Reduced(model, along, rest, heads, dimension, rng)
    from replan.dynamics.teacher_student._full import Full

    weights, heads, teachers = begin
    return Full(model, weights, heads, teachers, rng)


def _begins(
    model: TeacherStudent,
    state: Floats,
    dimension: int,
    seeds: int,
    engine: str,
    weights: tuple[ArrayLike, ArrayLike] | None,
    after: Simulation | None,
) -> list[Any]:
    """Return what each run starts from: coordinates and heads, or weights, heads and teachers."""
    if after is not None:
        if engine == "reduced":
            return [(end.along, end.rest, end.heads) for end in after.ends]
        return [(end.weights, end.heads, end.teachers) for end in after.ends]
    start = model.unpack(state)
    heads = np.asarray(start.V)
    if engine == "reduced":
        from replan.dynamics.teacher_student._reduced import coordinates

        return [(*coordinates(start, model.teacher_frame), heads)] * seeds
    if weights is None:
        student, teachers = _embed(model, start, dimension)
        return [(student, heads, teachers)] * seeds
    try:
        found = model.from_weights(weights[0], heads, weights[1])
    except ValueError as error:
        raise ValueError(f"`weights`: {error}") from None
    student, teachers = (np.array(part, dtype=np.float64) for part in weights)
    if student.shape[1] != dimension:
        raise ValueError(
            f"`weights` expects weights of dimension {dimension}, got {student.shape[1]}"
        )
    gap = max(np.max(np.abs(found.Q - start.Q)), np.max(np.abs(found.M - start.M)))
    if gap > 1e-6 * max(1.0, float(np.max(np.abs(start.Q)))):  # as of float32
        raise ValueError(
            f"`weights` expects weights with the overlaps of `problem.start`, got overlaps that "
            f"differ by {gap:.3g}"
        )
    return [(student, heads, teachers)] * seeds


def _accept(
    after: Simulation, model: TeacherStudent, dimension: int, seeds: int, engine: str
) -> None:
    """Refuse an earlier simulation that runs cannot go on from."""
    if not isinstance(after, Simulation):
        raise ValueError(f"`after` expects a Simulation, got {after!r}")
    if after.problem.model.describe() != model.describe():
        raise ValueError("`after` expects a simulation of the same model, got another one")
    for name, wanted in (("engine", engine), ("dimension", dimension), ("seeds", seeds)):
        if after.settings[name] != wanted:
            raise ValueError(
                f"`after` expects a simulation with `{name}` {wanted}, got {after.settings[name]}"
            )
    if after.failures:
        raise ValueError(
            f"`after` expects finished runs, got {len(after.failures)} of {seeds} that diverged "
            "or were stopped"
        )


def _embed(model: TeacherStudent, start: Overlaps, dimension: int) -> tuple[Floats, Floats]:
    """Return weights (K, N) and teachers (P, N) with these overlaps, along the first axes.

    Inputs look the same from all sides: which weights they are does not matter.
    """
    from replan.dynamics.teacher_student._reduced import coordinates

    frame = model.teacher_frame
    along, rest = coordinates(start, frame)
    K, r = along.shape
    weights, teachers = np.zeros((K, dimension)), np.zeros((len(frame), dimension))
    weights[:, :r], weights[:, r : r + K] = along, rest
    teachers[:, :r] = frame
    return weights * np.sqrt(dimension), teachers * np.sqrt(dimension)


def _looks(times: ArrayLike | None, duration: float, dimension: int, samples: int) -> Ints:
    """Return after how many samples to look at the runs; always at the end, too."""
    if times is None:
        times = np.linspace(0.0, duration, _POINTS)
    wanted = check.array("times", times, ("m",))
    if wanted.size == 0 or wanted.min() < 0 or wanted.max() > duration * (1 + 1e-9):
        raise ValueError(f"`times` expects times from 0 to {duration:g}, got {wanted.tolist()}")
    looks = np.minimum(np.round(wanted * dimension).astype(np.int64), samples)
    return np.unique(np.append(looks, samples))


def _order(order: str | Sequence[int], samples: int, tasks: int) -> str | Ints:
    """Return the order, checked: its name, or the tasks sample by sample."""
    if isinstance(order, str):
        return check.one_of("order", order, ORDERS)
    given = np.asarray(check.items("order", order, "tasks"))
    if given.shape != (samples,):
        raise ValueError(f"`order` expects {samples} tasks, one a sample, got {given.size}")
    if given.dtype.kind not in "iu" or given.min() < 0 or given.max() >= tasks:
        found = f"{given.min()} to {given.max()}"
        raise ValueError(f"`order` expects whole numbers from 0 to {tasks - 1}, got {found}")
    return given.astype(np.int64)
