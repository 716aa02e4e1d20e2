"""The studio: where people draw a protocol of their own, with the mouse or with the keyboard."""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from typing import Any

import numpy as np
import panel as pn
from bokeh.events import Pan, PanStart, Tap
from bokeh.models import Range1d

from replan._common.naming import knob_label
from replan.control import Plan
from replan.explorer._drawing import Drawing
from replan.explorer._figures import Bar, Lines, Look
from replan.explorer._handlers import Deliver, button, on_value
from replan.explorer._results import OPTIMUM, OWN, Shown
from replan.explorer._state import State, showable
from replan.explorer._texts import ahead
from replan.strategies import STRATEGIES

_BACK = 30  # strokes that can be taken back


class Studio:
    """A colour bar and a curve of a knob to draw on, and how far the optimum is ahead.

    current: returns the page's state. change: called with a new one. refuse: with what is wrong
    with an input. solve: to search for the optimum from the user's own protocol. deliver: calls a
    function in the thread of the page.
    """

    def __init__(
        self,
        look: Look,
        current: Callable[[], State],
        change: Callable[[State], None],
        refuse: Callable[[str], None],
        solve: Callable[[], None],
        deliver: Deliver,
    ) -> None:
        self._current, self._change, self._refuse = current, change, refuse
        self._look = look
        self._plan: Plan | None = None
        self._past: list[Drawing | None] = []
        self._last: tuple[float, float] | None = None  # where the stroke was, in both units
        self._x_range, self._y_range = Range1d(0, 1), Range1d(0, 1)
        self._bar = Bar(look, 64, self._x_range)
        self._curve = Lines(
            look, 130, log=False, label="", x_range=self._x_range, y_range=self._y_range
        )
        for name, figure, stroke in (
            ("draw-bar", self._bar.figure, self._paint),
            ("draw-curve", self._curve.figure, self._bend),
        ):
            figure.css_classes = [name]
            figure.on_event(PanStart, self._begin(stroke))
            figure.on_event(Pan, self._stroke(stroke))
            figure.on_event(Tap, self._begin(stroke))
        self._make_widgets(solve, deliver)
        self._arrange()

    def _make_widgets(self, solve: Callable[[], None], deliver: Deliver) -> None:
        self._brush = pn.widgets.RadioButtonGroup(options={"task 1": 0}, css_classes=["brush"])
        self._share = pn.widgets.IntSlider(
            name="share of this task, %", start=0, end=100, step=5, value=100, width=200
        )
        self._knob = pn.widgets.Select(name="curve of", width=150, css_classes=["knob"])
        on_value(self._knob, self._show, deliver)
        self._from = pn.widgets.Select(name="begin with", width=170, css_classes=["begin"])
        copy = button("Copy", self._begin_with_chosen, deliver, "copy-protocol")
        undo = button("Undo", self._undo, deliver, "undo")
        mine = button("Solve from mine", solve, deliver, "mine", button_type="primary")
        self._span = pn.widgets.RangeSlider(
            name="from, to (% of the training)", start=0, end=100, step=1, value=(0, 50), width=230,
            css_classes=["span"],
        )  # fmt: skip
        self._level = pn.widgets.FloatInput(
            name="value", value=1.0, width=90, css_classes=["level"]
        )
        by_key = button("Paint", self._typed, deliver, "paint")
        by_value = button("Set curve", self._typed_value, deliver, "set-curve")
        self._words = pn.pane.HTML(css_classes=["ahead"], sizing_mode="stretch_width")
        row = {"sizing_mode": "stretch_width", "align_items": "end"}
        self._tools = pn.FlexBox(self._brush, self._share, self._from, copy, undo, mine, **row)
        keys = pn.FlexBox(self._span, by_key, self._knob, self._level, by_value, **row)
        self._keys = keys

    def _arrange(self) -> None:
        wide = {"sizing_mode": "stretch_width", "margin": 0}
        self.view = pn.Column(
            pn.pane.HTML(
                "<h2>Draw your own protocol</h2><p>Choose a task and drag over the colour bar; "
                "drag on the curve below it to draw the learning rate or another knob. The solver "
                "begins from yours as far as it may turn it.</p>",
                sizing_mode="stretch_width",
            ),
            self._tools,
            pn.pane.Bokeh(self._bar.figure, **wide),
            pn.pane.Bokeh(self._curve.figure, **wide),
            self._keys,
            self._words,
            css_classes=["panel-box", "studio"],
            sizing_mode="stretch_width",
        )

    # What it shows

    @property
    def _state(self) -> State:
        return self._current()

    def update(self, state: State, shown: Shown) -> None:
        """Show the user's own protocol of a state whose curves are known."""
        problem = shown.problem
        names = {name: t for t, name in enumerate(problem.model.task_names)}
        if self._brush.options != names:
            self._brush.options = names
            self._brush.value = len(names) - 1
        knobs = {knob_label(name): name for name in problem.model.panel.knobs}
        if self._knob.options != knobs:
            self._knob.options = knobs
        self._from.options = [*showable(), OPTIMUM]
        self._x_range.end = problem.duration
        if state is self._state:  # else a stroke has gone on meanwhile
            self._show()
        self._say(shown)

    def optimum(self, plan: Plan | None, shown: Shown) -> None:
        """Compare the user's own with a plan, or with none where there is none that is current."""
        self._plan = plan
        self._say(shown)

    def _show(self) -> None:
        problem, knob = self._state.problem, self._knob.value
        own = self._state.own
        self._bar.update(own.protocol(problem))
        if knob not in problem.knob_values:
            return
        values = own.values(problem, knob)
        edges = np.repeat(problem.edges, 2)[1:-1]
        self._curve.update(edges, {knob: np.repeat(values, 2)}, [self._look.text])
        [dial] = [one for one in self._state.dials if one.key == f"training.{knob}"]
        self._y_range.update(start=dial.low, end=max(dial.high, float(values.max())))
        self._curve.figure.yaxis.axis_label = knob_label(knob)

    def _say(self, shown: Shown) -> None:
        own = shown.runs.get(OWN)
        if own is None:
            self._words.object = f'<p class="bad">{escape(shown.failures.get(OWN, ""))}</p>'
            return
        text = f'yours <span class="own-loss">{own.loss:.6g}</span>'
        if self._plan is not None:
            text += f", optimum {self._plan.loss:.6g}: {ahead(own.loss, self._plan.loss)}"
        self._words.object = f"<p>{text}</p>"

    # Strokes

    def _begin(self, stroke: Callable[[Any], Drawing]) -> Callable[[Any], None]:
        def begin(event: Any) -> None:
            self._last = None
            self._past = [*self._past[-_BACK:], self._state.drawing]
            self._draw(stroke, event)

        return begin

    def _stroke(self, stroke: Callable[[Any], Drawing]) -> Callable[[Any], None]:
        return lambda event: self._draw(stroke, event)

    def _draw(self, stroke: Callable[[Any], Drawing], event: Any) -> None:
        """Continue a stroke to where the pointer is; one that leaves the figure has no place."""
        if event.x is None or event.y is None or not np.isfinite([event.x, event.y]).all():
            return
        try:
            drawing = stroke(event)
        except ValueError as error:  # of a problem that has no curves either
            self._refuse(str(error))
            return
        self._last = (event.x, event.y)
        self._set(drawing)

    def _paint(self, event: Any) -> Drawing:
        duration = self._state.problem.duration
        first = event.x if self._last is None else self._last[0]
        return self._state.own.paint(
            first / duration, event.x / duration, self._brush.value, self._share.value / 100
        )

    def _bend(self, event: Any) -> Drawing:
        problem = self._state.problem
        low, high = self._limits()
        here = (event.x / problem.duration, float(np.clip(event.y, low, high)))
        last = here
        if self._last is not None:
            last = (self._last[0] / problem.duration, float(np.clip(self._last[1], low, high)))
        return self._state.own.bend(problem, self._knob.value, last, here)

    def _limits(self) -> tuple[float, float]:
        key = f"training.{self._knob.value}"
        [dial] = [one for one in self._state.dials if one.key == key]
        return dial.low, dial.high

    def _set(self, drawing: Drawing | None) -> None:
        self._change(self._state.draw(drawing))
        self._show()

    # Without a mouse

    def _typed(self) -> None:
        first, last = (x / 100 for x in self._span.value)
        self._past = [*self._past[-_BACK:], self._state.drawing]
        inside = max(first, last - 0.5 / self._state.problem.steps)
        share = self._share.value / 100
        self._set(self._state.own.paint(first, inside, self._brush.value, share))

    def _typed_value(self) -> None:
        low, high = self._limits()
        value = self._level.value
        if value is None or not low <= value <= high:
            self._refuse(
                f"`{self._knob.value}` expects a number from {low:g} to {high:g}, got {value}"
            )
            return
        first, last = (x / 100 for x in self._span.value)
        self._past = [*self._past[-_BACK:], self._state.drawing]
        inside = max(first, last - 0.5 / self._state.problem.steps)
        problem = self._state.problem
        self._set(self._state.own.bend(problem, self._knob.value, (first, value), (inside, value)))

    def _begin_with_chosen(self) -> None:
        problem, name = self._state.problem, self._from.value
        if name == OPTIMUM:
            if self._plan is None:
                self._refuse("there is no optimum of this problem yet")
                return
            protocol = self._plan.protocol
        else:
            try:
                protocol = STRATEGIES[name](problem)
            except ValueError as error:
                self._refuse(str(error))
                return
        self._past = [*self._past[-_BACK:], self._state.drawing]
        self._set(Drawing.of(problem, protocol))

    def _undo(self) -> None:
        if self._past:
            self._set(self._past.pop())
