"""levers(problem) → Levers: what each thing that can be controlled is worth."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from replan import check, files, report
from replan.check import Floats
from replan.control._solve import solve
from replan.control.ablation import Freedoms, Ladder
from replan.control.plan import Certificate, Plan
from replan.control.relax import TOLERANCE, Relax
from replan.curves import evaluate
from replan.errors import ArgumentError
from replan.models import Model
from replan.problem import Problem
from replan.progress import Meter, Progress, Watch
from replan.protocol import Protocol

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_RANDOM = 2  # random starts where no rate is free; else the solutions of poorer levers are enough


class Lever(NamedTuple):
    """What a lever reaches from one start.

    loss: the best objective, of a protocol that may mix tasks within a step. protocol: that
    protocol. status, certificate: those of the plan that was solved for; its value is the loss
    with one task per step where shares change over time.
    """

    loss: float
    protocol: Protocol
    status: str
    certificate: Certificate


@dataclass(frozen=True, eq=False, repr=False)
class Levers:
    """What each lever is worth, for one start or several.

    problems: one for each start. alone: for each, by name, what is reached with that lever and
    nothing else. rest: for each, by name, what is reached with everything else: without "share" all
    shares are equal, without "timing" constant, without "rate" the rate is the problem's, without
    "curve" constant for each task, without "rates" the same for all tasks. ranges: of the knobs, by
    name. notes: where these come from, and what was left out.

    Examples:
        >>> model = replan.TeacherStudent.similar(0.3)
        >>> problem = replan.Problem(model, model.fresh(seed=1), duration=5.0, steps=10)
        >>> found = replan.levers(problem, tolerance=0.01)
        >>> found.to_frame()[["lever", "loss", "addition"]].round(2)
             lever  loss  addition
        0  nothing  0.16       NaN
        1    share  0.13      0.12
        2     rate  0.04      0.73
        3   timing  0.13      0.12
        4    curve  0.04      0.05
        5    rates  0.04      0.00
        6      all  0.03       NaN
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
        """How far (starts,) each lever alone brings the loss below that of nothing, in parts."""
        losses = self.losses
        return {name: _part(losses["nothing"], loss) for name, loss in losses.items()}

    @property
    def additions(self) -> dict[str, Floats]:
        """How far (starts,) each lever brings the loss below that of all others, in parts."""
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

    def __str__(self) -> str:
        return report.levers_text(self)

    def _repr_html_(self) -> str:
        return report.levers_html(self)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON types; see docs/levers.md."""
        return {
            "levers": {name: float(x.mean()) for name, x in self.losses.items()},
            "without": {name: float(x.mean()) for name, x in self.without.items()},
            "gains": {name: _quartiles(x) for name, x in self.gains.items()},
            "additions": {name: _quartiles(x) for name, x in self.additions.items()},
            "certificates": {
                name: _weakest([one[name] for one in self.alone]) for name in self.names
            },
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

    def save(self, path: files.FilePath) -> None:
        """Write everything as a .json file, which `load` reads, or `to_frame` as a .csv file."""
        if files.suffix(path, [".json", ".csv"]) == ".json":
            return files.write_json(path, self.to_dict())
        return files.write_frame(path, self.to_frame())

    @classmethod
    def load(cls, path: files.FilePath, *, model: Model | None = None) -> Levers:
        """Read a saved result; `model`: the one it was made with, where no file describes it."""
        content = files.read_json(path)
        try:
            starts = content["starts"]
            return cls(
                tuple(Problem.from_dict(one["problem"], model=model) for one in starts),
                tuple(_levers_from(one["levers"]) for one in starts),
                tuple(_levers_from(one["without"]) for one in starts),
                {name: (low, high) for name, (low, high) in content["ranges"].items()},
                tuple(content["notes"]),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"{path}: expects levers that were saved, got others: {check.show(error)}"
            ) from None

    def plot(
        self, path: files.FilePath | None = None, *, axes: Sequence[Axes] | None = None
    ) -> Figure | None:
        """Draw the loss of every lever, and what it saves alone and on top of all others.

        Medians over the starts, with quartiles. Return the figure, and write it if a `path` (.png,
        .pdf, .svg) is given. With two `axes`, for losses and savings, draw there and return None.
        """
        from replan import plot

        return plot.levers(self, path, axes)


def levers(
    problem: Problem | Sequence[Problem],
    *,
    tolerance: float = TOLERANCE,
    progress: Watch = False,
) -> Levers:
    """Return what each thing that can be controlled is worth, alone and on top of all others.

    **Main arguments**

    - `problem`: one, or several that differ in their start. What its `control` says does not
      matter but for the ranges of knobs; without one, the learning rate goes up to five times the
      problem's, and other knobs through all that makes sense. Its limits hold for every lever.

    **Other arguments**

    - `tolerance`: of the solver, `Relax`.
    - `progress`: True shows a bar; a function is called with a `Progress` now and then.

    Each lever is a problem of its own, solved with its certificate. A richer lever begins from the
    solutions of the richest poorer ones, so that it is not worse than any. Shares may be mixtures,
    in which levers contain one another.

    Examples:
        >>> model = replan.TeacherStudent.similar(0.3)
        >>> problem = replan.Problem(model, model.fresh(seed=1), duration=5.0, steps=10)
        >>> found = replan.levers(problem, tolerance=0.01)
        >>> found.names
        ['nothing', 'share', 'rate', 'timing', 'curve', 'rates', 'all']
    """
    solver = Relax(starts=_RANDOM, tolerance=tolerance)
    given: Any = [problem] if isinstance(problem, Problem) else problem
    problems: list[Problem] = check.items("problem", given, "problems")
    if not problems:
        raise ArgumentError("problem", "at least one", "none")
    for one in problems:
        check.instance("problem", one, Problem, "a Problem, or several")
    ladders = [Ladder(one) for one in problems]
    first = ladders[0]
    settings = [_settings(one) for one in problems]
    for other, given in zip(ladders, settings, strict=True):
        if (other.levers, other.ranges, given) != (first.levers, first.ranges, settings[0]):
            raise ValueError("`problem` expects problems that differ in their start alone")
    sets = {*first.levers.values(), *first.without.values()}
    with Meter(progress, "levers", len(sets) * len(ladders)) as meter:
        found = [_climbed(ladder, solver, meter) for ladder in ladders]
    return Levers(
        tuple(problems),
        tuple({name: one[free] for name, free in first.levers.items()} for one in found),
        tuple({name: one[free] for name, free in first.without.items()} for one in found),
        first.ranges,
        tuple(first.notes),
    )


def _settings(problem: Problem) -> dict[str, Any]:
    content = problem.to_dict()
    return {
        key: value for key, value in content.items() if key not in ("model", "start", "control")
    }


def _climbed(ladder: Ladder, solver: Relax, meter: Meter) -> dict[Freedoms, Lever]:
    """Return what is reached with each set of freedoms, the poorer ones first."""
    found = {Freedoms(): _untouched(ladder)}
    rounded: dict[Freedoms, Protocol] = {}
    meter.advance(note="nothing")
    names = {free: f"without {name}" for name, free in ladder.without.items()}
    names |= {free: name for name, free in ladder.levers.items()}
    for free in sorted(names, key=len):
        if free in found:
            continue
        poorer = [other for other in found if other < free]
        richest = [other for other in poorer if not any(other < more for more in poorer)]
        starts = [found[other].protocol for other in richest]
        if free == {"rate"}:  # one number: the best on its whole range, not the next one
            starts += ladder.scan()
        if {"timing", "curve"} <= free and "rates" not in free:
            # with one task per step, rates for each task are one curve
            starts += [plan for other, plan in rounded.items() if other - {"rates"} < free]
        chosen = Relax(0, tolerance=solver.tolerance) if "rate" in free else solver
        watch = _watched(meter, names[free])
        plan = solve(ladder.problem(free), chosen, start=starts, progress=watch)
        if plan.status == "stopped":  # a part of the levers would say nothing
            raise KeyboardInterrupt
        found[free] = _reached(plan)
        if "timing" in free and "rates" in free:
            rounded[free] = plan.protocol
        meter.advance(note=names[free])
    return found


def _watched(meter: Meter, name: str) -> Callable[[Progress], None]:
    return lambda progress: meter.advance(0, note=f"{name}: {progress.note}")


def _untouched(ladder: Ladder) -> Lever:
    """Return where training ends with nothing controlled."""
    run = evaluate(ladder.base, ladder.protocol)
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
    return Lever(run.loss, ladder.protocol, "converged", certificate)


def _reached(plan: Plan) -> Lever:
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


def _levers_from(content: dict[str, dict[str, Any]]) -> dict[str, Lever]:
    fields = Certificate.__dataclass_fields__
    return {
        name: Lever(
            one["loss"],
            Protocol.from_dict(one["protocol"]),
            one["status"],
            Certificate(**{field: one[field] for field in fields}),
        )
        for name, one in content.items()
    }


def _weakest(found: list[Lever]) -> dict[str, Any]:
    """Return the certificate of a lever; over several starts the largest of each number."""
    certificates = [asdict(lever.certificate) for lever in found]
    known = {key: [one[key] for one in certificates] for key in certificates[0]}
    return {
        key: max((x for x in values if x is not None), default=None)  # "local" after "global"
        for key, values in known.items()
    } | {"status": next((x.status for x in found if x.status != "converged"), "converged")}


def _quartiles(values: Floats) -> dict[str, float]:
    low, middle, high = np.quantile(values, [0.25, 0.5, 0.75]).tolist()
    return {"median": middle, "low": low, "high": high}


def _part(before: Floats, after: Floats) -> Floats:
    """Return by how much losses fall, as parts of what they were."""
    return np.asarray((before - after) / np.maximum(np.abs(before), 1e-300))
