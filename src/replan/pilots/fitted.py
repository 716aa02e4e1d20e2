"""fit(pilots): a law of the learning rate with honest intervals, and what it cannot know."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from replan import check, files
from replan.check import Floats
from replan.errors import ArgumentError
from replan.models.rate_law import NAMES, RateLaw
from replan.pilots import rates
from replan.pilots.descent import LAWS, NORMAL, agreement
from replan.pilots.law_fit import LawFit
from replan.pilots.next_pilot import NextPilot, next_pilot
from replan.pilots.runs import Pilots, Prediction, Run, several
from replan.pilots.share_fit import ShareFit, fit_of_shares
from replan.problem import Control, Problem

if TYPE_CHECKING:
    import pandas as pd

_FEWEST = 3  # pilots of which one can be left out
_MOST_FOLDS = 12
_POINTS = 40  # of a pilot's losses in a file: enough to draw
# From where a reader is warned: errors of a pilot, of its loss; starts that agree; coverage.
_CONTRADICTORY, _AGREEING, _COVERING = 0.1, 0.6, 0.8


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
class Fit(LawFit):
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

    @cached_property
    def _grid(self) -> rates.Grid:
        return rates.grid(self.pilots, self.pilots.runs, self.fitted.unit, self.loss)

    # The law

    @cached_property
    def law(self) -> RateLaw:
        """The law as a model, with those that fit nearly as well beside the best.

        Its noise is that of the batch size of the running training, or of a typical pilot.
        """
        laws = rates.draws(self.fitted, self._grid, LAWS)
        laws[:, NAMES.index("noise")] *= self.batch ** -laws[:, NAMES.index("power")]
        return RateLaw(laws, self.pilots.peak, self.fitted.unit, covered=self.covered)

    @cached_property
    def covered(self) -> dict[str, Any]:
        """What the pilots cover: `horizon`, the range of `rates`, their fastest rise and fall.

        A rate counts as covered up to the largest peak from which a pilot also decays.

        `best`: the pilot that ended lowest, its schedule after the warm-up as fractions of its
        length and rates. `error`: the law's own error of a log loss. `starts_at`: the step.
        `fitted` and `history`, from which follows how uncertain a schedule is; `batch`, as below.
        `curves`: the pilots, for pictures.
        """
        warm = self.pilots.warm_until
        rows = [run.steps >= warm for run in self.pilots.runs]
        later = [run.rates[x] for run, x in zip(self.pilots.runs, rows, strict=True)]
        slopes = [
            np.diff(rates) / np.diff(run.steps[x])
            for run, rates, x in zip(self.pilots.runs, later, rows, strict=True)
        ]
        falls = [-x for x in slopes]
        falling = [x for x in later if np.any(np.diff(x) < 0)]
        peaks = sorted({float(f"{x.max():.4g}") for x in falling or later})
        best = min(self.pilots.runs, key=lambda run: _end(run, self._index))
        after = best.steps >= warm
        times = (best.steps[after] - warm) / (best.steps[-1] - warm)
        keep = _corners(best.rates[after])
        before = np.stack(self.history)
        return {
            "horizon": self.pilots.horizon,
            "rates": [float(min(x.min() for x in later)), peaks[-1]],
            "peaks": peaks,
            "changes": [float(max(x.max(initial=0.0) for x in y)) for y in (slopes, falls)],
            "falls": bool(falling),
            "axis": self.pilots.axis,
            "error": float(rates.own_error(self.fitted)),
            "starts_at": self._begin,
            "best": {
                "run": best.name,
                "peak": float(best.rates.max()),
                "times": [float(f"{x:.6g}") for x in times[keep]],
                "rates": best.rates[after][keep].tolist(),
            },
            "fitted": {name: np.asarray(x).tolist() for name, x in self.fitted._asdict().items()},
            "history": before[:, _corners(before[1])].tolist(),
            "curves": [
                self._drawn(run) for run in self.pilots.runs if run.steps[-2] >= self._begin
            ],
            "batch": self.batch,
        }

    def _drawn(self, run: Run) -> dict[str, Any]:
        """Return a pilot from where plans begin: its schedule's corners, some of its losses."""
        steps, losses = run.steps, run.losses[:, self._index]
        later = steps >= self._begin
        corners = np.flatnonzero(later)[_corners(run.rates[later])]
        measured = np.flatnonzero(later & np.isfinite(losses))
        some = measured[:: -max(1, -(-len(measured) // _POINTS))][::-1]  # and the last
        shown = [float(f"{loss:.5g}") for loss in losses[some]]
        return {
            "run": run.name,
            "duration": float(steps[-1] - self._begin),
            "times": (steps[corners] - self._begin).tolist(),
            "rates": run.rates[corners].tolist(),
            "steps": (steps[some] - self._begin).tolist(),
            "losses": shown,
        }

    @property
    def _index(self) -> int:
        return self.pilots.losses.index(self.loss)

    @property
    def _begin(self) -> float:
        """The step at which plans begin: after the warm-up, or where the running training is."""
        return float(self._running.steps[-1]) if self.running else self.pilots.warm_until

    @property
    def _running(self) -> Run:
        return next(run for run in self.pilots.runs if run.name == self.running)

    @property
    def batch(self) -> float:
        """The batch size of plans over the pilots' typical one: that of the running training."""
        return float(self.pilots.batch_of(self._running)[-1]) if self.running else 1.0

    @property
    def history(self) -> tuple[Floats, Floats, Floats]:
        """Steps, rates and batch sizes (n,) up to where plans begin, over the pilots' typical one.

        They are those of a warm-up, or of the running training.
        """
        if self.running:
            return self._running.steps, self._running.rates, self.pilots.batch_of(self._running)
        run = max(self.pilots.runs, key=lambda run: run.rates.max())
        before = run.steps <= self._begin
        return run.steps[before], run.rates[before], np.ones(int(before.sum()))

    def problem(self, duration: float | None = None) -> Problem:
        """Return the problem of the rate from the warm-up, or the running training, on.

        `duration`: in steps; by default up to the pilots' horizon.
        """
        low, high = self.covered["rates"]
        left = self.pilots.horizon - self._begin
        if duration is None:
            duration = left if left > 0 else self.pilots.horizon
        control = Control(tasks=False, lr=(low, high))
        steps, before, batch = self.history
        start = self.law.after(steps, before, batch / self.batch)
        return Problem(self.law, start, duration, control=control, lr=high)

    # Predictions

    def predict(self, runs: Pilots | pd.DataFrame) -> dict[str, Prediction]:
        """Predict other runs, by name, at the steps of their logs; their losses are not used.

        Warns of runs that are far from what the pilots cover.
        """
        runs = self._to_predict(runs)
        grid = rates.grid(self.pilots, runs.runs, self.fitted.unit, None)
        return {
            run.name: Prediction.of(run, values, deviations)
            for run, values, deviations in zip(runs.runs, *self._spread(grid), strict=True)
        }

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
        return agreement(self.fitted.ends)

    @cached_property
    def parameters(self) -> dict[str, tuple[float, float, bool]]:
        """The law's parameters: value, standard deviation, and whether the pilots identify it."""
        return rates.identified(self.fitted, self._grid)

    @property
    def unknown(self) -> tuple[str, ...]:
        """What the law does not know, in words."""
        notes = []
        peaks = self.covered["peaks"]
        if self.covered["falls"] and not several(peaks):
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

    @cached_property
    def _next_pilot(self) -> NextPilot:
        return next_pilot(self, self.problem())

    def next_pilot(self, duration: float | None = None) -> NextPilot:
        """Return the run that would tell most about the best schedule, and how much.

        `duration`: of the training to plan, as in `problem`.
        """
        return self._next_pilot if duration is None else next_pilot(self, self.problem(duration))

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
        return [
            (run, run.losses[run.own, self._index], Prediction.of(run, values, deviations))
            for run, values, deviations in zip(
                self.pilots.runs, *self._spread(self._grid), strict=True
            )
        ]


def fit(
    pilots: Pilots | str | Path | pd.DataFrame,
    *,
    warmup: float = 0.0,
    loss: str | None = None,
    running: str | Path | pd.DataFrame | None = None,
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
    if not isinstance(pilots, Pilots):
        pilots = Pilots.from_table(_table(pilots), warmup=warmup)
    name = ""
    if running is not None:
        log = _table(running)
        names = log["run"].astype(str).unique() if "run" in log else []
        if len(names) != 1:
            raise ArgumentError("running", "the log of one training", f"{len(names)} runs")
        name = str(names[0])
        if name in [run.name for run in pilots.runs]:
            raise ArgumentError("running", "a run with another name than the pilots", f"{name!r}")
        pilots = _with_running(pilots, log)
    used = pilots.for_fit(loss)
    if name and name not in [run.name for run in used.runs]:
        raise ArgumentError("running", "a training whose loss falls", f"{used.warnings[-1]}")
    if used.domains:
        if name:
            raise ArgumentError("running", "absent where shares vary", f"{name!r}")
        return fit_of_shares(used, seed)
    chosen, unit = used.losses[0], rates.unit_of(used)
    grid = rates.grid(used, used.runs, unit, chosen)
    fitted = rates.fit_rates(grid, unit, seed=seed)
    folds = _left_out(used, chosen, fitted, seed) if len(used.runs) >= _FEWEST else ()
    doubts = [*_contradictions(grid, fitted, used, folds), *_doubts(fitted, folds)]
    used = replace(used, warnings=(*used.warnings, *doubts))
    return Fit(used, chosen, fitted, folds, name)


def _table(source: str | Path | pd.DataFrame) -> pd.DataFrame:
    if not isinstance(source, str | Path):
        return source
    from replan.pilots.readers import read_pilots

    return read_pilots(source)


def _with_running(pilots: Pilots, log: pd.DataFrame) -> Pilots:
    """Return the pilots with the log of another training."""
    import pandas as pd

    table = pd.concat([pilots.table, log], ignore_index=True)
    return Pilots.from_table(table, warmup=pilots.warmup)


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
        within = np.abs(values[known] - np.log(data.losses[known])) <= NORMAL * deviations[known]
        results.append(
            LeftOut(run.name, float(np.abs(errors).mean()), float(errors[-1]), float(within.mean()))
        )
    return tuple(results)


def _contradictions(
    data: rates.Grid, fitted: rates.RateFit, pilots: Pilots, folds: Sequence[LeftOut]
) -> list[str]:
    """Warn where the pilots do not follow one law, of the one that the fit of all misses."""
    values, _ = rates.value_and_slopes(fitted.parameters, data.runs)
    wrong = np.where(data.fitted, np.abs(np.exp(values) / data.losses - 1.0), np.nan)
    missed = np.nanmean(wrong, axis=1)
    ends = [np.nanmin(losses) for losses in data.losses]
    left_out = np.array([fold.mean / end for fold, end in zip(folds, ends, strict=False)])
    errors = missed if missed.max() >= _CONTRADICTORY else left_out
    if errors.max(initial=0.0) < _CONTRADICTORY:
        return []
    worst = int(errors.argmax())
    return [
        f"THE PILOTS DO NOT FOLLOW ONE LAW: {pilots.runs[worst].name} is off by "
        f"{100 * errors[worst]:.0f} % of its loss. Is it in other units, or of other data?"
    ]


def _doubts(fitted: rates.RateFit, folds: Sequence[LeftOut]) -> list[str]:
    """Warn where starts disagree, or intervals are too narrow."""
    (same, starts), covered = agreement(fitted.ends), np.mean([x.covered for x in folds] or [1.0])
    disagree = (
        f"ONLY {same} OF {starts} STARTS AGREE: there may be a better fit. Try another `--seed`; "
        "if predictions change, add a pilot"
    )
    narrow = (
        f"ONLY {100 * covered:.0f} % OF LEFT-OUT LOSSES ARE WITHIN THEIR 90 % INTERVALS: these are "
        "too narrow for runs unlike the pilots. Add a pilot"
    )
    return [disagree] * (same < _AGREEING * starts) + [narrow] * bool(covered < _COVERING)


def _end(run: Run, index: int) -> float:
    """Return the last loss of a run: the median of its last three."""
    known = run.losses[np.isfinite(run.losses[:, index]), index]
    return float(np.median(known[-3:]))


def _corners(values: Floats, most: int = 60) -> Any:
    """Return the rows (k,) that a piecewise linear curve needs, at most about `most`."""
    bends = np.abs(np.diff(values, 2)) > 1e-6 * np.ptp(values) + 1e-15
    rows = np.unique(np.concatenate([[0], np.flatnonzero(bends) + 1, [len(values) - 1]]))
    if len(rows) > most:
        rows = np.unique(np.linspace(0, len(values) - 1, most).astype(int))
    return rows
