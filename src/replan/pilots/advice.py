"""advise(problem): the simplest schedule that a law cannot tell from the best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from replan import check
from replan.check import Floats
from replan.control import Plan, Relax, solve
from replan.curves import evaluate
from replan.errors import ArgumentError
from replan.pilots import rate_rivals, share_rivals
from replan.pilots.descent import NORMAL
from replan.pilots.runs import FARTHEST
from replan.pilots.stages import Stage, stages
from replan.problem import Problem
from replan.results import Result

if TYPE_CHECKING:
    import pandas as pd

LAWS = {"rate-law": rate_rivals, "share-law": share_rivals}  # by the kind of their model
_SHORT = 0.01  # of the pilots: shorter trainings are perhaps given in another unit
BOUNDS = tuple(dict.fromkeys(name for kind in LAWS.values() for name in kind.BOUNDS))


@dataclass(frozen=True)
class Candidate:
    """A schedule and what the laws say of it.

    schedule: the rates (steps,), or the shares (steps, D) of domains over equal progress. loss: at
    the end, the mean of the laws. changes: (k,) of it by one standard deviation of each of what is
    not known.
    """

    name: str
    schedule: Floats
    loss: float
    changes: Floats


@dataclass(frozen=True)
class Advice(Result):
    """A recommended schedule beside its rivals.

    - `candidates`: the best schedule of the usual families (constant, linear, cosine and
      warmup-stable-decay rates, or constant shares), the best pilot's, and the plan, simplest
      first. `chosen`: the recommended one.
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
        same = np.array_equal(one.schedule, other.schedule)
        own = 0.0 if same else law.covered["error"] * one.loss
        apart = np.linalg.norm(other.changes - one.changes)
        return other.loss - one.loss, NORMAL * float(np.hypot(apart, own))

    @property
    def best_pilot(self) -> Candidate:
        """The schedule of the best pilot, at this horizon."""
        return next(x for x in self.candidates if x.name.startswith("pilot"))

    def to_frame(self) -> pd.DataFrame:
        """Return the recommended schedule: its step, and lr or share_<domain> from there on."""
        import pandas as pd

        law: Any = self.problem.model
        table = law.table(self.problem.duration, self.chosen.schedule)
        whole = np.round(table["step"])
        if np.diff(whole).min() > 0:
            table["step"] = whole.astype(np.int64)
        if "lr" in table:
            table["lr"][-1] = self._stages[-1].to_lr
        return pd.DataFrame(table)

    @property
    def _stages(self) -> list[Stage]:
        law: Any = self.problem.model
        table = law.table(self.problem.duration, self.chosen.schedule)
        return stages(table["step"], self.chosen.schedule, *self.problem.free_range("lr"))

    def to_dict(self) -> dict[str, Any]:
        """Return the result: the schedule, the candidates and the plan."""
        gain, half = self.difference(self.chosen, self.best_pilot)
        table = {name: column.tolist() for name, column in self.to_frame().items()}
        return self._planned() | {
            "recommended": {
                "name": self.chosen.name,
                "loss": self.chosen.loss,
                "gain_over_best_pilot": gain,
                "gain_interval": [gain - half, gain + half],
                **table,
                **self._for_trainers(),
            },
            "candidates": [{"name": x.name, "loss": x.loss} for x in self.candidates],
            "notes": list(self.notes),
        }

    def _planned(self) -> dict[str, Any]:
        """Return the plan; of shares, that of mixtures, which a trainer need not round to one."""
        plan, law = self.plan, cast(Any, self.problem.model)
        if law.kind == "rate-law":
            return plan.to_dict()
        content = plan.to_dict() | evaluate(self.problem, plan.relaxed).to_dict()
        return content | {
            "domains": list(law.domains),
            "shares": (plan.relaxed.shares @ law.mixtures).tolist(),
        }

    def _for_trainers(self) -> dict[str, Any]:
        """Return a rate as a fraction of its peak, and in stages."""
        table, law = self.to_frame(), cast(Any, self.problem.model)
        if "lr" not in table:
            return {}
        return {
            "lambda_lr": (table["lr"] / law.peak).tolist(),
            "stages": [stage._asdict() for stage in self._stages],
        }


def advise(problem: Problem, *, lift: Sequence[str] = (), progress: bool = False) -> Advice:
    """Recommend a schedule of the learning rate, or of shares, by a law that `fit` wrote.

    - `problem`: of a law, from `Fit.problem`, `ShareFit.problem` or a file.
    - `lift`: the names of bounds to lift: `rates` (within those of the pilots), `shares` (mixtures
      of the pilots'), `changes` (rates rise only if a pilot's did, and change at most twice as
      fast; shares change as often as in a pilot), `horizon` (at most four times the pilots').

    Recommended is the simplest schedule that the laws cannot tell from the best one.

    Examples:
        >>> advice = replan.advise(replan.fit(table).problem(duration=20_000))
        >>> advice.best_pilot.name, advice.chosen.loss <= advice.best_pilot.loss
        ('pilot wsd', True)
    """
    law: Any = check.instance("problem", problem, Problem, "a Problem").model
    if law.kind not in LAWS or not law.covered:
        got = "a law of no pilots" if law.kind in LAWS else f"kind {law.kind!r}"
        raise ArgumentError("problem", "one of a law that `replan fit` wrote", got)
    kind = LAWS[law.kind]
    names = check.items("lift", lift, "names")
    lifted = [check.one_of("lift", name, kind.BOUNDS) for name in names]
    notes = _beyond_horizon(law, problem.duration, lifted)
    problem, more = kind.without_bounds(problem, lifted)
    plan = solve(problem, Relax(starts=0), progress=progress)
    rivals = tuple(Candidate(*rival) for rival in kind.rivals(problem, plan, lifted))
    best = min(rivals, key=lambda x: x.loss)
    advice = Advice(problem, plan, rivals, best, (*notes, *more))
    for candidate in rivals:  # simplest first
        gain, half = advice.difference(best, candidate)
        if gain <= half and candidate.loss <= advice.best_pilot.loss:
            return replace(advice, chosen=candidate)
    return advice


def _beyond_horizon(law: Any, duration: float, lifted: Sequence[str]) -> list[str]:
    """Say where a training is unlike the pilots in length; refuse one that is far longer."""
    end, horizon = law.covered["starts_at"] + duration, law.covered["horizon"]
    if duration < _SHORT * horizon:
        return [
            f"THE TRAINING IS {100 * duration / horizon:.2g} % AS LONG AS THE PILOTS: is its "
            "duration in the same unit (steps or tokens)?"
        ]
    if end > FARTHEST * horizon and "horizon" not in lifted:
        raise ArgumentError(
            "duration",
            f"such that training ends at most {FARTHEST:g} times after the pilots, which end at "
            f"{horizon:g}; lift this bound by `horizon`",
            f"an end at {end:g}",
        )
    if end <= 1.01 * horizon:
        return []
    return [
        f"THE HORIZON IS {end / horizon:.1f} TIMES THE PILOTS': the law extrapolates, and its "
        "interval knows nothing about what only longer trainings show"
    ]
