"""Simulation: what `simulate` returns, runs of SGD side by side with the theory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from replan import files
from replan.check import Floats
from replan.curves import Curves
from replan.problem import Problem
from replan.protocol import Protocol
from replan.trajectory import Trajectory, evaluate
from replan.transfer import Transfer, transfer

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False, repr=False)
class Simulation:
    """Runs of SGD with the same protocol, one per seed.

    times: (m,) when they were recorded; the last is the end. states: (seeds, m, n) their states,
    NaN from where a run diverged. ends: what each run can continue from. failures: what happened to
    diverged runs, by number. settings: dimension, seeds, seed, order, engine, and the phase, from
    0, where simulations follow one another.

    Examples:
        >>> model = replan.TeacherStudent.similar(0.3)
        >>> problem = replan.Problem(model, model.pretrain(seed=1), duration=20.0, steps=50)
        >>> mixed = replan.strategies.interleaved(problem)
        >>> runs = replan.simulate(problem, mixed, dimension=500, seeds=4)
        >>> runs.losses.shape == (4, len(runs.times), 2)
        True
        >>> bool(abs(runs.deviation[:, -1]).max() < 0.05)  # from the theory, at the end
        True
    """

    problem: Problem
    protocol: Protocol
    times: Floats
    states: Floats
    ends: list[Any]
    failures: dict[int, str]
    settings: dict[str, Any]

    @cached_property
    def losses(self) -> Floats:
        """All losses (seeds, m, L)."""
        with np.errstate(invalid="ignore"):
            return self.problem.model.losses(self.states)

    @property
    def final_losses(self) -> Floats:
        """The final losses (seeds, L)."""
        return self.losses[:, -1]

    @cached_property
    def curves(self) -> Curves:
        """The losses of all runs, with their mean, intervals and quantiles."""
        names = self.problem.model.loss_names
        return Curves(self.times, self.losses, failures=self.failures, names=names)

    @cached_property
    def transfer(self) -> Transfer | None:
        """Forgetting and transfer (n, T) in the finished runs, where tasks arrive or depart."""
        return transfer(self.problem, self.times, self.curves.finished)

    @cached_property
    def theory(self) -> Trajectory:
        """The learning curves for N → ∞, as far as they go: see its `status`."""
        return evaluate(self.problem, self.protocol, throw=False)

    @cached_property
    def theory_losses(self) -> Floats:
        """The losses of the theory (m, L) at the same times, NaN where it has none."""
        if self.theory.status != "ok":
            return np.full_like(self.losses[0], np.nan)
        return self.theory.losses_at(self.times)

    @cached_property
    def deviation(self) -> Floats:
        """The losses minus those of the theory (seeds, m, L)."""
        return self.losses - self.theory_losses

    def to_dict(self) -> dict[str, Any]:
        """Return everything a reader of the result needs, as JSON types; null where it diverged."""
        return {
            "times": self.times.tolist(),
            "curves": files.nullable(self.losses),
            "losses": files.nullable(self.final_losses),
            "mean": files.nullable(self.curves.mean[-1]),
            "standard_error": files.nullable(self.curves.standard_error[-1]),
            "ode_losses": files.nullable(self.theory_losses[-1]),
            "ode_curves": files.nullable(self.theory_losses),
            **({"transfer": self.transfer.to_dict()} if self.transfer else {}),
            "failures": {str(run): text for run, text in self.failures.items()},
            **self.settings,
            "protocol": self.protocol.to_dict(),
            "problem": self.problem.to_dict(),
        }

    def to_frame(self) -> pd.DataFrame:
        """Return a row per run and time: run, time, loss_1, …; NaN from where a run diverged."""
        return self.curves.to_frame()

    def save(self, path: files.FilePath) -> None:
        """Write a .json file with everything, or `to_frame` as a .csv file."""
        if files.suffix(path, [".json", ".csv"]) == ".json":
            return files.write_json(path, self.to_dict())
        return files.write_frame(path, self.to_frame())

    def plot(
        self, path: files.FilePath | None = None, *, axes: Axes | Sequence[Axes] | None = None
    ) -> Figure | None:
        """Draw the means over finished runs (crosses), their 10-90 % bands and the theory (lines).

        Return the figure, and write it if a `path` (.png, .pdf, .svg) is given. With `axes`,
        draw there and return nothing: one for the losses, two for the colour bar and the losses, or
        one more for each knob that varies.
        """
        from replan._common import plotting

        knobs = self.protocol.varied
        names = ("colour bar", "losses", *knobs)
        if axes is not None:
            choices = [names[: 2 + count] for count in range(len(knobs) + 1)]
            self._draw(plotting.panels(path, axes, names[1:2], *choices))
            return None
        with plotting.figure(path, width=6.4, height=3.6 + 1.0 * len(knobs)) as figure:
            heights = [1, 11, *[5] * len(knobs)]
            parts = figure.subplots(len(heights), sharex=True, height_ratios=heights)
            self._draw(dict(zip(names, parts, strict=True)))
            title = (
                f"× SGD, N = {self.settings['dimension']}\n"
                f"   mean of {len(self.curves.finished)} runs\n   band 10 to 90 %\n– theory"
            )
            plotting.legend_beside(figure, parts[1], title)
        return figure

    def _draw(self, panels: dict[str, Axes]) -> None:
        from replan._common import plotting

        if "colour bar" in panels:
            plotting.draw_protocol(panels["colour bar"], self.protocol)
            panels["colour bar"].tick_params(bottom=False, labelbottom=False)
        plotting.draw_simulation(panels["losses"], self)
        for knob in self.protocol.varied:
            if knob in panels:
                plotting.draw_knob(panels[knob], self.protocol, knob)
        list(panels.values())[-1].set_xlabel("training time α")

    def __repr__(self) -> str:
        s = self.settings
        return f"Simulation({s['seeds']} runs, N={s['dimension']}, engine={s['engine']!r})"

    def __str__(self) -> str:
        rows = [
            f"{name:<8} {mean:>11.5g} {error:>9.1g} {theory:>11.5g} {worst:>30.3g}"
            for name, (mean, error, theory, worst) in zip(
                self.problem.model.loss_names, self._results(), strict=True
            )
        ]
        head = (
            f"{'':<8} {'final loss':>11} {'± s.e.':>9} {'theory':>11} "
            f"{'largest deviation at any time':>30}"
        )
        return "\n".join([self._title(), head, *rows, *self._notes()])

    def _repr_html_(self) -> str:
        from replan._common import html

        head = ["", "final loss", "± s.e.", "theory", "largest deviation at any time"]
        names = self.problem.model.loss_names
        rows = [[name, *row] for name, row in zip(names, self._results(), strict=True)]
        return html.block(
            html.text(self._title()),
            html.colour_bar(self.protocol),
            html.table(head, rows),
            *map(html.text, self._notes()),
        )

    def _title(self) -> str:
        s = self.settings
        count = f"{len(self.curves.finished)} of {s['seeds']}" if self.failures else f"{s['seeds']}"
        return (
            f"{count} run{'' if s['seeds'] == 1 else 's'} of SGD, N = {s['dimension']}, "
            f"engine {s['engine']}"
        )

    def _results(self) -> Floats:
        """Return (L, 4): mean final loss, its standard error, theory, largest deviation."""
        gaps = np.abs(self.curves.finished - self.theory_losses)
        worst = gaps.max(axis=(0, 1)) if len(gaps) else np.full(gaps.shape[2], np.nan)
        ends = [self.curves.mean[-1], self.curves.standard_error[-1], self.theory_losses[-1], worst]
        return np.stack(ends, axis=1)

    def _notes(self) -> list[str]:
        """Return transfer, what happened to diverged runs, and why the theory is missing if so."""
        lines = [self.transfer.text] if self.transfer and len(self.curves.finished) else []
        lines += self.curves.left_out
        if self.theory.status != "ok":
            lines.append(f"theory: {self.theory.advice}")
        return lines
