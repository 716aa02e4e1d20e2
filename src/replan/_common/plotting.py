"""Pictures: the style they all share, and the parts they are made of."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from typing import TYPE_CHECKING, Any, Literal

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from replan import check, files
from replan.check import Floats, Ints
from replan.models.knobs import knob_label

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import FigureBase

    from replan.curves import Curves
    from replan.protocol import Protocol
    from replan.simulation._simulation import Simulation
    from replan.trajectory import Trajectory

# Okabe and Ito's colour-blind safe colours, in the paper's order: task 1 orange, task 2 green. The
# others lie as far from these and from one another as 20 colours can (in Oklab, none too bright).
TASK_COLOURS = (
    *("#E69F00", "#009E73", "#0072B2", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442"),
    *("#550044", "#00EE88", "#8833BB", "#887700", "#220099", "#BB0055", "#AACCAA"),
    *("#775555", "#7777FF", "#004400", "#FFBBFF", "#552200", "#003355"),
)
TASK_LINES = ("-", "--", "-.", (0, (3, 1, 1, 1, 1, 1)))
_DPI = 200  # of every picture

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
_ENDINGS = (".png", ".pdf", ".svg")


def task_colour(task: int) -> str:
    """Return the colour of a task (from 0)."""
    return TASK_COLOURS[task % len(TASK_COLOURS)]


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
    """Give a figure (inches) to draw in our style; save it at the end if there is a `path`."""
    if path is not None:
        files.output("path", path, _ENDINGS)
    with matplotlib.rc_context(_STYLE):
        picture = Picture(figsize=(width, height), layout="constrained")
        yield picture
    if path is not None:
        save(picture, path)


def save(figure: Figure, path: files.FilePath) -> None:
    """Write a figure as .png, .pdf or .svg."""
    ending = files.suffix(path, _ENDINGS)
    picture = BytesIO()
    figure.savefig(picture, format=ending[1:], dpi=_DPI)
    files.write(path, picture.getvalue())


def panels(
    path: files.FilePath | None, axes: Axes | Sequence[Axes], *forms: tuple[str, ...]
) -> dict[str, Axes]:
    """Return the axes a user gave by name: the names are those of the form with as many axes."""
    if path is not None:
        raise ValueError(f"`path` expects None where `axes` are given, got {check.show(path)}")
    given: Any = axes.ravel() if isinstance(axes, np.ndarray) else axes  # of `subplots`
    given = list(given) if isinstance(given, Sequence | np.ndarray) else [given]
    if not all(isinstance(one, Axes) for one in given):
        raise ValueError(f"`axes` expects matplotlib axes, got {check.show(axes)}")
    for form in forms:
        if len(form) == len(given):
            return dict(zip(form, given, strict=True))
    expects = " or ".join(f"{len(form)} ({', '.join(form)})" for form in forms)
    raise ValueError(f"`axes` expects {expects}, got {len(given)}")


def ordered_colours(tasks: int) -> list[str]:
    """Return a colour for each of many tasks, from blue to red in their order.

    A map that only brightens has too few colours that can be told apart.
    """
    colours = matplotlib.colormaps["turbo"](np.linspace(0.05, 0.95, tasks))
    return [to_hex(colour) for colour in colours]


def draw_protocol(
    axes: Axes,
    protocol: Protocol,
    *,
    bottom: float = 0.0,
    height: float = 1.0,
    colours: Sequence[str] | None = None,
) -> None:
    """Draw the colour bar of a protocol: the shares of the tasks at each time, stacked.

    `colours`: of the tasks (T,), by default those of `task_colour`.
    """
    shares = np.vstack([protocol.shares, protocol.shares[-1:]])
    low = np.full(len(shares), bottom)
    for t in range(protocol.tasks):
        high = low + height * shares[:, t]
        axes.fill_between(
            protocol.edges,
            low,
            high,
            step="post",
            color=task_colour(t) if colours is None else colours[t],
            label=f"task {t + 1}",
            linewidth=0,
            antialiased=False,
        )
        low = high
    axes.set(xlim=(0, protocol.duration), yticks=[])
    axes.margins(y=0)
    axes.spines[:].set_visible(False)


def task_patches(tasks: int) -> list[Patch]:
    """Return handles for a legend of the task colours."""
    return [Patch(color=task_colour(t), label=f"task {t + 1}") for t in range(tasks)]


def legend_above(figure: Figure, handles: Sequence[Any]) -> None:
    """Put a legend above the panels; the figure grows by its rows beyond the first."""
    rows = -(-len(handles) // 6)
    figure.set_figheight(figure.get_figheight() + 0.19 * (rows - 1))
    columns = -(-len(handles) // rows)
    figure.legend(handles=handles, loc="outside upper center", ncols=columns)


def legend_beside(figure: Figure, axes: Axes, title: str | None = None) -> None:
    """Put a legend to the right of axes; the figure grows by its columns beyond the first."""
    handles, _ = axes.get_legend_handles_labels()
    columns = -(-len(handles) // 12)
    figure.set_figwidth(figure.get_figwidth() + 1.1 * (columns - 1))
    axes.legend(
        handles=handles, title=title, ncols=columns, loc="center left", bbox_to_anchor=(1.01, 0.5)
    )


def draw_bars(figure: FigureBase, protocols: dict[str, Protocol]) -> None:
    """Fill a figure with the colour bars of protocols, one below the other, with their names."""
    bars = np.atleast_1d(figure.subplots(len(protocols), sharex=True))
    for axes, (name, protocol) in zip(bars, protocols.items(), strict=True):
        draw_protocol(axes, protocol)
        axes.set_ylabel(name, rotation=0, ha="right", va="center")
        axes.tick_params(bottom=axes is bars[-1])
    bars[-1].set_xlabel("training time α")
    figure.legend(handles=task_patches(protocol.tasks), loc="outside upper center", ncols=4)


def draw_losses(axes: Axes, trajectory: Trajectory) -> None:
    """Draw the loss of every task and the objective against time, on a log scale."""
    (times, losses), names = trajectory.sampled, trajectory.problem.model.loss_names
    each = np.stack([one.sampled[1][: len(times)] for one in trajectory.members or (trajectory,)])
    for t in range(losses.shape[1]):
        if len(each) > 1:
            low, high = each[:, :, t].min(axis=0), each[:, :, t].max(axis=0)
            axes.fill_between(times, low, high, color=task_colour(t), alpha=0.15, linewidth=0)
        line = TASK_LINES[t % len(TASK_LINES)]
        axes.plot(times, losses[:, t], color=task_colour(t), linestyle=line, label=names[t])
    if len(names) > 1:
        curves = [trajectory.problem.objective.curve(times, one) for one in each]
        weighted, words = trajectory.problem.risk.of(np.stack(curves)), trajectory.label
        axes.plot(times, weighted, color="black", linestyle=":", label=words)
    draw_targets(axes, trajectory.problem.objective.targets, names)
    axes.set(yscale="log", ylabel="loss", xlim=(0, trajectory.problem.duration))


def draw_targets(axes: Axes, targets: Floats, names: Sequence[str]) -> None:
    """Draw the targets (L,) of the losses; those that look equal take turns along one line."""
    heights = {t: f"{target:.2g}" for t, target in enumerate(targets) if target < np.inf}
    for t, height in heights.items():
        same = [other for other in heights if heights[other] == height]
        dashes = (5 * same.index(t), (5, 5 * (len(same) - 1))) if len(same) > 1 else "-"
        look: dict[str, Any] = {"color": task_colour(t), "linewidth": 0.8}
        axes.axhline(targets[t], linestyle=dashes, **look)
        axes.plot([], label=f"target of {names[t]}", **look)  # solid in a legend


def draw_curves(axes: Axes, curves: Curves) -> None:
    """Draw the mean of every loss over the finished runs, with bands from 10 to 90 %."""
    mean, (low, high) = curves.mean, curves.quantiles([0.1, 0.9])
    for t in range(curves.tasks):
        colour = task_colour(t)
        if len(curves.finished) > 1:
            axes.fill_between(
                curves.times, low[:, t], high[:, t], color=colour, alpha=0.25, linewidth=0
            )
        line = TASK_LINES[t % len(TASK_LINES)]
        axes.plot(curves.times, mean[:, t], color=colour, linestyle=line, label=curves.names[t])
    axes.set(yscale="log", ylabel="loss")


def draw_simulation(axes: Axes, simulation: Simulation) -> None:
    """Draw the means of the runs as crosses, their 10-90 % bands, and the theory as lines."""
    times, (low, high) = simulation.times, simulation.curves.quantiles([0.1, 0.9])
    some = np.unique(np.linspace(0, len(times) - 1, 26).astype(int))
    theory = simulation.theory
    sampled, losses = theory.sampled
    for t in range(simulation.losses.shape[2]):
        colour, line = task_colour(t), TASK_LINES[t % len(TASK_LINES)]
        axes.fill_between(times, low[:, t], high[:, t], color=colour, alpha=0.25, linewidth=0)
        if theory.status == "ok":
            axes.plot(sampled, losses[:, t], color=colour, linestyle=line)
        axes.plot(
            times[some],
            simulation.curves.mean[some, t],
            "x",
            color=colour,
            label=simulation.curves.names[t],
            clip_on=False,
        )
    axes.set(yscale="log", ylabel="loss", xlim=(0, simulation.problem.duration))


def draw_final_losses(
    axes: Axes, rows: Ints, losses: Floats, objective: Floats, names: Sequence[str]
) -> None:
    """Draw final losses (n, L) as markers at the heights `rows` (n,), and objectives (n,) as bars.

    The losses' markers lie one above the other, so that none hides another. What a log scale cannot
    show stands at its left end, which then says 0.
    """
    zero = log_scale(axes, np.column_stack([losses, objective]))
    shown = np.where(losses > 0, losses, zero)
    tasks = losses.shape[1]  # one loss each, in most models
    for t, up in enumerate(np.linspace(-0.22, 0.22, tasks) if tasks > 1 else [0.0]):
        axes.plot(
            shown[:, t],
            rows + up,
            linestyle="",
            marker="osDv^<>"[t % 7],
            markersize=5 if tasks < 7 else 4,
            color=task_colour(t),
            label=names[t],
            clip_on=False,
        )
    axes.vlines(
        np.where(objective > 0, objective, zero),
        rows - 0.34,
        rows + 0.34,
        color="black",
        linewidth=1.6,
        zorder=1.5,
    )
    axes.plot([], "k|", markersize=10, markeredgewidth=1.6, label="objective")  # for a legend
    axes.set_xlabel("final loss")
    axes.tick_params(labelleft=False, left=False)
    axes.grid(axis="y", color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines["left"].set_visible(False)


def log_scale(axes: Axes, values: Floats) -> float:
    """Give the x axis a log scale of whole decades; return where values of 0 or below may stand."""
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


def write_beside(axes: Axes, y: float, text: str) -> None:
    """Write text to the right of axes, at a height in the units of their y axis."""
    axes.text(1.02, y, text, transform=axes.get_yaxis_transform(), va="center", fontsize=8)


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


def draw_median(
    axes: Axes, table: pd.DataFrame, *, x: str, y: str, band: bool = True, **look: Any
) -> None:
    """Draw the median of column `y` at each value of column `x`, and a band from 10 to 90 %."""
    groups = table.groupby(x)[y]
    low, middle, high = (groups.quantile(level) for level in (0.1, 0.5, 0.9))
    if band:
        axes.fill_between(middle.index, low, high, color=look.get("color"), alpha=0.15, linewidth=0)
    axes.plot(middle.index, middle, markersize=4.5, **look)


def plain_ticks(axes: Axes, which: Literal["x", "y"] = "y") -> None:
    """Label a logarithmic axis with plain numbers, as many as it has room for."""
    axis = axes.yaxis if which == "y" else axes.xaxis
    low, high = axis.get_view_interval()
    steps = (1, 2, 5) if high / low > 5 else (1, 1.5, 2, 3, 4, 5, 6, 8)
    ticks = [step * 10.0**power for power in range(-6, 7) for step in steps]
    axis.set_ticks([x for x in ticks if low <= x <= high])
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter("")
