"""levers(problem) → Levers: what each control is worth, an ablation."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from replan import check
from replan.check import Floats
from replan.control._solve import solve
from replan.control.discretised import check_differentiable
from replan.control.plan import Certificate, Plan
from replan.control.relax import Relax
from replan.control.search import TOLERANCE
from replan.core.projection import Domain, project
from replan.curves import evaluate
from replan.errors import ArgumentError, IntegrationError
from replan.problem import Control, Limits, Problem, Range
from replan.progress import Meter, Watch
from replan.protocol import Protocol
from replan.results import Result
from replan.strategies import constant_lr, grid_search, interleaved

if TYPE_CHECKING:
    import pandas as pd

Freedoms = frozenset[str]

_SCAN = 33  # constant rates, evenly over their range, of which the best is refined
_SLOW_SCAN = 13  # and on a logarithmic scale, from a 64th of the largest
_LEVERS = ("nothing", "share", "timing", "rate", "curve", "rates", "all")  # that are no knobs
_RANDOM_STARTS = 2  # where no rate is free; else the solutions of poorer levers are enough


class Lever(NamedTuple):
    """What a lever reaches from one start.

    loss, protocol: the best objective, and its protocol, which may mix tasks within a step. status,
    certificate: of the plan, whose value is the loss with one task per step where shares change.
    """

    loss: float
    protocol: Protocol
    status: str
    certificate: Certificate


@dataclass(frozen=True, eq=False, repr=False)
class Levers(Result):
    """The result of `levers`.

    problems: one for each start. notes: which ranges are defaults, and what was left out.
    """

    problems: tuple[Problem, ...]
    alone: tuple[dict[str, Lever], ...]
    rest: tuple[dict[str, Lever], ...]
    ranges: dict[str, tuple[float, float]]
    notes: tuple[str, ...]

    @property
    def names(self) -> list[str]:
        """The levers, from "nothing" to "all"."""
        return list(self.alone[0])

    @property
    def losses(self) -> dict[str, Floats]:
        """The losses (starts,) of every lever alone, by name."""
        return {name: np.array([one[name].loss for one in self.alone]) for name in self.names}

    @property
    def without(self) -> dict[str, Floats]:
        """The losses (starts,) of everything without a lever, by name."""
        return {name: np.array([one[name].loss for one in self.rest]) for name in self.rest[0]}

    @property
    def gains(self) -> dict[str, Floats]:
        """The fraction (starts,) of the baseline's loss that each lever saves alone."""
        losses = self.losses
        return {name: _part(losses["nothing"], loss) for name, loss in losses.items()}

    @property
    def additions(self) -> dict[str, Floats]:
        """The fraction (starts,) of the loss of all others that each lever saves on top of them."""
        best = self.losses["all"]
        return {name: _part(rest, best) for name, rest in self.without.items()}

    def to_frame(self) -> pd.DataFrame:
        """Return a row per start and lever: start (from 1), lever, loss, gain, without, addition.

        Then the status and the certificate of the lever alone.
        """
        import pandas as pd

        gains, without, additions = self.gains, self.without, self.additions
        return pd.DataFrame(
            [
                {
                    "start": i + 1,
                    "lever": name,
                    "loss": lever.loss,
                    "gain": gains[name][i],
                    "without": without[name][i] if name in without else np.nan,
                    "addition": additions[name][i] if name in additions else np.nan,
                    "status": lever.status,
                    **asdict(lever.certificate),
                }
                for i, one in enumerate(self.alone)
                for name, lever in one.items()
            ]
        )

    def __repr__(self) -> str:
        losses = ", ".join(f"{name}={x.mean():.4g}" for name, x in self.losses.items())
        return f"Levers({losses})"

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON types; see docs/planning.md."""
        return {
            "levers": {name: float(x.mean()) for name, x in self.losses.items()},
            "without": {name: float(x.mean()) for name, x in self.without.items()},
            "gains": {name: _quartiles(x) for name, x in self.gains.items()},
            "additions": {name: _quartiles(x) for name, x in self.additions.items()},
            "ranges": {name: list(ends) for name, ends in self.ranges.items()},
            "notes": list(self.notes),
            "starts": [
                {
                    "problem": problem.to_dict(),
                    "levers": {name: _to_dict(lever) for name, lever in alone.items()},
                    "without": {name: _to_dict(lever) for name, lever in rest.items()},
                }
                for problem, alone, rest in zip(self.problems, self.alone, self.rest, strict=True)
            ],
        }


def levers(
    problem: Problem | Sequence[Problem], *, tolerance: float = TOLERANCE, progress: Watch = False
) -> Levers:
    """Measure what each control is worth, alone and on top of all others.

    **Main arguments**

    - `problem`: one, or several that differ in their start. Of its `control`, only the ranges of
      knobs matter; without one, the learning rate goes up to five times the problem's, and other
      knobs through the model's range. Its limits hold for every lever.

    **Other arguments**

    - `tolerance`: of the solver, `Relax`.
    - `progress`: True shows a bar; a function is called with a `Progress` now and then.

    Each lever is solved as a separate problem, with a certificate. A lever starts from the
    solutions of the levers that it contains, so that it is not worse than any of them. Shares may
    be mixtures, for which levers are nested.

    The result prints as a table. `names`: the levers, from "nothing" to "all". `losses`, `gains`:
    by name, (starts,) the loss with that lever alone, and the fraction of the baseline's loss that
    it saves. `without`, `additions`: the loss of everything but that lever, and the fraction that
    it saves on top. `alone`, `rest`: for each start, by name, the `loss`, `protocol`, `status` and
    `certificate` behind them. `ranges`: of the knobs. `to_frame()` returns a row per start and
    lever, `plot(path)` draws the losses and savings, `save(path)` writes .json or .csv.

    Examples:
        >>> model = replan.TeacherStudent.similar(0.3)
        >>> problem = replan.Problem(model, model.fresh(seed=1), duration=5.0, steps=10)
        >>> worth = replan.levers(problem, tolerance=0.01)
        >>> worth.names
        ['nothing', 'share', 'rate', 'timing', 'curve', 'rates', 'all']
        >>> worth.losses["all"].round(2)
        array([0.03])
    """
    solver = Relax(starts=_RANDOM_STARTS, tolerance=tolerance)
    listed: Any = [problem] if isinstance(problem, Problem) else problem
    problems: list[Problem] = check.items("problem", listed, "problems")
    if not problems:
        raise ArgumentError("problem", "at least one", "none")
    for each in problems:
        check.instance("problem", each, Problem, "a Problem, or several")
    ablations = [Ablation(each) for each in problems]
    first = ablations[0]
    ignored = {"model": None, "start": None, "control": None}
    sections = [each.to_dict() | ignored for each in problems]
    for other, section in zip(ablations, sections, strict=True):
        if (other.levers, other.ranges, section) != (first.levers, first.ranges, sections[0]):
            raise ArgumentError("problem", "problems that differ only in their start", "others")
    sets = {*first.levers.values(), *first.without.values()}
    with Meter(progress, "levers", len(sets) * len(problems)) as meter:
        results = [_solve_all(ablation, solver, meter) for ablation in ablations]
    return Levers(
        tuple(problems),
        tuple({name: reached[free] for name, free in first.levers.items()} for reached in results),
        tuple({name: reached[free] for name, free in first.without.items()} for reached in results),
        first.ranges,
        tuple(first.notes),
    )


def _solve_all(ablation: Ablation, solver: Relax, meter: Meter) -> dict[Freedoms, Lever]:
    """Return what is reached with each set of freedoms, the poorer ones first."""
    reached = {Freedoms(): _baseline(ablation)}
    meter.advance(note="nothing")
    plans: dict[Freedoms, Protocol] = {}  # with one task per step
    names = {free: f"without {name}" for name, free in ablation.without.items()}
    names |= {free: name for name, free in ablation.levers.items()}
    for free in sorted(names, key=len):
        if free in reached:
            continue
        poorer = [other for other in reached if other < free]
        richest = [other for other in poorer if not any(other < more for more in poorer)]
        initial = [reached[other].protocol for other in richest]
        if free == {"rate"}:  # one number: the best on its whole range, not the next one
            initial += ablation.scan()
        if {"timing", "curve"} <= free and "rates" not in free:
            # With one task per step, rates for each task are one curve.
            initial += [plan for other, plan in plans.items() if other - {"rates"} < free]
        chosen = Relax(starts=0, tolerance=solver.tolerance) if "rate" in free else solver
        watch = meter.notes(names[free])
        plan = solve(ablation.problem(free), chosen, initial=initial, progress=watch)
        if plan.status == "stopped":  # some of the levers would say nothing
            raise KeyboardInterrupt
        reached[free] = _lever(plan)
        if {"timing", "rates"} <= free:
            plans[free] = plan.protocol
        meter.advance(note=names[free])
    return reached


def _baseline(ablation: Ablation) -> Lever:
    """Return where training ends with nothing controlled."""
    run = evaluate(ablation.base, ablation.protocol)
    certificate = Certificate(
        value=run.loss,
        relaxed_value=run.loss,
        integrality_gap=0.0,
        pmp_residual=0.0,
        discretisation_error=float(run.error),
        switches=0,
        multistart_spread=0.0,
        scope="global",
    )
    return Lever(run.loss, ablation.protocol, "converged", certificate)


def _lever(plan: Plan) -> Lever:
    relaxed = plan.certificate.relaxed_value
    if relaxed is None:
        return Lever(plan.loss, plan.protocol, plan.status, plan.certificate)
    return Lever(relaxed, plan.relaxed, plan.status, plan.certificate)


def _to_dict(lever: Lever) -> dict[str, Any]:
    return {
        "loss": lever.loss,
        "status": lever.status,
        **asdict(lever.certificate),
        "protocol": lever.protocol.to_dict(),
    }


def _quartiles(values: Floats) -> dict[str, float]:
    low, middle, high = np.quantile(values, [0.25, 0.5, 0.75]).tolist()
    return {"median": middle, "low": low, "high": high}


def _part(before: Floats, after: Floats) -> Floats:
    """Return the relative decrease of losses."""
    return np.asarray((before - after) / np.maximum(np.abs(before), 1e-300))


class Ablation:
    """What can be controlled in a problem, as sets of freedoms that contain one another.

    Freedoms are words: "share" (the shares of the tasks, constant over time) and with it "timing"
    (shares that change), "rate" (one constant learning rate) and with it "curve" (that changes) and
    "rates" (with a value for each task), and any other knob by its name, free over time.

    levers: by name, the freedoms of each lever. without: by name, all freedoms but that one and
    those that need it. ranges: of the knobs. notes: where these come from, and what was left out.
    base: the problem with nothing controlled; protocol: its protocol.
    """

    def __init__(self, problem: Problem) -> None:
        check_differentiable(problem)
        if problem.step_limits.on_stays:
            raise ArgumentError(
                "problem",
                "one with limits that mixtures of tasks can keep, on shares and means",
                f"limits on stays or switches: {check.show(problem.limits)}",
            )
        if not problem.availability.always:
            raise ArgumentError(
                "problem",
                "one whose tasks are available throughout, as constant shares need",
                "one with `arrivals` or `departures`",
            )
        self._problem, self._knobs = problem, problem.model.layout.knobs
        self._rate = problem.model.layout.rate
        self.notes: list[str] = []
        self.ranges = self._ranges()
        values = self._values()
        self.base = problem.changed(**values, control=Control(tasks=False), limits=Limits())
        self.protocol = interleaved(self.base, shares=self._shares())
        # The mean of a knob with a value for each task depends on the shares.
        self._shared = {
            name
            for name in self.ranges
            if name in problem.limits.mean and self._knobs[name].per_task
        }
        self._other_knobs = {
            f"{name} (knob)" if name in _LEVERS else name: name
            for name in self.ranges
            if name != self._rate
        }
        self.levers, self.without = self._sets()

    def _sets(self) -> tuple[dict[str, Freedoms], dict[str, Freedoms]]:
        """Return the freedoms of every lever, and all freedoms without each."""
        rate, several = self._rate, self._problem.model.tasks > 1
        shares = ["share", "timing"] if several else []
        rates = ["rate", "curve"] if rate in self.ranges else []
        if rate and rates and several and rate not in self._shared and self._knobs[rate].per_task:
            rates.append("rates")
        words = [*shares, *rates, *self._other_knobs]
        levers = {
            "nothing": [],
            "share": ["share"],
            "rate": ["rate"],
            "timing": ["share", "timing"],
            "curve": ["rate", "curve"],
            "rates": ["share", "rate", "curve", *rates[2:]],
        } | {name: [name] for name in self._other_knobs}
        levers = {name: free for name, free in levers.items() if set(free) <= set(words)}
        levers["all"] = words
        needed_by = {"share": shares, "rate": rates}
        without = {name: set(words).difference(needed_by.get(name, [name])) for name in words}
        return (
            {name: frozenset(free) for name, free in levers.items()},
            {name: frozenset(free) for name, free in without.items()},
        )

    def _ranges(self) -> dict[str, tuple[float, float]]:
        """Return the ranges of all knobs that have one: the problem's, or one by default."""
        ranges = {}
        for name in self._knobs:
            low, high = self._problem.free_range(name)
            if not np.isfinite(high - low):
                self.notes.append(f"{name} is left out: it has no finite range")
            elif low == high:
                self.notes.append(f"{name} is left out: its range is {low:g} alone")
            else:
                ranges[name] = (low, high)
                if name not in self._problem.control.knobs:
                    self.notes.append(f"{name} from {low:g} to {high:g}, by default")
        return ranges

    def _values(self) -> dict[str, float]:
        """Return the problem's knobs by name, moved to where their means may be."""
        values = self._problem.settings
        for name, bounds in self._problem.limits.mean.items():
            value = values[name]
            values[name] = float(np.clip(value, *bounds))
            if values[name] != value:
                self.notes.append(f"{name} is {values[name]:g} where fixed: its mean is limited")
        return values

    def _shares(self) -> Floats:
        """Return equal shares (T,), or the nearest that the limits allow."""
        limits, tasks = self._problem.step_limits, self._problem.model.tasks
        low, high = limits.low / limits.steps, limits.high / limits.steps
        none = np.zeros(0)
        domain = Domain(1, np.ones((0, tasks), bool), low, high, np.zeros((0, 0)), none, none)
        equal = np.full(tasks, 1 / tasks)
        shares = np.asarray(project(equal, domain))
        if np.allclose(shares, equal, rtol=0, atol=1e-12):
            return equal
        words = ", ".join(f"{share:.3g}" for share in shares)
        self.notes.append(f"equal shares stand for {words}: nearest to equal within the limits")
        return shares

    def problem(self, freedoms: Freedoms) -> Problem:
        """Return the problem in which these freedoms, and nothing else, are controlled."""
        names = [knob for word, knob in self._other_knobs.items() if word in freedoms]
        constant, shared = set(), set(self._shared)
        if self._rate is not None and "rate" in freedoms:
            names.append(self._rate)
            if "curve" not in freedoms:
                constant.add(self._rate)
            if "rates" not in freedoms and self._knobs[self._rate].per_task:
                shared.add(self._rate)
        knobs = {n: Range(*self.ranges[n], n in constant, n in shared) for n in names}
        tasks: Any = "timing" in freedoms or ("constant" if "share" in freedoms else False)
        limits = self._problem.limits
        return self.base.changed(
            control=Control(tasks, **knobs),
            limits=Limits(
                min_share=limits.min_share if tasks else None,
                max_share=limits.max_share if tasks else None,
                mean={name: mean for name, mean in limits.mean.items() if name in names},
            ),
        )

    def scan(self) -> list[Protocol]:
        """Return the best constant rate of a grid over its whole range, to start from."""
        assert self._rate is not None
        low, high = self.ranges[self._rate]
        even, slow = np.linspace(low, high, _SCAN), max(low, high / 64)
        grid = [*even, *np.geomspace(slow, high, _SLOW_SCAN), self.base.knobs[self._rate]]
        with suppress(IntegrationError):  # the problem's own rate is a start, too
            problem = self.problem(frozenset(["rate"]))
            return [grid_search(problem, constant_lr, lr=grid, protocol=self.protocol)]
        return []
