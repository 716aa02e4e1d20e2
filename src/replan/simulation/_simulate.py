"""simulate(problem, protocol) → Simulation: the same training with real samples at finite N."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from replan import check
from replan.check import Floats, Ints
from replan.errors import ArgumentError, IntegrationError
from replan.models.capabilities import Chain, Simulable, require_simulable
from replan.problem import Problem
from replan.progress import Meter, Watch
from replan.protocol import Protocol
from replan.samples import ORDERS, Samples, sample_count
from replan.simulation._simulation import Simulation

_POINTS = 101  # times at which runs are recorded
_AT_ONCE = 1_000_000  # numbers changed, sample by sample, between two checks for Ctrl-C
_FASTER = 40  # times: how much less it takes to change a number in a long vector
_RUN = 500  # numbers that a run needs besides its states and weights


def simulate(
    problem: Problem,
    protocol: Protocol,
    *,
    dimension: int = 20_000,
    seeds: int = 8,
    seed: int = 0,
    order: str | Sequence[int] = "spread",
    engine: str | None = None,
    times: ArrayLike | None = None,
    weights: tuple[ArrayLike, ArrayLike] | None = None,
    after: Simulation | None = None,
    threads: int | None = None,
    progress: Watch = False,
) -> Simulation:
    """Train by SGD, sample by sample, in `dimension` input dimensions, once for every seed.

    **Main arguments**

    - `problem`: of a model that can be simulated, such as a `TeacherStudent`; `protocol`: for it.
    - `dimension`: N. A protocol of duration α takes α N samples.
    - `seeds`: how many runs. `seed`: the seed that all of them derive from.

    **Other arguments**

    - `order`: the task of every sample: "spread" (as evenly as the shares allow), "random" (drawn
      from the shares), or the tasks themselves, from 0, one per sample.
    - `engine`: for a `TeacherStudent`, "reduced" (the overlaps as a Markov chain, exact in law) or
      "full" (plain SGD on N-dimensional weights, the only one with batches and momentum); by
      default the model's first that can.
    - `times`: when to record the runs, by default at 101 times, and where tasks arrive or
      depart. The result's `times` are these, sorted and rounded to whole samples, and the end.
    - `weights`: with the engine "full": weights (K, N) and teachers (P, N) to start from, with
      the overlaps of `problem.start`.
    - `after`: an earlier simulation; its runs continue from where they ended, instead of from
      `problem.start`.
    - `threads`: runs at a time, by default one per core; the result does not depend on it.
    - `progress`: True shows a bar; a function is called with a `Progress` now and then.

    With batches, weights change where a batch is full: a state that is recorded within one is that
    after the batch before, and samples of a batch that the end cuts off wait for a simulation that
    continues `after` this one.

    A run ends where it diverges: where the error of a teacher-student on a sample, or that times
    lr / N, or a number in the state of another model exceeds 1e10; the latter is looked at now and
    then. The other runs go on. Ctrl-C keeps those that are finished.

    Examples:
        >>> model = replan.TeacherStudent.similar(0.3)
        >>> problem = replan.Problem(model, model.pretrain(seed=1), duration=20.0, steps=50)
        >>> protocol = replan.strategies.interleaved(problem)
        >>> runs = replan.simulate(problem, protocol, dimension=500, seeds=4)
        >>> bool(abs(runs.curves.mean[-1] - runs.theory.final_losses).max() < 0.05)
        True
    """
    check.instance("problem", problem, Problem, "a Problem")
    presence = problem.availability
    protocol = problem.accept(protocol).split(presence.changes)
    there = None if presence.always else presence.on(protocol.edges)
    model, engine = check_simulable(
        problem, dimension=dimension, seeds=seeds, seed=seed, engine=engine
    )
    dimension, seeds, seed = int(dimension), int(seeds), int(seed)  # which may be numpy's
    threads = (os.cpu_count() or 1) if threads is None else threads
    threads = check.integer("threads", threads, at_least=1)
    samples = sample_count(protocol, dimension)
    if samples == 0:
        raise ArgumentError("dimension", "enough dimensions for one sample", dimension)
    if times is None:
        times = np.union1d(np.linspace(0.0, protocol.duration, _POINTS), presence.changes)
    looks = _looks(times, protocol.duration, dimension, samples)
    tasks = _order(order, samples, problem.model.tasks)
    if not isinstance(tasks, str) and not presence.always:
        edges = np.arange(samples + 1) / dimension
        presence.check("order", np.eye(problem.model.tasks)[tasks], edges, problem.model.task_names)
    if after is None:
        begins = [model.begin_chain(engine, problem.state, dimension, weights)] * seeds
    else:
        if weights is not None:
            raise ValueError("`weights` expects None where `after` is given")
        _accept(after, problem, dimension, seeds, engine)
        if after.theory.status != "ok":
            raise IntegrationError(after.theory.advice)
        problem = replace(problem, start=problem.model.unpack(after.theory.states[-1]))
        begins = after.ends
    rows = problem.knob_rows(protocol)
    phase = 0 if after is None else after.settings["phase"] + 1
    streams = np.random.SeedSequence([seed, phase]).spawn(seeds)
    stop = threading.Event()
    at_once = max(1, _AT_ONCE // max(size, model.chain_size(engine, dimension) // _FASTER))

    def run(number: int) -> _Run:
        noise, choice = (np.random.default_rng(s) for s in streams[number].spawn(2))
        chain = begins[number].resume(noise)
        samples = Samples(protocol, dimension, tasks, choice, there)
        return _run(chain, samples, rows, problem, looks, at_once, meter, stop)

    meter = Meter(progress, "samples", samples * seeds)
    with meter, ThreadPoolExecutor(min(threads, seeds)) as pool:
        futures = []
        try:
            futures = [pool.submit(run, number) for number in range(seeds)]
            runs = [future.result() for future in futures]
        except KeyboardInterrupt:  # keep what has finished, if anything has
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


def check_simulable(
    problem: Problem, *, dimension: int, seeds: int, seed: int, engine: str | None
) -> tuple[Simulable, str]:
    """Return a problem's model and the name of the engine; refuse what cannot be simulated."""
    if problem.is_ensemble:
        raise ArgumentError(
            "problem",
            "one problem to simulate",
            f"an ensemble of {len(problem.members)}: simulate its `members` one by one",
        )
    model = require_simulable(problem.model)
    engine = model.choose_engine(engine)
    if check.integer("dimension", dimension) < model.least_dimension:
        raise ArgumentError(
            "dimension", f"at least {model.least_dimension}, room for all units", dimension
        )
    check.integer("seeds", seeds, at_least=1)
    check.integer("seed", seed)
    return model, engine


class _Run(NamedTuple):
    states: Floats
    end: Any
    failure: str


def _run(
    chain: Chain,
    samples: Samples,
    rows: Floats,
    problem: Problem,
    looks: Ints,
    at_once: int,
    meter: Meter,
    stop: threading.Event,
) -> _Run:
    """Run a chain through all samples; record its state (looks, n) where requested.

    rows: (steps, C) the knobs in every step of the protocol.
    """
    states, done = np.full((len(looks), problem.state.size), np.nan), 0
    for i, look in enumerate(looks.tolist()):
        while done < look:
            if stop.is_set():
                return _Run(states, None, "stopped")
            last = min(look, done + at_once)
            tasks, steps = samples.take(last - done)
            made = chain.advance(tasks, problem.model.layout.of_task(rows[steps], tasks))
            meter.advance(made)
            if made < last - done:
                return _Run(states, None, _diverged(done + made + 1))
            done = last
        states[i] = chain.state()
    return _Run(states, chain, "")


def _diverged(sample: int) -> str:
    return f"diverged at sample {sample}: try a smaller `lr`"


def _accept(after: Simulation, problem: Problem, dimension: int, seeds: int, engine: str) -> None:
    """Refuse an earlier simulation that runs cannot continue from."""
    check.instance("after", after, Simulation, "a Simulation")
    if after.problem.to_dict()["model"] != problem.to_dict()["model"]:
        raise ArgumentError("after", "a simulation of the same model", "another one")
    for name, wanted in (("engine", engine), ("dimension", dimension), ("seeds", seeds)):
        if after.settings[name] != wanted:
            raise ArgumentError(
                "after", f"a simulation with `{name}` {wanted}", f"{after.settings[name]}"
            )
    if after.failures:
        raise ArgumentError(
            "after",
            "finished runs",
            f"{len(after.failures)} of {seeds} that diverged or were stopped",
        )


def _looks(times: ArrayLike, duration: float, dimension: int, samples: int) -> Ints:
    """Return after how many samples to record the runs; the end is always included."""
    wanted = check.array("times", times, ("m",))
    if wanted.size == 0 or wanted.min() < 0 or wanted.max() > duration * (1 + 1e-9):
        raise ArgumentError("times", f"times from 0 to {duration:g}", check.show(wanted.tolist()))
    looks = np.minimum(np.round(wanted * dimension).astype(np.int64), samples)
    return np.unique(np.append(looks, samples))


def _order(order: str | Sequence[int], samples: int, tasks: int) -> str | Ints:
    """Return the order, checked: its name, or the tasks sample by sample."""
    if isinstance(order, str):
        return check.one_of("order", order, ORDERS)
    given = check.task_list("order", order, tasks)
    if given.size != samples:
        raise ArgumentError("order", f"{samples} tasks, one per sample", f"{given.size}")
    return given
