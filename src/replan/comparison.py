"""compare(problem) → Comparison: strategies side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress
from typing import TYPE_CHECKING, Any

import numpy as np

from replan import check, files
from replan.core.interrupt import interrupted
from replan.errors import ArgumentError, IntegrationError
from replan.models.knobs import knob_label
from replan.problem import Problem
from replan.progress import Meter, Progress, Watch
from replan.strategies import STRATEGIES, Strategy, UnfitError
from replan.trajectory import Trajectory, evaluate

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLUMNS = 4  # tasks, or losses, that have columns of their own in print


@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """Trajectories by strategy, best first, and why others failed.

    Examples:
        >>> model = replan.TeacherStudent.similar(0.3)
        >>> problem = replan.Problem(model, model.pretrain(seed=1), duration=20.0, steps=50)
        >>> comparison = replan.compare(problem, strategies=["interleaved", "no-replay"])
        >>> list(comparison.runs)
        ['interleaved', 'no-replay']
        >>> comparison.to_frame()[["strategy", "value"]].round(3)
              strategy  value
        0  interleaved  0.008
        1    no-replay  0.011
    """

    problem: Problem
    runs: dict[str, Trajectory]
    failures: dict[str, str]

    def to_frame(self) -> pd.DataFrame:
        """Return a row per strategy: value, loss_1, …, mean share_1, …, lr_first and lr_last.

        Other knobs that protocols set have their first and last values likewise. Where tasks arrive
        or depart, forgetting, backward and forward follow, the means over tasks.
        """
        import pandas as pd

        tasks, losses = self.problem.model.tasks, len(self.problem.model.loss_names)
        knobs = list(self.problem.settings)
        header = ["strategy", "value", *(f"loss_{i + 1}" for i in range(losses))]
        header += [f"share_{t + 1}" for t in range(tasks)]
        header += [f"{knob}_{end}" for knob in knobs for end in ("first", "last")]
        header += self._transfer_names
        rows = [
            [
                name,
                run.loss,
                *run.final_losses.tolist(),
                *run.protocol.mean_shares.tolist(),
                *(run.protocol.knobs[knob][end] for knob in knobs for end in (0, -1)),
                *_transfer_means(run),
            ]
            for name, run in self.runs.items()
        ]
        return pd.DataFrame(rows, columns=header)

    def __str__(self) -> str:
        tasks, names = self.problem.model.tasks, self.problem.model.loss_names
        if max(tasks, len(names)) > _COLUMNS:
            return self._short_text()
        head = f"{'strategy':<17} {'loss':>8}" + "".join(f" {name:>8}" for name in names)
        head += "".join(f" {name:>10}" for name in self._transfer_names)
        lines = [f"{head}  {'shares %':<{max(8, 4 * tasks)}} {', '.join(self.problem.settings)}"]
        for name, run in self.runs.items():
            losses = "".join(f" {x:8.3g}" for x in [run.loss, *run.final_losses])
            losses += "".join(f" {x:10.3g}" for x in _transfer_means(run))
            shares = "".join(f"{round(100 * s):>4}" for s in run.protocol.mean_shares)
            lines.append(f"{name:<17}{losses}  {shares:<8} {_knobs_text(run)}")
        return "\n".join([*lines, *self._failed])

    def _short_text(self) -> str:
        """Return the table with the least and the largest of many losses, and without shares."""
        names = self.problem.model.loss_names
        width = 9 + max(map(len, names))
        head = f"{'strategy':<17} {'loss':>8} {'least of a task':>{width}} {'largest':>{width}}"
        head += "".join(f" {name:>10}" for name in self._transfer_names)
        lines = [f"{head}  {', '.join(self.problem.settings)}"]
        for name, run in self.runs.items():
            ends = [int(end(run.final_losses)) for end in (np.argmin, np.argmax)]
            found = "".join(f" {f'{run.final_losses[i]:.3g} {names[i]}':>{width}}" for i in ends)
            found += "".join(f" {x:10.3g}" for x in _transfer_means(run))
            lines.append(f"{name:<17} {run.loss:8.3g}{found}  {_knobs_text(run)}")
        return "\n".join([*lines, *self._failed])

    @property
    def _failed(self) -> list[str]:
        return [f"{name:<17} failed: {why}" for name, why in self.failures.items()]

    @property
    def _transfer_names(self) -> list[str]:
        """The columns of the means of forgetting and transfer over tasks, where there are any."""
        transfers = [run.transfer for run in self.runs.values()]
        return list(transfers[0].means) if transfers and transfers[0] else []

    def to_dict(self) -> dict[str, Any]:
        """Return the problem, every trajectory and the failures, as JSON types."""
        runs = {name: run.to_dict() for name, run in self.runs.items()}
        for run in runs.values():
            del run["problem"]  # the same for all
        return {
            "problem": self.problem.to_dict(),
            "strategies": runs,
            "failures": self.failures,
        }

    def save(self, path: files.FilePath) -> None:
        """Write a .json file with every trajectory, or `to_frame` as a .csv file."""
        if files.suffix(path, [".json", ".csv"]) == ".json":
            return files.write_json(path, self.to_dict())
        return files.write_frame(path, self.to_frame())

    def plot(
        self, path: files.FilePath | None = None, *, axes: Sequence[Axes] | None = None
    ) -> Figure | None:
        """Draw the protocols as colour bars and the final losses beside them, best on top.

        Return the figure, and write it if a `path` (.png, .pdf, .svg) is given. With two `axes`,
        for the colour bars and the final losses, draw there and return nothing; `legend()` of the
        second names the tasks.
        """
        from replan._common import plotting

        if not self.runs:
            raise ArgumentError("plot", "at least one strategy with a learning curve", "none")
        if axes is not None:
            bars, points = plotting.panels(path, axes, ("colour bars", "final losses")).values()
            self._draw(bars, points)
            return None
        longest = max(map(len, self.runs))  # of the names, which stand to the left of the bars
        width = 7.6 + 0.07 * max(0, longest - 17)
        row = 0.3 + 0.03 * self.problem.model.tasks
        with plotting.figure(path, width=width, height=0.9 + row * len(self.runs)) as figure:
            bars, points = figure.subplots(1, 2, width_ratios=[3, 2], gridspec_kw={"wspace": 0.03})
            self._draw(bars, points)
            plotting.legend_above(figure, points.get_legend_handles_labels()[0])
        return figure

    def _draw(self, bars: Axes, points: Axes) -> None:
        from replan._common import plotting

        runs = list(self.runs.values())
        rows = np.arange(len(runs))[::-1]
        for row, run in zip(rows, runs, strict=True):
            plotting.draw_protocol(bars, run.protocol, bottom=row - 0.27, height=0.54)
            plotting.write_beside(bars, row, _knobs_text(run))
        plotting.write_beside(bars, len(runs) - 0.4, ", ".join(self.problem.settings))
        bars.set_yticks(rows, list(self.runs))
        bars.set(ylim=(-0.5, len(runs) - 0.5), xlabel="training time α")
        bars.tick_params(left=False)
        losses = np.array([run.final_losses for run in runs])
        values, names = np.array([run.loss for run in runs]), self.problem.model.loss_names
        plotting.draw_final_losses(points, rows, losses, values, names)
        points.set(ylim=bars.get_ylim(), yticks=rows)

    def _repr_html_(self) -> str:
        from replan._common import html

        tasks, losses = self.problem.model.task_names, self.problem.model.loss_names
        knobs = ", ".join(map(knob_label, self.problem.settings))
        rows = [
            [
                name,
                run.loss,
                *run.final_losses,
                *_transfer_means(run),
                html.thin_bar(run.protocol),
                _knobs_text(run),
            ]
            for name, run in self.runs.items()
        ]
        return html.block(
            html.table(
                ["strategy", "loss", *losses, *self._transfer_names, "shares over time", knobs],
                rows,
            ),
            html.legend(tasks),
            *(html.text(f"{name} failed: {why}") for name, why in self.failures.items()),
        )


def compare(
    problem: Problem,
    *,
    strategies: Sequence[str | Strategy] | None = None,
    progress: Watch = False,
) -> Comparison:
    """Evaluate strategies with their default settings; one that fails does not stop the others.

    `strategies`: which, by their names or themselves; by default all, and where there is a single
    task, of those that train alike the first. `progress`: True shows a bar; a function is called
    with a `Progress` after each run, those of grid searches included.

    Examples:
        >>> model = replan.TeacherStudent.similar(0.3)
        >>> problem = replan.Problem(model, model.pretrain(seed=1), duration=20.0, steps=50)
        >>> print(replan.compare(problem, strategies=["interleaved", "sequential", "no-replay"]))
        strategy              loss   task 1   task 2  shares % lr
        interleaved        0.00765  0.00119   0.0141    50  50 1
        no-replay           0.0112   0.0222 0.000118     0 100 1
        sequential           0.016   0.0186   0.0133    50  50 1
    """
    check.instance("problem", problem, Problem, "a Problem")
    runs, failures = {}, {}
    chosen = STRATEGIES if strategies is None else _named(strategies)
    with Meter(progress, "runs", len(chosen)) as meter:

        def count(grid: Progress) -> None:
            if grid.done == 1:
                meter.advance(0, expect=grid.total or 0, note=name)
            meter.advance(note=name)

        for name, strategy in chosen.items():
            settings = {"progress": count} if strategy.turns else {}
            try:
                protocol = strategy(problem, **settings)
            except UnfitError as error:
                if strategies is not None:  # else only those that fit are asked for
                    failures[name] = str(error)
            except IntegrationError as error:
                failures[name] = str(error)
            except Exception as error:
                if interrupted(error) or not strategy.foreign:
                    raise
                failures[name] = f"{type(error).__name__}: {error}"
            else:
                run = evaluate(problem, protocol, throw=False)
                if run.status == "ok":
                    runs[name] = run
                else:
                    failures[name] = run.advice
            meter.advance(note=name)
    if strategies is None and problem.model.tasks == 1:
        protocols = [run.protocol for run in runs.values()]
        first = [protocol not in protocols[:i] for i, protocol in enumerate(protocols)]
        runs = dict(compress(runs.items(), first))
    ranked = dict(sorted(runs.items(), key=lambda item: item[1].loss))
    return Comparison(problem, ranked, failures)


def _transfer_means(run: Trajectory) -> list[float]:
    return [float(x) for x in run.transfer.means.values()] if run.transfer else []


def _knobs_text(run: Trajectory) -> str:
    return ", ".join(run.protocol.knob_text(knob) for knob in run.problem.settings)


def _named(strategies: Sequence[str | Strategy]) -> dict[str, Strategy]:
    """Return strategies by name."""
    given = check.items("strategies", strategies, "strategies or their names")
    if not given:
        raise ArgumentError("strategies", "at least one", "none")
    found = [
        one
        if isinstance(one, Strategy)
        else STRATEGIES[check.one_of("strategies", one, STRATEGIES)]
        for one in given
    ]
    return {strategy.name: strategy for strategy in found}
