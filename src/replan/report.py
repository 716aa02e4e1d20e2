"""How results are printed and shown in notebooks.

A function for each kind of result returns its lines and tables, which `text` and `html` write.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from replan.check import Floats
from replan.models.knobs import knob_label

if TYPE_CHECKING:
    from replan.comparison import Comparison
    from replan.control import Levers, Plan
    from replan.curves import Curves, Trajectory, Transfer
    from replan.pilots import Fit, ShareFit
    from replan.pilots.advice import Advice
    from replan.pilots.next_pilot import NextPilot
    from replan.protocol import Protocol
    from replan.replay.tuned import Tuned
    from replan.simulation import Simulation
    from replan.studies import Study

# Okabe and Ito's colour-blind safe colours, in the paper's order: task 1 orange, task 2 green. The
# others lie as far from these and from one another as 20 colours can (in Oklab, none too bright).
TASK_COLOURS = (
    *("#E69F00", "#009E73", "#0072B2", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442"),
    *("#550044", "#00EE88", "#8833BB", "#887700", "#220099", "#BB0055", "#AACCAA"),
    *("#775555", "#7777FF", "#004400", "#FFBBFF", "#552200", "#003355"),
)
_FAILURES = 5  # of a study that are printed
_PHASES = 8  # of a protocol that are printed
_LISTED = 3  # equal shares of more tasks are not listed one by one
_WIDE = 4  # more losses have no separate columns in print
_CELL = 'style="text-align:left;white-space:nowrap;padding:2px 14px 2px 0"'


def task_colour(task: int) -> str:
    """Return the colour of a task (from 0)."""
    return TASK_COLOURS[task % len(TASK_COLOURS)]


# Writers


class Table(NamedTuple):
    """A table of text; a row with a single cell is a heading.

    left: an "l" for each column aligned to the left, in print. bars: protocols by the first cell of
    a row, drawn beside it in notebooks.
    """

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: str = ""
    bars: dict[str, Protocol] = {}  # noqa: RUF012

    def lines(self) -> list[str]:
        """Return the lines of the table; columns are as wide as their widest cell."""
        rows = [self.header, *self.rows]
        columns = zip(*(row for row in rows if len(row) > 1), strict=True)
        widths = [max(map(len, column)) for column in columns]
        aligns = ["<" if mark == "l" else ">" for mark in self.left.ljust(len(widths))]
        return [
            "  ".join(
                f"{cell:{align}{width}}"
                for cell, align, width in zip(row, aligns, widths, strict=False)
            ).rstrip()
            for row in rows
        ]

    def html(self) -> str:
        """Return the table in HTML."""
        header = [*self.header, *["shares over time"] * bool(self.bars)]
        head = "".join(f'<th scope="col" {_CELL}>{escape(name)}</th>' for name in header)
        body = "".join(f"<tr>{''.join(self._cells(row))}</tr>" for row in self.rows)
        return (
            '<table style="font:inherit;color:inherit;border-collapse:collapse;margin:6px 0">'
            f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        )

    def _cells(self, row: Sequence[str]) -> Iterable[str]:
        span = f' colspan="{len(self.header)}"' if len(row) == 1 else ""
        for cell in row:
            yield f"<td{span} {_CELL}>{escape(cell)}</td>"
        if row[0].strip() in self.bars:
            bar = colour_bar(self.bars[row[0].strip()], 12)
            yield f'<td style="min-width:200px">{bar}</td>'


Parts = list[str | Table]


def text(parts: Parts) -> str:
    """Format parts as text, one below the other."""
    lines = [[part] if isinstance(part, str) else part.lines() for part in parts]
    return "\n".join(chain(*lines))


def html(parts: Parts, protocol: Protocol | None = None) -> str:
    """Format parts as HTML, with the colour bar of a protocol below the first."""
    shown = [
        f'<div style="white-space:pre-wrap">{escape(part)}</div>'
        if isinstance(part, str)
        else part.html()
        for part in parts
    ]
    if protocol is not None:
        shown.insert(1, _labelled_bar(protocol))
    return f'<div style="line-height:1.5;overflow-x:auto">{"".join(shown)}</div>'


def colour_bar(protocol: Protocol, height: int = 22) -> str:
    """Return the colour bar of a protocol: shares stacked from the bottom, one path per task."""
    changed = np.any(np.diff(protocol.shares, axis=0) != 0, axis=1)
    first = np.concatenate([[0], np.flatnonzero(changed) + 1])
    shares = protocol.shares[first]
    x = 1000 * np.append(protocol.edges[first] / protocol.duration, 1.0)
    tops = 100 * (1 - np.cumsum(shares, axis=1))
    paths = []
    for t in range(protocol.tasks):
        boxes = "".join(
            f"M{left:.6g} {top:.4g}H{right:.6g}v{100 * share:.4g}H{left:.6g}z"
            for left, right, top, share in zip(x, x[1:], tops[:, t], shares[:, t], strict=False)
            if share > 1e-6  # else a rounding error, or too thin to be seen
        )
        paths.append(f'<path fill="{task_colour(t)}" d="{boxes}"/>')
    title = f"Shares of the tasks over time; of all training, {', '.join(_shares(protocol))}"
    return (
        f'<svg role="img" aria-label="{title}" viewBox="0 0 1000 100" preserveAspectRatio="none" '
        f'width="100%" height="{height}" shape-rendering="crispEdges" style="display:block">'
        f"<title>{title}</title>{''.join(paths)}</svg>"
    )


def _labelled_bar(protocol: Protocol) -> str:
    """Return the colour bar over its time axis, and the share of every task beside its colour."""
    legend = "".join(
        f'<span style="margin-right:16px;white-space:nowrap"><svg width="10" height="10" '
        f'aria-hidden="true"><rect width="10" height="10" fill="{task_colour(t)}"/></svg> '
        f"{share}</span>"
        for t, share in enumerate(_shares(protocol))
    )
    return (
        f'<div style="max-width:640px;margin:6px 0">{colour_bar(protocol)}'
        '<div style="display:flex;justify-content:space-between;font-size:85%">'
        f"<span>0</span><span>training time α</span><span>{protocol.duration:g}</span></div>"
        f"<div>{legend}</div></div>"
    )


def _shares(protocol: Protocol) -> list[str]:
    return [f"task {t + 1} {share:.1%}" for t, share in enumerate(protocol.mean_shares)]


# Protocols and learning curves


def knob_text(protocol: Protocol, knob: str) -> str:
    """Summarise the values of a knob: one number, first and last, or a range."""
    values = protocol.knobs[knob]
    if f"{values.min():.3g}" == f"{values.max():.3g}":
        return f"{values.flat[0]:.3g}"
    slope = np.diff(values.ravel())
    if values.ndim == 1 and (np.all(slope <= 0) or np.all(slope >= 0)):
        return f"{values[0]:.3g} to {values[-1]:.3g}"
    return f"{values.min():.3g} … {values.max():.3g}"


def knob_texts(protocol: Protocol) -> list[str]:
    """Summarise all knobs, each with its name."""
    return [f"{knob_label(name)} {knob_text(protocol, name)}" for name in protocol.knobs]


def protocol(protocol: Protocol, names: Sequence[str] = ()) -> Parts:
    """Return the shares, the knobs and the first phases."""
    names = names or [f"task {t + 1}" for t in range(protocol.tasks)]
    shares = [f"{name} {x:.1%}" for name, x in zip(names, protocol.mean_shares, strict=True)]
    title = f"Protocol: {protocol.duration:g} units in {protocol.steps} steps"
    changes = np.any(np.abs(np.diff(protocol.shares, axis=0)) > 1e-12, axis=1)
    bounds = [0, *(1 + np.flatnonzero(changes)).tolist(), protocol.steps]
    lines: Parts = [", ".join([title, *shares, *knob_texts(protocol)])]
    for first, last in pairwise(bounds[: _PHASES + 1]):
        mixture = _mixture_text(protocol.shares[first], names)
        lines.append(f"  {protocol.edges[first]:8.4g} to {protocol.edges[last]:<8.4g} {mixture}")
    if len(bounds) - 1 > _PHASES:
        lines.append(f"  … {len(bounds) - 1 - _PHASES} more")
    return lines


def _mixture_text(shares: Floats, names: Sequence[str]) -> str:
    """Describe a row of shares (T,)."""
    mixed = np.flatnonzero(shares > 0).tolist()
    if len(mixed) > _LISTED and np.ptp(shares[mixed]) < 1e-9 and np.all(np.diff(mixed) == 1):
        return f"{shares[mixed[0]]:.3g} each of {names[mixed[0]]} to {names[mixed[-1]]}"
    return " + ".join(f"{shares[t]:.3g} {names[t]}" for t in mixed).removeprefix("1 ")


def trajectory(run: Trajectory) -> Parts:
    """Return the loss, the final losses and the protocol."""
    if run.status != "ok":
        return [f"Trajectory: {run.status}; {run.advice}"]
    first = f"{objective_name(run)} {run.loss:.6g} ± {run.error:.1g} ({_losses_text(run)})"
    phases = protocol(run.protocol, run.problem.model.task_names)
    return [first, *_members_text(run), *_transfer_text(run.transfer), *phases]


def objective_name(run: Trajectory) -> str:
    """Return "loss", with the goal if it is not the final losses, and an ensemble's risk."""
    objective, words = run.problem.objective, []
    words += [objective.words] * (objective.goal != "final")
    words += [run.problem.risk.words] * bool(run.members)
    return f"loss ({', '.join(words)})" if words else "loss"


def _losses_text(run: Trajectory) -> str:
    """Return the final losses by name."""
    losses = zip(run.problem.model.loss_names, run.final_losses, strict=True)
    first = "mean over members: " * bool(run.members)
    first += "at the end: " * run.problem.objective.throughout
    return first + ", ".join(f"{name} {x:.6g}" for name, x in losses)


def _members_text(run: Trajectory) -> list[str]:
    """Return a line with the spread of the objectives of an ensemble's members; else none."""
    if not run.members:
        return []
    values, names = run.member_losses, run.problem.names
    best, worst = int(np.argmin(values)), int(np.argmax(values))
    median = run.problem.risk.quantile(values, 0.5)
    return [
        f"members from {values[best]:.4g} ({names[best]}) to {values[worst]:.4g} "
        f"({names[worst]}), median {median:.4g}"
    ]


def transfer_means(transfer: Transfer | None) -> dict[str, float]:
    """Return the means of forgetting and transfer over tasks, and over runs, by name."""
    return {name: float(np.mean(x)) for name, x in transfer.means.items()} if transfer else {}


def _transfer_text(transfer: Transfer | None) -> list[str]:
    """Return a line with the means of forgetting and transfer, where there are any."""
    names = {"backward": "backward transfer", "forward": "forward transfer"}
    means = transfer_means(transfer).items()
    words = [f"{names.get(name, name)} {x:.4g}" for name, x in means if not np.isnan(x)]
    return [f"means over tasks: {', '.join(words)}"] if transfer else []


def plan(plan: Plan) -> Parts:
    """Return the loss, the phases and the certificate in words."""
    run, c, s = plan.trajectory, plan.certificate, plan.statistics
    switches = f"{c.switches} switch{'' if c.switches == 1 else 'es'}"
    return [
        f"{objective_name(run)} {c.value:.6g} ({_losses_text(run)})",
        *_members_text(run),
        *_parts_text(run),
        *_transfer_text(run.transfer),
        f"phases: {'; '.join(plan.phases)}",
        *plan.targets,
        ", ".join([*knob_texts(plan.protocol), switches]),
        *_certificate_text(plan),
        f"{s['method']}: {s['gradients']} gradients, {s['roll_outs']} roll-outs, "
        f"{s['seconds']:.2f} s",
        *[plan.advice] * bool(plan.advice),
    ]


def _certificate_text(plan: Plan) -> list[str]:
    """Say in two lines how good a plan is; `plan.certificate` has the numbers."""
    c = plan.certificate
    first = "local optimum" if plan.status == "converged" else f"best found ({plan.status})"
    left = f"at most {_of_loss(c.pmp_residual, c.value)} is left to gain by small changes"
    found = f"; the best value was found from {c.found} of {c.starts} starts" * (c.starts > 1)
    head = f"{first}: {left}{found}"
    if c.scope == "global":
        head = "global optimum: all protocols with one task per step were compared"
    error = plan.trajectory.error / max(abs(c.value), 1e-300)
    gap = ""
    if c.integrality_gap is not None:
        within = " within the limits" * plan.problem.step_limits.on_stays
        gap = f"; one task per step{within} costs {_of_loss(max(c.integrality_gap, 0.0), c.value)}"
    return [head, f"the curves are accurate to {max(error, 1e-16):.0e}{gap}"]


def _of_loss(amount: float, value: float) -> str:
    part = amount / abs(value) if value else np.inf
    return f"{100 * part:.2g} % of the loss" if part < 1.0 else f"{amount:.2g}"


def _parts_text(run: Trajectory) -> list[str]:
    """Return a line with the terms of the objective where it has more than the goal."""
    objective = run.problem.objective
    if not objective.has_targets and not np.any(objective.running):
        return []
    goal, running, targets = run.parts.values()
    name = "final losses" if objective.goal == "final" else objective.words
    return [
        f"{name} {goal:.4g} + running costs {running:.4g} + penalties for targets {targets:.4g}"
    ]


def curves(curves: Curves) -> Parts:
    """Return a table of the mean final losses with their standard errors."""
    rows = [
        [name, f"{mean:.5g}", error]
        for name, mean, error in zip(
            curves.names, curves.mean[-1], _standard_errors(curves), strict=True
        )
    ]
    title = f"{_runs_text(curves)}, {len(curves.times)} times up to {curves.times[-1]:g}"
    return [title, Table(["", "final loss", "± s.e."], rows, "l"), *_unfinished(curves)]


def _standard_errors(curves: Curves) -> list[str]:
    """Return the standard errors of the mean final losses; one run says nothing of the spread."""
    known = len(curves.finished) > 1
    return [f"{error:.1g}" if known else "unknown" for error in curves.standard_error[-1]]


def _runs_text(curves: Curves) -> str:
    """Say how many runs there are, and how many of them finished."""
    count = len(curves.losses)
    finished = f"{len(curves.finished)} of {count}" if curves.failures else f"{count}"
    return f"{finished} run{'' if count == 1 else 's'}"


def _unfinished(curves: Curves) -> list[str]:
    """List the runs that were left out of means, with reasons."""
    lines = []
    for reason in dict.fromkeys(curves.failures.values()):  # in the order of the runs
        runs = [str(run) for run, why in curves.failures.items() if why == reason]
        more = f" and {len(runs) - 8} more" if len(runs) > 8 else ""
        lines.append(f"run{'s'[: len(runs) - 1]} {', '.join(runs[:8])}{more}: {reason}")
    return lines


def simulation(simulation: Simulation) -> Parts:
    """Return a table of the final losses beside the theory, transfer, and runs that failed."""
    curves, theory, s = simulation.curves, simulation.theory_losses, simulation.settings
    title = f"{_runs_text(curves)} of SGD, N = {s['dimension']}, engine {s['engine']}"
    finished = len(curves.finished)
    gaps = np.abs(curves.finished - theory)
    worst = gaps.max(axis=(0, 1)) if finished else np.full(gaps.shape[2], np.nan)
    columns = (curves.names, curves.mean[-1], _standard_errors(curves), theory[-1], worst)
    rows = [
        [name, f"{mean:.5g}", error, f"{ode:.5g}", f"{gap:.3g}"]
        for name, mean, error, ode, gap in zip(*columns, strict=True)
    ]
    header = ["", "final loss", "± s.e.", "theory", "largest deviation at any time"]
    notes = _transfer_text(simulation.transfer) if finished else []
    notes += _unfinished(curves)
    if simulation.theory.status != "ok":
        notes.append(f"theory: {simulation.theory.advice}")
    return [title, Table(header, rows, "l"), *notes]


# Tables of strategies, levers and problems


def comparison(comparison: Comparison) -> Parts:
    """Return a table of strategies, in groups where some set the learning rate."""
    problem = comparison.problem
    names, tasks = problem.model.loss_names, problem.model.tasks
    wide = max(tasks, len(names)) > _WIDE
    header = ["strategy", "loss"]
    header += ["lowest of a task", "highest"] if wide else [*names, "shares %"]
    for run in list(comparison.runs.values())[:1]:
        header += transfer_means(run.transfer)
    header.append(", ".join(map(knob_label, problem.settings)))
    rows: list[list[str]] = []
    several = len(comparison.groups) > 1
    for heading, runs in comparison.groups.items():
        rows += [[heading]] * several
        for name, run in runs.items():
            losses = run.final_losses
            if wide:
                ends = [int(np.argmin(losses)), int(np.argmax(losses))]
                cells = [f"{losses[i]:.3g} {names[i]}" for i in ends]
            else:
                shares = " ".join(f"{round(100 * x):>3}" for x in run.protocol.mean_shares)
                cells = [*(f"{x:.3g}" for x in losses), shares]
            means = [f"{x:.3g}" for x in transfer_means(run.transfer).values()]
            first = f"{'  ' * several}{name}"
            rows.append([first, f"{run.loss:.3g}", *cells, *means, knobs_text(run)])
    bars = {name: run.protocol for name, run in comparison.runs.items()}
    notes = [f"{name}: {plan.advice}" for name, plan in comparison.plans.items() if plan.advice]
    for runs in comparison.groups.values():
        if comparison.plans.keys() & runs.keys() and next(iter(runs)) not in comparison.plans:
            notes.append(
                f"{next(iter(runs))} mixes tasks or changes within a step, which a plan on "
                f"{problem.steps} steps cannot: try more `steps`"
            )
    notes += [f"{name} failed: {reason}" for name, reason in comparison.failures.items()]
    return [Table(header, rows, "l".ljust(len(header) - 1) + "l", bars), *notes]


def knobs_text(run: Trajectory) -> str:
    """Summarise the values of the problem's knobs."""
    return ", ".join(knob_text(run.protocol, knob) for knob in run.problem.settings)


_LEVER_WORDS = {
    "nothing": "equal shares",
    "share": "constant shares",
    "rate": "one constant {rate}",
    "timing": "shares over time",
    "curve": "one {rate} curve",
    "rates": "constant shares, {rate} curves",
    "all": "all of these over time",
}


def levers(levers: Levers) -> Parts:
    """Return a table of levers, with notes on how to read it and how accurate it is."""
    count = len(levers.problems)
    title = [f"medians of {count} starts, quartiles in brackets"] * (count > 1)
    gains = {name: percent(x) for name, x in levers.gains.items() if name != "nothing"}
    additions = {name: percent(x) for name, x in levers.additions.items()}
    rows = [
        [
            name,
            f"{np.median(losses):.4g}",
            gains.get(name, ""),
            additions.get(name, ""),
            lever_words(levers, name),
        ]
        for name, losses in levers.losses.items()
    ]
    header = ["lever", "loss", "alone", "on top", "what is controlled"]
    return [*title, Table(header, rows, "l   l"), *_lever_notes(levers)]


def lever_words(levers: Levers, name: str) -> str:
    """Return what a lever controls."""
    rate = levers.problems[0].model.layout.rate
    return _LEVER_WORDS.get(name, f"{name} over time").format(rate=rate)


def _lever_notes(levers: Levers) -> list[str]:
    lines = ["alone: saving over the baseline; on top: extra saving when added last"]
    if "timing" in levers.additions:
        constant, timed = levers.losses["share"], levers.losses["timing"]
        early = (constant - timed) / np.maximum(np.abs(constant), 1e-300)
        lines.append(
            f"shares over time save {percent(early)} over constant ones, "
            f"{percent(levers.additions['timing'])} with all else free"
        )
    solved = [item for start in levers.alone for item in start.items()]
    solved += [(f"without {name}", x) for start in levers.rest for name, x in start.items()]

    def largest(amounts: Iterable[float]) -> str:
        sizes = [abs(lever.loss) or 1e-300 for _, lever in solved]
        return f"{max(100 * x / size for x, size in zip(amounts, sizes, strict=True)):.2g} %"

    left = largest(lever.certificate.pmp_residual for _, lever in solved)
    gap = largest(lever.certificate.integrality_gap or 0.0 for _, lever in solved)
    lines.append(
        f"at most {left} of a loss is left to gain, to first order; "
        f"one task per step instead of mixtures costs at most {gap}"
    )
    poor = {f"{name} ({x.status})" for name, x in solved if x.status != "converged"}
    return [*lines, *[f"not converged: {', '.join(sorted(poor))}"] * bool(poor), *levers.notes]


def percent(parts: Floats) -> str:
    """Return the median of parts in percent, with quartiles where there are several."""
    low, middle, high = (100 * np.quantile(parts, level) for level in (0.25, 0.5, 0.75))
    return f"{middle:.1f} %" + (f" ({low:.0f}-{high:.0f})" if parts.size > 1 else "")


def study(study: Study) -> Parts:
    """Return the spread of every run's values over all problems, and the failures."""
    rows = []
    for name in study.runs:
        values = [row["value"] for row in study.rows if row["run"] == name]
        count = sum(value is not None for value in values)
        low, median, high = quantiles(values)
        rows.append([name, f"{count}", f"{median:.3g}", f"{low:.3g}", f"{high:.3g}"])
    lines: Parts = [Table(["run", "values", "median", "10 %", "90 %"], rows, "l")]
    for row in study.failed[:_FAILURES]:
        where = ", ".join(f"{key} = {row[key]}" for key in study.axes)
        lines.append(f"{row['status']}: {row['run']} at {where}: {row['advice']}")
    if len(study.failed) > _FAILURES:
        lines.append(f"{len(study.failed)} of {len(study.rows)} rows have no value")
    loose = [row["status"] for row in study.rows if row["status"] not in ("ok", "converged")]
    if len(loose) > len(study.failed):
        lines.append(f"{len(loose) - len(study.failed)} plans did not converge: see `status`")
    return lines


def quantiles(values: list[float | None]) -> list[float]:
    """Return the 10 %, 50 % and 90 % quantiles; None counts as larger than any number."""
    numbers = [np.inf if value is None else value for value in values]
    finite = bool(np.isfinite(numbers).all())
    return list(np.quantile(numbers, (0.1, 0.5, 0.9), method="linear" if finite else "higher"))


# Pilots


def fit(fit: Fit) -> Parts:
    """Return the law, its errors on the pilots and what it does not know."""
    ends = {run.name: (losses, curve) for run, losses, curve in fit.curves()}
    left = {x.run: x for x in fit.left_out}
    rows = []
    for name, (losses, curve) in ends.items():
        known = np.flatnonzero(np.isfinite(losses) & (curve.steps >= fit.pilots.early))
        last, error = known[-1], np.abs(curve.loss - losses)[known].mean()
        other = left.get(name)
        rows.append(
            [
                name,
                f"{losses[last]:.4f}",
                f"{curve.loss[last]:.4f}",
                f"{error:.4f}",
                f"{other.mean:.4f}" if other else "",
                f"{100 * other.covered:.0f} %" if other else "",
            ]
        )
    header = ["pilot", "end", "fit", "mean error", "left out", "within its interval"]
    same, starts = fit.agreement
    agree = f"{same} of {starts} starts agree on the fit"
    if fit.left_out:
        agree += f"; {100 * fit.coverage:.0f} % of left-out losses are within their 90 % intervals"
    parameters = [
        [name, f"{value:.4g}", f"{sd:.2g}", "" if known else "not identified: mostly prior"]
        for name, (value, sd, known) in fit.parameters.items()
    ]
    return [
        f"law of the learning rate: {fit.loss}, {len(rows)} pilots up to {fit.pilots.axis} "
        f"{fit.pilots.horizon:g}, largest rate {fit.pilots.peak:g}",
        *(f"WARNING: {text}" for text in fit.pilots.warnings),
        Table(header, rows, "l"),
        agree,
        Table(["parameter", "value", "sd", ""], parameters, "l  l"),
        "what this law does not know:",
        *(f"  - {text}" for text in fit.unknown),
        *_next_pilot(fit.next_pilot()),
    ]


def sharefit(fit: ShareFit) -> Parts:
    """Return the law of shares beside plain regressions, and what it does not know."""
    methods = list(fit.fits[0].errors)
    rows = []
    for one in fit.fits:
        errors = [f"{np.abs(one.errors[name]).mean():.4f}" for name in methods]
        same, starts = one.agreement
        rows.append(
            [one.name, f"{one.ends.min():.4f}", *errors, f"{100 * one.covered:.0f} %",
             f"{same} of {starts}"]
        )  # fmt: skip
    header = ["loss", "best end", *(f"left out: {name}" for name in methods)]
    numbers = fit.parameters
    parameters = [
        [name, *(_parameter(numbers[one.name].get(name)) for one in fit.fits)]
        for name in dict.fromkeys(x for values in numbers.values() for x in values)
    ]
    return [
        f"law of shares of {', '.join(fit.pilots.domains)} (EXPERIMENTAL): {len(fit.pilots.runs)} "
        f"pilots up to step {fit.pilots.horizon:g}",
        *(f"WARNING: {text}" for text in fit.pilots.warnings),
        Table([*header, "within their intervals", "starts agree"], rows, "l"),
        Table(["parameter (sd)", *numbers], parameters, "l"),
        "(?): not identified by these pilots",
        *_next_pilot(fit.next_pilot()),
        "what this law does not know:",
        *(f"  - {text}" for text in fit.unknown),
    ]


def _parameter(number: tuple[float, float, bool] | None) -> str:
    """Return value and standard deviation of a parameter."""
    if number is None:
        return ""
    value, sd, known = number
    return f"{value:.3g} ({sd:.1g})" + ("" if known else " (?)")


def _next_pilot(pilot: NextPilot) -> list[str]:
    if pilot.answered:
        return []
    best = "decays" if pilot.question == "decay" else "shares"
    tells = (
        "show whether another peak is better"
        if pilot.question == "peak"
        else f"narrow the differences between the best {best} from "
        f"± {pilot.before:.4f} to ± {pilot.after:.4f}"
    )
    return [f"next pilot: {pilot.run.name}; it would {tells}"]


def advice(advice: Advice) -> Parts:
    """Return the recommended schedule, its rivals and how sure the difference is."""
    gain, half = advice.difference(advice.chosen, advice.best_pilot)
    sure = f"{gain:+.4f} ± {half:.4f}"
    sure = f"none: it is below the noise (predicted {sure}, 90 %)" if gain <= half else sure
    rows = []
    for candidate in advice.candidates:
        lower, width = advice.difference(candidate, advice.best_pilot)
        mark = "recommended" if candidate is advice.chosen else ""
        rows.append(
            [candidate.name, f"{candidate.loss:.4f}", f"{lower:+.4f}", f"{width:.4f}", mark]
        )
    law: Any = advice.problem.model
    first, axis = law.covered["starts_at"], law.covered.get("axis", "step")
    end = first + advice.problem.duration
    before = (
        f"training ends at {axis} {end:g}; what is before {axis} {first:g}, a warm-up or what has "
        "been trained, is not in the schedule"
    )
    return [
        f"recommended for {axis}s {first:g} to {end:g}: "
        f"{advice.chosen.name}; predicted loss {advice.chosen.loss:.4f}",
        *(f"WARNING: {text}" for text in advice.notes),
        f"gain over the best pilot: {sure}",
        Table(["schedule", "loss", "gain on best pilot", "±", ""], rows, "l   l"),
        "recommended is the simplest schedule that the laws cannot tell from the best, and that is "
        "not worse than the best pilot, whose schedule is stretched to this length",
        *[before] * bool(first),
    ]


# Replay


def tuned(tuned: Tuned) -> Parts:
    """Return the choice, what was tested beside it, and the cliff."""
    mean, low, high = tuned.loss
    tests = [run for run in tuned.runs if run.test]
    tasks = ", ".join(f"task {name} {x.mean:.4g}" for name, x in tuned.task_losses.items())
    rows = []
    for choice in sorted(tuned.tested):
        name = [f"{choice.share:g}", f"{choice.lr:g}", choice.decay]
        if choice == tuned.choice:
            rows.append([*name, "", "", "choice"])
            continue
        more = tuned.differences[choice]
        mark = "cannot be told from it" if choice in tuned.runners_up else ""
        mark = "lower on fresh seeds" if more.high < 0 else mark
        rows.append([*name, f"{more.mean:+.3g}", f"{more.low:+.3g} to {more.high:+.3g}", mark])
    up_to = f"no cliff up to rate {tuned.rates[tuned.choice.share][-1]:g}"
    if cliff := tuned.cliff:
        up_to = f"cliff: at rate {cliff.lr:g}, {cliff.lr / tuned.choice.lr:g} times the choice's, "
        up_to += cliff.what
    return [
        f"choice: {tuned.choice}; loss {mean:.4g}, 90 % interval {low:.4g} to {high:.4g}",
        *[f"losses: {tasks}"] * (len(tuned.task_losses) > 1),
        *(f"WARNING: {text}" for text in tuned.warnings),
        Table(["share", "rate", "decay", "above the choice", "90 %", ""], rows, "  l  l"),
        up_to,
        f"{len(tuned.runs)} runs: {len(tuned.runs) - len(tests)} to choose; losses and differences "
        f"are from the other {len(tests)}, on {len({run.seed for run in tests})} fresh seeds",
    ]
