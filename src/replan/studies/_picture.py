"""The picture of a study: lines over an axis, maps over two, or points where nothing varies.

A run that failed counts as worse than any value: where most did, there is none to draw. Leaving
them out would flatter learning rates at which only the luckiest do not diverge.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, Normalize
from matplotlib.lines import Line2D

from replan import files
from replan._common import plotting
from replan.statistics import quantile
from replan.studies._axes import Axis

_FACETS = 4  # values of a second axis that have a panel each; more make a map
_COLUMNS = 4  # maps side by side
_MARKERS = "osDv^<>Pp"
_SOLVERS = ("--", ":", "-.", "-")  # lines: what lies below an optimum that it equals is seen
_MARKED = 30  # values of an axis from which lines have no markers
_FEW = 5  # lines that may have bands: those of more hide one another
_DECADES = 2  # of a log scale below which its ticks are plain numbers
_TICKS = 6  # at most along an edge of a map
_ROOM = 40  # characters of words side by side below an axis
_LONGEST = 24  # characters of a value in a title


class Look(NamedTuple):
    """How a run is drawn."""

    name: str
    colour: str
    line: str
    marker: str


def draw(
    frame: pd.DataFrame,
    axes: Sequence[Axis],
    path: files.FilePath | None,
    x: str | None,
    y: str | None,
) -> plotting.Picture:
    """Return the picture of a study's table over the axes that are given by name, or chosen."""
    if frame["value"].isna().all():
        raise ValueError("`plot` expects at least one result with a value, got none")
    across, second = _choose(axes, x, y)
    drawn = {axis.group for axis in (across, second) if axis is not None}
    if across is None:
        return _draw_points(path, frame)
    facets = second is not None and y is None and len(second.values) <= _FACETS
    if second is None or facets:
        return _draw_lines(path, frame, across, second, _spread(axes, drawn))
    if x is not None and y is None:  # a single axis was asked for
        return _draw_lines(path, frame, across, None, _spread(axes, {across.group}))
    return _draw_maps(path, frame, across, second, _spread(axes, drawn))


def _choose(axes: Sequence[Axis], x: str | None, y: str | None) -> tuple[Axis | None, Axis | None]:
    """Return the axis across and, if any, a second one.

    Numbers go before words, many values before few; a seed is none of them unless it is asked for.
    """
    named = {axis.name: axis for axis in axes}
    chosen = [None if name is None else named[name] for name in (x, y)]
    free = sorted(
        (axis for axis in axes if len(axis.values) > 1 and not axis.is_seed),
        key=lambda axis: (not axis.is_numeric, -len(axis.values)),
    )
    for i in range(2):
        taken = {axis.group for axis in chosen if axis is not None}
        left = [axis for axis in free if axis.group not in taken]
        if chosen[i] is None and left:
            chosen[i] = left[0]
    across, second = chosen
    return (second, None) if across is None else (across, second)


def _spread(axes: Sequence[Axis], drawn: set[int]) -> str:
    """Return the names of the axes that quantiles are taken over."""
    return ", ".join(a.name for a in axes if len(a.values) > 1 and a.group not in drawn)


def _looks(frame: pd.DataFrame) -> list[Look]:
    """Return how the runs are drawn, in their order: strategies in colours, solvers in black."""
    runs = frame[frame["what"] != "simulation"].drop_duplicates("name")
    looks: list[Look] = []
    for name, what in zip(runs["name"], runs["what"], strict=True):
        solvers = sum(look.colour == "black" for look in looks)
        number = len(looks) - solvers
        if what == "solver":
            looks.append(Look(name, "black", _SOLVERS[solvers % len(_SOLVERS)], "*"))
        else:
            marker = _MARKERS[number % len(_MARKERS)]
            looks.append(Look(name, plotting.task_colour(number), "-", marker))
    return looks


# Lines


def _draw_lines(
    path: files.FilePath | None,
    frame: pd.DataFrame,
    across: Axis,
    second: Axis | None,
    over: str,
) -> plotting.Picture:
    """Draw the runs over an axis, in a panel for each value of a second one."""
    looks = _looks(frame)
    parts = [frame] if second is None else [frame[frame[second.name] == x] for x in second.cells]
    bands = bool(over) and len(looks) <= _FEW
    width = 6.4 if second is None else 2.0 + 2.4 * len(parts)
    with plotting.figure(path, width=width, height=3.6) as figure:
        panels = figure.subplots(1, len(parts), sharey=True, squeeze=False)[0]
        for i, (axes, part) in enumerate(zip(panels, parts, strict=True)):
            if across.is_numeric:
                _draw_over_numbers(axes, part, looks, across, bands)
            else:
                _draw_over_words(axes, part, looks, across)
            axes.set_xlabel(across.name)
            if second is not None:
                axes.set_title(f"{second.name} = {_short(second.cells[i])}", fontsize=9)
        panels[0].set_ylabel("objective")
        _log_scale(panels[0], frame["value"])
        title = _quantiles(across, bands, over) if over else ""
        if frame["value"].isna().any():
            title = f"{title}\nfailed runs are worst".strip()
        _legend(figure, panels[-1], frame, looks, across, title)
    return figure


def _quantiles(across: Axis, bands: bool, over: str) -> str:
    spread = ", 10 to 90 %" if bands or not across.is_numeric else ""
    return f"median{spread}\nover {over}"


def _draw_over_numbers(
    axes: Axes, frame: pd.DataFrame, looks: Sequence[Look], across: Axis, bands: bool
) -> None:
    marked = len(across.values) < _MARKED
    for look in looks:
        own = frame[frame["name"] == look.name]
        for simulated, part in own.groupby(own["what"] == "simulation"):
            low, middle, high = _levels(part, across)
            if bands and not simulated:
                fill: dict[str, Any] = {"color": look.colour, "alpha": 0.15, "linewidth": 0}
                axes.fill_between(middle.index, low, high.clip(upper=frame["value"].max()), **fill)
            marker = look.marker if marked and look.line == "-" else ""
            marker, line = ("x", "") if simulated else (marker, look.line)
            style: dict[str, Any] = {"marker": marker, "linestyle": line, "markersize": 4.5}
            finite = middle.where(np.isfinite(middle))
            axes.plot(middle.index, finite, color=look.colour, **style)
    if _is_geometric(across.values):
        axes.set_xscale("log")
        plotting.plain_ticks(axes, "x")


def _draw_over_words(axes: Axes, frame: pd.DataFrame, looks: Sequence[Look], across: Axis) -> None:
    """Draw runs side by side at every word: medians, and bars from 10 to 90 %."""
    places = {cell: i for i, cell in enumerate(across.cells)}
    top = frame["value"].max()
    for k, look in enumerate(looks):
        shift = 0.6 * ((k + 0.5) / len(looks) - 0.5)
        own = frame[frame["name"] == look.name]
        for simulated, part in own.groupby(own["what"] == "simulation"):
            low, middle, high = _levels(part, across)
            where = np.array([places[cell] for cell in middle.index]) + shift
            if not simulated:
                axes.vlines(where, low, high.clip(upper=top), color=look.colour, linewidth=1.2)
            marker = "x" if simulated else look.marker
            finite = middle.where(np.isfinite(middle))
            axes.plot(where, finite, marker=marker, color=look.colour, linestyle="")
    words = [_short(cell) for cell in places]
    axes.set_xticks(range(len(words)), words)
    axes.set_xlim(-0.5, len(words) - 0.5)
    if sum(map(len, words)) > _ROOM:
        axes.tick_params("x", rotation=30)


def _levels(frame: pd.DataFrame, across: Axis) -> list[pd.Series]:
    """Return quantiles of the values at 10, 50 and 90 % by the values of an axis."""
    groups = frame.groupby(across.name)["value"]
    return [groups.agg(quantile, level) for level in (0.1, 0.5, 0.9)]


def _legend(
    figure: Any,
    axes: Axes,
    frame: pd.DataFrame,
    looks: Sequence[Look],
    across: Axis,
    title: str,
) -> None:
    """Put a legend beside axes; the figure grows where names are long or many."""
    handles = []
    for look in looks:
        lines = across.is_numeric
        marker = look.marker if look.line == "-" or not lines else ""
        style: dict[str, Any] = {"linestyle": look.line if lines else "", "marker": marker}
        handles.append(Line2D([], [], color=look.colour, markersize=4.5, label=look.name, **style))
    if (frame["what"] == "simulation").any():
        handles.append(Line2D([], [], color="0.4", marker="x", linestyle="", label="SGD"))
    columns = -(-len(handles) // 14)
    longest = max(len(look.name) for look in looks)
    figure.set_figwidth(figure.get_figwidth() + 0.06 * max(0, longest - 18) * columns)
    axes.legend(
        handles=handles,
        title=title,
        alignment="left",
        ncols=columns,
        loc="center left",
        bbox_to_anchor=(1.01, 0.5),
    )


# Maps


def _draw_maps(
    path: files.FilePath | None, frame: pd.DataFrame, across: Axis, second: Axis, over: str
) -> plotting.Picture:
    """Draw the median of each run over two axes, all in the same colours."""
    theory = frame[frame["what"] != "simulation"]
    names = [look.name for look in _looks(frame)]
    groups = theory.groupby(["name", second.name, across.name])["value"].agg(quantile, 0.5)
    tables = {name: groups[name].unstack().loc[_sorted(second), _sorted(across)] for name in names}
    values = groups[np.isfinite(groups)]
    low, high = values.min(), values.max()
    norm = LogNorm(low, high) if low > 0 else Normalize(low, high)
    columns = min(len(names), _COLUMNS)
    rows = -(-len(names) // columns)
    with plotting.figure(path, width=1.6 + 2.2 * columns, height=0.6 + 2.1 * rows) as figure:
        grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
        for axes, (name, table) in zip(grid.ravel(), tables.items(), strict=False):
            axes.set_facecolor("0.85")  # where there is no value
            shown = np.ma.masked_invalid(table.to_numpy())
            image = axes.pcolormesh(shown, norm=norm, cmap="viridis_r")
            axes.set_title(name, fontsize=9)
            _label(axes.xaxis, list(table.columns))
            _label(axes.yaxis, list(table.index))
        for k, axes in enumerate(grid.ravel()):
            axes.set_visible(k < len(names))
            last = k + columns >= len(names)  # none below
            axes.tick_params(labelbottom=last)
            axes.set(xlabel=across.name if last else "", ylabel="" if k % columns else second.name)
        label = f"objective, median over {over}" if over else "objective"
        if len(values) < len(groups):
            label += " (grey: failed)"
        figure.colorbar(image, ax=grid, label=label)
    return figure


def _label(axis: Any, values: Sequence[Any]) -> None:
    """Label the cells of a map, as many as there is room for."""
    shown = range(0, len(values), -(-len(values) // _TICKS))
    axis.set_ticks([i + 0.5 for i in shown], [_short(values[i]) for i in shown])


# Points


def _draw_points(path: files.FilePath | None, frame: pd.DataFrame) -> plotting.Picture:
    """Draw every value of each run in a row of its own, and their median."""
    looks = _looks(frame)
    simulated = frame["what"] == "simulation"
    several = len(frame[~simulated]) > len(looks)
    width = 6.4 + 0.06 * max(0, max(len(look.name) for look in looks) - 18)
    with plotting.figure(path, width=width, height=0.9 + 0.32 * len(looks)) as figure:
        axes = figure.subplots()
        for row, look in enumerate(looks):
            own = frame["name"] == look.name
            theory, sgd = frame[own & ~simulated]["value"], frame[own & simulated]["value"]
            style: dict[str, Any] = {"color": look.colour, "linestyle": ""}
            alpha = 0.35 if several else 1.0
            axes.plot(theory, [row] * len(theory), marker="o", markersize=4, alpha=alpha, **style)
            axes.plot(sgd, [row + 0.25] * len(sgd), marker="x", markersize=4, **style)
            middle = quantile(theory, 0.5)
            if several and np.isfinite(middle):
                axes.plot(middle, row, marker="|", markersize=14, markeredgewidth=2, **style)
        axes.set_yticks(range(len(looks)), [look.name for look in looks])
        axes.set_ylim(len(looks) - 0.5, -0.5)
        axes.set_xlabel("objective")
        _log_scale(axes, frame["value"], "x")
        plain: dict[str, Any] = {"color": "0.4", "linestyle": ""}
        handles = [Line2D([], [], marker="|", markersize=10, label="median", **plain)] * several
        handles += [Line2D([], [], marker="x", label="SGD", **plain)] * bool(simulated.any())
        if handles:
            axes.legend(handles=handles, loc="center left", bbox_to_anchor=(1.01, 0.5))
    return figure


# Parts


def _log_scale(axes: Axes, values: pd.Series, which: Literal["x", "y"] = "y") -> None:
    """Give an axis a log scale, unless a value has no place on it."""
    if values.min() > 0:
        axes.set_yscale("log") if which == "y" else axes.set_xscale("log")
        if values.max() < 10**_DECADES * values.min():
            plotting.plain_ticks(axes, which)


def _is_geometric(values: Sequence[Any]) -> bool:
    """Whether numbers spread over decades, so that on a linear scale most would lie together."""
    numbers = np.sort(np.array(values, dtype=float))
    if numbers[0] <= 0 or numbers[-1] < 10 * numbers[0] or len(numbers) < 3:
        return False
    gaps = np.diff(numbers)
    return bool(gaps.max() > 3 * gaps.min())


def _sorted(axis: Axis) -> list[Any]:
    return sorted(axis.cells) if axis.is_numeric else axis.cells


def _short(cell: Any) -> str:
    text = f"{cell:.4g}" if isinstance(cell, float) else str(cell)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
