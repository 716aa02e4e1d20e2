"""The picture of a study: lines over an axis, maps over two, or points where nothing varies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, Normalize
from matplotlib.lines import Line2D

from replan._common import files, plotting
from replan.studies._axes import Axis

if TYPE_CHECKING:
    from replan.studies._study import Study

_FACETS = 4  # values of a second axis that have a panel each; more make a map
_COLUMNS = 4  # maps side by side
_MARKERS = "osDv^<>Pp*"
_MARKED = 30  # values of an axis from which lines have no markers
_FEW = 5  # lines that may have bands: those of more hide one another
_BELOW = 0.7  # of the height of an axis: what lies between the lines of its ticks


def draw(study: Study, path: files.FilePath | None, x: str | None, y: str | None) -> Any:
    """Return the picture of a study over the axes that are given by name, or chosen."""
    frame = study.to_frame().dropna(subset=["value"])
    if frame.empty:
        raise ValueError("`plot` expects at least one result with a value, got none")
    across, second = _choose(study.axes, x, y)
    others = [axis for axis in study.axes if len(axis.values) > 1]
    over = [a.name for a in others if a.group not in {b.group for b in (across, second) if b}]
    looks = _looks(frame)
    if across is None:
        return _draw_points(path, frame, looks)
    if second is None or (y is None and len(second.values) <= _FACETS):
        return _draw_lines(path, frame, looks, across, second, over)
    return _draw_maps(path, frame, across, second, over)


def _choose(axes: Sequence[Axis], x: str | None, y: str | None) -> tuple[Axis | None, Axis | None]:
    """Return the axes across and, if any, the second one.

    Numbers go before words, many values before few; a seed is none of them unless it is asked for.
    """
    named = {axis.name: axis for axis in axes}
    free = sorted(
        (axis for axis in axes if len(axis.values) > 1 and not axis.is_seed),
        key=lambda axis: (not axis.is_numeric, -len(axis.values)),
    )
    second = None if y is None else named[y]
    if x is None:
        free = [axis for axis in free if second is None or axis.group != second.group]
        across = free[0] if free else None
    else:
        across = named[x]
    if second is None and across is not None:
        free = [axis for axis in free if axis.group != across.group]
        second = free[0] if free else None
    return (across, second) if across is not None else (second, None)


def _looks(frame: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """Return how each run is drawn, in their order: strategies in colours, solvers in black."""
    kinds = frame[frame["what"] != "simulation"].drop_duplicates("name")
    looks: dict[str, dict[str, Any]] = {}
    for name, what in zip(kinds["name"], kinds["what"], strict=True):
        solvers = sum(look["color"] == "black" for look in looks.values())
        number = len(looks) - solvers
        if what == "solver":
            line = plotting.TASK_LINES[solvers % len(plotting.TASK_LINES)]
            looks[name] = {"color": "black", "linestyle": line, "marker": ""}
        else:
            marker = _MARKERS[number % len(_MARKERS)]
            looks[name] = {"color": plotting.task_colour(number), "marker": marker}
    return looks


# Lines


def _draw_lines(
    path: files.FilePath | None,
    frame: pd.DataFrame,
    looks: dict[str, dict[str, Any]],
    across: Axis,
    second: Axis | None,
    over: Sequence[str],
) -> plotting.Picture:
    """Draw the runs over an axis, in a panel for each value of a second one."""
    parts = [frame] if second is None else [frame[frame[second.name] == x] for x in second.cells]
    width = 6.4 if second is None else 2.0 + 2.4 * len(parts)
    with plotting.figure(path, width=width, height=3.6) as figure:
        panels = figure.subplots(1, len(parts), sharey=True, squeeze=False)[0]
        for axes, part in zip(panels, parts, strict=True):
            if across.is_numeric:
                _draw_over_numbers(axes, part, looks, across, bool(over))
            else:
                _draw_over_words(axes, part, looks, across)
            axes.set_xlabel(across.name)
        if second is not None:
            for axes, cell in zip(panels, second.cells, strict=True):
                axes.set_title(f"{second.name} = {_short(cell)}", fontsize=9)
        panels[0].set_ylabel("objective")
        _scale(panels[0], frame["value"])
        handles = [
            Line2D(
                [], [], **{"linestyle": "" if not across.is_numeric else "-", **look}, label=name
            )
            for name, look in looks.items()
        ]
        if (frame["what"] == "simulation").any():
            handles.append(Line2D([], [], color="0.4", marker="x", linestyle="", label="SGD"))
        columns = -(-len(handles) // 14)
        panels[-1].legend(
            handles=handles,
            title=_spread(over),
            ncols=columns,
            loc="center left",
            bbox_to_anchor=(1.01, 0.5),
        )
        longest = max(map(len, [*looks, *_spread(over).splitlines()]))
        figure.set_figwidth(figure.get_figwidth() + 0.06 * max(0, longest - 18) * columns)
    return figure


def _draw_over_numbers(
    axes: Axes, frame: pd.DataFrame, looks: dict[str, dict[str, Any]], across: Axis, spread: bool
) -> None:
    many = len(across.values) >= _MARKED
    for name, look in looks.items():
        own = frame[frame["name"] == name]
        theory, sgd = own[own["what"] != "simulation"], own[own["what"] == "simulation"]
        look = look | ({"marker": ""} if many else {})
        band = spread and len(looks) <= _FEW
        plotting.draw_median(axes, theory, x=across.name, y="value", band=band, **look)
        cross = {"color": look["color"], "marker": "x", "linestyle": ""}
        plotting.draw_median(axes, sgd, x=across.name, y="value", band=False, **cross)
    if _is_geometric(across.values):
        axes.set_xscale("log")


def _draw_over_words(
    axes: Axes, frame: pd.DataFrame, looks: dict[str, dict[str, Any]], across: Axis
) -> None:
    """Draw runs side by side at every word: medians, and bars from 10 to 90 %."""
    places = {cell: i for i, cell in enumerate(across.cells)}
    for k, (name, look) in enumerate(looks.items()):
        shift = 0.6 * ((k + 0.5) / len(looks) - 0.5)
        for what, own in frame[frame["name"] == name].groupby("what"):
            groups = own.groupby(across.name)["value"]
            low, middle, high = (groups.quantile(level) for level in (0.1, 0.5, 0.9))
            where = np.array([places[cell] for cell in middle.index]) + shift
            marker = "x" if what == "simulation" else look["marker"] or "_"
            axes.vlines(where, low, high, color=look["color"], linewidth=1.2)
            axes.plot(where, middle, marker=marker, color=look["color"], linestyle="")
    axes.set_xticks(range(len(places)), [_short(cell) for cell in places])
    axes.set_xlim(-0.5, len(places) - 0.5)
    if sum(len(_short(cell)) for cell in places) > 40:
        axes.tick_params("x", rotation=30)


# Maps


def _draw_maps(
    path: files.FilePath | None,
    frame: pd.DataFrame,
    across: Axis,
    second: Axis,
    over: Sequence[str],
) -> plotting.Picture:
    """Draw the median of each run over two axes, all in the same colours."""
    theory = frame[frame["what"] != "simulation"]
    names = list(dict.fromkeys(theory["name"]))
    tables = {
        name: theory[theory["name"] == name]
        .pivot_table(index=second.name, columns=across.name, values="value", aggfunc="median")
        .reindex(index=_sorted(second), columns=_sorted(across))
        for name in names
    }
    low = min(float(table.min().min()) for table in tables.values())
    high = max(float(table.max().max()) for table in tables.values())
    norm = LogNorm(low, high) if low > 0 else Normalize(low, high)
    columns = min(len(names), _COLUMNS)
    rows = -(-len(names) // columns)
    with plotting.figure(path, width=1.6 + 2.2 * columns, height=0.6 + 2.1 * rows) as figure:
        grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
        for axes, (name, table) in zip(grid.ravel(), tables.items(), strict=False):
            axes.set_facecolor("0.85")  # where there is no value
            image = axes.pcolormesh(table.to_numpy(), norm=norm, cmap="viridis_r")
            axes.set_title(name, fontsize=9)
            _label(axes.xaxis, table.columns)
            _label(axes.yaxis, table.index)
        for axes in grid.ravel()[len(names) :]:
            axes.remove()
        for axes in grid[-1]:
            axes.set_xlabel(across.name)
        for axes in grid[:, 0]:
            axes.set_ylabel(second.name)
        figure.colorbar(
            image, ax=grid, label="objective" + (", median over " + ", ".join(over) if over else "")
        )
    return figure


def _label(axis: Any, values: pd.Index) -> None:
    """Label the cells of a map, as many as there is room for."""
    stride = -(-len(values) // 6)
    shown = range(0, len(values), stride)
    axis.set_ticks([i + 0.5 for i in shown], [_short(values[i]) for i in shown])


# Points


def _draw_points(
    path: files.FilePath | None, frame: pd.DataFrame, looks: dict[str, dict[str, Any]]
) -> plotting.Picture:
    """Draw every value of each run in a row of its own, and their median."""
    with plotting.figure(path, width=6.4, height=0.9 + 0.32 * len(looks)) as figure:
        axes = figure.subplots()
        for row, (name, look) in enumerate(looks.items()):
            own = frame[frame["name"] == name]
            theory, sgd = own[own["what"] != "simulation"], own[own["what"] == "simulation"]
            colour = look["color"]
            if len(theory) > 1:
                axes.plot(
                    theory["value"], [row] * len(theory), "o", color=colour, alpha=0.3, markersize=4
                )
            axes.plot(
                theory["value"].median(), row, "|", color=colour, markersize=14, markeredgewidth=2
            )
            axes.plot(sgd["value"], [row] * len(sgd), "x", color=colour)
        axes.set_yticks(range(len(looks)), list(looks))
        axes.set_ylim(len(looks) - 0.5, -0.5)
        axes.set_xlabel("objective")
        _scale(axes, frame["value"], "x")
    return figure


# Parts


def _scale(axes: Axes, values: pd.Series, which: str = "y") -> None:
    """Give an axis a log scale, unless a value has no place on it."""
    if values.min() > 0:
        axes.set(**{f"{which}scale": "log"})


def _spread(over: Sequence[str]) -> str:
    return f"median, 10 to 90 %\nover {', '.join(over)}" if over else ""


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
    return text if len(text) <= 24 else f"{text[:23]}…"
