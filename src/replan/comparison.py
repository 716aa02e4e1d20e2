"""compare(problem) → Comparison: all strategies side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from replan._common import files
from replan._common.interrupt import interrupted
from replan._common.progress import Meter, Watch
from replan.dynamics import IntegrationError
from replan.problem import Problem
from replan.strategies import STRATEGIES
from replan.trajectory import Trajectory, evaluate

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """Trajectories by strategy, best first, and why others failed."""

    problem: Problem
    runs: dict[str, Trajectory]
    failures: dict[str, str]

    def to_frame(self) -> pd.DataFrame:
        """Return a row per strategy: value, loss_1, …, mean share_1, …, lr_first and lr_last."""
        import pandas as pd

        tasks = range(1, self.problem.model.tasks + 1)
        header = ["strategy", "value", *(f"loss_{t}" for t in tasks)]
        header += [*(f"share_{t}" for t in tasks), "lr_first", "lr_last"]
        rows = [
            [
                name,
                run.loss,
                *run.final_losses.tolist(),
                *run.protocol.mean_shares.tolist(),
                *run.protocol.lr[[0, -1]].tolist(),
            ]
            for name, run in self.runs.items()
        ]
        return pd.DataFrame(rows, columns=header)

    def __str__(self) -> str:
        tasks = range(1, self.problem.model.tasks + 1)
        head = f"{'strategy':<17} {'loss':>8}" + "".join(f" {f'task {t}':>8}" for t in tasks)
        lines = [f"{head}  {'shares %':<{max(8, 4 * len(tasks))}} lr"]
        for name, run in self.runs.items():
            losses = "".join(f" {x:8.3g}" for x in [run.loss, *run.final_losses])
            shares = "".join(f"{round(100 * s):>4}" for s in run.protocol.mean_shares)
            lines.append(f"{name:<17}{losses}  {shares:<8} {run.protocol.lr_text()}")
        lines += [f"{name:<17} failed: {why}" for name, why in self.failures.items()]
        return "\n".join(lines)

    def save(self, path: files.FilePath) -> None:
        """Write a .json file with every trajectory, or `to_frame` as a .csv file."""
        if files.suffix(path, [".json", ".csv"]) == ".json":
            runs = {name: run.to_dict() for name, run in self.runs.items()}
            for run in runs.values():
                del run["problem"]  # the same for all
            content = {
                "problem": self.problem.to_dict(),
                "strategies": runs,
                "failures": self.failures,
            }
            return files.write_json(path, content)
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
            raise ValueError("`plot` expects at least one strategy with a learning curve, got none")
        if axes is not None:
            bars, points = plotting.panels(path, axes, ("colour bars", "final losses")).values()
            self._draw(bars, points)
            return None
        with plotting.figure(path, width=7.2, height=0.9 + 0.32 * len(self.runs)) as figure:
            bars, points = figure.subplots(1, 2, width_ratios=[3, 2], gridspec_kw={"wspace": 0.07})
            self._draw(bars, points)
            handles, labels = points.get_legend_handles_labels()
            columns = min(len(labels), 7)
            figure.legend(handles, labels, loc="outside upper right", ncols=columns)
        return figure

    def _draw(self, bars: Axes, points: Axes) -> None:
        from replan._common import plotting

        count = len(self.runs)
        height = np.arange(count)[::-1]
        for y, run in zip(height, self.runs.values(), strict=True):
            plotting.draw_protocol(bars, run.protocol, bottom=y - 0.27, height=0.54)
        bars.set(ylim=(-0.5, count - 0.5), xlabel="training time α")
        bars.set_yticks(height, list(self.runs))
        bars.tick_params(left=False)
        losses = np.array([run.final_losses for run in self.runs.values()])
        for t, final in enumerate(losses.T):
            points.plot(
                final,
                height,
                linestyle="",
                marker="osDv^<>"[t % 7],
                markersize=5,
                color=plotting.task_colour(t),
                label=f"task {t + 1}",
            )
        objective = [run.loss for run in self.runs.values()]
        points.plot(objective, height, "k|", markersize=11, markeredgewidth=2, label="objective")
        points.set(xscale="log", xlabel="final loss", yticks=height, ylim=(-0.5, count - 0.5))
        points.tick_params(labelleft=False, left=False)
        points.xaxis.set_minor_formatter("")  # within a decade its labels would overlap
        powers = np.log10(losses[losses > 0])
        if powers.size:
            points.set_xlim(10 ** np.floor(powers.min()), 10 ** np.ceil(powers.max()))
        points.grid(axis="y", color="0.9", linewidth=0.8)
        points.set_axisbelow(True)
        points.spines["left"].set_visible(False)

    def _repr_html_(self) -> str:
        from replan._common import html

        tasks = [f"task {t + 1}" for t in range(self.problem.model.tasks)]
        rows = [
            [
                name,
                run.loss,
                *run.final_losses,
                html.thin_bar(run.protocol),
                run.protocol.lr_text(),
            ]
            for name, run in self.runs.items()
        ]
        return html.block(
            html.table(["strategy", "loss", *tasks, "shares over time", "learning rate"], rows),
            html.legend(tasks),
            *(html.text(f"{name} failed: {why}") for name, why in self.failures.items()),
        )


def compare(problem: Problem, *, progress: Watch = False) -> Comparison:
    """Evaluate every strategy with its default settings; one that fails does not stop the others.

    `progress`: True shows a bar; a function is called with a `Progress` after each strategy.
    """
    if not isinstance(problem, Problem):
        raise ValueError(f"`problem` expects a Problem, got {problem!r:.80}")
    runs, failures = {}, {}
    with Meter(progress, "strategies", len(STRATEGIES)) as meter:
        for name, strategy in STRATEGIES.items():
            try:
                protocol = strategy(problem)
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
    ranked = dict(sorted(runs.items(), key=lambda item: item[1].loss))
    return Comparison(problem, ranked, failures)
