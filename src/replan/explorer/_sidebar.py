"""The sidebar: the kind of model, its file, its sliders and what `solve` may turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import escape
from typing import Any

import panel as pn

from replan._common.naming import knob_label
from replan.dynamics import Dial
from replan.explorer._handlers import Deliver
from replan.explorer._state import LONGEST_FILE, State, explorable, showable

_WIDE: dict[str, Any] = {"sizing_mode": "stretch_width", "margin": (3, 10)}


class Sidebar:
    """Widgets that turn one state into another.

    current: returns the page's state. change: called with a new one, which the widgets show
    already. refuse: called with what is wrong with an input. load: called with a function that
    makes a state and may take long. deliver: calls a function in the thread of the page.
    """

    def __init__(
        self,
        current: Callable[[], State],
        change: Callable[[State], None],
        refuse: Callable[[str], None],
        load: Callable[[Callable[[], State]], None],
        deliver: Deliver,
    ) -> None:
        self._current, self._change, self._refuse = current, change, refuse
        self._load, self._deliver = load, deliver
        self._quiet = False
        self._kind = pn.widgets.Select(
            name="model", options=explorable(), css_classes=["kind"], **_WIDE
        )
        self._file = pn.widgets.FileInput(
            accept=".toml", multiple=False, css_classes=["file"], **_WIDE
        )
        self._shown = pn.widgets.MultiChoice(
            name="strategies side by side", options=showable(), css_classes=["shown"], **_WIDE
        )
        self._free = pn.widgets.CheckBoxGroup(css_classes=["free"], **_WIDE)
        self._main = pn.Column(sizing_mode="stretch_width", margin=0)
        self._more = pn.Column(sizing_mode="stretch_width", margin=0)
        self._sliders: dict[str, Any] = {}
        self._words = pn.pane.HTML(css_classes=["words"], margin=(0, 10))
        self._kind.param.watch(self._load_kind, "value")
        self._file.param.watch(self._load_file, "value")
        self._shown.param.watch(
            lambda event: self._try(lambda: self._current().show(event.new)), "value"
        )
        self._free.param.watch(
            lambda event: self._try(lambda: self._current().release(event.new)), "value"
        )
        more = pn.Card(
            self._more,
            title="more parameters",
            collapsed=True,
            sizing_mode="stretch_width",
            margin=(3, 10),
        )
        self.view = pn.Column(
            self._kind,
            pn.pane.HTML(
                '<label class="of-file">load a problem file</label>', margin=(3, 10, 0, 10)
            ),
            self._file,
            self._words,
            self._main,
            more,
            pn.pane.HTML("<label>the optimum may change</label>", margin=(3, 10, 0, 10)),
            self._free,
            self._shown,
            sizing_mode="stretch_width",
        )
        self.update(current())

    def update(self, state: State) -> None:
        """Show a state; sliders are made anew only where others are needed."""
        with self._silence():
            self._kind.value = state.kind
            self._shown.value = list(state.shown)
            names = {"tasks": "tasks"} | {knob_label(name): name for name in state.ranges}
            self._free.options = names
            words = {key: x for key, x in state.sections["model"].items() if isinstance(x, str)}
            words.pop("kind", None)
            told = ", ".join(f"{key} {word}" for key, word in words.items())
            self._words.object = f"<small>{escape(told)}</small>"
            self._free.value = list(state.free)
            values = state.values
            dials = {dial.key: dial for dial in state.dials if dial.key in values}
            if {key: (d.low, d.high) for key, d in dials.items()} != {
                key: (s.start, s.end) for key, s in self._sliders.items()
            }:
                self._sliders = {key: self._slider(dial) for key, dial in dials.items()}
                for place, main in ((self._main, True), (self._more, False)):
                    place[:] = [self._sliders[key] for key, d in dials.items() if d.main == main]
            for key, slider in self._sliders.items():
                slider.value = values[key]

    def _slider(self, dial: Dial) -> Any:
        widget = pn.widgets.IntSlider if dial.whole else pn.widgets.FloatSlider
        slider = widget(
            name=dial.label,
            start=dial.low,
            end=dial.high,
            step=dial.step,
            css_classes=["dial", "dial-" + dial.key.replace(".", "-")],
            **_WIDE,
        )
        slider.param.watch(
            lambda event: self._try(lambda: self._current().turn(dial.key, event.new)), "value"
        )
        return slider

    def _load_kind(self, event: Any) -> None:
        if not self._quiet:
            self._load(lambda: State.of_kind(event.new))

    def _load_file(self, event: Any) -> None:
        data = event.new
        if not data:
            return

        def state() -> State:
            if len(data) > LONGEST_FILE:
                raise ValueError(f"the file has {len(data):,} bytes, more than {LONGEST_FILE:,}")
            try:
                text = data.decode("utf-8-sig")
            except UnicodeDecodeError:
                raise ValueError("the file is not text in UTF-8") from None
            return State.from_text(text)

        self._file.clear()  # else the same file, once it is put right, could not be chosen again
        self._load(state)

    def _try(self, make: Callable[[], State]) -> None:
        """Change to another state, unless it is refused."""
        if not self._quiet:
            self._deliver(lambda: self._turn(make))

    def _turn(self, make: Callable[[], State]) -> None:
        try:
            state = make()
        except ValueError as error:
            self._refuse(str(error))
            return
        self._change(state)

    @contextmanager
    def _silence(self) -> Iterator[None]:
        """Set widgets without an effect."""
        before, self._quiet = self._quiet, True
        try:
            yield
        finally:
            self._quiet = before
