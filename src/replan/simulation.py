"""simulate(problem, protocol) → Simulation: the same training with real samples at finite N."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from replan import check, files
from replan.check import Floats, Ints
from replan.core.threads import free_cores, in_background, stopped, take_turns
from replan.curves import Curves, Trajectory, Transfer, evaluate, transfer
from replan.errors import ArgumentError, IntegrationError
from replan.models.capabilities import Chain, require_simulable
from replan.problem import Problem
from replan.progress import Meter, Watch
from replan.protocol import ORDERS, Protocol, Samples, sample_count
from replan.results import Result

if TYPE_CHECKING:
    import pandas as pd

_POINTS = 101  # times at which runs are recorded
_AT_ONCE = 1_000_000  # numbers changed, sample by sample, between two checks for Ctrl-C
_FASTER = 40  # times less work to change a number in a long vector than in a state


@dataclass(frozen=True, eq=False, repr=False)
class Simulation(Result):
    """Runs of SGD with the same protocol, the result of `simulate`.

    times: (m,) when runs were recorded; the last is the end. states: (runs, m, n), NaN after a run
    diverged. ends: what each run can continue from. failures: why runs did not finish, by number.
    settings: dimension, runs, seed, order, engine, and the phase, from 0, where simulations
    continue one another. `plot` draws the means over finished runs (crosses), their 10-90 % bands
    and the theory (lines).

    Examples:
        >>> model = replan.TeacherStudent.similar(0.3)
        >>> problem = replan.Problem(model, model.pretrain(seed=1), duration=20.0, steps=50)
        >>> mixed = replan.strategies.interleaved(problem)
        >>> sgd = replan.simulate(problem, mixed, dimension=500, runs=4)
        >>> bool(abs(sgd.deviation[:, -1]).max() < 0.05)  # from the theory, at the end
        True
    """

    problem: Problem
    protocol: Protocol
    times: Floats
    states: Floats
    ends: list[Any]
    failures: dict[int, str]
    settings: dict[str, Any]

    @cached_property
    def losses(self) -> Floats:
        """All losses (runs, m, L)."""
        with np.errstate(invalid="ignore"):
            return self.problem.model.losses(self.states)

    @property
    def final_losses(self) -> Floats:
        """The final losses (runs, L)."""
        return self.losses[:, -1]

    @cached_property
    def curves(self) -> Curves:
        """The losses of all runs, with their mean, intervals and quantiles."""
        names = self.problem.model.loss_names
        return Curves(self.times, self.losses, failures=self.failures, names=names)

    @cached_property
    def transfer(self) -> Transfer | None:
        """Forgetting and transfer (n, T) in the finished runs, where tasks arrive or depart."""
        return transfer(self.problem, self.times, self.curves.finished)

    @cached_property
    def theory(self) -> Trajectory:
        """The learning curves for N → ∞, as far as they can be computed: see its `status`."""
        return evaluate(self.problem, self.protocol, throw=False)

    @cached_property
    def theory_losses(self) -> Floats:
        """The losses (m, L) of the theory at the same times, NaN where it has none."""
        if self.theory.status != "ok":
            return np.full_like(self.losses[0], np.nan)
        return self.theory.losses_at(self.times)

    @cached_property
    def deviation(self) -> Floats:
        """The losses minus those of the theory (runs, m, L)."""
        return self.losses - self.theory_losses

    def to_dict(self) -> dict[str, Any]:
        """Return everything a reader of the result needs, as JSON types; null where unknown."""
        return {
            "times": self.times.tolist(),
            "curves": files.nullable(self.losses),
            "losses": files.nullable(self.final_losses),
            "mean": files.nullable(self.curves.mean[-1]),
            "standard_error": files.nullable(self.curves.standard_error[-1]),
            "ode_losses": files.nullable(self.theory_losses[-1]),
            "ode_curves": files.nullable(self.theory_losses),
            **({"transfer": self.transfer.to_dict()} if self.transfer else {}),
            "failures": {str(run): reason for run, reason in self.failures.items()},
            **self.settings,
            "protocol": self.protocol.to_dict(),
            "problem": self.problem.to_dict(),
        }

    def to_frame(self) -> pd.DataFrame:
        """Return a row per run and time: run, time, loss_1, …; NaN after a run diverged."""
        return self.curves.to_frame()

    def __repr__(self) -> str:
        s = self.settings
        return f"Simulation({s['runs']} runs, N={s['dimension']}, engine={s['engine']!r})"


def simulate(
    problem: Problem,
    protocol: Protocol,
    *,
    dimension: int = 20_000,
    runs: int = 8,
    seed: int = 0,
    order: str = "spread",
    engine: str | None = None,
    times: ArrayLike | None = None,
    after: Simulation | None = None,
    progress: Watch = False,
) -> Simulation:
    """Train by SGD, sample by sample, in `dimension` input dimensions.

    **Main arguments**

    - `problem`: with a model that can be simulated, such as a `TeacherStudent`; `protocol`: for it.
    - `dimension`: N. A protocol of duration α takes α N samples.
    - `runs`: how many, with different samples. `seed`: of all of them together.

    **Other arguments**

    - `order`: of the tasks: "spread" (as evenly as the shares allow) or "random" (each sample's
      drawn from the shares).
    - `engine`: for a `TeacherStudent`, "reduced" (the overlaps as a Markov chain, exact in law) or
      "full" (plain SGD on N-dimensional weights, the only one with batches and momentum); by
      default the first one that fits the model.
    - `times`: when to record the runs, by default at 101 times, and where tasks arrive or
      depart. The result's `times` are these, sorted and rounded to whole samples, and the end.
    - `after`: an earlier simulation to continue, instead of starting from `problem.start`.
    - `progress`: True shows a bar; a function is called with a `Progress` now and then.

    With batches, weights change when a batch is full: a state recorded within one is that after
    the previous batch, and samples of an unfinished batch wait for a simulation that continues
    `after` this one.

    A run ends where it diverges: where the error of a teacher-student on a sample, or that times
    lr / N, or a number in the state of another model (checked now and then) exceeds 1e10. The
    other runs continue. Ctrl-C keeps the finished runs. Results do not depend on the number of
    cores.

    Examples:
        >>> model = replan.TeacherStudent.similar(0.3)
        >>> problem = replan.Problem(model, model.pretrain(seed=1), duration=20.0, steps=50)
        >>> protocol = replan.strategies.interleaved(problem)
        >>> sgd = replan.simulate(problem, protocol, dimension=500, runs=4)
        >>> bool(abs(sgd.curves.mean[-1] - sgd.theory.final_losses).max() < 0.05)
        True
    """
    check.instance("problem", problem, Problem, "a Problem")
    if problem.is_ensemble:
        count = f"an ensemble of {len(problem.members)}: simulate its `members` one by one"
        raise ArgumentError("problem", "a single problem", count)
    model = require_simulable(problem.model)
    engine = model.choose_engine(engine)
    dimension = check.integer("dimension", dimension, at_least=model.least_dimension)
    runs, seed = check.integer("runs", runs, at_least=1), check.integer("seed", seed)
    availability = problem.availability
    protocol = problem.accept(protocol).split(availability.changes)
    samples = sample_count(protocol, dimension)
    if samples == 0:
        raise ArgumentError("dimension", "large enough for one sample", f"{dimension}")
    if times is None:
        times = np.union1d(np.linspace(0.0, protocol.duration, _POINTS), availability.changes)
    recorded = _recorded(times, protocol.duration, dimension, samples)
    check.one_of("order", order, ORDERS)
    settings = {"dimension": dimension, "runs": runs, "engine": engine}
    phase = 0
    if after is None:
        starts = [model.begin_chain(engine, problem.state, dimension)] * runs
    else:
        _check_continuable(after, problem, settings)
        problem = problem.changed(start=problem.model.unpack(after.theory.states[-1]))
        starts, phase = after.ends, after.settings["phase"] + 1
    size = max(problem.state.size, model.chain_size(engine, dimension) // _FASTER)
    chunk = max(1, _AT_ONCE // size)
    available = None if availability.always else availability.on(protocol.edges)
    knob_rows, layout = problem.knob_rows(protocol), problem.model.layout
    streams = np.random.SeedSequence([seed, phase]).spawn(runs)
    states = np.full((runs, len(recorded), problem.state.size), np.nan)
    ends: list[Chain | None] = [None] * runs
    failures = dict.fromkeys(range(runs), "stopped")

    def run(i: int) -> None:
        noise, choice = (np.random.default_rng(stream) for stream in streams[i].spawn(2))
        chain = starts[i].resume(noise)
        sampler = Samples(protocol, dimension, order, choice, available)
        if recorded[0] == 0:
            states[i, 0] = chain.state()
        done = 0
        while done < samples and not stopped():
            drawn, steps = sampler.take(min(samples - done, chunk))
            due = slice(*np.searchsorted(recorded, [done, done + len(drawn)], side="right"))
            knobs = layout.of_task(knob_rows[steps], drawn)
            count = chain.record(drawn, knobs, recorded[due] - done, states[i, due])
            meter.advance(count)
            done += count
            if count < len(drawn):
                failures[i] = f"diverged at sample {done + 1}: try a smaller `lr`"
                return
        if done == samples:
            ends[i] = chain
            del failures[i]

    with Meter(progress, "samples", samples * runs) as meter:
        try:
            in_background(take_turns(run, runs), min(free_cores(), runs))
        except KeyboardInterrupt:
            if not any(ends):
                raise
    return Simulation(
        problem,
        protocol,
        times=np.minimum(recorded / dimension, protocol.duration),
        states=states,
        ends=ends,
        failures=failures,
        settings={**settings, "seed": seed, "order": order, "phase": phase},
    )


def _check_continuable(after: Simulation, problem: Problem, settings: dict[str, Any]) -> None:
    """Refuse an earlier simulation that runs with these settings cannot continue."""
    check.instance("after", after, Simulation, "a Simulation")
    if after.problem.to_dict()["model"] != problem.to_dict()["model"]:
        raise ArgumentError("after", "a simulation of the same model", "another one")
    for name, wanted in settings.items():
        if after.settings[name] != wanted:
            raise ArgumentError(
                "after", f"a simulation with `{name}` {wanted}", f"{after.settings[name]}"
            )
    if after.failures:
        failed = f"{len(after.failures)} of {settings['runs']} that did not finish"
        raise ArgumentError("after", "a simulation whose runs have finished", failed)
    if after.theory.status != "ok":
        raise IntegrationError(after.theory.advice)


def _recorded(times: ArrayLike, duration: float, dimension: int, samples: int) -> Ints:
    """Return after how many samples to record the runs; the end is always included."""
    wanted = check.array("times", times, ("m",))
    if wanted.size == 0 or wanted.min() < 0 or wanted.max() > duration * (1 + 1e-9):
        raise ArgumentError("times", f"times from 0 to {duration:g}", check.show(wanted.tolist()))
    counts = np.minimum(np.round(wanted * dimension).astype(np.int64), samples)
    return np.unique(np.append(counts, samples))
