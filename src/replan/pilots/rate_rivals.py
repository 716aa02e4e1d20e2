"""Rivals of a plan of the learning rate: the best schedule of every usual family."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from replan.check import Floats
from replan.control import Plan
from replan.models import Schedule
from replan.problem import Control, Problem

FAMILIES = ("linear", "cosine", "warmup-stable-decay")
_LIFTED = 3.0  # times the largest rate of the pilots, where `rates` is lifted
_FASTER = 2.0  # times the fastest change of a pilot's rate
_FRACTIONS = np.arange(0.05, 0.96, 0.05)
_SEVERAL = 1.3  # ratio of the pilots' peaks from which they say something about peaks

Rival = tuple[str, Floats, Floats]  # its name, the schedule, and its losses (P,) at the end


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
        notes.append("NO PILOT LOWERS ITS RATE: what a decay brings is a guess")
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
        tried = [(name, rates, _ends(problem, rates)) for name, rates in named]
        if tried:
            yield min(tried, key=lambda x: x[2].mean())

    def decays(family: str, peaks: Iterable[float]) -> Iterator[tuple[str, Floats]]:
        for peak in peaks:
            for words, shape in shapes(family, times):
                rates = low + (peak - low) * shape
                if any_change or np.diff(rates).min(initial=0.0) >= -fall:
                    yield words.format(peak=f"{peak:.3g}"), rates

    constants = np.geomspace(max(low, 0.02 * high), high, 25)
    yield from best((f"constant {rate:.3g}", np.full(len(times), rate)) for rate in constants)
    for family in FAMILIES:
        yield from best(decays(family, [pilot["peak"]]))
    yield from best([(f"pilot {pilot['run']}", np.interp(times, pilot["times"], pilot["rates"]))])
    for family in FAMILIES if several(peaks) else ():
        yield from best(decays(family, np.geomspace(min(peaks), high, 7)))
    yield from best([("plan", planned if any_change else _calmed(planned, rise, fall))])


def several(peaks: Sequence[float]) -> bool:
    """Return whether peaks differ enough to compare others: else another is a guess."""
    return max(peaks) > _SEVERAL * min(peaks)


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


def _ends(problem: Problem, rates: Floats) -> Floats:
    """Return the losses (P,) at the end of a schedule, by each of the laws."""
    law: Any = problem.model
    count = len(rates)
    lengths = np.full(count, problem.duration / count)
    schedule = Schedule.single_steps(np.ones((count, 1)), rates[:, None], lengths)
    return law.losses_each(law.roll_out(problem.state, schedule)[-1])
