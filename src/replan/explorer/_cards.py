"""Cards: protocols side by side, each with its colour bar above its losses."""

from __future__ import annotations

from html import escape
from typing import Any

import numpy as np
import panel as pn
from bokeh.models import Range1d

from replan.control import Plan
from replan.explorer._figures import Bar, Lines, Look, legend
from replan.explorer._results import OPTIMUM, OWN, Shown
from replan.trajectory import Trajectory

_WIDE: dict[str, Any] = {"sizing_mode": "stretch_width"}
_ROOM = 1.3  # times the largest loss, and below the least, on a log scale


class Card:
    """One protocol: its name, its loss, its colour bar and its losses."""

    def __init__(self, look: Look, name: str, log: bool, x_range: Any, y_range: Any) -> None:
        self.name = name
        self._title = pn.pane.HTML(sizing_mode="stretch_width", margin=(4, 8))
        self._bar = Bar(look, 30, x_range)
        self._lines = Lines(look, 210, log=log, label="loss", x_range=x_range, y_range=y_range)
        self._knobs = Lines(look, 130, log=False, label="", x_range=x_range)
        self._knobs.figure.css_classes = ["knobs"]
        self._knobs_pane = pn.pane.Bokeh(self._knobs.figure, sizing_mode="stretch_width", margin=0)
        self._note = ""
        self._run: Trajectory | None = None
        self.view = pn.Column(
            self._title,
            pn.pane.Bokeh(self._bar.figure, sizing_mode="stretch_width", margin=0),
            pn.pane.Bokeh(self._lines.figure, sizing_mode="stretch_width", margin=0),
            css_classes=["tile", f"card-{name}"],
            styles={"flex": "1 1 300px", "max-width": "560px"},
        )

    def update(self, run: Trajectory, note: str = "") -> None:
        """Show a run that is up to date."""
        self._bar.update(run.protocol)
        self._lines.losses(run)
        varied = bool(run.protocol.varied)
        if varied:
            self._knobs.knobs(run.protocol)
        self._show_knobs(varied)
        self._run, self._note = run, note
        self.fade(False)

    def fade(self, stale: bool, why: str = "") -> None:
        """Grey what it shows, and say why, or show it as current."""
        self._bar.fade(stale)
        self._lines.fade(stale)
        self._knobs.fade(stale)
        loss = "" if self._run is None else f'<span class="loss">{self._run.loss:.6g}</span>'
        state = "stale" if stale else "current"
        note = escape(why if stale else self._note)
        self._title.object = (
            f'<div class="title {state}"><b>{escape(self.name)}</b> {loss} '
            f'<span class="note">{note}</span></div>'
        )

    def _show_knobs(self, shown: bool) -> None:
        """Put the curves of knobs on the card, or take them away: hidden ones would take room."""
        there = self._knobs_pane in self.view.objects
        if shown and not there:
            self.view.append(self._knobs_pane)
        elif there and not shown:
            self.view.remove(self._knobs_pane)

    def empty(self, why: str) -> None:
        """Show nothing but the reason."""
        self._run = None
        self._lines.clear()
        self._show_knobs(False)
        self.fade(True, why)


class Cards:
    """The cards of a page: strategies, the user's own protocol and the optimum."""

    def __init__(self, look: Look) -> None:
        self._look, self._log = look, True
        self._cards: dict[str, Card] = {}
        self._plan: Plan | None = None
        self._shown: Shown | None = None
        self.x_range, self._y_range = Range1d(0, 1), Range1d(0.1, 1)
        self.legend = pn.pane.HTML(sizing_mode="stretch_width", margin=(0, 8))
        self._grid = pn.FlexBox(css_classes=["cards"], gap="12px", **_WIDE)
        self.view = pn.Column(self.legend, self._grid, margin=0, **_WIDE)

    def update(self, shown: Shown) -> None:
        """Show curves that are up to date; the optimum stays as it is."""
        self._shown = shown
        runs = shown.runs
        self._build([*(name for name in (*runs, *shown.failures) if name != OWN), OWN, OPTIMUM])
        for name, run in runs.items():
            self._cards[name].update(run)
        for name, why in shown.failures.items():
            self._cards[name].empty(why)
        self.x_range.end = shown.problem.duration
        self._zoom()
        model = shown.problem.model
        several = len(model.loss_names) > 1
        words = shown.problem.measure.words if several else ""
        self.legend.object = legend(model.loss_names, words)

    def optimum(self, plan: Plan) -> None:
        """Show a plan that is up to date."""
        self._plan = plan
        self._cards[OPTIMUM].update(plan.trajectory, plan.status)
        self._zoom()

    def stale(self, why: str) -> None:
        """Grey the optimum, and say what happens with it."""
        if OPTIMUM in self._cards:
            self._cards[OPTIMUM].fade(True, why)

    def fade(self) -> None:
        """Grey all curves: the problem that is asked for has none."""
        for card in self._cards.values():
            card.fade(True, "not of this problem")

    def _build(self, names: list[str]) -> None:
        """Make the cards that are not there yet."""
        log = self._positive()
        if log == self._log and names == list(self._cards):
            return
        kept = self._cards if log == self._log else {}
        if log != self._log:
            self._y_range, self._log = Range1d(0, 1), log
        self._cards = {
            name: kept.get(name) or Card(self._look, name, log, self.x_range, self._y_range)
            for name in names
        }
        if OPTIMUM not in kept and self._plan is not None:
            self._cards[OPTIMUM].update(self._plan.trajectory)
            self._cards[OPTIMUM].fade(True, "of an earlier problem")
        self._grid[:] = [card.view for card in self._cards.values()]

    def _positive(self) -> bool:
        runs = [] if self._shown is None else self._shown.runs.values()
        return all(run.losses.min() > 0 for run in runs)

    def _zoom(self) -> None:
        """Give all cards the same range of losses."""
        assert self._shown is not None
        runs = list(self._shown.runs.values())
        if self._plan is not None and self._plan.problem.model is self._shown.problem.model:
            runs.append(self._plan.trajectory)
        if not runs:
            return
        low = min(float(np.min(run.losses)) for run in runs)
        high = max(float(np.max(run.losses)) for run in runs)
        if self._log and low > 0:
            low, high = max(low, high * 1e-9) / _ROOM, high * _ROOM
        else:
            room = 0.05 * (high - low or 1.0)
            low, high = low - room, high + room
        self._y_range.update(start=low, end=high)
