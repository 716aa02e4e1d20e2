"""A law of shares fitted to pilots, beside plain regressions: experimental."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from replan import files
from replan.check import Floats
from replan.errors import ArgumentError
from replan.models.rate_law import KAPPA, NAMES
from replan.models.share_law import ShareLaw, names
from replan.pilots import shares
from replan.pilots.descent import LAWS, NORMAL, agreement
from replan.pilots.law_fit import LawFit
from replan.pilots.next_pilot import NextPilot
from replan.pilots.next_shares import next_share_pilot
from replan.pilots.plain import PLAIN, features
from replan.pilots.runs import SAME, Pilots, Prediction, Run
from replan.problem import Problem

if TYPE_CHECKING:
    import pandas as pd

_FOLDS = 8  # in which pilots are left out
_MOST = 12  # mixtures that a plan combines
_FEWEST = 4
_STAGES = 50  # of plans, at most
_IDENTIFIED = 0.6  # of the prior's standard deviation


class LossFit(NamedTuple):
    """The law of one loss, and what left-out pilots say of it.

    data: as fitted. inflation: of standard deviations, so that nine of ten left-out losses lie
    within their intervals; `covered`: how many did, by the other folds' inflation. errors: (R,) of
    the left-out end losses, by the law and by plain regressions.
    """

    name: str
    data: shares.Data
    fitted: shares.ShareFitted
    inflation: float
    covered: float
    errors: dict[str, Floats]

    @property
    def ends(self) -> Floats:
        """The last measured loss of each run (R,)."""
        return self.data.losses[np.arange(len(self.data.losses)), _last(self.data)]

    @property
    def noisy(self) -> bool:
        """Whether the rate's noise is part of the law."""
        return bool(self.fitted.free[-1])

    @property
    def agreement(self) -> tuple[int, int]:
        """How many starts ended in the best fit, and how many there were."""
        return agreement(self.fitted.ends)

    def lead(self, name: str) -> tuple[float, float]:
        """Return how much smaller the law's errors are than another's, and half the interval."""
        gains = np.abs(self.errors[name]) - np.abs(self.errors["law"])
        return float(gains.mean()), float(NORMAL * gains.std() / np.sqrt(len(gains)))


@dataclass(frozen=True)
class ShareFit(LawFit):
    """A law of the shares of training data, fitted to pilots: experimental.

    - `pilots`: as used. `fits`: the law of each loss, with its left-out errors and those of a
      Gaussian process and a quadratic regression. `unit`: the steps at the peak that count as 1.

    Examples:
        >>> draws = np.random.default_rng(0).uniform(size=(10, 2))
        >>> runs = pd.concat([
        ...     pd.DataFrame({"run": i, "step": [0, 500, 1000], "lr": 1e-3, "share_web": 1 - code,
        ...                   "share_code": code, "loss": [None, None, 1 + (code.mean() - 0.3)**2]})
        ...     for i, code in enumerate(draws[:, [0, 1, 1]])
        ... ])
        >>> fit = replan.fit(runs)
        >>> list(fit.fits[0].errors)
        ['law', 'Gaussian process', 'quadratic']
        >>> fit.problem().model.kind
        'share-law'
    """

    pilots: Pilots
    unit: float
    fits: tuple[LossFit, ...]

    # The law

    @cached_property
    def law(self) -> ShareLaw:
        """The law as a model, with those that fit nearly as well beside the best."""
        run = self.best_run
        pace = np.trapezoid(run.rates, run.steps) / (self.pilots.peak * run.steps[-1])
        return ShareLaw(
            np.stack([self._laws(fit) for fit in self.fits], axis=1),
            self.pilots.domains,
            [fit.name for fit in self.fits],
            self.unit / float(pace),
            self.fits[0].data.runs.repeats,
            _extremes(self._rows),
            self.covered,
        )

    def _laws(self, fit: LossFit) -> Floats:
        """Return laws (P, 5 + 3D) of one loss, with the noise at the end of the best pilot."""
        rows = shares.draws(fit.fitted, fit.data, fit.inflation, LAWS).astype(complex)
        laws = shares.laws_of(rows).real
        if fit.noisy:
            run = shares.data_of(self.pilots, (self.best_run,), self.unit, True)
            noise = shares.noise(rows, run.rates)[-1, :, 0].real
            laws[:, 0] += noise
            laws[:, 1] *= 1.0 + KAPPA * noise
        return laws

    @cached_property
    def best_run(self) -> Run:
        """The pilot whose losses end lowest."""
        ends = np.mean([one.ends for one in self.fits], axis=0)
        return self.pilots.runs[int(np.argmin(ends))]

    @property
    def _rows(self) -> Floats:
        """All mixtures of the pilots (n, D)."""
        rows = np.concatenate([run.shares for run in self.pilots.runs])
        rows = rows / rows.sum(axis=1, keepdims=True)  # logs round
        return rows[np.unique(rows.round(6), axis=0, return_index=True)[1]]

    @cached_property
    def stages(self) -> int:
        """Into how many stages of equal progress plans are divided: the most of any pilot."""
        changes = max(len(shares.changes(run.shares)) for run in self.pilots.runs)
        return min(_STAGES, 1 + changes)

    @cached_property
    def covered(self) -> dict[str, Any]:
        """What plans must know of the pilots.

        `horizon`; `stages` of plans; `error`: the law's own, of a log loss; `best`: the pilot that
        ended lowest, its `steps` and `progress` as fractions, and its `shares`.
        """
        run = self.best_run
        steps = np.linspace(run.steps[0], run.steps[-1], 201)
        rates = np.interp(steps, run.steps, run.rates)
        done = np.concatenate([[0.0], np.cumsum(0.5 * (rates[1:] + rates[:-1]))])
        at = np.searchsorted(run.steps, steps[:-1], side="right") - 1
        return {
            "horizon": self.pilots.horizon,
            "starts_at": 0.0,
            "stages": self.stages,
            "error": max(float(one.inflation * one.fitted.scale) for one in self.fits),
            "best": {
                "run": run.name,
                "steps": (steps / steps[-1]).tolist(),
                "progress": (done / done[-1]).tolist(),
                "shares": run.shares[at].tolist(),
            },
        }

    def problem(self, duration: float | None = None) -> Problem:
        """Return the problem of the shares in a training of `duration` steps.

        By default it is as long as the longest pilot. Its rate follows the best pilot's, stretched;
        time is progress, the integral of the rate, in steps.
        """
        duration = self.pilots.horizon if duration is None else duration
        return Problem(self.law, self.law.fresh(), duration, steps=self.stages)

    # Predictions

    def predict(self, runs: Pilots | pd.DataFrame) -> dict[str, Prediction]:
        """Predict other runs, by name, at the steps of their logs; their losses are not used.

        With several losses, the names are those of run and loss: "run: loss".
        """
        runs = self._to_predict(runs)
        if runs.domains != self.pilots.domains:
            expected = f"runs with shares of {', '.join(self.pilots.domains)}, in this order"
            raise ArgumentError("pilots", expected, ", ".join(runs.domains) or "no shares")
        runs.refuse_unknown_shares()
        for run in runs.runs:
            rows = run.shares
            if (
                max((rows - self._rows.max(axis=0)).max(), (self._rows.min(axis=0) - rows).max())
                > SAME
            ):
                text = f"{run.name} HAS SHARES OUTSIDE OF THE PILOTS': the law extrapolates"
                warnings.warn(text, stacklevel=2)
        whole = tuple(map(shares.whole, runs.runs))
        predicted = {}
        for fit in self.fits:
            data = shares.data_of(self.pilots, whole, self.unit, fit.noisy, thin=False)
            logs, deviations = shares.spread(fit.fitted, data)
            for run, log, around in zip(whole, logs, fit.inflation * deviations, strict=True):
                name = run.name if len(self.fits) == 1 else f"{run.name}: {fit.name}"
                predicted[name] = Prediction.of(run, log, around)
        return predicted

    # What it does not know

    @cached_property
    def parameters(self) -> dict[str, dict[str, tuple[float, float, bool]]]:
        """By loss, the law's parameters: value, standard deviation, and whether identified."""
        return {x.name: self._parameters(x) for x in self.fits}

    def _parameters(self, fit: LossFit) -> dict[str, tuple[float, float, bool]]:
        domains, free = self.pilots.domains, fit.fitted.free
        lowest = float(np.nanmin(fit.data.losses))
        priors = shares.prior(len(domains), lowest)[1][free]
        deviations = fit.inflation * np.sqrt(np.diag(fit.fitted.covariance))
        labels = np.array([*names(domains), *NAMES[3:]])[free]
        logs, values = shares.logarithmic(len(domains))[free], fit.fitted.parameters[free]
        values = np.where(logs, np.exp(np.where(logs, values, 0.0)), values)
        return {
            str(label): (float(x), float(sd * (x if log else 1.0)), bool(sd < _IDENTIFIED * prior))
            for label, x, sd, log, prior in zip(
                labels, values, deviations, logs, priors, strict=True
            )
        }

    @property
    def unknown(self) -> tuple[str, ...]:
        """What the law does not know, in words."""
        notes = ["EXPERIMENTAL: a law of shares is a guess about mechanisms; trust left-out errors"]
        for fit in self.fits:
            for name in PLAIN:
                gain, half = fit.lead(name)
                says = "predicts BETTER than" if gain < -half else "is as good as"
                size = f"{'larger' if gain > 0 else 'smaller'} by {abs(gain):.2g} ± {half:.2g}"
                if gain <= half:
                    notes.append(
                        f"{fit.name}: a plain {name} fit of end losses {says} this law: its "
                        f"left-out errors are {size}"
                    )
        if self.stages == 1:
            notes.append("no pilot changes its shares: what their timing does is unknown")
        notes.append("plans keep to mixtures of the pilots' shares, and to the best pilot's rates")
        return tuple(notes)

    @cached_property
    def _next_pilot(self) -> NextPilot:
        return next_share_pilot(self)

    def next_pilot(self) -> NextPilot:
        """Return the run that would tell most about which shares are best."""
        return self._next_pilot

    # Showing and keeping

    def to_dict(self) -> dict[str, Any]:
        """Return the law as the sections of a problem file, and the report beside them."""
        return self.problem().to_dict() | {
            "fit": {
                "experimental": True,
                "pilots": [run.name for run in self.pilots.runs],
                "losses": {
                    one.name: {
                        "parameters": {
                            name: {"value": value, "sd": sd, "identified": known}
                            for name, (value, sd, known) in self.parameters[one.name].items()
                        },
                        "residual": one.fitted.scale,
                        "left_out": {x: float(np.abs(e).mean()) for x, e in one.errors.items()},
                        "coverage": one.covered,
                        "starts_agree": list(one.agreement),
                    }
                    for one in self.fits
                },
                "next_pilot": self.next_pilot().to_dict(),
                "warnings": list(self.warnings),
                "version": files.version(),
            }
        }

    def to_frame(self) -> pd.DataFrame:
        """Return each pilot's end losses, and what laws and regressions of the others predict."""
        import pandas as pd

        return pd.concat(
            pd.DataFrame(
                {"run": [run.name for run in self.pilots.runs], "loss": one.name, "end": one.ends}
                | {name: one.ends + errors for name, errors in one.errors.items()}
            )
            for one in self.fits
        )


def fit_of_shares(pilots: Pilots, seed: int) -> ShareFit:
    """Fit a law of shares to each of the losses; see `replan.fit`."""
    if len(pilots.runs) < _FEWEST:
        got = f"{len(pilots.runs)}"
        raise ArgumentError("pilots", f"{_FEWEST} or more where shares vary", got)
    pilots = replace(pilots, runs=tuple(map(shares.whole, pilots.runs)))
    unit = shares.unit_of(pilots)
    fits = tuple(_fit_loss(pilots, i, unit, seed) for i in range(len(pilots.losses)))
    return ShareFit(pilots, unit, fits)


def _fit_loss(pilots: Pilots, loss: int, unit: float, seed: int) -> LossFit:
    noisy = shares.has_noise(pilots, loss)

    def data_of(rows: Iterable[int]) -> shares.Data:
        runs = tuple(pilots.runs[i] for i in rows)
        return shares.data_of(pilots, runs, unit, noisy, loss=loss)

    count = len(pilots.runs)
    data = data_of(range(count))
    fitted = shares.fit_shares(data, noisy, seed)
    x = features(data.runs.shares, data.rates.lengths, data.runs.progress)
    ends = np.log(data.losses[np.arange(count), _last(data)])
    errors = {name: np.empty(count) for name in ("law", *PLAIN)}
    folds = np.random.default_rng(seed).permutation(count) % min(_FOLDS, count)
    wrong = []  # in standard deviations, by fold
    for fold in range(folds.max() + 1):
        out, kept = np.flatnonzero(folds == fold), np.flatnonzero(folds != fold)
        other = shares.fit_shares(data_of(kept), noisy, seed, fitted.parameters)
        logs, apart = _of_left_out(other, data_of(out))
        wrong.append(apart)
        predicted = {"law": logs}
        predicted |= {name: rule(x[kept], ends[kept], x[out]) for name, rule in PLAIN.items()}
        for name, values in predicted.items():
            errors[name][out] = np.exp(values) - np.exp(ends[out])
    within = [x <= NORMAL * _inflation(wrong[:i] + wrong[i + 1 :]) for i, x in enumerate(wrong)]
    covered = float(np.mean(np.concatenate(within)))
    return LossFit(pilots.losses[loss], data, fitted, _inflation(wrong), covered, errors)


def _of_left_out(fit: shares.ShareFitted, data: shares.Data) -> tuple[Floats, Floats]:
    """Return the log end losses (R,) of runs, and all errors (n,) in standard deviations."""
    logs, deviations = shares.spread(fit, data)
    known = np.isfinite(data.losses)
    wrong = np.abs(logs[known] - np.log(data.losses[known])) / deviations[known]
    return logs[np.arange(len(logs)), _last(data)], wrong


def _inflation(wrong: list[Floats]) -> float:
    """Return by what standard deviations are multiplied for intervals that hold 90 %."""
    whole = np.sort(np.concatenate(wrong))
    rank = min(int(np.ceil(0.9 * (len(whole) + 1))), len(whole)) - 1
    return max(1.0, float(whole[rank]) / NORMAL)


def _last(data: shares.Data) -> Any:
    """Return the place of the last measured loss of each run (R,)."""
    places = np.arange(data.losses.shape[1])
    return np.where(np.isfinite(data.losses), places, -1).max(axis=1)


def _extremes(rows: Floats) -> Floats:
    """Return mixtures (T, D) out of rows, whose combinations a plan may use.

    Of two domains those with the least and the most of one; else the most different ones.
    """
    if rows.shape[1] == 2:
        return rows[[int(rows[:, 0].argmax()), int(rows[:, 0].argmin())]]
    chosen = [int(((rows - rows.mean(axis=0)) ** 2).sum(axis=1).argmax())]
    while len(chosen) < min(_MOST, len(rows)):
        apart = ((rows[:, None] - rows[chosen]) ** 2).sum(axis=2).min(axis=1)
        chosen.append(int(apart.argmax()))
    return rows[chosen]
