"""Curves: losses of runs × times × tasks, the one form of everything that trains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from replan import check, files, statistics
from replan.check import Floats
from replan.errors import ArgumentError

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False, repr=False)
class Curves:
    """The losses of several runs while they train.

    times: (m,) when the losses were measured, in ascending order; the last is the end. losses:
    (runs, m, T), NaN from where a run diverged and where a task was not measured. runs: the name of
    each run, such as its seed; by default 0, 1, … failures: why runs have no finite losses at the
    end, by name; these runs are left out of means, intervals and quantiles. names: of the losses,
    by default task 1, …

    Examples:
        >>> losses = np.array([[[0.5], [0.2]], [[0.5], [0.4]]])  # two runs, two times, one task
        >>> curves = replan.Curves(times=np.array([0.0, 1.0]), losses=losses)
        >>> print(curves.mean[-1], curves.standard_error[-1])  # at the end
        [0.3] [0.1]
        >>> curves.to_frame()
           run  time  loss_1
        0    0   0.0     0.5
        1    0   1.0     0.2
        2    1   0.0     0.5
        3    1   1.0     0.4
    """

    times: Floats
    losses: Floats
    runs: Sequence[int] = ()
    failures: Mapping[int, str] = field(default_factory=dict)
    names: Sequence[str] = ()

    def __post_init__(self) -> None:
        times = check.array("times", self.times, ("m",))
        losses = check.array("losses", self.losses, ("runs", times.size, "tasks"), finite=False)
        if times.size == 0 or np.any(np.diff(times) < 0):
            raise ArgumentError("times", "ascending times", check.show(times.tolist()))
        runs = check.items("runs", self.runs, "names") or list(range(len(losses)))
        named = all(isinstance(run, str | int | np.integer) for run in runs)
        if not named or len(runs) != len(losses) or len(set(runs)) < len(runs):
            raise ArgumentError("runs", f"{len(losses)} different names", check.show(runs))
        check.instance("failures", self.failures, Mapping, "reasons by the name of the run")
        if unknown := [run for run in self.failures if run not in runs]:
            raise ArgumentError("failures", "names of runs", check.show(unknown))
        ended = [bool(np.all(np.isfinite(row))) for row in losses[:, -1]]
        failures = {
            run: self.failures.get(run, "no finite losses at the end")
            for run, good in zip(runs, ended, strict=True)
            if run in self.failures or not good
        }
        for name, value in (
            ("times", times),
            ("losses", losses),
            ("runs", runs),
            ("failures", failures),
            ("names", tuple(self.names) or tuple(f"task {t + 1}" for t in range(losses.shape[2]))),
        ):
            object.__setattr__(self, name, value)

    @property
    def tasks(self) -> int:
        """Number of tasks T."""
        return self.losses.shape[2]

    @cached_property
    def finished(self) -> Floats:
        """The losses (n, m, T) of the runs that reached the end."""
        return self.losses[[run not in self.failures for run in self.runs]]

    @property
    def final(self) -> Floats:
        """The losses (runs, T) at the end, of all runs."""
        return self.losses[:, -1]

    @property
    def mean(self) -> Floats:
        """The mean loss (m, T) over the finished runs, NaN without any.

        Leaving out runs that diverged flatters a learning rate that is too large.
        """
        return self.finished.mean(axis=0) if len(self.finished) else self._unknown

    @property
    def standard_error(self) -> Floats:
        """The standard error (m, T) of `mean`, NaN for fewer than two finished runs."""
        runs = self.finished
        if len(runs) < 2:
            return self._unknown
        return runs.std(axis=0, ddof=1) / np.sqrt(len(runs))

    @property
    def interval(self) -> statistics.Interval:
        """The mean and its 95 % confidence interval, each (m, T)."""
        if len(self.finished) == 0:
            return statistics.Interval(self._unknown, self._unknown, self._unknown)
        return statistics.mean_interval(self.finished)

    def quantiles(self, levels: ArrayLike) -> Floats:
        """Return quantiles (levels, m, T) of the losses over the finished runs."""
        wanted = check.array("levels", levels, ("n",))
        if wanted.size and (wanted.min() < 0 or wanted.max() > 1):
            raise ArgumentError("levels", "numbers from 0 to 1", check.show(wanted.tolist()))
        if len(self.finished) == 0:
            return np.full((len(wanted), *self.losses.shape[1:]), np.nan)
        return np.quantile(self.finished, wanted, axis=0)

    @property
    def _unknown(self) -> Floats:
        return np.full(self.losses.shape[1:], np.nan)

    @property
    def left_out(self) -> list[str]:
        """Lines that name the runs left out of means, and why."""
        lines = []
        for text in dict.fromkeys(self.failures.values()):  # in the order of the runs
            runs = [str(run) for run, found in self.failures.items() if found == text]
            more = f" and {len(runs) - 8} more" if len(runs) > 8 else ""
            lines.append(f"run{'s'[: len(runs) - 1]} {', '.join(runs[:8])}{more}: {text}")
        return lines

    def to_frame(self) -> pd.DataFrame:
        """Return a pandas table with a row for each run and time: run, time, loss_1, …."""
        import pandas as pd

        count, m, T = self.losses.shape
        columns = {"run": np.repeat(self.runs, m), "time": np.tile(self.times, count)}
        rows = self.losses.reshape(-1, T)
        return pd.DataFrame(columns | {f"loss_{t + 1}": rows[:, t] for t in range(T)})

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON types, with null for NaN."""
        return {
            "runs": list(self.runs),
            "times": self.times.tolist(),
            "losses": files.nullable(self.losses),
            "failures": {str(run): text for run, text in self.failures.items()},
        }

    def save(self, path: files.FilePath) -> None:
        """Write a .json file with everything, or a .csv file with the rows of `to_frame`."""
        if files.suffix(path, [".json", ".csv"]) == ".json":
            return files.write_json(path, self.to_dict())
        return files.write_frame(path, self.to_frame())

    def plot(
        self, path: files.FilePath | None = None, *, axes: Axes | None = None
    ) -> Figure | None:
        """Draw the mean loss of every task over the finished runs, with bands from 10 to 90 %.

        Return the figure, and write it if a `path` (.png, .pdf, .svg) is given. With `axes`,
        draw there and return nothing.
        """
        from replan._common import plotting

        if axes is not None:
            plotting.draw_curves(plotting.panels(path, axes, ("losses",))["losses"], self)
            return None
        with plotting.figure(path, width=6.4, height=3.4) as figure:
            panel = figure.subplots()
            plotting.draw_curves(panel, self)
            panel.set_xlabel("time")
            plotting.legend_beside(figure, panel)
        return figure

    def __repr__(self) -> str:
        count, m, T = self.losses.shape
        return f"Curves({count} runs, {m} times, {T} tasks)"

    def __str__(self) -> str:
        count = len(self.runs)
        of = f"{len(self.finished)} of {count}" if self.failures else f"{count}"
        found = self.interval
        lines = [
            f"{of} run{'' if count == 1 else 's'}, {len(self.times)} times up to "
            f"{self.times[-1]:g}",
            f"{'task':>4} {'final loss':>11} {'± 95 %':>9}",
        ]
        for t in range(self.tasks):
            half = found.half_width[-1, t]
            spread = f"{half:.1g}" if np.isfinite(half) else ""
            lines.append(f"{t + 1:>4} {found.mean[-1, t]:>11.5g} {spread:>9}")
        return "\n".join([*lines, *self.left_out])
