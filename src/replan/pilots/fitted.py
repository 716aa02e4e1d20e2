"""fit(pilots): a law of the learning rate with honest intervals, and what it cannot know."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from replan import check, files
from replan.check import Floats
from replan.errors import ArgumentError
from replan.models.rate_law import RateLaw
from replan.pilots import rates
from replan.pilots.next_pilot import NextPilot, next_pilot
from replan.pilots.runs import FARTHEST, Pilots, Prediction, Run
from replan.pilots.share_fit import ShareFit, fit_of_shares
from replan.problem import Control, Problem
from replan.results import Result

if TYPE_CHECKING:
    import pandas as pd

_NORMAL = 1.645  # of a 90 % interval
_LAWS = 12  # that plans are made for
_FEWEST = 3  # pilots of which one can be left out
_MOST_FOLDS = 12
_SEVERAL = 1.3  # ratio of peaks from which they count as different
_CONTRADICTORY = 0.1  # error of a left-out pilot, of its loss, from which a reader is warned


class LeftOut(NamedTuple):
    """What the law of the other pilots says about one: its errors at the rows that count.

    mean: of the absolute errors. end: the error of the last row. covered: fraction of the rows
    within their 90 % interval.
    """

    run: str
    mean: float
    end: float
    covered: float


@dataclass(frozen=True)
class Fit(Result):
    """A law of rates fitted to pilots.

    - `pilots`: as used. `loss`: the name of the loss.
    - `fitted`: parameters, covariance, the scale of residuals, and how the starts ended.
    - `left_out`: the errors on every pilot of the law of the others.
    - `warnings`: what a reader must know.

    Examples:
        >>> fit = replan.fit(table)
        >>> fit.agreement, fit.covered["horizon"]
        ((5, 5), 10000.0)
        >>> fit.next_pilot().question  # which decay is best, or which peak
        'decay'
        >>> fit.save("law.toml")
        >>> replan.Problem.load("law.toml").model.peak
        0.001
    """

    pilots: Pilots
    loss: str
    fitted: rates.RateFit
    left_out: tuple[LeftOut, ...]
    running: str = ""

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a reader must know."""
        return (*self.pilots.warnings, *self.unknown)

    @cached_property
    def _grid(self) -> rates.Grid:
        return rates.grid(self.pilots, self.pilots.runs, self.fitted.unit, self.loss)

    # The law

    @cached_property
    def law(self) -> RateLaw:
        """The law as a model, with those that fit nearly as well beside the best."""
        laws = rates.draws(self.fitted, self._grid, _LAWS)
        return RateLaw(laws, self.pilots.peak, self.fitted.unit, covered=self.covered)

    @cached_property
    def covered(self) -> dict[str, Any]:
        """What the pilots cover: `horizon`, the range of `rates`, their fastest rise and fall.

        A rate counts as covered up to the largest peak from which a pilot also decays.

        `best`: the pilot that ended lowest, its schedule after the warm-up as fractions of its
        length and rates. `error`: the law's own error of a log loss. `starts_at`: the step.
        """
        rows = [run.steps >= self._warm for run in self.pilots.runs]
        later = [run.rates[x] for run, x in zip(self.pilots.runs, rows, strict=True)]
        slopes = [
            np.diff(rates) / np.diff(run.steps[x])
            for run, rates, x in zip(self.pilots.runs, later, rows, strict=True)
        ]
        falls = [-x for x in slopes]
        falling = [x for x in later if np.any(np.diff(x) < 0)]
        peaks = sorted({float(f"{x.max():.4g}") for x in falling or later})
        best = min(self.pilots.runs, key=lambda run: _end(run, self._index))
        after = best.steps >= self._warm
        times = (best.steps[after] - self._warm) / (best.steps[-1] - self._warm)
        keep = _corners(times, best.rates[after])
        return {
            "horizon": self.pilots.horizon,
            "rates": [float(min(x.min() for x in later)), peaks[-1]],
            "peaks": peaks,
            "changes": [float(max(x.max(initial=0.0) for x in y)) for y in (slopes, falls)],
            "falls": bool(falling),
            "error": float(rates.own_error(self.fitted)),
            "starts_at": self._begin,
            "best": {
                "run": best.name,
                "peak": float(best.rates.max()),
                "times": [float(f"{x:.6g}") for x in times[keep]],
                "rates": best.rates[after][keep].tolist(),
            },
        }

    @property
    def _index(self) -> int:
        return self.pilots.losses.index(self.loss)

    @property
    def _warm(self) -> float:
        """The step at which the warm-up of the longest one ends."""
        return self.pilots.warm_until

    @property
    def _begin(self) -> float:
        """The step at which plans begin: after the warm-up, or where the running training is."""
        if self.running:
            return float(next(r.steps[-1] for r in self.pilots.runs if r.name == self.running))
        return self._warm

    @property
    def history(self) -> tuple[Floats, Floats]:
        """Steps and rates (n,) up to where plans begin: a warm-up, or the running training's."""
        name = self.running or max(self.pilots.runs, key=lambda run: run.rates.max()).name
        run = next(run for run in self.pilots.runs if run.name == name)
        before = run.steps <= self._begin
        return run.steps[before], run.rates[before]

    def problem(self, duration: float | None = None) -> Problem:
        """Return the problem of the rate from the warm-up, or the running training, on.

        `duration`: in steps; by default up to the pilots' horizon.
        """
        low, high = self.covered["rates"]
        left = self.pilots.horizon - self._begin
        if duration is None:
            duration = left if left > 0 else self.pilots.horizon
        control = Control(tasks=False, lr=(low, high))
        return Problem(self.law, self.law.after(*self.history), duration, control=control, lr=high)

    # Predictions

    def predict(self, runs: Pilots | pd.DataFrame) -> dict[str, Prediction]:
        """Predict other runs, by name, at the steps of their logs; their losses are not used.

        Warns of runs that are far from what the pilots cover.
        """
        if not isinstance(runs, Pilots):
            runs = Pilots.from_table(runs, warmup=self.pilots.warmup, earlier=self.pilots.runs)
        for run in runs.runs:
            self._warn_of(run)
        values, deviations = self._spread(
            rates.grid(self.pilots, runs.runs, self.fitted.unit, None)
        )
        predicted = {}
        for run, value, deviation in zip(runs.runs, values, deviations, strict=True):
            rows = slice(run.first, len(run.steps))
            value, around = value[rows], _NORMAL * deviation[rows]
            predicted[run.name] = Prediction(
                run.steps[run.own], np.exp(value), np.exp(value - around), np.exp(value + around)
            )
        return predicted

    def _warn_of(self, run: Run) -> None:
        times = run.steps[-1] / self.pilots.horizon
        if times > FARTHEST:
            text = f"{run.name} ENDS {times:.1f} TIMES AFTER THE PILOTS: the law extrapolates"
            warnings.warn(text, stacklevel=3)
        if run.rates.max() > _SEVERAL * self.pilots.peak:
            text = f"{run.name} HAS A RATE OF {run.rates.max():g}, above the pilots': a guess"
            warnings.warn(text, stacklevel=3)

    def _spread(self, grid: rates.Grid) -> tuple[Floats, Floats]:
        """Return log losses and standard deviations (R, n), wider where losses were not fitted."""
        values, deviations = rates.spread(self.fitted, grid.runs)
        own = self._grid
        early = np.isfinite(own.losses) & ~own.fitted
        if early.any():
            fitted, _ = rates.value_and_slopes(self.fitted.parameters, own.runs)
            places = own.runs.progress[early]
            order = np.argsort(places)
            wrong = np.abs(fitted[early] - np.log(own.losses[early]))[order]
            extra = np.interp(np.log(grid.runs.progress), np.log(places[order]), wrong)
            deviations = np.where(
                grid.steps < self.pilots.early, np.hypot(deviations, extra), deviations
            )
        return values, deviations

    @property
    def coverage(self) -> float:
        """The fraction of left-out rows within their 90 % intervals, NaN where none was."""
        return float(np.mean([x.covered for x in self.left_out])) if self.left_out else np.nan

    # What it does not know

    @property
    def agreement(self) -> tuple[int, int]:
        """How many starts ended in the best fit, and how many there were."""
        ends = self.fitted.ends
        return int(np.sum(ends <= 1.05 * ends[0])), len(ends)

    @cached_property
    def parameters(self) -> dict[str, tuple[float, float, bool]]:
        """The law's parameters: value, standard deviation, and whether the pilots identify it."""
        return rates.identified(self.fitted, self._grid)

    @property
    def unknown(self) -> tuple[str, ...]:
        """What the law does not know, in words."""
        notes = []
        peaks = self.covered["peaks"]
        if max(peaks) < _SEVERAL * min(peaks):
            notes.append(
                f"all pilots that decay have one peak, {peaks[-1]:g}: whether another is better is "
                "unknown"
            )
        if self.covered["changes"][0] <= 1e-9 * self.pilots.peak / self.pilots.horizon:
            notes.append("no pilot raises its rate after the warm-up: what a rise does is unknown")
        open_ones = [name for name, (_, _, known) in self.parameters.items() if not known]
        if open_ones:
            notes.append(f"not identified by these pilots: {', '.join(open_ones)}")
        if not self.left_out:
            notes.append("with two pilots none can be left out: the intervals were not tested")
        notes.append("other data, models, optimisers and batch sizes are other laws")
        return tuple(notes)

    def next_pilot(self, duration: float | None = None) -> NextPilot:
        """Return the run that would tell most about the best schedule, and how much.

        `duration`: of the training to plan, as in `problem`.
        """
        return next_pilot(self, self.problem(duration))

    # Showing and keeping

    def to_dict(self) -> dict[str, Any]:
        """Return the law as the sections of a problem file, and the report beside them."""
        return self.problem().to_dict() | {
            "fit": {
                "loss": self.loss,
                "pilots": [run.name for run in self.pilots.runs],
                "parameters": {
                    name: {"value": value, "sd": sd, "identified": known}
                    for name, (value, sd, known) in self.parameters.items()
                },
                "residual": self.fitted.scale,
                "left_out": [x._asdict() for x in self.left_out],
                "coverage": files.nullable(np.array([self.coverage]))[0],
                "starts_agree": list(self.agreement),
                "warnings": list(self.warnings),
                "next_pilot": self.next_pilot().to_dict(),
                "version": files.version(),
            }
        }

    def save(self, path: files.FilePath) -> None:
        """Write the law as a problem file (.toml, or .json with a report), or `to_frame` (.csv)."""
        if files.suffix(path, [".toml", ".json", ".csv"]) == ".toml":
            self.problem().save(path)
        else:
            super().save(path)

    def to_frame(self) -> pd.DataFrame:
        """Return the pilots as a table: the logged losses, their fit and its 90 % interval."""
        import pandas as pd

        return pd.concat(
            pd.DataFrame(
                {"run": run.name, "step": x.steps, "loss": losses, "fit": x.loss,
                 "low": x.low, "high": x.high}
            )
            for run, losses, x in self.curves()
        )  # fmt: skip

    def curves(self) -> list[tuple[Run, Floats, Prediction]]:
        """Return each pilot with its logged losses and the fit at its own rows."""
        values, deviations = self._spread(self._grid)
        result = []
        for run, value, deviation in zip(self.pilots.runs, values, deviations, strict=True):
            rows = slice(run.first, len(run.steps))
            value, around = value[rows], _NORMAL * deviation[rows]
            fit = Prediction(
                run.steps[run.own], np.exp(value), np.exp(value - around), np.exp(value + around)
            )
            result.append((run, run.losses[run.own, self._index], fit))
        return result


def fit(
    pilots: Pilots | str | Path | pd.DataFrame,
    *,
    warmup: float = 0.0,
    loss: str | None = None,
    running: Pilots | str | Path | pd.DataFrame | None = None,
    seed: int = 0,
) -> Fit | ShareFit:
    """Fit a law to pilots: how the loss depends on the learning rate over time.

    Where the shares of domains differ, it is a law of shares (a `ShareFit`, experimental).

    - `pilots`: a table with columns run, step, lr and loss, a file with one, or `Pilots`.
    - `warmup`: steps of a linear warm-up that the table does not contain.
    - `loss`: which loss, where there are several.
    - `running`: the log of a training that is under way; its curve counts as well, and plans begin
      where it is.
    - `seed`: of the starts.

    Every pilot is also predicted by the law of the others: these errors, and how many lie within
    the intervals, are part of the result.

    Examples:
        >>> fit = replan.fit(table)
        >>> other = pd.DataFrame({"run": "linear", "step": steps, "lr": 1e-3 - 1e-7 * steps})
        >>> prediction = fit.predict(other)["linear"]
        >>> bool(abs(prediction.loss[-1] - law.curve(steps, other.lr)[-1]) < 0.002)
        True
    """
    check.integer("seed", seed)
    given = _read(pilots, warmup)
    name = ""
    if running is not None:
        added = _read(running, warmup, given.runs)
        if len(added.runs) != 1:
            raise ArgumentError("running", "the log of one training", f"{len(added.runs)} runs")
        name = added.runs[0].name
        others = tuple(run for run in given.runs if run.name != name)
        given = given.joined((*others, added.runs[0]))
    used = given.for_fit()
    if name and name not in [run.name for run in used.runs]:
        raise ArgumentError("running", "a training whose loss falls", f"{used.warnings[-1]}")
    if used.shares_vary:
        if name:
            raise ArgumentError("running", "absent where shares vary", f"{name!r}")
        losses = used.losses if loss is None else (check.one_of("loss", loss, used.losses),)
        return fit_of_shares(used, losses, seed)
    chosen = _loss_of(used, loss)
    unit = rates.unit_of(used)
    fitted = rates.fit_rates(rates.grid(used, used.runs, unit, chosen), unit, seed=seed)
    folds = _left_out(used, chosen, fitted, seed) if len(used.runs) >= _FEWEST else ()
    used = replace(used, warnings=(*used.warnings, *_contradictions(used, chosen, folds)))
    return Fit(used, chosen, fitted, folds, name)


def _read(pilots: Any, warmup: float, earlier: Sequence[Run] = ()) -> Pilots:
    if isinstance(pilots, Pilots):
        return pilots
    if isinstance(pilots, str | Path):
        from replan.pilots.readers import read_pilots

        pilots = read_pilots(pilots)
    return Pilots.from_table(pilots, warmup=warmup, earlier=earlier)


def _loss_of(pilots: Pilots, loss: str | None) -> str:
    if loss is None:
        if len(pilots.losses) > 1:
            expected = f"one of {', '.join(pilots.losses)}"
            raise ArgumentError("loss", expected, "none, where there are several")
        return pilots.losses[0]
    return check.one_of("loss", loss, pilots.losses)


def _left_out(pilots: Pilots, loss: str, whole: rates.RateFit, seed: int) -> tuple[LeftOut, ...]:
    """Return the errors on each pilot, at most a dozen of them, of the law of the others."""
    results, unit = [], whole.unit
    for i, run in enumerate(pilots.runs[:_MOST_FOLDS]):
        others = pilots.without(i)
        grid = rates.grid(pilots, others.runs, unit, loss)
        fitted = rates.fit_rates(grid, unit, 2, seed, whole)
        data = rates.grid(pilots, (run,), unit, loss)
        values, deviations = rates.spread(fitted, data.runs)
        known = data.fitted
        errors = np.exp(values[known]) - data.losses[known]
        within = np.abs(values[known] - np.log(data.losses[known])) <= _NORMAL * deviations[known]
        results.append(
            LeftOut(run.name, float(np.abs(errors).mean()), float(errors[-1]), float(within.mean()))
        )
    return tuple(results)


def _contradictions(pilots: Pilots, loss: str, folds: Sequence[LeftOut]) -> list[str]:
    """Warn where the pilots do not follow one law."""
    index = pilots.losses.index(loss)
    errors = {
        fold.run: fold.mean / _end(run, index)
        for run, fold in zip(pilots.runs, folds, strict=False)
    }
    worst = max(errors, key=errors.__getitem__, default="")
    if not worst or errors[worst] < _CONTRADICTORY:
        return []
    return [
        f"THE PILOTS DO NOT FOLLOW ONE LAW: {worst} is off by {100 * errors[worst]:.0f} % of its "
        "loss where it is left out. Is a pilot in other units, or of other data?"
    ]


def _end(run: Run, index: int) -> float:
    """Return the last loss of a run: the median of its last three."""
    known = run.losses[np.isfinite(run.losses[:, index]), index]
    return float(np.median(known[-3:]))


def _corners(times: Floats, values: Floats, most: int = 60) -> Any:
    """Return the rows (k,) that a piecewise linear curve needs, at most about `most`."""
    bends = np.abs(np.diff(values, 2)) > 1e-6 * np.ptp(values) + 1e-15
    rows = np.unique(np.concatenate([[0], np.flatnonzero(bends) + 1, [len(times) - 1]]))
    if len(rows) > most:
        rows = np.unique(np.linspace(0, len(times) - 1, most).astype(int))
    return rows
