"""The pictures of a page: figures of Bokeh whose data change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
from bokeh.models import ColumnDataSource, HoverTool, Range1d
from bokeh.plotting import figure

from replan._common.check import Floats
from replan._common.naming import knob_label
from replan._common.plotting import task_colour
from replan.curves import Curves
from replan.explorer._texts import merged
from replan.protocol import Protocol
from replan.trajectory import Trajectory

_DASHES = ("solid", "dashed", "dotdash", "dashdot")
_STALE = 0.3  # how much is left to see of an answer to an earlier question
_LEFT = 62  # pixels beside a figure, the same for all that stand above one another


@dataclass(frozen=True)
class Look:
    """The colours of a page."""

    text: str
    soft: str
    grid: str
    surface: str


LOOKS = {
    "light": Look("#1b1f24", "#59636e", "#e4e7eb", "#ffffff"),
    "dark": Look("#e6e9ec", "#9aa4af", "#343b43", "#1d2126"),
}


def plain_figure(look: Look, height: int, **settings: Any) -> Any:
    """Return an empty figure without tools, as wide as its place."""
    settings = {"x_axis_label": "training time α"} | settings
    found = figure(
        height=height,
        sizing_mode="stretch_width",
        tools="",
        toolbar_location=None,
        min_border_left=_LEFT,
        min_border_right=12,
        background_fill_color=look.surface,
        border_fill_color=look.surface,
        outline_line_color=None,
        **settings,
    )
    found.min_width = 200
    for axis in found.axis:
        axis.axis_line_color = axis.major_tick_line_color = look.soft
        axis.minor_tick_line_color = None
        axis.major_label_text_color = axis.axis_label_text_color = look.soft
        axis.axis_label_text_font_style = "normal"
        axis.axis_label_text_font_size = axis.major_label_text_font_size = "12px"
    for grid in found.grid:
        grid.grid_line_color = look.grid
    return found


def fade(found: Any, stale: bool) -> None:
    """Grey a figure where it is out of date, or show it as current.

    Its whole place: Bokeh does not paint new data of a glyph whose own alpha changes with them.
    """
    found.styles = {"opacity": f"{_STALE if stale else 1.0}"}


class Bar:
    """The colour bar of a protocol."""

    def __init__(self, look: Look, height: int, x_range: Any) -> None:
        self.figure = plain_figure(
            look, height, x_range=x_range, y_range=Range1d(0, 1), x_axis_label=None
        )
        self.figure.axis.visible = False
        self.figure.grid.visible = False
        self.figure.min_border_top = self.figure.min_border_bottom = 2
        names = ("left", "right", "bottom", "top", "color")
        self._source = ColumnDataSource({name: [] for name in names})
        self.figure.quad(
            left="left", right="right", bottom="bottom", top="top", color="color",
            line_color=None, source=self._source,
        )  # fmt: skip

    def update(self, protocol: Protocol) -> None:
        """Show a protocol."""
        some = merged(Protocol(protocol.shares, knobs={}, edges=protocol.edges))
        high = np.cumsum(some.shares, axis=1)
        step, task = np.nonzero(some.shares > 0)
        self._source.data = {
            "left": some.edges[step],
            "right": some.edges[step + 1],
            "bottom": (high - some.shares)[step, task],
            "top": high[step, task],
            "color": [task_colour(t) for t in task.tolist()],
        }

    def fade(self, stale: bool) -> None:
        """Grey the bar where it is out of date."""
        fade(self.figure, stale)


class Lines:
    """Curves against time: several lines, with bands and crosses."""

    def __init__(
        self,
        look: Look,
        height: int,
        *,
        log: bool,
        label: str,
        x_range: Any = None,
        **settings: Any,
    ) -> None:
        ranges = {} if x_range is None else {"x_range": x_range}
        kind = "log" if log else "linear"
        self.figure = plain_figure(
            look, height, y_axis_type=kind, y_axis_label=label, **ranges, **settings
        )
        self.log, self._look = log, look
        self._band = ColumnDataSource({"xs": [], "ys": [], "color": []})
        self.figure.patches(
            "xs", "ys", fill_color="color", fill_alpha=0.25, line_color=None, source=self._band
        )
        self._line = ColumnDataSource({"xs": [], "ys": [], "color": [], "dash": [], "name": []})
        lines = self.figure.multi_line(
            "xs", "ys", line_color="color", line_dash="dash", line_width=2, source=self._line
        )
        self._cross = ColumnDataSource({"x": [], "y": [], "color": []})
        self.figure.scatter(
            "x", "y", marker="x", size=8, line_width=2, line_color="color", source=self._cross
        )
        self.figure.add_tools(
            HoverTool(renderers=[lines], tooltips=[("", "@name"), ("α", "$x"), ("", "$y{0.0000e}")])
        )

    def update(
        self, times: Floats, curves: dict[str, Floats], colours: Sequence[str], dotted: str = ""
    ) -> None:
        """Show curves (m,) by name at times (m,); what a log scale has no place for is left out."""
        self._line.data = {
            "xs": [times] * len(curves),
            "ys": [self._shown(values) for values in curves.values()],
            "color": list(colours),
            "dash": [
                "dotted" if name == dotted else _DASHES[i % len(_DASHES)]
                for i, name in enumerate(curves)
            ],
            "name": list(curves),
        }

    def knobs(self, protocol: Protocol) -> None:
        """Show the knobs of a protocol that vary, each task's own in its colour."""
        edges = np.repeat(protocol.edges, 2)[1:-1]
        lines, shown = {}, []
        for name in protocol.varied:
            own = protocol.knobs[name].ndim == 2
            for t in range(protocol.tasks if own else 1):
                values = protocol.by_task(name)[:, t]
                trained = protocol.shares[:, t] > 0 if own else True
                lines[f"{knob_label(name)}, task {t + 1}" if own else knob_label(name)] = np.repeat(
                    np.where(trained, values, np.nan), 2
                )
                shown.append(task_colour(t) if own else self._look.text)
        self.update(edges, lines, shown)
        labels = [knob_label(name) for name in protocol.varied]
        self.figure.yaxis.axis_label = labels[0] if len(labels) == 1 else "knobs"

    def losses(self, run: Trajectory) -> None:
        """Show the losses of a run, and what the goal makes of them where they are several."""
        names = run.problem.model.loss_names
        times, losses = run.times, run.losses
        curves = {name: losses[:, i] for i, name in enumerate(names)}
        colours = [task_colour(i) for i in range(len(names))]
        goal = run.problem.measure.words
        if len(names) > 1:
            curves |= {goal: run.weighted_losses}
            colours.append(self._look.text)
        self.update(times, curves, colours, dotted=goal)

    def band(self, curves: Curves, low: float = 0.1, high: float = 0.9) -> None:
        """Show the quantiles of runs as bands, one for each loss."""
        ends = curves.quantiles([low, high])
        times = curves.times
        self._band.data = {
            "xs": [np.concatenate([times, times[::-1]])] * curves.tasks,
            "ys": [
                self._shown(np.concatenate([ends[0][:, t], ends[1][::-1, t]]))
                for t in range(curves.tasks)
            ],
            "color": [task_colour(t) for t in range(curves.tasks)],
        }

    def crosses(self, times: Floats, values: Floats) -> None:
        """Show losses (m, L) at times (m,) as crosses."""
        count = values.shape[1]
        self._cross.data = {
            "x": np.tile(times, count),
            "y": self._shown(values.T.ravel()),
            "color": [task_colour(t) for t in range(count) for _ in range(len(times))],
        }

    def clear(self) -> None:
        """Show nothing."""
        for source in (self._band, self._line, self._cross):
            source.data = {name: [] for name in source.data}

    def fade(self, stale: bool) -> None:
        """Grey everything where it is out of date."""
        fade(self.figure, stale)

    def _shown(self, values: Floats) -> Floats:
        return np.where(values > 0, values, np.nan) if self.log else values


class Bars:
    """Numbers by name, as bars that lie one below the other."""

    def __init__(self, look: Look, label: str) -> None:
        self.figure = plain_figure(look, 240, y_range=[], x_axis_type="log", x_axis_label=label)
        self.figure.min_border_left = 90
        self._source = ColumnDataSource({"name": [], "value": []})
        self.figure.scatter(x="value", y="name", size=11, color=task_colour(2), source=self._source)

    def update(self, values: dict[str, float]) -> None:
        """Show numbers above 0."""
        self.figure.y_range.factors = list(values)[::-1]
        self._source.data = {"name": list(values), "value": list(values.values())}

    def fade(self, stale: bool) -> None:
        """Grey everything where it is out of date."""
        fade(self.figure, stale)


def colours(count: int) -> list[str]:
    """Return a colour for each of several lines."""
    return [task_colour(i) for i in range(count)]


def legend(names: Sequence[str], all_of_them: str = "") -> str:
    """Return what the colours of lines stand for, and what a dotted line does, as HTML."""
    keys = [
        f'<span class="key"><i style="background:{task_colour(i)}"></i>{escape(name)}</span>'
        for i, name in enumerate(names)
    ]
    if all_of_them:
        keys.append(f'<span class="key"><i class="all"></i>{escape(all_of_them)}</span>')
    return f'<div class="legend">{"".join(keys)}</div>'
