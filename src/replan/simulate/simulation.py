"""Simulation: what `simulate` returns, runs of SGD side by side with the theory."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from replan import check, files
from replan.check import Floats
from replan.problem import Problem
from replan.protocol import Protocol
from replan.trajectory import Trajectory, evaluate


@dataclass(frozen=True, eq=False, repr=False)
class Simulation:
    """Runs of SGD with the same protocol, one a seed.

    times: (m,) where they were looked at. states: (seeds, m, n) their overlaps, NaN from where a
    run diverged. ends: what each run can go on from. failures: what happened to diverged runs, by
    their number. settings: dimension, seeds, seed, order, engine.
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
        """The loss of every task (seeds, m, T)."""
        with np.errstate(invalid="ignore"):
            return self.problem.model.losses(self.states)

    @property
    def final_losses(self) -> Floats:
        """The final loss of every task (seeds, T)."""
        return self.losses[:, -1]

    @property
    def overlaps(self) -> Any:
        """The states in the user's form, with seeds and times in front."""
        return self.problem.model.unpack(self.states)

    @property
    def mean(self) -> Floats:
        """The mean loss (m, T) over the runs that did not diverge."""
        return np.nanmean(self.losses, axis=0)

    @property
    def standard_error(self) -> Floats:
        """The standard error (m, T) of `mean`, NaN for a single run."""
        count = np.sum(np.isfinite(self.losses), axis=0)
        spread = np.full_like(self.losses[0], np.nan)
        several = count > 1
        if several.any():
            spread[several] = np.nanstd(self.losses, axis=0)[several]
            spread[several] /= np.sqrt(count[several] - 1)
        return spread

    def quantiles(self, levels: ArrayLike) -> Floats:
        """Return quantiles (levels, m, T) of the losses over the runs that did not diverge."""
        wanted = check.array("levels", levels, ("n",))
        if wanted.size and (wanted.min() < 0 or wanted.max() > 1):
            raise ValueError(f"`levels` takes numbers from 0 to 1, got {wanted.tolist()}")
        return np.nanquantile(self.losses, wanted, axis=0)

    @cached_property
    def theory(self) -> Trajectory:
        """The learning curves for N → ∞."""
        return evaluate(self.problem, self.protocol)

    @cached_property
    def deviation(self) -> Floats:
        """The losses minus those of the theory (seeds, m, T)."""
        return self.losses - self.theory.losses_at(self.times)

    def to_dict(self) -> dict[str, Any]:
        """Return everything a reader of the result needs, as JSON types; null where it diverged."""
        return {
            "times": self.times.tolist(),
            "curves": _nullable(self.losses),
            "losses": _nullable(self.final_losses),
            "mean": _nullable(self.mean[-1]),
            "standard_error": _nullable(self.standard_error[-1]),
            "ode_losses": self.theory.final_losses.tolist(),
            "ode_curves": self.theory.losses_at(self.times).tolist(),
            "failures": {str(run): text for run, text in self.failures.items()},
            **self.settings,
            "protocol": self.protocol.to_dict(),
            "problem": self.problem.describe(),
        }

    def save(self, path: files.FilePath) -> None:
        """Write a .json file with everything, or a .csv file with the losses of every run."""
        if files.suffix(path, [".json", ".csv"]) == ".json":
            return files.write_json(path, self.to_dict())
        header = ["run", "time", *(f"loss_{t + 1}" for t in range(self.losses.shape[2]))]
        rows = [
            [run, time, *losses]
            for run, curves in enumerate(self.losses.tolist())
            for time, losses in zip(self.times.tolist(), curves, strict=True)
        ]
        return files.write_csv(path, header, rows)

    def plot(self, path: files.FilePath) -> None:
        """Draw crosses (means over the runs) with 10-90 % bands on the theory's lines."""
        from replan import plotting

        with plotting.figure(path, width=6.4, height=3.6) as figure:
            axes = figure.subplots(2, sharex=True, height_ratios=[1, 11])
            plotting.draw_protocol(axes[0], self.protocol)
            axes[0].tick_params(bottom=False)
            plotting.draw_simulation(axes[1], self)
            axes[1].legend(loc="center left", bbox_to_anchor=(1.01, 0.5))
            axes[1].set_xlabel("training time α")

    def __repr__(self) -> str:
        s = self.settings
        return f"Simulation({s['seeds']} runs, N={s['dimension']}, engine={s['engine']!r})"

    def __str__(self) -> str:
        s = self.settings
        lines = [f"{s['seeds']} runs of SGD, N = {s['dimension']}, engine {s['engine']}"]
        lines.append(
            f"{'task':>4} {'SGD':>11} {'± s.e.':>9} {'theory':>11} {'worst deviation':>16}"
        )
        worst = np.nanmax(np.abs(self.deviation), axis=(0, 1))
        for t in range(self.losses.shape[2]):
            lines.append(
                f"{t + 1:>4} {self.mean[-1, t]:>11.5g} {self.standard_error[-1, t]:>9.1g} "
                f"{self.theory.final_losses[t]:>11.5g} {worst[t]:>16.3g}"
            )
        return "\n".join(lines + [f"run {run}: {text}" for run, text in self.failures.items()])


def _nullable(values: Floats) -> Any:
    rows = values.astype(object)
    rows[~np.isfinite(values)] = None
    return rows.tolist()
