"""The tabs below: what a protocol does to the state, where to change it, SGD, seeds, levers."""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from typing import Any

import numpy as np
import panel as pn

from replan._common.naming import knob_label
from replan.control import Plan
from replan.control._levers import Levers
from replan.curves import Curves
from replan.explorer import _results as results
from replan.explorer._figures import Bars, Lines, Look, colours, legend
from replan.explorer._handlers import button, on_value
from replan.explorer._jobs import Background
from replan.explorer._results import OPTIMUM, Changes, Shown
from replan.explorer._state import State
from replan.simulation._simulation import Simulation
from replan.trajectory import Trajectory

_DIMENSIONS = (100, 300, 1000, 3000, 10_000, 20_000)
_MOST_RUNS = 16
_CROSSES = 26  # times at which runs of SGD are marked
_NOTHING = 0.01  # of the loss, if the gain lasted for the whole training
_WIDE: dict[str, Any] = {"sizing_mode": "stretch_width"}


class Details:
    """Tabs about one of the protocols on the page, which a menu chooses."""

    def __init__(self, look: Look, jobs: Background, x_range: Any) -> None:
        self._look, self._jobs = look, jobs
        self._state: State | None = None
        self._shown: Shown | None = None
        self._plan: Plan | None = None
        self.which = pn.widgets.Select(name="look at", width=200, css_classes=["which"])
        on_value(self.which, self._refresh, jobs.deliver)
        self._series = Lines(look, 260, log=False, label="", x_range=x_range)
        self._changes = Lines(look, 200, log=False, label="Hamiltonian Φ", x_range=x_range)
        self._gains = Lines(look, 160, log=False, label="gain", x_range=x_range)
        self._sgd = Lines(look, 280, log=True, label="loss", x_range=x_range)
        self._seeds = Lines(look, 280, log=True, label="loss", x_range=x_range)
        self._times: Any = None
        self._groups: dict[str, dict[str, Any]] = {}
        self._levers = Bars(look, "loss with this lever alone")
        self._text = {
            name: pn.pane.HTML(css_classes=[f"text-{name}"], **_WIDE)
            for name in ("state", "changes", "sgd", "seeds", "levers")
        }
        self._group = pn.widgets.RadioButtonGroup(options=["cosines"], css_classes=["group"])
        on_value(self._group, self._show_series, jobs.deliver)
        self.tabs = pn.Tabs(
            ("State", self._state_tab()),
            ("Where to change", self._changes_tab()),
            ("Real SGD", self._sgd_tab()),
            ("Seeds", self._seeds_tab()),
            ("Levers", self._levers_tab()),
            **_WIDE,
        )
        self.tabs.param.watch(lambda _: self._refresh(), "active")
        self.view = pn.Column(self.which, self.tabs, css_classes=["panel-box"], **_WIDE)

    # The tabs

    def _state_tab(self) -> Any:
        return pn.Column(self._group, self._pane(self._series), self._text["state"], **_WIDE)

    def _changes_tab(self) -> Any:
        return pn.Column(
            self._text["changes"], self._pane(self._changes), self._pane(self._gains), **_WIDE
        )

    def _sgd_tab(self) -> Any:
        self._dimension = pn.widgets.Select(
            name="input dimension N", options=list(_DIMENSIONS), value=1000, width=160
        )
        self._runs = pn.widgets.IntSlider(name="runs", start=1, end=_MOST_RUNS, value=4, width=180)
        return self._job_tab("sgd", "Run SGD", self._run_sgd, self._dimension, self._runs)

    def _seeds_tab(self) -> Any:
        self._count = pn.widgets.IntSlider(
            name="seeds", start=2, end=results.MOST_SEEDS, value=10, width=180
        )
        return self._job_tab("seeds", "Compute the band", self._run_seeds, self._count)

    def _levers_tab(self) -> Any:
        return self._job_tab("levers", "What is each lever worth?", self._run_levers)

    def _job_tab(self, name: str, label: str, run: Callable[[], None], *widgets: Any) -> Any:
        deliver = self._jobs.deliver
        go = button(label, run, deliver, f"run-{name}", button_type="primary")
        stop = button("Cancel", lambda: self._cancel(name), deliver, f"cancel-{name}")
        lines: Any = {"sgd": self._sgd, "seeds": self._seeds, "levers": self._levers}[name]
        tools = pn.FlexBox(*widgets, go, stop, align_items="end", **_WIDE)
        return pn.Column(tools, self._text[name], self._pane(lines), **_WIDE)

    def _pane(self, lines: Any) -> Any:
        return pn.pane.Bokeh(lines.figure, margin=0, **_WIDE)

    # What they show

    def update(self, state: State, shown: Shown, plan: Plan | None) -> None:
        """Show what belongs to curves, and to a plan if it is current; the rest is out of date."""
        again = self._state is not None and state.sections == self._state.sections
        self._state, self._shown, self._plan = state, shown, plan
        names = [*shown.runs, *([OPTIMUM] if plan is not None else [])]
        if self.which.options != names:
            self.which.options = names
        if not again:
            for name, lines in (
                ("sgd", self._sgd), ("seeds", self._seeds), ("levers", self._levers),
            ):  # fmt: skip
                self._cancel(name)
                lines.fade(True)
        self._refresh()

    @property
    def run(self) -> Trajectory | None:
        """The curves of the protocol that the menu chooses."""
        if self._shown is None:
            return None
        if self.which.value == OPTIMUM:
            return None if self._plan is None else self._plan.trajectory
        return self._shown.runs.get(self.which.value)

    @property
    def plan(self) -> Plan | None:
        """The plan, if the menu chooses it."""
        return self._plan if self.which.value == OPTIMUM else None

    def _refresh(self) -> None:
        """Compute what the tab in front shows of the chosen protocol."""
        run = self.run
        if run is None or self.tabs.active > 1:
            return
        if self.tabs.active == 0:
            self._do("detail", lambda _: results.series(run), self._got_series, "state")
        else:
            work = lambda _: results.changes(run.problem, run.protocol)  # noqa: E731
            self._do("detail", work, self._got_changes, "changes")

    def _do(self, job: str, work: Any, done: Callable[[Any], None], text: str) -> None:
        quick = job == "detail"

        def failed(why: str) -> None:
            self._text[text].object = f'<p class="bad">{escape(why)}</p>'

        def told(progress: Any) -> None:
            total = f" of {progress.total:,}" if progress.total else ""
            note = f"; {escape(progress.note)}" if progress.note else ""
            self._text[text].object = f"<p>{progress.what}: {progress.done:,}{total}{note}</p>"

        self._jobs.run(job, work, done, failed, report=None if quick else told, quick=quick)

    def _cancel(self, name: str) -> None:
        if self._jobs.cancel(name):
            self._text[name].object = "<p>cancelled</p>"

    # State

    def _got_series(self, found: tuple[Any, dict[str, dict[str, Any]]]) -> None:
        self._times, self._groups = found
        names = list(self._groups)
        self._text["state"].object = ""
        if list(self._group.options) != names:
            self._group.options = names
            self._group.value = names[0]
        self._show_series()

    def _show_series(self) -> None:
        lines = self._groups.get(self._group.value)
        if lines is not None:
            self._series.update(self._times, lines, colours(len(lines)))
            ends = [f"{name} {values[-1]:.4g}" for name, values in lines.items()]
            self._text["state"].object = "<p>at the end:</p>" + legend(ends)

    # Where to change

    def _got_changes(self, found: Changes) -> None:
        assert self._shown is not None
        model = self._shown.problem.model
        middles = (found.edges[1:] + found.edges[:-1]) / 2
        lines = {name: found.hamiltonians[:, t] for t, name in enumerate(model.task_names)}
        self._changes.update(middles, lines, colours(len(lines)))
        gains = {"the best task": found.gains} if model.tasks > 1 else {}
        gains |= {f"more {knob_label(name)}": -slope for name, slope in found.slopes.items()}
        self._gains.update(middles, gains, colours(len(gains)))
        self._text["changes"].object = (
            f"<p>{self._best_change(found)}Above: the Hamiltonian Φ of each task, the lower the "
            f"better.</p>{legend(list(lines))}<p>Below: what is gained, to first order and per "
            "unit of time, by the best task instead of the protocol's, and by a knob that is "
            f"turned up by 1 (below 0: turn it down).</p>{legend(list(gains))}"
        )

    def _best_change(self, found: Changes) -> str:
        """Return the words for the change of task that helps most, if there is one."""
        run = self.run
        time, task, gain = found.best
        if run is None or run.problem.model.tasks == 1:
            return ""
        if gain * run.problem.duration < _NOTHING * abs(run.loss):
            return "No change of task is worth making. "
        name = escape(run.problem.model.task_names[task])
        return (
            f"A change helps most at α = <b>{time:.4g}</b>: a moment of <b>{name}</b> there lowers "
            f"the loss by {gain:.3g} per unit of time. "
        )

    # SGD, seeds and levers

    def _run_sgd(self) -> None:
        run, size, runs = self.run, self._dimension.value, self._runs.value
        if run is not None:
            self._text["sgd"].object = "<p>running …</p>"
            work = lambda watch: results.simulated(run.problem, run.protocol, size, runs, watch)  # noqa: E731
            self._do("sgd", work, self._got_sgd, "sgd")

    def _got_sgd(self, found: Simulation) -> None:
        self._jobs.forget("sgd")
        self._sgd.losses(found.theory)
        if len(found.curves.finished):
            self._sgd.band(found.curves)
            some = np.unique(np.linspace(0, len(found.times) - 1, _CROSSES).astype(int))
            self._sgd.crosses(found.times[some], found.curves.mean[some])
        self._sgd.fade(False)
        ends = zip(found.problem.model.loss_names, found.curves.mean[-1], strict=True)
        losses = ", ".join(f"{escape(name)} {x:.4g}" for name, x in ends)
        failed = f"; {len(found.failures)} diverged" if found.failures else ""
        self._text["sgd"].object = (
            f"<p>{escape(str(self.which.value))}, N = {found.settings['dimension']:,}: crosses are "
            f"means of {found.settings['seeds']} runs, bands 10 to 90 %, lines the theory. "
            f"SGD ends at {losses}{failed}</p>" + legend(found.problem.model.loss_names)
        )

    def _run_seeds(self) -> None:
        state, name, count = self._state, self.which.value, self._count.value
        if state is None or name == OPTIMUM:
            self._text["seeds"].object = "<p>choose a strategy or yours: a plan is of one start</p>"
            return
        self._text["seeds"].object = "<p>running …</p>"
        work = lambda watch: results.band(state, name, count, watch)  # noqa: E731
        self._do("seeds", work, self._got_seeds, "seeds")

    def _got_seeds(self, found: Curves) -> None:
        self._jobs.forget("seeds")
        low, middle, high = found.quantiles([0.1, 0.5, 0.9])
        self._seeds.band(found)
        lines = {name: middle[:, i] for i, name in enumerate(found.names)}
        self._seeds.update(found.times, lines, colours(len(lines)))
        self._seeds.fade(False)
        ends = ", ".join(
            f"{escape(name)} {middle[-1, i]:.4g} ({low[-1, i]:.3g} to {high[-1, i]:.3g})"
            for i, name in enumerate(found.names)
        )
        self._text["seeds"].object = (
            f"<p>{escape(str(self.which.value))}: medians and 10 to 90 % of "
            f"{len(found.losses)} seeds; at the end {ends}</p>"
        )

    def _run_levers(self) -> None:
        state = self._state
        if state is not None:
            self._text["levers"].object = "<p>running; this can take half a minute …</p>"
            self._do(
                "levers", lambda watch: results.worth(state, watch), self._got_levers, "levers"
            )

    def _got_levers(self, found: Levers) -> None:
        self._jobs.forget("levers")
        self._levers.update({name: float(x[0]) for name, x in found.losses.items()})
        self._levers.fade(False)
        self._text["levers"].object = f"<pre>{escape(str(found))}</pre>"
