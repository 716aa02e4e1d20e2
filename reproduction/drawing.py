"""The style of all pictures, and the parts that several of them draw."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Patch

import replan
from reproduction.base import mean_interval

STYLE: dict[str, Any] = {
    "font.size": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "axes.titlesize": 9.0,
    "lines.linewidth": 1.6,
    "lines.markersize": 4.5,
    "legend.frameon": False,
    "legend.fontsize": 8.0,
    "legend.handlelength": 2.4,
    "savefig.dpi": 200,
    "pdf.fonttype": 42,
}
# Strategies look the same in all figures; colours as in the paper, safe for the colour-blind.
LOOKS: dict[str, dict[str, Any]] = {
    "no replay": {"color": "#AA4499", "marker": "x", "linestyle": "-"},
    "interleaved 1:1": {"color": "#0072B2", "marker": "s", "linestyle": "-"},
    "interleaved, optimal share": {
        "color": "0.25", "marker": "D", "linestyle": "-.", "band": False,
    },
    "optimal": {"color": "#CC3311", "marker": "o", "linestyle": "-"},
    "optimal, revision shuffled": {
        "color": "#33BBEE", "marker": "", "linestyle": "--", "band": False,
    },
}  # fmt: skip
TASK_LINES = ("-", "--", "-.")
_TASK_COLOURS = ("#E69F00", "#009E73", "#0072B2", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442")


def figure(width: float, height: float) -> Figure:
    """Return an empty figure (inches)."""
    return Figure(figsize=(width, height), layout="constrained")


def task_colour(task: int) -> str:
    """Return the colour of a task (from 0)."""
    return _TASK_COLOURS[task % len(_TASK_COLOURS)]


def legend_of_tasks(figure: Any, names: Sequence[str]) -> None:
    """Put a legend of the task colours above a figure."""
    handles = [Patch(color=task_colour(t), label=name) for t, name in enumerate(names)]
    figure.legend(handles=handles, loc="outside upper center", ncols=len(names))


def draw_protocol(axes: Any, protocol: replan.Protocol, colours: Sequence[str] = ()) -> None:
    """Draw the colour bar of a protocol: the shares of the tasks at each time, stacked."""
    shares = np.vstack([protocol.shares, protocol.shares[-1:]])
    tops = np.cumsum(shares, axis=1)
    for t in range(protocol.tasks):
        colour = colours[t] if colours else task_colour(t)
        look = {"step": "post", "color": colour, "linewidth": 0, "antialiased": False}
        axes.fill_between(protocol.edges, tops[:, t] - shares[:, t], tops[:, t], **look)
    axes.set(xlim=(0, protocol.duration), yticks=[])
    axes.tick_params(bottom=False)
    axes.margins(y=0)
    axes.spines[:].set_visible(False)


def draw_knob(axes: Any, protocol: replan.Protocol, knob: str) -> None:
    """Draw the values of a knob, each in the colour of the task that is trained with it."""
    values = protocol.by_task(knob)
    for t in range(protocol.tasks):
        trained = protocol.shares[:, t] > 0
        begin, end = protocol.edges[:-1][trained], protocol.edges[1:][trained]
        colour = task_colour(t) if protocol.tasks > 1 else "black"
        axes.hlines(values[trained, t], begin, end, color=colour, linewidth=2.2)


def draw_median(
    axes: Any, table: pd.DataFrame, *, x: str, y: str, band: bool = True, **look: Any
) -> None:
    """Draw the median of column `y` at each value of column `x`, and a band from 10 to 90 %."""
    groups = table.groupby(x)[y]
    low, middle, high = (groups.quantile(level) for level in (0.1, 0.5, 0.9))
    if band:
        axes.fill_between(middle.index, low, high, color=look.get("color"), alpha=0.15, linewidth=0)
    axes.plot(middle.index, middle, **look)


def draw_interval(axes: Any, table: pd.DataFrame, **look: Any) -> None:
    """Draw the mean over the rows of each column, with its 95 % interval."""
    mean, low, high = mean_interval(table.to_numpy())
    if len(table) > 1:
        axes.fill_between(table.columns, low, high, color=look["color"], alpha=0.2, linewidth=0)
    axes.plot(table.columns, mean, **look)


def draw_losses(axes: Any, losses: pd.DataFrame, looks: dict[str, dict[str, Any]]) -> None:
    """Draw the final loss of each strategy against similarity, medians with bands."""
    for name, look in looks.items():
        chosen = losses[losses["strategy"] == name]
        draw_median(axes, chosen, x="similarity", y="loss", **({"label": name} | look))
    axes.set(yscale="log", xlabel="task similarity γ", ylabel="final mean loss")


def plain_ticks(axes: Any, which: str = "y") -> None:
    """Label a logarithmic axis with plain numbers, as many as it has room for."""
    axis = axes.yaxis if which == "y" else axes.xaxis
    low, high = axis.get_view_interval()
    steps = (1, 2, 5) if high / low > 5 else (1, 1.5, 2, 3, 4, 5, 6, 8)
    ticks = [step * 10.0**power for power in range(-6, 7) for step in steps]
    axis.set_ticks([x for x in ticks if low <= x <= high])
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter("")


def legend_above(figure: Any, *axes: Any, ncols: int = 5) -> None:
    """Put one legend for several axes above a figure."""
    pairs = [pair for one in axes for pair in zip(*one.get_legend_handles_labels(), strict=True)]
    handles, labels = zip(*pairs, strict=True)
    figure.legend(handles, labels, loc="outside upper center", ncols=ncols)
