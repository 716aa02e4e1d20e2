"""advise(problem): the simplest schedule that a law of rates cannot tell from the best."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from replan import check
from replan.check import Floats
from replan.control import Plan, Relax, solve
from replan.errors import ArgumentError
from replan.models import RateLaw, Schedule
from replan.pilots.runs import FARTHEST
from replan.problem import Control, Problem
from replan.results import Result

if TYPE_CHECKING:
    import pandas as pd

BOUNDS = ("horizon", "rates", "changes")
_LIFTED = 3.0  # times the largest rate of the pilots, where `rates` is lifted
_FASTER = 2.0  # times the fastest change of a pilot's rate
_FAMILIES = ("linear", "cosine", "warmup-stable-decay")
_FRACTIONS = np.arange(0.05, 0.96, 0.05)
_NORMAL = 1.645  # of a 90 % interval
_SEVERAL = 1.3  # ratio of the pilots' peaks from which they say something about peaks


@dataclass(frozen=True)
class Candidate:
    """A schedule and what the laws say of it.

    rates: (steps,) over the problem's steps. losses: (P,) at the end, by each of the laws.
    """

    name: str
    rates: Floats
    losses: Floats

    @property
    def loss(self) -> float:
        """The mean loss of the laws."""
        return float(self.losses.mean())


@dataclass(frozen=True)
class Advice(Result):
    """A recommended schedule beside its rivals.

    - `candidates`: the best constant, linear, cosine and warmup-stable-decay schedule, the best
      pilot's, and the plan, simplest first. `chosen`: the recommended one.
    - `plan`: what `solve` found. `problem`: with its bounds. `notes`: what a reader must know.
    """

    problem: Problem
    plan: Plan
    candidates: tuple[Candidate, ...]
    chosen: Candidate
    notes: tuple[str, ...]

    def difference(self, one: Candidate, other: Candidate) -> tuple[float, float]:
        """Return how much lower the loss of one is, and half the width of its 90 % interval."""
        law: Any = self.problem.model
        gains = other.losses - one.losses
        same = np.array_equal(one.rates, other.rates)
        own = 0.0 if same else law.covered["error"] * one.loss
        return float(gains.mean()), _NORMAL * float(np.hypot(gains.std(), own))

    @property
    def best_pilot(self) -> Candidate:
        """The schedule of the best pilot, at this horizon."""
        return next(x for x in self.candidates if x.name.startswith("pilot"))

    @property
    def schedule(self) -> Floats:
        """The recommended rate (steps,)."""
        return self.chosen.rates

    def to_frame(self) -> pd.DataFrame:
        """Return the recommended schedule: step and lr at the edges of the plan."""
        import pandas as pd

        law: Any = self.problem.model
        edges = law.covered.get("starts_at", 0.0) + self.problem.edges
        return pd.DataFrame({"step": edges, "lr": np.append(self.schedule, self.schedule[-1])})

    def to_dict(self) -> dict[str, Any]:
        """Return the result: the schedule, the candidates and the plan."""
        gain, half = self.difference(self.chosen, self.best_pilot)
        table = self.to_frame()
        law: Any = self.problem.model
        return self.plan.to_dict() | {
            "recommended": {
                "name": self.chosen.name,
                "loss": self.chosen.loss,
                "gain_over_best_pilot": gain,
                "gain_interval": [gain - half, gain + half],
                "step": table["step"].tolist(),
                "lr": table["lr"].tolist(),
                "lambda_lr": (table["lr"] / law.peak).tolist(),
            },
            "candidates": [{"name": x.name, "loss": x.loss} for x in self.candidates],
            "notes": list(self.notes),
        }


def advise(problem: Problem, *, lift: Sequence[str] = (), progress: bool = False) -> Advice:
    """Recommend a schedule of the learning rate by a law that `fit` wrote.

    - `problem`: of a `RateLaw`, from `Fit.problem` or a file.
    - `lift`: the names of bounds to lift: `rates` (within those of the pilots), `changes` (rates
      rise only if a pilot's did, and change at most twice as fast), `horizon` (at most four times
      the pilots').

    Recommended is the simplest schedule that the laws cannot tell from the best one.

    Examples:
        >>> advice = replan.advise(replan.fit(table).problem(duration=20_000))
        >>> advice.best_pilot.name, advice.chosen.loss <= advice.best_pilot.loss
        ('pilot wsd', True)
    """
    law = check.instance("problem", problem.model, RateLaw, "one of a law that `replan fit` wrote")
    lifted = [check.one_of("lift", name, BOUNDS) for name in check.items("lift", lift, "names")]
    if not law.covered:
        raise ArgumentError("problem", "one of a law that `replan fit` wrote", "a law of no pilots")
    notes = _extrapolations(law, problem.duration, lifted)
    if "rates" in lifted:
        high = _LIFTED * law.covered["rates"][1]
        problem = problem.changed(control=Control(tasks=False, lr=(0.0, high)))
    plan = solve(problem, Relax(starts=0), progress=progress)
    found = tuple(_candidates(problem, plan.protocol.lr, "changes" in lifted))
    best = min(found, key=lambda x: x.loss)
    advice = Advice(problem, plan, found, best, tuple(notes))
    for candidate in found:  # simplest first
        gain, half = advice.difference(best, candidate)
        if gain <= half and candidate.loss <= advice.best_pilot.loss:
            return replace(advice, chosen=candidate)
    return advice


def _extrapolations(law: RateLaw, duration: float, lifted: Sequence[str]) -> list[str]:
    """Say where a plan leaves what the pilots cover; refuse a horizon far beyond theirs."""
    notes = []
    end, horizon = law.covered["starts_at"] + duration, law.covered["horizon"]
    if end > FARTHEST * horizon and "horizon" not in lifted:
        raise ArgumentError(
            "duration",
            f"such that training ends at most {FARTHEST:g} times after the pilots, which end at "
            f"{horizon:g}; lift this bound by `horizon`",
            f"an end at {end:g}",
        )
    if end > 1.01 * horizon:
        notes.append(
            f"THE HORIZON IS {end / horizon:.1f} TIMES THE PILOTS': the law extrapolates, and its "
            "interval knows nothing about what only longer trainings show"
        )
    if "rates" in lifted:
        notes.append(f"RATES ABOVE THE PILOTS' {law.covered['rates'][1]:g} WERE ALLOWED")
    if "changes" in lifted:
        notes.append("THE RATE WAS ALLOWED TO RISE AND TO FALL FASTER THAN IN ANY PILOT")
    if not law.covered["falls"]:
        notes.append("NO PILOT LOWERS ITS RATE: what a decay brings is a guess")
    return notes


def _candidates(problem: Problem, planned: Floats, any_change: bool) -> Iterator[Candidate]:
    """Yield the best schedule of every family, the simplest first."""
    law: Any = problem.model
    low, high = problem.free_range("lr")
    pilot, peaks = law.covered["best"], law.covered["peaks"]
    several = max(peaks) > _SEVERAL * min(peaks)  # else another peak is a guess
    step = problem.duration / problem.steps
    rise, fall = (step * _FASTER * x for x in law.covered["changes"])
    times = (np.arange(problem.steps) + 0.5) / problem.steps

    def best(named: Iterable[tuple[str, Floats]]) -> Iterator[Candidate]:
        tried = [Candidate(name, rates, _ends(problem, rates)) for name, rates in named]
        if tried:
            yield min(tried, key=lambda x: x.loss)

    def decays(family: str, peaks: Iterable[float]) -> Iterator[tuple[str, Floats]]:
        for peak in peaks:
            for words, shape in _shapes(family, times):
                rates = low + (peak - low) * shape
                if any_change or np.diff(rates).min(initial=0.0) >= -fall:
                    yield words.format(peak=f"{peak:.3g}"), rates

    constants = np.geomspace(max(low, 0.02 * high), high, 25)
    yield from best((f"constant {rate:.3g}", np.full(len(times), rate)) for rate in constants)
    for family in _FAMILIES:
        yield from best(decays(family, [pilot["peak"]]))
    yield from best([(f"pilot {pilot['run']}", np.interp(times, pilot["times"], pilot["rates"]))])
    for family in _FAMILIES if several else ():
        yield from best(decays(family, np.geomspace(min(peaks), high, 7)))
    yield from best([("plan", planned if any_change else _calmed(planned, rise, fall))])


def _shapes(family: str, times: Floats) -> Iterator[tuple[str, Floats]]:
    """Yield the schedules of a family, in words and from 1 down to 0 over times in [0, 1]."""
    if family == "linear":
        yield "linear decay from {peak}", 1.0 - times
    elif family == "cosine":
        yield "cosine decay from {peak}", 0.5 * (1.0 + np.cos(np.pi * times))
    else:
        for x in _FRACTIONS:
            words = f"{{peak}}, then linear decay over the last {100 * x:.0f} %"
            yield words, np.minimum(1.0, (1.0 - times) / x)


def _calmed(rates: Floats, rise: float, fall: float) -> Floats:
    """Return the largest rates below the given ones that rise and fall no faster per step."""
    calm = rates.copy()
    for k in range(1, len(calm)):
        calm[k] = min(calm[k], calm[k - 1] + rise)
    for k in range(len(calm) - 2, -1, -1):
        calm[k] = min(calm[k], calm[k + 1] + fall)
    return calm


def _ends(problem: Problem, rates: Floats) -> Floats:
    """Return the losses (P,) at the end of a schedule, by each of the laws."""
    law: Any = problem.model
    count = len(rates)
    lengths = np.full(count, problem.duration / count)
    schedule = Schedule.single_steps(np.ones((count, 1)), rates[:, None], lengths)
    return law.losses_each(law.roll_out(problem.state, schedule)[-1])
