"""Pilots: logged trainings, checked, each with its whole history of learning rates.

Notation: R runs, n rows of a run, D domains of the training data.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from replan import check
from replan.check import Floats
from replan.errors import ArgumentError
from replan.pilots.descent import NORMAL

if TYPE_CHECKING:
    import pandas as pd

FARTHEST = 4.0  # times the pilots' horizon: a training that ends later is another one
_WARMUP_ROWS = 20  # with which a described warm-up is drawn
_EARLY = 0.08  # of the shortest training: losses before are not fitted
_RISING = 1.02  # times the lowest level of a loss: a training that ends above has diverged
_UNITS = 300.0  # horizons that differ by more are in different units
_DOUBTFUL = {"last steps": 30.0, "largest rates": 100.0}  # ratios of which a reader is warned
_STOPPED = 0.9  # of a training: a loss that is logged no longer has perhaps diverged
SAME = 0.01  # shares that differ by less are the same
_SEVERAL = 1.3  # ratio of peaks from which they are several


@dataclass(frozen=True)
class Run:
    """One training: rows at which its rate, and some of its losses, were logged.

    - `steps`: (n,) ascending. `rates`: (n,) the learning rate from each row on.
    - `losses`: (n, L) NaN where not measured. `shares`: (n, D) of the domains, or (n, 0).
    - `batch`: (n,) the batch size, NaN where not known.
    - `first`: the first row of the run's own log; rows before are what it continues, or a warm-up.
    """

    name: str
    steps: Floats
    rates: Floats
    losses: Floats
    shares: Floats
    batch: Floats
    first: int = 0
    parent: str = ""

    @property
    def own(self) -> slice:
        """The rows of the run's own log."""
        return slice(self.first, None)


class Prediction(NamedTuple):
    """A predicted run: the loss and its 90 % interval at the steps of its log, (n,) each."""

    steps: Floats
    loss: Floats
    low: Floats
    high: Floats

    @classmethod
    def of(cls, run: Run, logs: Floats, deviations: Floats) -> Prediction:
        """Return what log losses at all rows of a run, and more rows, say of its own log."""
        rows = slice(run.first, len(run.steps))
        log, width = logs[rows], NORMAL * deviations[rows]
        return cls(run.steps[rows], np.exp(log), np.exp(log - width), np.exp(log + width))


@dataclass(frozen=True)
class Pilots:
    """Trainings to fit a law to.

    - `runs`: the trainings. `losses`, `domains`: the names of their losses and of their data.
    - `unique`: (D,) how many steps' worth of data each domain has, infinite where not said.
    - `peak`: the largest learning rate. `early`: the step from which losses are fitted.
    - `warnings`: what a reader must know about these pilots. `table`: as read.

    Examples:
        >>> pilots = replan.Pilots.from_table(table)
        >>> [run.name for run in pilots.runs], pilots.peak
        (['constant', 'wsd'], 0.001)
    """

    runs: tuple[Run, ...]
    losses: tuple[str, ...]
    domains: tuple[str, ...]
    unique: Floats
    peak: float
    early: float
    warmup: float
    table: pd.DataFrame = field(repr=False)
    warnings: tuple[str, ...] = ()

    @classmethod
    def read(
        cls,
        *paths: str | Path,
        warmup: float = 0.0,
        lr: str | None = None,
        loss: Sequence[str] = (),
    ) -> Pilots:
        """Read pilots from files: see docs/pilots.md for the formats.

        - `warmup`: steps of a linear warm-up before each run that are not in the files.
        - `lr`, `loss`: the columns with the rate and the losses where they are called otherwise.
        """
        from replan.pilots.readers import read_pilots

        return cls.from_table(read_pilots(*paths, lr=lr, loss=loss), warmup=warmup)

    @classmethod
    def from_table(
        cls, table: pd.DataFrame, *, warmup: float = 0.0, earlier: Pilots | None = None
    ) -> Pilots:
        """Return pilots from a long table with columns run, step, lr and losses.

        `earlier`: pilots that those of the table may continue; shares are in their order.
        """
        warmup = check.number("warmup", warmup, at_least=0)
        columns = [str(name) for name in table.columns]
        given = table = table.set_axis(columns, axis=1).reset_index(drop=True)
        if "step" not in columns and "tokens" in columns:
            table = table.assign(step=table["tokens"])
        for name in ("run", "step", "lr"):
            if name not in table:
                raise ArgumentError("pilots", f"a table with a column `{name}`", ", ".join(columns))
        losses = [name for name in columns if name == "loss" or name.startswith("loss_")]
        domains = [name[6:] for name in columns if name.startswith("share_")]
        if earlier is not None:
            if not {*earlier.domains} <= {*domains}:
                expected = f"runs with shares of {', '.join(earlier.domains)}"
                raise ArgumentError("pilots", expected, ", ".join(domains) or "no shares")
            domains = list(earlier.domains)
        own = [
            _run(str(name), group, losses, domains)
            for name, group in table.groupby("run", sort=False)
        ]
        if not own:
            raise ArgumentError("pilots", "a table with rows", "none")
        unique = _unique_steps(table, domains)
        runs, warnings = _with_histories(own, warmup, earlier.runs if earlier else ())
        if np.isfinite(unique).any() and "tokens" not in table:
            warnings.append(
                "WITHOUT A COLUMN `tokens` STEPS ARE TAKEN FOR TOKENS (`unique_tokens_…`)"
            )
        names = tuple("loss" if name == "loss" else name[5:] for name in losses)
        horizons = [run.steps[-1] for run in runs]
        if max(horizons) > _UNITS * min(horizons):
            raise ArgumentError(
                "step",
                "in the same unit in all runs (steps or tokens)",
                f"runs that end at {min(horizons):g} and at {max(horizons):g}",
            )
        early = max([_EARLY * min(horizons), *(_warm_until(run) for run in runs)])
        peak = max(float(run.rates.max()) for run in runs)
        warnings += [*_unit_warnings(runs), *_unused(columns, domains)]
        return cls(
            tuple(runs), names, tuple(domains), unique, peak, early, warmup, given, tuple(warnings)
        )

    def for_fit(self, loss: str | None = None) -> Pilots:
        """Return the pilots of one loss, or all: refuse too few, warn of others.

        Shares that do not vary are dropped.
        """
        pilots = self._of_loss(loss)._of_shares()
        warnings, kept = list(pilots.warnings), []
        for run in pilots.runs:
            # Of shares, what makes a loss rise is what the law is about.
            rising = "" if pilots.domains else _rises(run, self.early)
            if rising:
                warnings.append(f"{run.name} is left out: its loss rises {rising}")
            else:
                kept.append(run)
                warnings += _stops(run)
        if len(kept) < 2:
            dropped = [x for x in warnings if " is left out: " in x]
            got = f"{len(kept)}" + (f" ({'; '.join(dropped)})" if dropped else "")
            raise ArgumentError("pilots", "two or more runs with losses that fall", got)
        falls = any(np.any(np.diff(x.rates[x.steps >= self.warm_until]) < 0) for x in kept)
        if not falls and not pilots.domains:
            warnings.append(
                "NO PILOT LOWERS ITS LEARNING RATE: what a decay brings cannot be predicted from "
                "these pilots; the values below rest on priors. Add a pilot with a drop"
            )
        for run in kept:
            measured = np.isfinite(run.losses[run.steps >= self.early]).any(axis=0)
            if not measured.all():
                raise ArgumentError(
                    "pilots",
                    f"runs with losses after step {self.early:g} (earlier ones are not fitted), "
                    "with steps in the same unit",
                    f"{run.name} without {pilots.losses[int(measured.argmin())]}; it ends at "
                    f"{run.steps[-1]:g}",
                )
        return replace(pilots, runs=tuple(kept), warnings=tuple(warnings))

    def _of_loss(self, loss: str | None) -> Pilots:
        if not self.losses:
            raise ArgumentError("pilots", "a table with a column `loss` or `loss_<name>`", "none")
        if loss is None and (len(self.losses) == 1 or self.shares_vary):
            return self
        if loss is None:
            expected = f"one of {', '.join(self.losses)}"
            raise ArgumentError("loss", expected, "none, and shares do not vary")
        index = [self.losses.index(check.one_of("loss", loss, self.losses))]
        runs = tuple(replace(run, losses=run.losses[:, index]) for run in self.runs)
        return replace(self, losses=(loss,), runs=runs)

    def _of_shares(self) -> Pilots:
        if self.shares_vary:
            self.refuse_unknown_shares()
            return replace(self, warnings=(*self.warnings, *_share_warnings(self)))
        runs = tuple(replace(run, shares=run.shares[:, :0]) for run in self.runs)
        return replace(self, domains=(), unique=self.unique[:0], runs=runs)

    def refuse_unknown_shares(self) -> None:
        """Refuse runs whose table does not give their shares."""
        for run in self.runs:
            if np.isnan(run.shares).any():
                expected = f"given for all runs, of {', '.join(self.domains)}"
                raise ArgumentError("share_…", expected, f"nothing in {run.name}")

    @property
    def horizon(self) -> float:
        """The last step of the longest run."""
        return float(max(run.steps[-1] for run in self.runs))

    @property
    def axis(self) -> str:
        """What `steps` count: step, or token."""
        tokens = self.table.get("tokens")
        steps = self.table.get("step", tokens)
        return "token" if tokens is not None and tokens.equals(steps) else "step"

    @property
    def warm_until(self) -> float:
        """The step at which the last of the warm-ups ends."""
        return max(_warm_until(run) for run in self.runs)

    @property
    def shares_vary(self) -> bool:
        """Whether the shares of domains differ, between runs or in time."""
        rows = np.concatenate([run.shares for run in self.runs])
        rows = rows[np.isfinite(rows).all(axis=1)]
        return bool(rows.size and np.ptp(rows, axis=0).max() > SAME)

    def batch_of(self, run: Run) -> Floats:
        """Return the batch sizes (n,) of a run over the pilots' typical one.

        They are 1 where either is not known.
        """
        medians = [np.nanmedian(x.batch) for x in self.runs if np.isfinite(x.batch).any()]
        ratios = run.batch / (np.median(medians) if medians else np.nan)
        return np.where(np.isfinite(ratios), ratios, 1.0)

    def without(self, index: int) -> Pilots:
        """Return the pilots without one of the runs."""
        return replace(self, runs=self.runs[:index] + self.runs[index + 1 :])


# Reading a run


def _run(name: str, group: pd.DataFrame, losses: list[str], domains: list[str]) -> Run:
    group = group.assign(step=_numbers(group, "step", name)).sort_values("step", kind="stable")
    steps = group["step"].to_numpy(np.float64)
    same = np.flatnonzero(np.diff(steps) == 0)
    if same.size:
        one, other = 1 + group.index[[same[0], same[0] + 1]]
        got = f"{steps[same[0]]:g} twice, in rows {one} and {other}"
        raise ArgumentError("step", f"different in all rows of {name}", got)
    if not np.isfinite(steps).all() or steps[0] < 0:
        raise ArgumentError("step", "a finite number of at least 0", f"another in {name}")
    rates = _filled(steps, _numbers(group, "lr", name), "lr", name)
    if rates.min() < 0 or rates.max() == 0:
        raise ArgumentError("lr", "positive, or 0 at times", f"{rates.min():g} in {name}")
    measured = [_measured(group, column, name) for column in losses]
    continues = [str(x) for x in group["continue"].dropna()] if "continue" in group else []
    return Run(
        name,
        steps,
        rates,
        np.stack(measured, axis=1) if measured else np.empty((len(steps), 0)),
        _shares(group, steps, domains, name),
        _batch(group, steps, name),
        parent=continues[0] if continues else "",
    )


def _numbers(group: pd.DataFrame, column: str, run: str) -> Floats:
    import pandas as pd

    values = pd.to_numeric(group[column], errors="coerce").to_numpy(np.float64)
    texts = group[column].notna() & (group[column].astype(str).str.strip() != "")
    wrong = np.flatnonzero(np.isnan(values) & texts.to_numpy())
    if wrong.size:
        got = f"{check.show(group[column].iloc[wrong[0]])} in {run}"
        raise ArgumentError(column, "numbers, or empty where not known", got)
    return values


def _measured(group: pd.DataFrame, column: str, run: str) -> Floats:
    values = _numbers(group, column, run)
    if np.any(values <= 0) or np.isinf(values).any():
        wrong = values[(values <= 0) | np.isinf(values)][0]
        raise ArgumentError(column, "positive numbers, or empty", f"{wrong:g} in {run}")
    return values


def _filled(steps: Floats, values: Floats, column: str, run: str) -> Floats:
    """Return values with those that were not logged interpolated."""
    known = np.isfinite(values)
    if not known.any():
        raise ArgumentError(column, "given for all runs", f"nothing in {run}")
    return np.interp(steps, steps[known], values[known])


def _shares(group: pd.DataFrame, steps: Floats, domains: list[str], run: str) -> Floats:
    """Return shares (n, D), all NaN where the run has none."""
    columns = {f"share_{x}": _numbers(group, f"share_{x}", run) for x in domains}
    if not any(np.isfinite(values).any() for values in columns.values()):
        return np.full((len(steps), len(domains)), np.nan)
    filled = [_filled(steps, values, name, run) for name, values in columns.items()]
    shares = np.stack(filled, axis=1)
    if shares.max() > 1.0 + 1e-6:
        got = f"{shares.max():g} in {run}" + (" (percent?)" if shares.max() <= 100 else "")
        raise ArgumentError("share_…", "fractions from 0 to 1", got)
    total = shares.sum(axis=1)
    if shares.min() < 0 or np.abs(total - 1).max() > 1e-3:
        got = f"{total[np.abs(total - 1).argmax()]:g} in {run}, of {' + '.join(columns)}"
        raise ArgumentError("share_…", "fractions of sum 1", got)
    return shares


def _batch(group: pd.DataFrame, steps: Floats, run: str) -> Floats:
    """Return the batch size (n,): logged, or how many tokens a step takes; NaN if not known."""
    if "batch" in group and group["batch"].notna().any():
        return _filled(steps, _numbers(group, "batch", run), "batch", run)
    if "tokens" not in group or not group["tokens"].notna().any():
        return np.full(len(steps), np.nan)
    tokens = _filled(steps, _numbers(group, "tokens", run), "tokens", run)
    if np.array_equal(tokens, steps):
        return np.full(len(steps), np.nan)
    return _per_step(tokens, steps, run)


def _per_step(tokens: Floats, steps: Floats, run: str) -> Floats:
    """Return how many tokens a step takes (n,)."""
    if len(steps) == 1:
        return tokens / np.maximum(steps, 1.0)
    per_step = np.diff(tokens) / np.diff(steps)
    if per_step.min() <= 0:
        raise ArgumentError("tokens", "ascending with the steps", f"a fall in {run}")
    return np.append(per_step, per_step[-1])


def _unique_steps(table: pd.DataFrame, domains: list[str]) -> Floats:
    """Return how many steps' worth of data (D,) each domain has; infinite where not said."""
    unique = np.full(len(domains), np.inf)
    for d, domain in enumerate(domains):
        column = f"unique_tokens_{domain}"
        values = _numbers(table, column, "the table") if column in table else np.empty(0)
        values = np.unique(values[np.isfinite(values)])
        if not values.size:
            continue
        if values[0] <= 0:
            raise ArgumentError(column, "positive numbers, or empty", f"{values[0]:g}")
        if len(values) > 1:
            got = f"{values[0]:g} and {values[-1]:g}"
            raise ArgumentError(column, "one number: pilots share their data", got)
        unique[d] = values[0] / (_tokens_per_step(table) if "tokens" in table else 1.0)
    return unique


def _tokens_per_step(table: pd.DataFrame) -> float:
    ratios = []
    for name, group in table.dropna(subset=["tokens"]).groupby("run"):
        rows = group.sort_values("step")
        tokens, steps = (_numbers(rows, x, str(name)) for x in ("tokens", "step"))
        ratios.append(float(np.median(_per_step(tokens, steps, str(name)))))
    return float(np.median(ratios))


# Histories


def _with_histories(
    runs: list[Run], warmup: float, earlier: Sequence[Run]
) -> tuple[list[Run], list[str]]:
    """Return the runs with what came before their logs, and what had to be assumed."""
    done = {run.name: run for run in earlier}
    for run in runs:
        done.pop(run.name, None)
    by_name = done | {run.name: run for run in runs}
    warnings: list[str] = []
    logged: list[str] = []  # warm-ups, though one is described

    def complete(run: Run, seen: tuple[str, ...] = ()) -> Run:
        if run.name in done:
            return done[run.name]
        if run.parent:
            parent = by_name.get(run.parent)
            if parent is None or run.name in seen or parent.steps[0] >= run.steps[0]:
                raise ArgumentError(
                    "continue", "an earlier run of the table", f"{run.parent!r} in {run.name}"
                )
            whole = _continued(complete(parent, (*seen, run.name)), run)
        elif warmup and run.rates[0] > 0.5 * run.rates.max():  # else it is in the log
            if warmup > run.steps[0]:
                raise ArgumentError(
                    "warmup",
                    f"at most {run.steps[0]:g}, the first step of {run.name} (if steps count from "
                    f"the end of the warm-up, add {warmup:g} to them)",
                    f"{warmup:g}",
                )
            whole = _warmed_up(run, warmup)
        elif run.steps[0] <= _first_gap(run):
            whole = run
            logged.extend([run.name] * bool(warmup))
        else:
            parent = _likely_parent(run, list(by_name.values()))
            if parent is None:
                whole = _warmed_up(run, 0.0)
                warnings.append(
                    f"{run.name} begins at step {run.steps[0]:g}: before, a constant rate of "
                    f"{run.rates[0]:g} is assumed. Give `--warmup`, or a column `continue`"
                )
            else:
                whole = _continued(complete(parent), run)
                warnings.append(
                    f"{run.name} is taken to continue {parent.name} from step {run.steps[0]:g}. If "
                    "it does not, log it from its beginning"
                )
        done[run.name] = whole
        return whole

    whole = [complete(run) for run in runs]
    if logged:
        names = ", ".join(logged)
        warnings.append(f"`--warmup` is not used for {names}: the log begins with a warm-up")
    return whole, warnings


def _first_gap(run: Run) -> float:
    return 2.0 * float(np.median(np.diff(run.steps))) if len(run.steps) > 1 else float(run.steps[0])


def _likely_parent(run: Run, runs: list[Run]) -> Run | None:
    """Return the run that was trained with about the same rate when `run` began, if any.

    Losses are not looked at: those of runs to predict are unknown.
    """
    begin, best, nearest = run.steps[0], None, 0.35
    for other in runs:
        if other is not run and other.steps[0] < begin <= other.steps[-1]:
            rate = np.interp(begin, other.steps, other.rates)
            flat = np.ptp(other.rates[(other.steps > 0.5 * begin) & (other.steps <= begin)]) == 0
            distance = abs(rate / run.rates[0] - 1.0) + (0.0 if flat else 0.1)
            if distance < nearest:
                best, nearest = other, distance
    return best


def _continued(parent: Run, run: Run) -> Run:
    before = parent.steps < run.steps[0]
    return prepended(
        run, parent.steps[before], parent.rates[before], parent.shares[before], parent.batch[before]
    )


def _warmed_up(run: Run, warmup: float) -> Run:
    steps = np.linspace(0.0, warmup, _WARMUP_ROWS + 1) if warmup else np.zeros(1)
    rates = run.rates[0] * (steps / warmup if warmup else 1.0)
    before = steps < run.steps[0]
    steps, rates = steps[before], np.broadcast_to(rates, steps.shape)[before]
    shares = np.repeat(run.shares[:1], len(steps), axis=0)
    return prepended(run, steps, rates, shares, np.full(len(steps), run.batch[0]))


def prepended(run: Run, steps: Floats, rates: Floats, shares: Floats, batch: Floats) -> Run:
    """Return a run with rows before its first, whose losses are not known."""
    unknown = np.full((len(steps), run.losses.shape[1]), np.nan)
    return replace(
        run,
        steps=np.concatenate([steps, run.steps]),
        rates=np.concatenate([rates, run.rates]),
        losses=np.concatenate([unknown, run.losses]),
        shares=np.concatenate([shares, run.shares]),
        batch=np.concatenate([batch, run.batch]),
        first=len(steps) + run.first,
    )


def _warm_until(run: Run) -> float:
    """Return the step at which the first rise of the rate ends."""
    falls = np.flatnonzero(np.diff(run.rates) <= 0)
    return float(run.steps[falls[0]]) if falls.size else 0.0


def several(peaks: Sequence[float] | Floats) -> bool:
    """Return whether peaks differ enough to compare others: else another is a guess."""
    return bool(max(peaks) > _SEVERAL * min(peaks))


# What a reader must know


def _rises(run: Run, early: float) -> str:
    """Say how the loss of a run rises, or nothing."""
    for losses in run.losses.T:
        known = np.isfinite(losses) & (run.steps >= early)
        if known.sum() < 10:
            continue
        level = np.array([np.median(part) for part in np.array_split(losses[known], 10)])
        if level[-1] > _RISING * level.min():
            return f"from {level.min():.4g} to {level[-1]:.4g}"
    return ""


def _stops(run: Run) -> list[str]:
    """Warn of a loss that was logged only for a part of the training."""
    last = run.steps[np.isfinite(run.losses).any(axis=1)].max(initial=0.0)
    if last >= _STOPPED * run.steps[-1]:
        return []
    return [
        f"{run.name} has no loss after step {last:g} of {run.steps[-1]:g}: if it diverged, take it "
        "out of the pilots"
    ]


def _unit_warnings(runs: Sequence[Run]) -> list[str]:
    """Warn of runs so different that one of them may be in another unit."""
    seen = {
        "last steps": [run.steps[-1] for run in runs],
        "largest rates": [run.rates.max() for run in runs],
    }
    return [
        f"THE {name.upper()} OF THE RUNS DIFFER BY A FACTOR OF {max(values) / min(values):.0f}, "
        f"from {min(values):g} to {max(values):g}: are they in the same unit?"
        for name, values in seen.items()
        if max(values) > _DOUBTFUL[name] * min(values)
    ]


def _unused(columns: Sequence[str], domains: Sequence[str]) -> list[str]:
    """Warn of columns that are not read, perhaps as they are misspelt."""
    known = r"run|step|lr|tokens|batch|continue|loss|(loss|share|unique_tokens)_.+"
    unused = [x for x in columns if not re.fullmatch(known, x)]
    if not unused:
        return []
    tail = unused[0].rpartition("_")[2]
    like = ["batch", "continue", "tokens"]
    like += [f"{x}_{tail}" for x in ("loss", "share") if tail != unused[0]]
    return [f"COLUMNS NOT USED: {', '.join(unused)}{check.hint(unused[0], like)}"]


def _share_warnings(pilots: Pilots) -> list[str]:
    """Warn where it is unknown how often data are repeated."""
    unknown = [
        d for d, steps in zip(pilots.domains, pilots.unique, strict=True) if not np.isfinite(steps)
    ]
    if not unknown:
        return []
    return [
        f"HOW MUCH DATA {', '.join(unknown)} HAS IS UNKNOWN: if data are repeated, predictions are "
        "wrong. Give columns `unique_tokens_<domain>`"
    ]
