"""Rivals of a plan of shares: the best constant ones, and the best pilot's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from replan.check import Floats
from replan.control import Plan, Relax, solve
from replan.models import Schedule, ShareLaw
from replan.pilots.rate_rivals import Rival
from replan.problem import Control, Problem

BOUNDS = ("horizon", "shares", "changes")
_STEPS = 50  # of a plan that may change shares at any time


def without_bounds(problem: Problem, lifted: Sequence[str]) -> tuple[Problem, list[str]]:
    """Return the problem without the bounds that are lifted, and what a reader must know."""
    notes = []
    if "shares" in lifted:
        problem = problem.changed(model=_pure(problem.model))
        notes.append("SHARES OUTSIDE OF THE PILOTS' WERE ALLOWED")
    if "changes" in lifted:
        problem = problem.changed(steps=_STEPS)
        notes.append("SHARES WERE ALLOWED TO CHANGE MORE OFTEN THAN IN ANY PILOT")
    return problem, notes


def rivals(problem: Problem, plan: Plan, lifted: Sequence[str]) -> Iterator[Rival]:
    """Yield the best constant shares, the best pilot's and the plan's, simplest first."""
    law: Any = problem.model
    constant = solve(problem.changed(control=Control("constant")), Relax(starts=0))
    shares = constant.relaxed.shares[:1] @ law.mixtures
    pilot = law.covered["best"]
    edges = np.interp(np.linspace(0.0, 1.0, 201), pilot["progress"], np.arange(201) / 200)
    rows = np.minimum(199, (edges[:-1] * 200 + 1e-6).astype(int))
    named = {
        f"constant: {in_words(law.domains, shares[0])}": shares,
        f"pilot {pilot['run']}": np.array(pilot["shares"])[rows],
    }
    if problem.steps > 1:  # else it is the constant
        named[f"plan in {problem.steps} stages"] = plan.relaxed.shares @ law.mixtures
    for name, rows in named.items():
        losses = _ends(problem, rows)
        yield name, rows, float(losses.mean()), (losses - losses.mean()) / np.sqrt(len(losses))


def in_words(domains: Sequence[str], shares: Floats) -> str:
    """Return shares (D,) in percent."""
    return ", ".join(f"{100 * x:.0f} % {name}" for name, x in zip(domains, shares, strict=True))


def _pure(law: Any) -> ShareLaw:
    """Return a law whose tasks are the domains."""
    content = {name: x for name, x in law.to_dict().items() if name != "mixtures"}
    return ShareLaw(**content)


def _ends(problem: Problem, shares: Floats) -> Floats:
    """Return the objective (P,) at the end of shares (n, D) over equal progress, by each law."""
    law, count = _pure(problem.model), len(shares)
    lengths = np.full(count, problem.duration / count)
    schedule = Schedule.single_steps(shares, np.ones((count, 0)), lengths)
    ends = law.roll_out(problem.state, schedule)[-1]
    return law.losses_each(ends) @ problem.objective.weights
