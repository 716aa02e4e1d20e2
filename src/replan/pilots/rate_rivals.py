"""Rivals of a plan of the learning rate: the best schedule of every usual family."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from replan.check import Floats
from replan.control import Plan
from replan.models import Schedule
from replan.models.rate_law import Pieces, pieces
from replan.pilots.rates import RateFit, uncertain
from replan.pilots.runs import several
from replan.problem import Control, Problem

BOUNDS = ("horizon", "rates", "changes")
FAMILIES = ("linear", "cosine", "warmup-stable-decay")
_LIFTED = 3.0  # times the largest rate of the pilots, where `rates` is lifted
_FASTER = 2.0  # times the fastest change of a pilot's rate
_FRACTIONS = np.arange(0.05, 0.96, 0.05)

Rival = tuple[str, Floats, float, Floats]  # name, schedule, end loss and its changes: Candidate


def without_bounds(problem: Problem, lifted: Sequence[str]) -> tuple[Problem, list[str]]:
    """Return the problem without the bounds that are lifted, and what a reader must know."""
    law: Any = problem.model
    notes = []
    if "rates" in lifted:
        high = _LIFTED * law.covered["rates"][1]
        problem = problem.changed(control=Control(tasks=False, lr=(0.0, high)))
        notes.append(f"RATES ABOVE THE PILOTS' {law.covered['rates'][1]:g} WERE ALLOWED")
    if "changes" in lifted:
        notes.append("THE RATE WAS ALLOWED TO RISE AND TO FALL FASTER THAN IN ANY PILOT")
    if not law.covered["falls"]:
        only = "" if "changes" in lifted else ", and constant rates only are compared"
        notes.append(f"NO PILOT LOWERS ITS RATE: what a decay brings is a guess{only}")
    return problem, notes


def rivals(problem: Problem, plan: Plan, lifted: Sequence[str]) -> Iterator[Rival]:
    """Yield the best schedule of every family, the best pilot's and the plan, simplest first."""
    law: Any = problem.model
    planned, any_change = plan.protocol.lr, "changes" in lifted
    low, high = problem.free_range("lr")
    pilot, peaks = law.covered["best"], law.covered["peaks"]
    step = problem.duration / problem.steps
    rise, fall = (step * _FASTER * x for x in law.covered["changes"])
    times = (np.arange(problem.steps) + 0.5) / problem.steps

    def best(named: Iterable[tuple[str, Floats]]) -> Iterator[Rival]:
        tried = [(name, rates, _loss(problem, rates)) for name, rates in named]
        if tried:
            name, rates, loss = min(tried, key=lambda x: x[2])
            yield name, rates, loss, loss * _changes(law, problem.duration, rates)

    def decays(family: str, peaks: Iterable[float]) -> Iterator[tuple[str, Floats]]:
        for peak in peaks:
            for words, shape in shapes(family, times):
                rates = low + (peak - low) * shape
                if any_change or (np.ptp(rates) and np.diff(rates).min(initial=0.0) >= -fall):
                    yield words.format(peak=f"{peak:.3g}"), rates

    constants = np.geomspace(max(low, 0.02 * high), high, 25)
    yield from best((f"constant {rate:.3g}", np.full(len(times), rate)) for rate in constants)
    for family in FAMILIES:
        yield from best(decays(family, [pilot["peak"]]))
    yield from best([(f"pilot {pilot['run']}", np.interp(times, pilot["times"], pilot["rates"]))])
    others = np.geomspace(min(peaks), high, 7) if several(peaks) else np.empty(0)
    for family in FAMILIES:
        yield from best(decays(family, others[~np.isclose(others, pilot["peak"], rtol=1e-3)]))
    planned = planned if any_change else _calmed(planned, rise, fall)
    name = f"plan, rates up to {planned.max():.3g}" if "rates" in lifted else "plan"
    yield from best([(name, planned)] if np.ptp(planned) else [])


def shapes(
    family: str, times: Floats, fractions: Iterable[float] = _FRACTIONS
) -> Iterator[tuple[str, Floats]]:
    """Yield the schedules of a family, in words and from 1 down to 0 over times in [0, 1]."""
    if family == "linear":
        yield "linear decay from {peak}", 1.0 - times
    elif family == "cosine":
        yield "cosine decay from {peak}", 0.5 * (1.0 + np.cos(np.pi * times))
    else:
        for x in fractions:
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


def _loss(problem: Problem, rates: Floats) -> float:
    """Return the loss at the end of a schedule, the mean of the laws."""
    count = len(rates)
    lengths = np.full(count, problem.duration / count)
    schedule = Schedule.single_steps(np.ones((count, 1)), rates[:, None], lengths)
    return float(problem.model.losses(problem.model.roll_out(problem.state, schedule)[-1])[0])


def _changes(law: Any, duration: float, rates: Floats) -> Floats:
    """Return the changes (10,) of the log loss at the end by all that is not known."""
    known: dict[str, Any] = {name: np.array(x) for name, x in law.covered["fitted"].items()}
    steps, before, batch = np.array(law.covered["history"])[:, None]
    past = pieces(steps, before, law.peak, law.unit, batch)
    pace = rates[None] / law.peak
    lengths = np.full(pace.shape, duration / law.unit / len(rates))
    progress = past.progress[:, -1:] + np.cumsum(pace * lengths, axis=1)
    rest = Pieces(pace, pace / law.covered["batch"], lengths, progress)
    whole = Pieces(*(np.concatenate(x, axis=1) for x in zip(past, rest, strict=True)))
    return uncertain(RateFit(**known), whole)[1][:, 0, -1]
