"""Experiment: strategies on the same realisations, their curves, decisions and statistics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from replan import check, files
from replan._common import plotting
from replan.check import Floats, Ints
from replan.curves import Curves
from replan.networks._driver import Record
from replan.statistics import Interval, mean_interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# What `Experiment.write` writes
FILES = ("settings.json", "metrics.csv", "decisions.json", "summary.json", "losses.png")
_WITH_INTERVAL = ("loss", "on the way", "accuracy", "forgetting")
_SHARES = {"accuracy": 9, "forgetting": 11, "focus": 7}  # shown in percent, and how wide


@dataclass(frozen=True, eq=False, repr=False)
class Experiment:
    """What strategies did to a network, on the same realisations: weights, samples and seeds.

    curves: by strategy, test losses of realisations × times × tasks; times in samples, NaN where a
    task was not tested. measures: what else was measured, by name and strategy, each (runs, m, T):
    "accuracy", and "trained", the samples of each task so far. decisions: what each strategy
    decided, by realisation. tasks: their names. arrivals: (T,) when each arrived. settings: all
    that determines the result.

    Examples:
        >>> rng = np.random.default_rng(0)
        >>> pixels = rng.integers(0, 256, (200, 8, 8), dtype=np.uint8)  # noise in place of pictures
        >>> labels = np.arange(200, dtype=np.uint8) % 10
        >>> images = replan.networks.Images(pixels, labels, pixels, labels)
        >>> tasks = replan.networks.mixed_tasks(images, similarity=0.5, test_samples=20)
        >>> training = replan.networks.Training(hidden=2, first=20)
        >>> result = replan.networks.experiment(
        ...     tasks, looks=[0, 20], training=training, realisations=2
        ... )
        >>> result.strategies
        ['no-replay', 'interleaved', 'focus-then-replay']
        >>> result.curves["interleaved"].losses.shape  # realisations, looks, tasks
        (2, 2, 2)
    """

    curves: dict[str, Curves]
    measures: dict[str, dict[str, Floats]]
    decisions: dict[str, list[list[dict[str, Any]]]]
    tasks: list[str]
    arrivals: Ints
    settings: dict[str, Any]

    @classmethod
    def gather(
        cls,
        records: dict[str, list[Record]],
        *,
        runs: Sequence[int],
        tasks: list[str],
        arrivals: Sequence[int],
        settings: dict[str, Any],
    ) -> Experiment:
        """Return the experiment of the records of runs, by strategy."""

        def array(records: list[Record], name: str) -> Floats:
            return np.array([record[name] for record in records], dtype=np.float64)

        more = [name for name in ("accuracy", "trained") if name in next(iter(records.values()))[0]]
        return cls(
            curves={
                name: Curves(found[0]["time"], array(found, "loss"), list(runs))
                for name, found in records.items()
            },
            measures={
                measure: {name: array(found, measure) for name, found in records.items()}
                for measure in more
            },
            decisions={
                name: [record["decisions"] for record in found] for name, found in records.items()
            },
            tasks=tasks,
            arrivals=np.array(arrivals),
            settings=settings,
        )

    @property
    def strategies(self) -> list[str]:
        """The names of the strategies."""
        return list(self.curves)

    @property
    def times(self) -> Floats:
        """When the network was tested (m,), in samples."""
        return next(iter(self.curves.values())).times

    @property
    def runs(self) -> Sequence[int]:
        """The name of each realisation."""
        return next(iter(self.curves.values())).runs

    @property
    def newest(self) -> Ints:
        """The newest task (m,), from 0, at each time; a task arrives after the test at its time."""
        arrived = self.arrivals < self.times[:, None]
        return np.maximum(arrived.sum(axis=1) - 1, 0)

    def mean(self, strategy: str) -> Floats:
        """Return the loss averaged over the tasks that were tested (runs, m)."""
        name = check.one_of("strategy", strategy, self.curves)
        return np.nanmean(self.curves[name].losses, axis=2)

    def at(self, time: int) -> int:
        """Return the index of a time in `times`."""
        found = np.flatnonzero(self.times == time)
        if found.size == 0:
            raise ValueError(
                f"`time` expects one of {check.show(self.times.tolist())}, got {check.show(time)}"
            )
        return int(found[0])

    def difference(self, strategy: str, other: str) -> Interval:
        """Return the mean over realisations of paired differences of `mean`, each (m,).

        It is negative where `strategy` has the smaller loss.
        """
        return mean_interval(self.mean(strategy) - self.mean(other))

    def switches(self, strategy: str) -> Ints:
        """Return how long after the last task arrived replay began (runs,), -1 if it did not."""
        check.one_of("strategy", strategy, self.curves)
        start = self.arrivals[-1]
        began = [_replay(one, start, self.times[-1]) for one in self.decisions[strategy]]
        return np.array([-1 if time is None else time - start for time in began])

    def focus(self, strategy: str) -> Floats:
        """Return the part of the samples of a new task before replay began (runs,).

        It is the mean over all tasks but the first; NaN where a strategy decides nothing.
        """
        check.one_of("strategy", strategy, self.curves)
        ends = [*self.arrivals[1:], self.times[-1]]
        return np.array([_focus(one, ends) for one in self.decisions[strategy]])

    def summary(self) -> pd.DataFrame:
        """Return, by strategy, means over tasks and realisations, with half widths of intervals.

        loss: at the end. on the way: averaged over the tasks so far and over all tests since the
        second task arrived. forgetting: what the accuracy of a task has fallen by since it was the
        newest, over all but the last. replayed: the share of samples of old tasks. focus: as in
        `focus`. Half widths are of 95 % intervals, NaN for a single realisation.
        """
        rows = {name: _means(self._measured(name)) for name in self.strategies}
        return pd.DataFrame.from_dict(rows, orient="index").rename_axis("strategy")

    def differences(self, other: str) -> pd.DataFrame:
        """Return, by strategy, what `summary` has with an interval minus that of another strategy.

        Means of paired differences over realisations, with half widths of 95 % intervals.
        """
        base = self._measured(check.one_of("other", other, self.curves))
        rows = {}
        for name in self.strategies:
            if name != other:
                found = self._measured(name)
                gaps = {key: found[key] - base[key] for key in _WITH_INTERVAL if key in found}
                rows[name] = _means(gaps)
        return pd.DataFrame.from_dict(rows, orient="index").rename_axis("strategy")

    def _measured(self, strategy: str) -> dict[str, Floats]:
        """Return what `summary` has the means of, each (runs,)."""
        later = self.times > self.arrivals[1] if len(self.tasks) > 1 else slice(None)
        found = {
            "loss": self.curves[strategy].final.mean(axis=1),
            "on the way": self.mean(strategy)[:, later].mean(axis=1),
        }
        if self.measures:
            accuracy, trained = (self.measures[key][strategy] for key in ("accuracy", "trained"))
            last = [np.flatnonzero(self.newest == t)[-1] for t in range(len(self.tasks))]
            learnt = (slice(None), last, np.arange(len(self.tasks)))
            lost = (accuracy[learnt] - accuracy[:, -1])[:, :-1]
            after = (trained[:, -1] - trained[learnt]).sum(axis=1)
            found |= {
                "accuracy": accuracy[:, -1].mean(axis=1),
                "forgetting": lost.mean(axis=1) if lost.size else np.zeros(len(lost)),
                "replayed": after / trained[:, -1].sum(axis=1),
            }
        return found | {"focus": self.focus(strategy)}

    def to_frame(self) -> pd.DataFrame:
        """Return a pandas table like that of `Curves`, a row for each strategy, run and time."""
        parts = [curves.to_frame().assign(strategy=name) for name, curves in self.curves.items()]
        table = pd.concat(parts, ignore_index=True)
        return table[["strategy", *table.columns.drop("strategy")]]

    def metrics(self) -> pd.DataFrame:
        """Return a pandas table with a row for each test of each task that has arrived."""
        parts = []
        for strategy, curves in self.curves.items():
            arrived = np.arange(len(self.tasks)) <= self.newest[:, None]
            run, m, t = np.nonzero(np.broadcast_to(arrived, curves.losses.shape))
            columns = {
                "strategy": strategy,
                "seed": np.array(self.runs)[run],
                "newest": np.array(self.tasks)[self.newest[m]],
                "samples": self.times[m].astype(int),
                "task": np.array(self.tasks)[t],
                "loss": curves.losses[run, m, t],
            }
            for name, values in self.measures.items():
                found = values[strategy][run, m, t]
                columns[name] = found.astype(int) if name == "trained" else found
            parts.append(pd.DataFrame(columns))
        return pd.concat(parts, ignore_index=True)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON types, with null for NaN."""
        return {
            "tasks": self.tasks,
            "arrivals": self.arrivals.tolist(),
            "runs": list(self.runs),
            "times": self.times.tolist(),
            "losses": {name: files.nullable(c.losses) for name, c in self.curves.items()},
            **{
                measure: {name: files.nullable(values) for name, values in found.items()}
                for measure, found in self.measures.items()
            },
            "decisions": self.decisions,
            "summary": self._summary_rows(),
            "settings": self.settings,
        }

    def _summary_rows(self) -> list[dict[str, Any]]:
        table = self.summary()
        return table.astype(object).where(table.notna(), None).reset_index().to_dict("records")

    def save(self, path: files.FilePath) -> None:
        """Write a .json file with everything, or a .csv file with the rows of `to_frame`."""
        if files.suffix(path, [".json", ".csv"]) == ".json":
            return files.write_json(path, self.to_dict())
        return files.write_frame(path, self.to_frame())

    def write(self, folder: files.FilePath) -> None:
        """Write settings.json, metrics.csv, decisions.json, summary.json and losses.png.

        The folder is made if need be.
        """
        out = check.path("folder", folder)
        out.mkdir(parents=True, exist_ok=True)
        decisions = {
            f"{name}-{run}": one
            for name, found in self.decisions.items()
            for run, one in zip(self.runs, found, strict=True)
        }
        settings = {"settings": self.settings}
        files.write_json(out / "settings.json", self.settings)
        files.write_frame(out / "metrics.csv", self.metrics())
        files.write_json(out / "decisions.json", settings | {"decisions": decisions})
        files.write_json(out / "summary.json", settings | {"summary": self._summary_rows()})
        self.plot(out / "losses.png")

    def plot(self, path: files.FilePath | None = None) -> Figure:
        """Draw mean losses over realisations: of the tasks tested, and of each task at the end.

        Bands and bars reach from the smallest to the largest. Return the figure, and write it if a
        `path` (.png, .pdf, .svg) is given.
        """
        with plotting.figure(path, width=8.0, height=3.4) as figure:
            left, right = figure.subplots(1, 2, width_ratios=[3, 2])
            for i, (name, curves) in enumerate(self.curves.items()):
                colour = plotting.task_colour(i)
                mean = self.mean(name)
                band = {"color": colour, "alpha": 0.15, "linewidth": 0}
                left.fill_between(self.times, mean.min(axis=0), mean.max(axis=0), **band)
                left.plot(self.times, mean.mean(axis=0), color=colour, label=name)
                where = np.arange(len(self.tasks)) + 0.15 * (i - (len(self.curves) - 1) / 2)
                low, high = curves.final.min(axis=0), curves.final.max(axis=0)
                right.vlines(where, low, high, color=colour, linewidth=1.2)
                right.plot(where, curves.final.mean(axis=0), "o", markersize=4, color=colour)
            for time in self.arrivals[1:]:
                left.axvline(time, color="0.8", linewidth=0.8, zorder=0)
            left.set(xlabel="samples", ylabel="test loss, mean of the tasks", yscale="log")
            left.xaxis.set_major_formatter(lambda n, _: f"{n / 1000:g}k" if n else "0")
            right.set(xlabel="task", ylabel="test loss at the end", yscale="log")
            right.set_xticks(range(len(self.tasks)), self.tasks)
            for panel in (left, right):
                plotting.plain_ticks(panel)
            figure.legend(loc="outside upper center", ncols=len(self.curves))
        return figure

    def __repr__(self) -> str:
        return f"Experiment({len(self.runs)} realisations, {', '.join(self.strategies)})"

    def __str__(self) -> str:
        table = self.summary()
        width = max(17, *(len(name) + 1 for name in table.index))
        shares = {name: space for name, space in _SHARES.items() if name in table}
        lines = [
            f"means over tasks and {len(self.runs)} realisations, ± half of a 95 % interval",
            f"{'':{width}}{'loss':>17}{'on the way':>17}"
            + "".join(f"{name:>{space}}" for name, space in shares.items()),
        ]
        for name, row in table.iterrows():
            cells = []
            for key in ("loss", "on the way"):
                half = row[f"{key} half width"]
                cells.append(f"{row[key]:.4f}" + ("" if np.isnan(half) else f" ± {half:.4f}"))
            known = "".join(
                f"{'' if np.isnan(row[key]) else format(row[key], '.1%'):>{space}}"
                for key, space in shares.items()
            )
            lines.append(f"{name:{width}}{cells[0]:>17}{cells[1]:>17}{known}")
        return "\n".join(lines)


def _means(measured: dict[str, Floats]) -> dict[str, float]:
    """Return the mean over runs of each measure, and half of its interval where it has one."""
    row: dict[str, float] = {}
    for name, values in measured.items():
        row[name] = float(values.mean())
        if name in _WITH_INTERVAL:
            half = float(mean_interval(values).half_width)
            row[f"{name} half width"] = half if np.isfinite(half) else np.nan
    return row


def _replay(decisions: list[dict[str, Any]], start: float, end: float) -> int | None:
    """Return when replay began between two times, None if it did not."""
    found = [d["step"] for d in decisions if d["what"] == "replay" and start <= d["step"] < end]
    return found[0] if found else None


def _focus(decisions: list[dict[str, Any]], ends: list[float]) -> float:
    """Return the part of the time between each two of `ends` before replay began, their mean."""
    if not decisions:
        return np.nan
    parts = []
    for start, end in pairwise(ends):
        replay = _replay(decisions, start, end)
        parts.append(1.0 if replay is None else (replay - start) / (end - start))
    return float(np.mean(parts)) if parts else 1.0
