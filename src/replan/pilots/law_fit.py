"""LawFit: what the fits of all laws share: warnings, files, and runs to predict."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from typing import TYPE_CHECKING

from replan import files
from replan.pilots.runs import FARTHEST, Pilots, several
from replan.problem import Problem
from replan.results import Result

if TYPE_CHECKING:
    import pandas as pd


class LawFit(Result):
    """A law fitted to `pilots`."""

    pilots: Pilots

    @property
    @abstractmethod
    def unknown(self) -> tuple[str, ...]:
        """What the law does not know, in words."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a reader must know."""
        return (*self.pilots.warnings, *self.unknown)

    @abstractmethod
    def problem(self, duration: float | None = None) -> Problem:
        """Return the problem of a training of `duration` steps."""

    def save(self, path: files.FilePath) -> None:
        """Write the law as a problem file (.toml, or .json with a report), or `to_frame` (.csv)."""
        if files.suffix(path, [".toml", ".json", ".csv"]) == ".toml":
            self.problem().save(path)
        else:
            super().save(path)

    def _to_predict(self, runs: Pilots | pd.DataFrame) -> Pilots:
        """Return runs in the pilots' terms; warn of those that are far from what these cover."""
        if not isinstance(runs, Pilots):
            runs = Pilots.from_table(runs, warmup=self.pilots.warmup, earlier=self.pilots)
        for run in runs.runs:
            times = run.steps[-1] / self.pilots.horizon
            if times > FARTHEST:
                text = f"{run.name} ENDS {times:.1f} TIMES AFTER THE PILOTS: the law extrapolates"
                warnings.warn(text, stacklevel=3)
            top, peak = float(run.rates.max()), self.pilots.peak
            if top > peak and several([top, peak]):
                text = f"{run.name} HAS A RATE OF {top:g}, above the pilots': a guess"
                warnings.warn(text, stacklevel=3)
        return runs
