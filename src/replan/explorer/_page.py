"""The page: what one visitor sees, and what follows from what."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from html import escape
from io import StringIO
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import panel as pn
from tornado.ioloop import IOLoop

from replan.control import Plan
from replan.explorer import _files, _texts
from replan.explorer import _results as results
from replan.explorer._cards import Cards
from replan.explorer._details import Details
from replan.explorer._figures import LOOKS
from replan.explorer._handlers import button
from replan.explorer._jobs import Background, Workers
from replan.explorer._results import Shown
from replan.explorer._sidebar import Sidebar
from replan.explorer._state import State
from replan.explorer._studio import Studio

_REST = 300  # milliseconds without a change after which the rest is computed
_HERE = Path(__file__).parent
_WIDE: dict[str, Any] = {"sizing_mode": "stretch_width"}
_COPY = """
const text = source.value;
const done = () => { button.label = 'Copied'; setTimeout(() => { button.label = label; }, 1500); };
const by_hand = () => {
  const area = document.createElement('textarea');
  area.value = text; document.body.append(area); area.select();
  document.execCommand('copy'); area.remove(); done();
};
if (navigator.clipboard && window.isSecureContext) {
  navigator.clipboard.writeText(text).then(done, by_hand);
} else { by_hand(); }
"""


class Page:
    """One page: a state, its curves and its optimum.

    Everything flows one way: a widget makes a state, the state curves, the curves what is seen; and
    as soon as nothing changes for a while, the state an optimum. query: what a link carries, if
    the page was opened by one.
    """

    def __init__(
        self, state: State, theme: str, document: Any, workers: Workers, query: Mapping[str, str]
    ) -> None:
        look = LOOKS[theme]
        self._document, self._loop, self._closed = document, IOLoop.current(), False
        self._jobs = Background(workers, self._deliver)
        self._state = state
        self._shown: Shown | None = None
        self._before: tuple[State, Shown] | None = None  # the state that was shown last
        self._plan: Plan | None = None  # of this very state
        self._unsolved = True  # whether nobody has searched for its optimum yet
        self._rest: Any = None  # until when nothing may change
        self._cards = Cards(look)
        here = (lambda: self._state, self.change, self._refuse)
        self._sidebar = Sidebar(*here, self._load, self._jobs.deliver)
        self._studio = Studio(look, *here, lambda: self._solve(True), self._jobs.deliver)
        self._details = Details(look, self._jobs, self._cards.x_range)
        self._message = pn.pane.HTML(css_classes=["message"], margin=0, **_WIDE)
        self._status = pn.pane.HTML("<p>computing …</p>", css_classes=["status"], **_WIDE)
        self._certificate = pn.pane.HTML(css_classes=["certificate"], **_WIDE)
        self._auto = pn.widgets.Checkbox(name="solve when the sliders rest", value=True)
        self._link = pn.widgets.TextInput(visible=False, css_classes=["link"])
        self._link.jscallback(
            value="history.replaceState(null, '', location.pathname + '?' + source.value)"
        )
        self._texts = {
            name: pn.widgets.TextAreaInput(
                name=label, disabled=False, height=170, css_classes=[f"text-of-{name}"], **_WIDE
            )
            for name, label in (("shell", "in the shell"), ("python", "in Python"))
        }
        document.on_session_destroyed(self._close)
        if query:
            self._load(lambda: State.from_query(query), "the link is not understood: ")
        else:
            self._compute()

    def _deliver(self, act: Callable[[], None]) -> None:
        """Call a function in the thread of the page, with the document's lock; from any thread.

        By way of the loop: Bokeh forgets callbacks that another thread adds while changes are held.
        """
        self._loop.add_callback(self._call_locked, act)

    def _call_locked(self, act: Callable[[], None]) -> None:
        if not self._closed:
            self._document.add_next_tick_callback(act)

    def _close(self, _: Any) -> None:
        self._closed = True
        self._jobs.close()

    # What follows from what

    def change(self, state: State) -> None:
        """Go over to another state; the optimum is out of date where the problem is another."""
        before, self._state = self._state, state
        self._say("")
        if state.sections != before.sections:
            self._outdate()
        self._compute()

    def _load(self, make: Callable[[], State], wrong: str = "") -> None:
        """Go over to a state that may take long to make: a model may have to be compiled."""
        self._say("loading … (the first time this compiles)", "status")

        def failed(why: str) -> None:
            self._refuse(wrong + why)
            if self._shown is None:
                self._compute()

        self._jobs.run("state", lambda _: make(), self._loaded, failed, quick=True)

    def _loaded(self, state: State) -> None:
        if state.kind != self._state.kind:
            self._certificate.object = ""  # that of another model says nothing here
        self._sidebar.update(state)
        self.change(state)

    def _compute(self) -> None:
        """Compute the curves of the state, in the background."""
        state, before = self._state, self._before
        self._jobs.follow(
            "curves",
            lambda _: results.curves(state, before),
            lambda shown: self._show(state, shown),
            self._fail,
        )

    def _show(self, state: State, shown: Shown) -> None:
        """Show the curves of a state; what takes longer waits until nothing changes any more."""
        self._shown, self._before = shown, (state, shown)
        with self._together():
            self._cards.update(shown)
            self._studio.update(state, shown)
        self._stop_waiting()
        self._rest = self._document.add_timeout_callback(lambda: self._settle(state, shown), _REST)

    def _settle(self, state: State, shown: Shown) -> None:
        """Do what takes longer than curves, and solve for the optimum of a new problem."""
        self._rest = None
        with self._together():
            self._details.update(state, shown, self._plan)
            self._reproduce()
        if self._unsolved and self._auto.value:
            self._solve(False)

    def _fail(self, why: str) -> None:
        """Say why a state has no curves, and show none as if they were its own."""
        self._refuse(why)
        self._cards.fade()
        self._say_status("", "no curves for this problem")

    def _outdate(self) -> None:
        """Show the optimum as that of an earlier problem."""
        self._stop_waiting()
        self._jobs.cancel("optimum")
        if self._plan is not None:
            self._certificate.css_classes = ["certificate", "stale"]
        self._plan, self._unsolved = None, True
        self._cards.stale("of an earlier problem")
        self._say_status("", "not solved yet")
        if self._shown is not None:
            self._studio.optimum(None, self._shown)

    @contextmanager
    def _together(self) -> Iterator[None]:
        """Tell the browser of several changes at once.

        `pn.io.hold` would lose changes of figures while the browser is slow to listen.
        """
        self._document.hold("combine")
        try:
            yield
        finally:
            self._document.unhold()

    def _stop_waiting(self) -> None:
        if self._rest is not None:
            self._document.remove_timeout_callback(self._rest)
            self._rest = None

    def _solve(self, from_own: bool) -> None:
        """Solve for the optimum in the background."""
        state, self._unsolved = self._state, False
        self._say_status("working", "solving … (the first time this compiles, for about 20 s)")
        self._cards.stale("solving …")
        self._jobs.run(
            "optimum",
            lambda watch: results.optimum(state, watch, from_own=from_own),
            self._solved,
            self._not_solved,
            report=lambda progress: self._say_status(
                "working", f"solving: {progress.done} gradients, {progress.note}"
            ),
        )

    def _solved(self, plan: Plan) -> None:
        self._jobs.forget("optimum")
        if self._shown is None:
            return
        self._plan = plan
        with self._together():
            self._cards.optimum(plan)
            self._studio.optimum(plan, self._shown)
            self._details.update(self._state, self._shown, plan)
            self._certificate.css_classes = ["certificate"]
            self._certificate.object = f"<pre>{escape(str(plan))}</pre>"
            self._say_status("done", f"optimum {plan.loss:.6g}, {plan.status}")

    def _not_solved(self, why: str) -> None:
        self._jobs.forget("optimum")
        self._cards.stale("not solved")
        self._say_status("bad", why)

    def _cancel(self) -> None:
        if self._jobs.cancel("optimum"):
            self._cards.stale("cancelled")
            self._say_status("", "cancelled")

    # What it says

    def _refuse(self, why: str) -> None:
        """Show what is wrong with an input, and the widgets as they were."""
        self._say(why)
        self._sidebar.update(self._state)

    def _say(self, text: str, role: str = "alert") -> None:
        told = f'<div role="{role}">{escape(text)}</div>' if text else ""
        if self._message.object != told:
            self._message.object = told

    def _say_status(self, how: str, text: str) -> None:
        self._status.object = f'<p class="{how}">{escape(text)}</p>'

    def _reproduce(self) -> None:
        self._texts["shell"].value = _texts.command_line(self._state)
        self._texts["python"].value = _texts.python(self._state)
        self._link.value = urlencode(self._state.to_query())

    # What it looks like

    def roots(self) -> dict[str, Any]:
        """Return the parts of the page by their names in the template."""
        return {
            "message": self._message,
            "sidebar": self._sidebar.view,
            "cards": self._cards.view,
            "optimum": self._optimum_box(),
            "studio": self._studio.view,
            "details": self._details.view,
            "reproduce": self._reproduce_box(),
        }

    def _optimum_box(self) -> Any:
        deliver = self._jobs.deliver
        solve = button("Solve", lambda: self._solve(False), deliver, "solve", button_type="primary")
        cancel = button("Cancel", self._cancel, deliver, "cancel")
        tools = pn.FlexBox(solve, cancel, self._auto, align_items="center", **_WIDE)
        return pn.Column(
            pn.pane.HTML("<h2>The optimum</h2>"),
            tools,
            self._status,
            self._certificate,
            css_classes=["panel-box"],
            **_WIDE,
        )

    def _reproduce_box(self) -> Any:
        copies = [self._copy(name, self._texts[name]) for name in self._texts]
        columns = [
            pn.Column(text, copy, sizing_mode="stretch_width", min_width=260)
            for text, copy in zip(self._texts.values(), copies, strict=True)
        ]
        return pn.Column(
            pn.pane.HTML(
                "<h2>Take it with you</h2><p>Pictures, table and protocol are of what “look at” "
                "chooses; the link restores the whole page.</p>",
                **_WIDE,
            ),
            pn.FlexBox(*self._downloads(), self._copy_link(), align_items="center", **_WIDE),
            pn.FlexBox(*columns, css_classes=["texts"], **_WIDE),
            self._link,
            css_classes=["panel-box"],
            **_WIDE,
        )

    def _copy(self, name: str, source: Any) -> Any:
        label = f"Copy {'commands' if name == 'shell' else 'Python'}"
        button = pn.widgets.Button(name=label, css_classes=[f"copy-{name}"])
        button.js_on_click(args={"source": source, "button": button, "label": label}, code=_COPY)
        return button

    def _copy_link(self) -> Any:
        label = "Copy link"
        button = pn.widgets.Button(name=label, css_classes=["copy-link"])
        code = "const source = {value: location.href};" + _COPY
        button.js_on_click(args={"button": button, "label": label}, code=code)
        return button

    def _downloads(self) -> list[Any]:
        """Return buttons for files of the protocol that the menu above the tabs chooses."""

        def of_run(make: Callable[[Any], Any]) -> Callable[[], Any]:
            def data() -> Any:
                run = self._details.run
                if run is None:
                    self._say("there are no curves to download")
                return None if run is None else make(run)

            return data

        def file(name: str, label: str, make: Callable[[], Any]) -> Any:
            return pn.widgets.FileDownload(
                callback=make, filename=name, label=label, embed=False, auto=True,
                css_classes=[f"get-{label.lower().split()[0]}"], width=120,
            )  # fmt: skip

        return [
            file("curves.png", "PNG", of_run(lambda run: _files.picture(run, "png"))),
            file("curves.svg", "SVG", of_run(lambda run: _files.picture(run, "svg"))),
            file("curves.csv", "CSV", of_run(_files.table)),
            file(
                "protocol.json",
                "Protocol JSON",
                of_run(lambda run: _files.protocol(run, self._details.plan)),
            ),
            file("problem.toml", "Problem file", lambda: StringIO(self._state.text)),
        ]


def make_page(first: State, workers: Workers) -> Any:
    """Return the page that its address asks for, or else one with a first state."""
    document = pn.state.curdoc
    query = {name: values[0].decode("utf-8", "replace") for name, values in _arguments().items()}
    theme = "dark" if query.get("theme") == "dark" else "light"
    query = {name: query[name] for name in ("problem", "show", "drawing") if name in query}
    pn.config.theme = "dark" if theme == "dark" else "default"
    page = Page(first, theme, document, workers, query)
    template = pn.Template((_HERE / "page.html").read_text(encoding="utf-8"))
    template.add_variable("theme", theme)
    for name, part in page.roots().items():
        template.add_panel(name, part)
    return template


def _arguments() -> dict[str, list[bytes]]:
    """Return the query string of the page."""
    found: dict[str, list[bytes]] = pn.state.session_args
    return found
