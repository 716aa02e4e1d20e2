"""levers(problem) → Levers: what each thing that can be controlled is worth."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from replan import check, files
from replan.check import Floats
from replan.control._solve import solve
from replan.control.ablation import Ablation, Freedoms
from replan.control.plan import Certificate, Plan
from replan.control.relax import TOLERANCE, Relax
from replan.errors import ArgumentError
from replan.problem import Problem
from replan.progress import Meter, Progress, Watch
from replan.protocol import Protocol
from replan.trajectory import evaluate

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_RANDOM_STARTS = 2  # where no rate is free; else the solutions of poorer levers are enough
_ALONE, _LAST = "#0072B2", "#E69F00"  # colours of what a lever buys alone, and on top of all others
_WORDS = {
    "nothing": "equal shares",
    "share": "constant shares",
    "rate": "one constant {rate}",
    "timing": "shares over time",
    "curve": "one {rate} curve",
    "rates": "constant shares, {rate} curves",
    "all": "all of these over time",
}


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
class Levers:
    """What each lever is worth, for one start or several.

    problems: one for each start. alone: for each, by name, what that lever reaches with nothing
    else controlled. rest: for each, by name, what everything else reaches: without "share" all
    shares are equal, without "timing" constant, without "rate" the rate is the problem's, without
    "curve" constant for each task, without "rates" the same for all tasks. ranges: of the knobs, by
    name. notes: where these come from, and what was left out.

    Examples:
        >>> model = replan.TeacherStudent.similar(0.3)
        >>> problem = replan.Problem(model, model.fresh(seed=1), duration=5.0, steps=10)
        >>> levers = replan.levers(problem, tolerance=0.01)
        >>> levers.to_frame()[["lever", "loss", "addition"]].round(2)
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

    def __str__(self) -> str:
        several, losses, width = len(self.problems) > 1, self.losses, max(map(len, self.names))
        head = f"{'lever':<{width}} {'loss':>9}  {'alone':>{self._wide}}  {'on top':>{self._wide}}"
        lines = [f"medians of {len(self.problems)} starts, quartiles in brackets"] * several
        lines.append(f"{head}  what is controlled")
        for name in self.names:
            lines.append(
                f"{name:<{width}} {np.median(losses[name]):>9.4g}  {self._gain_text(name)}  "
                f"{self._addition_text(name)}  {self._what(name)}"
            )
        return "\n".join([*lines, *self._sentences()])

    @property
    def _wide(self) -> int:
        return 16 if len(self.problems) > 1 else 7

    def _gain_text(self, name: str) -> str:
        return f"{'' if name == 'nothing' else _percent(self.gains[name]):>{self._wide}}"

    def _addition_text(self, name: str) -> str:
        found = self.additions.get(name)
        return f"{'' if found is None else _percent(found):>{self._wide}}"

    def _what(self, name: str) -> str:
        knobs = self.problems[0].model.knobs
        rate = next((knob.name for knob in knobs if knob.rate), "rate")
        return _WORDS.get(name, f"{name} over time").format(rate=rate)

    def _sentences(self) -> list[str]:
        """Return what stands below the table: what its numbers mean, and how far they hold."""
        lines = ["alone: how far below nothing; on top: how far all lie below all but this lever"]
        if "timing" in self.rest[0]:
            early = _part(self.losses["share"], self.losses["timing"])
            late = self.additions["timing"]
            lines.append(
                f"shares over time against constant ones: {_percent(early)}, "
                f"with all else {_percent(late)}"
            )
        found = self._found()
        left = max(_relative(x.certificate.pmp_residual, x.loss) for _, x in found)
        lines.append(f"left to gain, to first order: at most {left:.1e} of a loss")
        gaps = [_relative(x.certificate.integrality_gap or 0.0, x.loss) for _, x in found]
        if max(gaps) > 0:
            lines.append(f"one task per step instead of mixtures costs at most {max(gaps):.1e}")
        poor = {f"{name} ({x.status})" for name, x in found if x.status != "converged"}
        lines += [f"not converged: {', '.join(sorted(poor))}"] * bool(poor)
        return [*lines, *self.notes]

    def _found(self) -> list[tuple[str, Lever]]:
        """Return all that was solved for, by name."""
        alone = [item for one in self.alone for item in one.items()]
        return alone + [(f"without {name}", x) for one in self.rest for name, x in one.items()]

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
        """Write everything as a .json file, or `to_frame` as a .csv file."""
        if files.suffix(path, [".json", ".csv"]) == ".json":
            return files.write_json(path, self.to_dict())
        return files.write_frame(path, self.to_frame())

    def plot(
        self, path: files.FilePath | None = None, *, axes: Sequence[Axes] | None = None
    ) -> Figure | None:
        """Draw the loss of every lever, and what it buys alone and on top of all others.

        Medians over the starts, with quartiles. Return the figure, and write it if a `path` (.png,
        .pdf, .svg) is given. With two `axes`, for losses and gains, draw there and return nothing.
        """
        from replan._common import plotting

        if axes is not None:
            self._draw(*plotting.panels(path, axes, ("losses", "gains")).values())
            return None
        height = 1.1 + 0.42 * len(self.names)
        with plotting.figure(path, width=7.8, height=height) as figure:
            losses, gains = figure.subplots(1, 2, width_ratios=[2, 3])
            self._draw(losses, gains)
            plotting.legend_above(figure, gains.get_legend_handles_labels()[0])
        return figure

    def _draw(self, losses: Axes, gains: Axes) -> None:
        from replan._common import plotting

        rows = {name: len(self.names) - 1 - i for i, name in enumerate(self.names)}
        zero = plotting.log_scale(losses, np.concatenate(list(self.losses.values())))
        for name, values in self.losses.items():
            low, middle, high = np.maximum(np.quantile(values, [0.25, 0.5, 0.75]), zero)
            losses.hlines(rows[name], low, high, color=_ALONE, linewidth=3, alpha=0.4)
            losses.plot(middle, rows[name], "o", color=_ALONE, markersize=5, clip_on=False)
        losses.set_xlabel("loss with this lever alone")
        losses.set_yticks(list(rows.values()), [f"{name}\n({self._what(name)})" for name in rows])
        for shift, colour, label, found in (
            (0.19, _ALONE, "alone: below nothing", self.gains),
            (-0.19, _LAST, "on top: below all others", self.additions),
        ):
            shown = [name for name in rows if name in found and name != "nothing"]
            parts = np.array(
                [np.quantile(100 * found[name], [0.25, 0.5, 0.75]) for name in shown]
            ).reshape(-1, 3)
            places = np.array([rows[name] for name in shown]) + shift
            gains.barh(places, parts[:, 1], height=0.36, color=colour, label=label)
            if len(self.problems) > 1:
                gains.hlines(places, parts[:, 0], parts[:, 2], color="black", linewidth=1.0)
        gains.set_yticks(list(rows.values()), [""] * len(rows))
        gains.set(xlabel="loss saved, %", xlim=(0, None))
        for one in (losses, gains):
            one.set_ylim(-0.5, len(rows) - 0.5)
            one.tick_params(left=False)
            one.grid(axis="y", color="0.9", linewidth=0.8)
            one.set_axisbelow(True)

    def _repr_html_(self) -> str:
        from replan._common import html

        rows = [
            [
                name,
                float(np.median(self.losses[name])),
                self._gain_text(name).strip(),
                self._addition_text(name).strip(),
                self._what(name),
            ]
            for name in self.names
        ]
        header = ["lever", "loss", "alone", "on top", "what is controlled"]
        several = f"Medians of {len(self.problems)} starts" * (len(self.problems) > 1)
        sentences = "\n".join(self._sentences())
        return html.block(html.text(several), html.table(header, rows), html.text(sentences))


def levers(
    problem: Problem | Sequence[Problem],
    *,
    tolerance: float = TOLERANCE,
    progress: Watch = False,
) -> Levers:
    """Return what each thing that can be controlled is worth, alone and on top of all others.

    **Main arguments**

    - `problem`: one, or several that differ in their start. Of its `control`, only the ranges of
      knobs matter; without one, the learning rate goes up to five times the problem's, and other
      knobs through the model's range. Its limits hold for every lever.

    **Other arguments**

    - `tolerance`: of the solver, `Relax`.
    - `progress`: True shows a bar; a function is called with a `Progress` now and then.

    Each lever is a problem of its own, solved with its certificate. A richer lever starts from the
    solutions of the richest poorer ones, so that it is not worse than any. Shares may be mixtures,
    in which levers contain one another.

    Examples:
        >>> model = replan.TeacherStudent.similar(0.3)
        >>> problem = replan.Problem(model, model.fresh(seed=1), duration=5.0, steps=10)
        >>> replan.levers(problem, tolerance=0.01).names
        ['nothing', 'share', 'rate', 'timing', 'curve', 'rates', 'all']
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
    same = (first.levers, first.ranges, _settings(problems[0]))
    for other, each in zip(ablations, problems, strict=True):
        if (other.levers, other.ranges, _settings(each)) != same:
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


def _settings(problem: Problem) -> dict[str, Any]:
    return {
        key: section
        for key, section in problem.to_dict().items()
        if key not in ("model", "start", "control")
    }


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
        watch = _watch(meter, names[free])
        plan = solve(ablation.problem(free), chosen, initial=initial, progress=watch)
        if plan.status == "stopped":  # some of the levers would say nothing
            raise KeyboardInterrupt
        reached[free] = _lever(plan)
        if {"timing", "rates"} <= free:
            plans[free] = plan.protocol
        meter.advance(note=names[free])
    return reached


def _watch(meter: Meter, name: str) -> Callable[[Progress], None]:
    return lambda progress: meter.advance(0, note=f"{name}: {progress.note}")


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


def _weakest(levers: list[Lever]) -> dict[str, Any]:
    """Return the certificate of a lever; over several starts the largest of each number."""
    certificates = [asdict(lever.certificate) for lever in levers]
    columns = {key: [certificate[key] for certificate in certificates] for key in certificates[0]}
    return {
        key: max((x for x in values if x is not None), default=None)  # "local" after "global"
        for key, values in columns.items()
    } | {"status": next((x.status for x in levers if x.status != "converged"), "converged")}


def _quartiles(values: Floats) -> dict[str, float]:
    low, middle, high = np.quantile(values, [0.25, 0.5, 0.75]).tolist()
    return {"median": middle, "low": low, "high": high}


def _part(before: Floats, after: Floats) -> Floats:
    """Return by how much losses fall, as parts of what they were."""
    return np.asarray((before - after) / np.maximum(np.abs(before), 1e-300))


def _relative(amount: float, loss: float) -> float:
    return amount / max(abs(loss), 1e-300)


def _percent(parts: Floats) -> str:
    """Return the median of parts in percent, with quartiles where there are several."""
    low, middle, high = (100 * np.quantile(parts, level) for level in (0.25, 0.5, 0.75))
    return f"{middle:.1f} %" + (f" ({low:.0f}-{high:.0f})" if parts.size > 1 else "")
