"""Every picture, in one style: each function draws one kind of result.

A function takes a result and, optionally, a `path` to write to, and returns the figure.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator

from replan import files, report
from replan.check import Floats
from replan.errors import ArgumentError
from replan.models.knobs import knob_label
from replan.report import task_colour

if TYPE_CHECKING:
    from replan.comparison import Comparison
    from replan.control import Levers, Plan
    from replan.curves import Curves, Trajectory
    from replan.pilots import Fit, ShareFit
    from replan.pilots.advice import Advice
    from replan.protocol import Protocol
    from replan.replay.tuned import Tuned
    from replan.simulation import Simulation
    from replan.studies import Study

_LINES = ("-", "--", "-.", (0, (3, 1, 1, 1, 1, 1)))  # of tasks, in turn
_ALONE, _ON_TOP = "#0072B2", "#E69F00"  # colours of a lever's savings
_ENDINGS = (".png", ".pdf", ".svg")
_DPI = 240  # 1,500 pixels of a picture of usual width: sharp on screens of double density
_STYLE: dict[Any, Any] = {
    "font.size": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "lines.linewidth": 1.6,
    "legend.frameon": False,
    "legend.handlelength": 2.4,
    "savefig.dpi": _DPI,
    "pdf.fonttype": 42,
}
_SMOOTH = 250  # least number of points of a curve
_TIME = "training time α (samples per input dimension)"


# Figures and axes


class Picture(Figure):
    """A figure in our style that shows itself in a notebook, whether or not pyplot is loaded.

    matplotlib makes ticks when it draws and reads settings when it saves: both need the style.
    """

    def draw(self, renderer: Any) -> None:
        """Draw the figure in our style."""
        with matplotlib.rc_context(_STYLE):
            super().draw(renderer)

    def savefig(self, *args: Any, **kwargs: Any) -> None:
        """Save the figure in our style."""
        with matplotlib.rc_context(_STYLE):
            super().savefig(*args, **kwargs)

    def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
        """Return the picture, and its size at 100 dpi: it has more pixels, for sharp screens."""
        png = BytesIO()
        self.savefig(png, format="png")
        width, height = (round(100 * inches) for inches in self.get_size_inches())
        return png.getvalue(), {"width": width, "height": height}


@contextmanager
def figure(path: files.FilePath | None = None, *, width: float, height: float) -> Iterator[Picture]:
    """Yield a figure (sizes in inches) in our style, and save it afterwards if `path` is given."""
    if path is not None:
        files.output("path", path, _ENDINGS)
    with matplotlib.rc_context(_STYLE):
        picture = Picture(figsize=(width, height), layout="constrained")
        yield picture
    if path is not None:
        data = BytesIO()
        picture.savefig(data, format=files.suffix(path, _ENDINGS)[1:], dpi=_DPI)
        files.write(path, data.getvalue())


def _legend_above(figure: Figure, handles: Sequence[Any]) -> None:
    """Put a legend above the panels; the figure grows by its rows beyond the first."""
    rows = -(-len(handles) // 6)
    figure.set_figheight(figure.get_figheight() + 0.19 * (rows - 1))
    columns = -(-len(handles) // rows)
    figure.legend(handles=handles, loc="outside upper center", ncols=columns)


def _legend_beside(figure: Figure, axes: Axes, title: str | None = None) -> None:
    """Put a legend to the right of axes; the figure grows by its columns beyond the first."""
    handles, _ = axes.get_legend_handles_labels()
    columns = -(-len(handles) // 12)
    figure.set_figwidth(figure.get_figwidth() + 1.1 * (columns - 1))
    axes.legend(
        handles=handles, title=title, ncols=columns, loc="center left", bbox_to_anchor=(1.01, 0.5)
    )


def _log_scale(axes: Axes, values: Floats) -> float:
    """Make the x axis logarithmic, in whole decades; return the position for values ≤ 0."""
    powers = np.log10(values[values > 0])
    low, high = (math.floor(powers.min()), math.ceil(powers.max())) if powers.size else (0, 0)
    high = max(high, low + 1)
    stride = -(-(high - low) // 5)
    axes.set_xscale("log")
    ticks = {power: f"$10^{{{power}}}$" for power in range(low, high + 1, stride)}
    if np.any(values <= 0):
        ticks |= {low - stride: "0" if values.min() == 0 else "≤ 0"}
    axes.set_xlim(10.0 ** min(ticks), 10.0**high)
    axes.set_xticks([10.0**power for power in ticks], list(ticks.values()))
    between = [k * 10.0**power for power in range(low, high) for k in range(2, 10)]
    axes.set_xticks(between if stride == 1 else [], minor=True)
    axes.xaxis.set_minor_formatter("")  # within a decade its labels would overlap
    return 10.0 ** min(ticks)


# Protocols


def protocol(protocol: Protocol, path: files.FilePath | None) -> Figure:
    """Draw the colour bar of a protocol."""
    with figure(path, width=6.4, height=1.5) as picture:
        draw_protocol(picture.subplots(), protocol)
        patches = [
            Patch(color=task_colour(t), label=f"task {t + 1}") for t in range(protocol.tasks)
        ]
        _legend_above(picture, patches)
    return picture


def draw_protocol(
    axes: Axes, protocol: Protocol, *, bottom: float = 0.0, height: float = 1.0
) -> None:
    """Draw the shares of the tasks over time, stacked."""
    shares = np.vstack([protocol.shares, protocol.shares[-1:]])
    low = np.full(len(shares), bottom)
    for t in range(protocol.tasks):
        high = low + height * shares[:, t]
        axes.fill_between(
            protocol.edges,
            low,
            high,
            step="post",
            color=task_colour(t),
            label=f"task {t + 1}",
            linewidth=0,
            antialiased=False,
        )
        low = high
    axes.set(xlim=(0, protocol.duration), yticks=[], xlabel=_TIME)
    axes.margins(y=0)
    axes.spines[:].set_visible(False)


def draw_knob(axes: Axes, protocol: Protocol, knob: str) -> None:
    """Draw the values of a knob in the colour of their task, black where mixed tasks share them."""
    values = protocol.by_task(knob)
    own = protocol.is_discrete or protocol.knobs[knob].ndim == 2
    for t in range(protocol.tasks):
        trained = protocol.shares[:, t] > 0
        axes.hlines(
            values[trained, t],
            protocol.edges[:-1][trained],
            protocol.edges[1:][trained],
            color=task_colour(t) if own and protocol.tasks > 1 else "black",
            linewidth=2.2,
        )
    low, high = min(0.0, 1.05 * values.min()), max(0.0, 1.05 * values.max())
    axes.set(ylabel=knob_label(knob), ylim=(low, high if high > low else 1.0))


@contextmanager
def _over_time(
    protocol: Protocol, path: files.FilePath | None, legend: str | None = None
) -> Iterator[tuple[Picture, Axes]]:
    """Yield a figure and its panel for losses, under the colour bar and above knobs that vary."""
    knobs = protocol.varied
    with figure(path, width=6.4, height=3.6 + 1.0 * len(knobs)) as picture:
        ratios = [1, 11, *[5] * len(knobs)]
        bar, losses, *others = picture.subplots(len(ratios), sharex=True, height_ratios=ratios)
        draw_protocol(bar, protocol)
        bar.set_xlabel("")
        bar.tick_params(bottom=False, labelbottom=False)
        yield picture, losses
        losses.set(yscale="log", ylabel="loss", xlim=(0, protocol.duration))
        for panel, knob in zip(others, knobs, strict=True):
            draw_knob(panel, protocol, knob)
        [losses, *others][-1].set_xlabel(_TIME)
        _legend_beside(picture, losses, legend)


# Learning curves


def trajectory(run: Trajectory, path: files.FilePath | None) -> Figure:
    """Draw every loss, the objective and the targets over time; bands span the members."""
    times, problem = _dense_times(run), run.problem
    losses, names = run.losses_at(times), problem.model.loss_names
    each = np.stack([member.losses_at(times) for member in run.members or (run,)])
    with _over_time(run.protocol, path) as (picture, axes):
        for t in range(losses.shape[1]):
            if len(each) > 1:
                low, high = each[:, :, t].min(axis=0), each[:, :, t].max(axis=0)
                axes.fill_between(times, low, high, color=task_colour(t), alpha=0.15, linewidth=0)
            line = _LINES[t % len(_LINES)]
            axes.plot(times, losses[:, t], color=task_colour(t), linestyle=line, label=names[t])
        if len(names) > 1:
            label = "objective" if problem.objective.goal == "final" else problem.objective.words
            label += f",\n{problem.risk.words}" if run.members else ""
            axes.plot(times, run.weighted_at(times), color="black", linestyle=":", label=label)
        _draw_targets(axes, problem.objective.targets, names)
    return picture


def plan(plan: Plan, path: files.FilePath | None) -> Figure:
    """Draw the trajectory of a plan."""
    return trajectory(plan.trajectory, path)


def _dense_times(run: Trajectory) -> Floats:
    """Return the edges of a trajectory's steps, and times between them for a smooth curve."""
    return np.union1d(run.times, np.linspace(0.0, run.times[-1], _SMOOTH + 1))


def _draw_targets(axes: Axes, targets: Floats, names: Sequence[str]) -> None:
    """Draw the targets (L,) of the losses, dashed at different phases where they are equal."""
    for t in np.flatnonzero(targets < np.inf).tolist():
        look: dict[str, Any] = {"color": task_colour(t), "linewidth": 0.8}
        axes.axhline(targets[t], linestyle=(5 * t, (5, 5)), label=f"target of {names[t]}", **look)


def curves(curves: Curves, path: files.FilePath | None) -> Figure:
    """Draw the mean of every loss over the finished runs, with bands from 10 to 90 %."""
    with figure(path, width=6.4, height=3.4) as picture:
        axes = picture.add_subplot(xlabel="time", ylabel="loss", yscale="log")
        for t in range(curves.tasks):
            _draw_band(axes, curves, t)
            look: dict[str, Any] = {"color": task_colour(t), "linestyle": _LINES[t % len(_LINES)]}
            axes.plot(curves.times, curves.mean[:, t], label=curves.names[t], **look)
        _legend_beside(picture, axes)
    return picture


def _draw_band(axes: Axes, curves: Curves, t: int) -> None:
    """Draw the band that holds 80 % of the finished runs, where there are several."""
    if len(curves.finished) > 1:
        low, high = curves.quantiles([0.1, 0.9])[:, :, t]
        axes.fill_between(curves.times, low, high, color=task_colour(t), alpha=0.25, linewidth=0)


def simulation(simulation: Simulation, path: files.FilePath | None) -> Figure:
    """Draw the means of the runs as crosses, their 10-90 % bands, and the theory as lines."""
    curves, theory = simulation.curves, simulation.theory
    some = np.unique(np.linspace(0, len(curves.times) - 1, 26).astype(int))
    times = _dense_times(theory)
    lines = theory.losses_at(times)
    legend = (
        f"× SGD, N = {simulation.settings['dimension']}\n"
        f"   mean of {len(curves.finished)} runs\n   band 10 to 90 %\n– theory"
    )
    with _over_time(simulation.protocol, path, legend) as (picture, axes):
        for t in range(curves.tasks):
            look: dict[str, Any] = {"color": task_colour(t)}
            _draw_band(axes, curves, t)
            if theory.status == "ok":
                axes.plot(times, lines[:, t], linestyle=_LINES[t % len(_LINES)], **look)
            mean = curves.mean[some, t]
            axes.plot(curves.times[some], mean, "x", label=curves.names[t], clip_on=False, **look)
    return picture


# Tables as pictures


def comparison(comparison: Comparison, path: files.FilePath | None) -> Figure:
    """Draw the protocols of each group as colour bars, and the final losses beside them."""
    if not comparison.runs:
        raise ArgumentError("plot", "called where a strategy has a learning curve", "none")
    problem, groups = comparison.problem, comparison.groups
    several = len(groups) > 1
    longest = max(map(len, comparison.runs))  # of the names, which stand to the left of the bars
    width = 7.6 + 0.07 * max(0, longest - 17)
    lines = len(comparison.runs) + several * len(groups)
    row = 0.3 + 0.03 * problem.model.tasks
    rows, height = {}, 0.0
    with figure(path, width=width, height=0.9 + row * lines) as picture:
        bars, points = picture.subplots(1, 2, width_ratios=[3, 2], gridspec_kw={"wspace": 0.03})
        beside: dict[str, Any] = {"transform": bars.get_yaxis_transform(), "va": "center"}
        for heading, runs in groups.items():
            if several:
                bars.text(0.0, height, heading, fontweight="bold", **beside)
                height -= 1
            for name, run in runs.items():
                rows[name] = height
                draw_protocol(bars, run.protocol, bottom=height - 0.27, height=0.54)
                bars.text(1.02, height, report.knobs_text(run), fontsize=8, **beside)
                height -= 1
        top = 0.0 if several else 0.62
        knobs = ", ".join(knob_label(knob) for knob in problem.settings)
        bars.text(1.02, top, knobs, fontsize=8, **beside)
        bars.set_yticks(list(rows.values()), list(rows))
        bars.set(ylim=(height + 0.5, 0.5), xlabel=_TIME)
        bars.tick_params(left=False)
        shown = [comparison.runs[name] for name in rows]
        losses = np.array([run.final_losses for run in shown])
        values = np.array([run.loss for run in shown])
        _draw_final_losses(
            points, np.array(list(rows.values())), losses, values, problem.model.loss_names
        )
        points.set(ylim=bars.get_ylim(), yticks=list(rows.values()))
        beside["transform"] = points.get_yaxis_transform()
        points.text(1.03, top, "objective", fontsize=8, **beside)
        for height, value in zip(rows.values(), values, strict=True):
            points.text(1.03, height, f"{value:.2g}", fontsize=8, **beside)
        _legend_above(picture, points.get_legend_handles_labels()[0])
    return picture


def _draw_final_losses(
    axes: Axes, rows: Floats, losses: Floats, objective: Floats, names: Sequence[str]
) -> None:
    """Draw final losses (n, L) as markers at the heights `rows` (n,), and objectives (n,) as bars.

    The markers of a row are offset vertically, so that none hides another. Values that a log scale
    cannot show are drawn at its left end, which is then labelled 0.
    """
    zero = _log_scale(axes, np.column_stack([losses, objective]))
    shown = np.where(losses > 0, losses, zero)
    count = losses.shape[1]
    for t, up in enumerate(np.linspace(0.22, -0.22, count) if count > 1 else [0.0]):
        axes.plot(
            shown[:, t],
            rows + up,
            linestyle="",
            marker="osDv^<>"[t % 7],
            markersize=5 if count < 7 else 4,
            color=task_colour(t),
            label=names[t],
            clip_on=False,
        )
    ends = np.where(objective > 0, objective, zero)
    axes.vlines(ends, rows - 0.34, rows + 0.34, color="black", linewidth=1.6, zorder=1.5)
    axes.plot([], "k|", markersize=10, markeredgewidth=1.6, label="objective")  # for a legend
    axes.set_xlabel("final loss")
    axes.tick_params(labelleft=False, left=False)
    axes.spines["left"].set_visible(False)
    _rule_rows(axes)


def _rule_rows(axes: Axes) -> None:
    axes.grid(axis="y", color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)


def levers(levers: Levers, path: files.FilePath | None) -> Figure:
    """Draw the loss of every lever, and what it saves alone and on top of all others.

    Medians over the starts, with quartiles.
    """
    with figure(path, width=7.8, height=1.1 + 0.42 * len(levers.names)) as picture:
        losses, savings = picture.subplots(1, 2, width_ratios=[2, 3])
        rows = {name: len(levers.names) - 1 - i for i, name in enumerate(levers.names)}
        zero = _log_scale(losses, np.concatenate(list(levers.losses.values())))
        for name, values in levers.losses.items():
            low, middle, high = np.maximum(np.quantile(values, [0.25, 0.5, 0.75]), zero)
            losses.hlines(rows[name], low, high, color=_ALONE, linewidth=3, alpha=0.4)
            losses.plot(middle, rows[name], "o", color=_ALONE, markersize=5, clip_on=False)
        losses.set_xlabel("loss with this lever alone")
        labels = [f"{name}\n({report.lever_words(levers, name)})" for name in rows]
        losses.set_yticks(list(rows.values()), labels)
        for shift, colour, label, parts in (
            (0.19, _ALONE, "alone: over the baseline", levers.gains),
            (-0.19, _ON_TOP, "on top: when added last", levers.additions),
        ):
            shown = [name for name in rows if name in parts and name != "nothing"]
            quartiles = [np.quantile(100 * parts[name], [0.25, 0.5, 0.75]) for name in shown]
            low, middle, high = np.array(quartiles).reshape(-1, 3).T
            heights = np.array([rows[name] for name in shown]) + shift
            savings.barh(heights, middle, height=0.36, color=colour, label=label)
            if len(levers.problems) > 1:
                savings.hlines(heights, low, high, color="black", linewidth=1.0)
        savings.set_yticks(list(rows.values()), [""] * len(rows))
        savings.set(xlabel="loss saved, %", xlim=(0, None))
        for axes in (losses, savings):
            axes.set_ylim(-0.5, len(rows) - 0.5)
            axes.tick_params(left=False)
            _rule_rows(axes)
        _legend_above(picture, savings.get_legend_handles_labels()[0])
    return picture


def study(study: Study, path: files.FilePath | None, x: str | None = None) -> Figure:
    """Draw medians and 10-90 % bands over all other axes, such as seeds, against the axis `x`.

    A run that failed counts as worse than any value: leaving it out would flatter learning rates at
    which only the luckiest seeds do not diverge.
    """
    x = next(iter(study.axes), None) if x is None else x
    if x not in study.axes:
        raise ArgumentError("x", f"an axis of the study ({', '.join(study.axes)})", repr(x))
    numeric = all(type(value) in (int, float) for value in study.axes[x])
    values = sorted(study.axes[x]) if numeric else study.axes[x]
    places = values if numeric else list(range(len(values)))
    others = [key for key in study.axes if key != x]
    with figure(path, width=6.4, height=4.0) as picture:
        axes = picture.add_subplot(xlabel=x, ylabel="objective")
        for name in study.runs:
            rows = [row for row in study.rows if row["run"] == name]
            spread = [
                report.quantiles([row["value"] for row in rows if row[x] == v]) for v in values
            ]
            low, median, high = np.where(np.isinf(spread), np.nan, spread).T
            look: dict[str, Any] = {"color": "black", "linestyle": "--"} if name == "plan" else {}
            [line] = axes.plot(places, median, marker="o", markersize=4, label=name, **look)
            if others:
                axes.fill_between(
                    places, low, high, color=line.get_color(), alpha=0.15, linewidth=0
                )
        if not numeric:
            axes.set_xticks(places, [str(value) for value in values])
        elif values[0] > 0 and values[-1] >= 30 * values[0]:
            axes.set_xscale("log")
        shown = np.concatenate([line.get_ydata() for line in axes.get_lines()])
        if (shown > 0).any() and not any((row["value"] or 1) < 0 for row in study.rows):
            axes.set_yscale("log")
        title = f"median, 10 to 90 %\nover {', '.join(others)}" if others else None
        axes.legend(frameon=False, title=title)
    return picture


# Pilots


def fit(fit: Fit, path: files.FilePath | None) -> Figure:
    """Draw each pilot with its fit and 90 % interval; below, its rate and the residuals."""
    with figure(path, width=8.0, height=6.4) as picture:
        top, middle, below = picture.subplots(
            3, 1, sharex=True, gridspec_kw={"height_ratios": [3, 1, 1.2]}
        )
        for i, (run, losses, curve) in enumerate(fit.curves()):
            colour, known = task_colour(i), np.isfinite(losses)
            late = known & (curve.steps >= fit.pilots.early)
            top.plot(curve.steps[known], losses[known], ".", color=colour, markersize=3, alpha=0.6)
            top.plot(curve.steps[late], curve.loss[late], color=colour, label=run.name)
            top.fill_between(
                curve.steps[late], curve.low[late], curve.high[late],
                color=colour, alpha=0.2, linewidth=0,
            )  # fmt: skip
            middle.plot(run.steps, run.rates, color=colour)
            wrong = 100 * (losses[late] / curve.loss[late] - 1)
            below.plot(curve.steps[late], wrong, color=colour, linewidth=0.9)
        known = np.concatenate([losses for _, losses, _ in fit.curves()])
        late = np.concatenate([x[y.steps >= fit.pilots.early] for _, x, y in fit.curves()])
        low, high = np.nanmin(known), np.nanmax(late)
        top.set_ylim(low - 0.08 * (high - low), high + 0.05 * (high - low))
        top.set_ylabel(fit.loss)
        middle.set_ylabel("learning rate")
        below.set_ylabel("residual (%)")
        below.axhline(0.0, color="0.6", linewidth=0.8)
        below.set_xlabel("step")
        title = "points: logged; lines: fit, with 90 % intervals"
        top.set_title(title, loc="left", fontsize=9)
        _legend_beside(picture, top)
    return picture


def sharefit(fit: ShareFit, path: files.FilePath | None) -> Figure:
    """Draw, for each loss, the left-out errors of the law and of the plain regressions."""
    count = len(fit.fits)
    with figure(path, width=1.6 + 2.6 * count, height=3.2) as picture:
        row = picture.subplots(1, count, squeeze=False, sharey=True)[0]
        for axes, one in zip(row, fit.fits, strict=True):
            for i, (name, errors) in enumerate(one.errors.items()):
                axes.plot(
                    one.ends, 100 * errors / one.ends, "osv"[i], color=task_colour(i),
                    markersize=3.5, alpha=0.7, linewidth=0, label=name,
                )  # fmt: skip
            axes.axhline(0.0, color="0.6", linewidth=0.8)
            axes.set_xlabel(f"measured {one.name}")
        row[0].set_ylabel("left-out error (%)")
        row[0].set_yscale("symlog", linthresh=2.0)
        row[0].yaxis.set_major_formatter("{x:g}")
        _legend_beside(picture, row[-1])
    return picture


def advice(advice: Advice, path: files.FilePath | None) -> Figure:
    """Draw the recommended schedule beside the best pilot's and the plan."""
    law: Any = advice.problem.model
    shown = {
        f"recommended: {advice.chosen.name}": advice.chosen,
        f"best {advice.best_pilot.name}": advice.best_pilot,
    }
    if not advice.chosen.name.startswith("plan"):
        shown[advice.candidates[-1].name] = advice.candidates[-1]
    tables = {
        f"{name}\n(predicted {x.loss:.4f})": law.table(advice.problem.duration, x.schedule)
        for name, x in shown.items()
    }
    if "lr" not in next(iter(tables.values())):
        return _share_tables(tables, law.domains, path)
    with figure(path, width=7.4, height=3.0) as picture:
        axes = picture.add_subplot(xlabel="step", ylabel="learning rate")
        for i, (label, x) in enumerate(tables.items()):
            colour = task_colour(i)
            axes.plot(x["step"], x["lr"], _LINES[i], color=colour, label=label, zorder=5 - i)
        axes.set_ylim(0.0)
        _legend_beside(picture, axes)
    return picture


def _share_tables(
    tables: dict[str, dict[str, Any]], domains: Sequence[str], path: files.FilePath | None
) -> Figure:
    """Draw schedules of shares as stacked bars, one below the other."""
    with figure(path, width=7.4, height=1.0 + 1.1 * len(tables)) as picture:
        rows = picture.subplots(len(tables), 1, sharex=True, squeeze=False)[:, 0]
        for axes, (label, x) in zip(rows, tables.items(), strict=True):
            shares = [x[f"share_{name}"] for name in domains]
            colours = [task_colour(d) for d in range(len(domains))]
            axes.stackplot(x["step"], shares, step="post", colors=colours, labels=domains)
            axes.set_title(label.replace("\n", " "), loc="left", fontsize=9)
            axes.set_ylim(0.0, 1.0)
            axes.margins(x=0.0)
        rows[-1].set_xlabel("step")
        _legend_beside(picture, rows[0])
    return picture


# Replay


def tuned(tuned: Tuned, path: files.FilePath | None) -> Figure:
    """Draw losses over rates on the seed that all choices have, and what each share costs.

    Lines are for the decay that is best at their share.
    """
    shares = tuned.shares
    colours = matplotlib.colormaps["viridis"](np.linspace(0.0, 0.9, len(shares)))
    with figure(path, width=8.0, height=3.4) as picture:
        rates, costs = picture.subplots(1, 2)
        _draw_rates(rates, tuned, colours)
        for place, ((best, cost), colour) in enumerate(zip(shares.values(), colours, strict=True)):
            chosen = best == tuned.choice
            look: dict[str, Any] = {"marker": "*" if chosen else "o", "color": colour}
            costs.plot(place, cost.mean, markersize=11 if chosen else 5, **look)
            costs.vlines(place, cost.low, cost.high, color=colour)
        costs.axhline(0.0, color="0.6", linewidth=0.8, zorder=0)
        labels = [f"{best.share:g}\n{best.lr:g}\n{best.decay}" for best, _ in shares.values()]
        costs.set_xticks(range(len(shares)), labels)
        costs.set_xlabel("share of replay, with its best rate and decay")
        costs.set_ylabel("loss above the choice, 90 %")
        _legend_above(picture, rates.get_legend_handles_labels()[0])
    return picture


def _draw_rates(axes: Axes, tuned: Tuned, colours: Floats) -> None:
    """Draw a line for each share, a disc at its best rate and crosses for what is off the scale."""
    first = min(run.seed for run in tuned.runs)
    own = {choice: runs[first].loss for choice, runs in tuned.by_choice.items()}
    lowest = min(own.values())
    highest = 10 * max(own[best] for best, _ in tuned.shares.values()) if lowest > 0 else np.inf
    for i, (share, (best, _)) in enumerate(tuned.shares.items()):
        tried = np.array(tuned.rates[share])
        losses = np.array([own[best._replace(lr=lr)] for lr in tuned.rates[share]])
        lost = ~((losses <= highest) & np.isfinite(losses))
        look: dict[str, Any] = {"color": colours[i], "clip_on": False}
        axes.plot(tried, np.where(lost, np.nan, losses), ".-", label=f"share {share:g}", **look)
        axes.plot(best.lr, own[best], "o", markersize=7, **look)
        heights = np.full(lost.sum(), 1.0 - 0.05 * i)
        axes.plot(tried[lost], heights, "x", transform=axes.get_xaxis_transform(), **look)
    axes.set(xscale="log", ylabel=f"loss on seed {first}")
    above = f", or a loss above {highest:.2g}" if lowest > 0 else ""
    axes.set_xlabel(f"learning rate (×: diverged{above})")
    axes.set_xticks(sorted({lr for tried in tuned.rates.values() for lr in tried}))
    axes.set_xticks([], minor=True)
    axes.xaxis.set_major_formatter("{x:g}")
    if lowest > 0 and max(x for x in own.values() if x <= highest) > 5 * lowest:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.set_yticks([], minor=True)
    axes.yaxis.set_major_formatter("{x:g}")
