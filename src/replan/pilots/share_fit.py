"""A law of shares fitted to pilots, beside plain regressions: experimental."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from replan import files
from replan.check import Floats
from replan.errors import ArgumentError
from replan.models.share_law import ShareLaw, names
from replan.pilots import shares
from replan.pilots.next_pilot import NextPilot
from replan.pilots.next_shares import next_share_pilot
from replan.pilots.plain import PLAIN, features
from replan.pilots.runs import Pilots, Prediction, Run
from replan.problem import Problem
from replan.results import Result

if TYPE_CHECKING:
    import pandas as pd

_NORMAL = 1.645  # of a 90 % interval
_LAWS = 12  # that plans are made for
_FOLDS = 8  # in which pilots are left out
_MOST = 12  # mixtures that a plan combines
_FEWEST = 4
_STAGES = 50  # of plans, at most
_SAME = 1e-6  # shares
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
        ends = self.fitted.ends
        return int(np.sum(ends <= 1.05 * ends[0])), len(ends)

    def lead(self, name: str) -> tuple[float, float]:
        """Return how much smaller the law's errors are than another's, and half the interval."""
        gains = np.abs(self.errors[name]) - np.abs(self.errors["law"])
        return float(gains.mean()), float(_NORMAL * gains.std() / np.sqrt(len(gains)))


@dataclass(frozen=True)
class ShareFit(Result):
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

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a reader must know."""
        return (*self.pilots.warnings, *self.unknown)

    # The law

    @cached_property
    def law(self) -> ShareLaw:
        """The law as a model, with those that fit nearly as well beside the best."""
        run = self.best_run
        pace = np.trapezoid(run.rates, run.steps) / (self.pilots.peak * run.steps[-1])
        return ShareLaw(
            np.stack([self._laws(one) for one in self.fits], axis=1),
            self.pilots.domains,
            [one.name for one in self.fits],
            self.unit / float(pace),
            self.fits[0].data.runs.repeats,
            _extremes(self._rows),
            self.covered,
        )

    def _laws(self, one: LossFit) -> Floats:
        """Return laws (P, 5 + 3D) of one loss, with the noise at the end of the best pilot."""
        rows = shares.draws(one.fitted, one.data, one.inflation, _LAWS).astype(complex)
        laws = shares.laws_of(rows).real
        if one.noisy:
            run = shares.data_of(self.pilots, (self.best_run,), None, self.unit, True)
            noise = shares.noise(rows, run.rates)[-1, :, 0].real
            laws[:, 0] += noise
            laws[:, 1] *= 1.0 + shares.KAPPA * noise
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
        runs = self.pilots.runs
        changes = [np.abs(np.diff(run.shares, axis=0)).max(axis=1) > _SAME for run in runs]
        return min(_STAGES, 1 + max(int(x.sum()) for x in changes))

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
        if not isinstance(runs, Pilots):
            runs = Pilots.from_table(runs, warmup=self.pilots.warmup, earlier=self.pilots.runs)
        if set(runs.domains) != set(self.pilots.domains):
            expected = f"runs with shares of {', '.join(self.pilots.domains)}"
            raise ArgumentError("pilots", expected, ", ".join(runs.domains) or "no shares")
        order = [runs.domains.index(x) for x in self.pilots.domains]
        given = [shares.whole(replace(x, shares=x.shares[:, order])) for x in runs.runs]
        predicted = {}
        for one in self.fits:
            data = shares.data_of(self.pilots, tuple(given), None, self.unit, one.noisy)
            values, deviations = shares.spread(one.fitted, data)
            for run, rows, value, around in zip(given, data.rows, values, deviations, strict=True):
                own = slice(len(np.unique(rows)) - len(run.steps[run.own]), len(np.unique(rows)))
                width = _NORMAL * one.inflation * around[own]
                value = value[own]
                name = run.name if len(self.fits) == 1 else f"{run.name}: {one.name}"
                predicted[name] = Prediction(
                    run.steps[run.own],
                    np.exp(value), np.exp(value - width), np.exp(value + width),
                )  # fmt: skip
        return predicted

    # What it does not know

    @property
    def parameters(self) -> dict[str, dict[str, tuple[float, float, bool]]]:
        """By loss, the law's parameters: value, standard deviation, and whether identified."""
        found = {}
        for one in self.fits:
            fit, known = one.fitted, np.isfinite(one.data.losses)
            _, priors = shares.prior(len(self.pilots.domains), one.data.losses[known].min())
            deviations = one.inflation * np.sqrt(np.diag(fit.covariance))
            values = shares.laws_of(fit.parameters[None].astype(complex))[0].real
            labels = names(self.pilots.domains)
            free = [i for i in np.flatnonzero(fit.free) if i < len(labels)]
            found[one.name] = {
                labels[i]: (
                    float(values[i]),
                    float(sd * (1.0 if i in (0, 2) else values[i])),
                    bool(sd < _IDENTIFIED * priors[i]),
                )
                for i, sd in zip(free, deviations, strict=False)
            }
        return found

    @property
    def unknown(self) -> tuple[str, ...]:
        """What the law does not know, in words."""
        notes = ["EXPERIMENTAL: a law of shares is a guess about mechanisms; trust left-out errors"]
        for one in self.fits:
            for name in PLAIN:
                gain, half = one.lead(name)
                word = "BETTER THAN" if gain < -half else "as good as"
                if gain <= half:
                    notes.append(
                        f"{one.name}: a plain {name} fit of end losses is {word} this law: its "
                        f"left-out errors are larger by {gain:.2g} ± {half:.2g}"
                    )
        if self.stages == 1:
            notes.append("no pilot changes its shares: what their timing does is unknown")
        notes.append("plans keep to mixtures of the pilots' shares, and to the best pilot's rates")
        return tuple(notes)

    def next_pilot(self) -> NextPilot:
        """Return the run that would tell most about which shares are best."""
        return next_share_pilot(self)

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

    def save(self, path: files.FilePath) -> None:
        """Write the law as a problem file (.toml, or .json with a report), or `to_frame` (.csv)."""
        if files.suffix(path, [".toml", ".json", ".csv"]) == ".toml":
            self.problem().save(path)
        else:
            super().save(path)

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


def fit_of_shares(pilots: Pilots, losses: tuple[str, ...], seed: int) -> ShareFit:
    """Fit a law of shares to each of the losses; see `replan.fit`."""
    if len(pilots.runs) < _FEWEST:
        got = f"{len(pilots.runs)}"
        raise ArgumentError("pilots", f"{_FEWEST} or more where shares vary", got)
    pilots = replace(pilots, runs=tuple(map(shares.whole, pilots.runs)))
    unit = shares.unit_of(pilots)
    return ShareFit(
        pilots, unit, tuple(_fit_loss(pilots, pilots.losses.index(x), unit, seed) for x in losses)
    )


def _fit_loss(pilots: Pilots, loss: int, unit: float, seed: int) -> LossFit:
    noisy = shares.has_noise(pilots, loss)

    def data_of(rows: Any) -> shares.Data:
        return shares.data_of(pilots, tuple(pilots.runs[i] for i in rows), loss, unit, noisy)

    count = len(pilots.runs)
    data = data_of(range(count))
    fitted = shares.fit_shares(data, noisy, seed)
    x = features(data.runs.shares, data.rates.lengths)
    ends = np.log(data.losses[np.arange(count), _last(data)])
    errors = {name: np.empty(count) for name in ("law", *PLAIN)}
    folds = np.random.default_rng(seed).permutation(count) % min(_FOLDS, count)
    wrong = []  # in standard deviations, by fold
    for fold in range(folds.max() + 1):
        out, kept = np.flatnonzero(folds == fold), np.flatnonzero(folds != fold)
        other, left = shares.fit_shares(data_of(kept), noisy, seed, fitted.parameters), data_of(out)
        logs, deviations = shares.spread(other, left)
        known = np.isfinite(left.losses)
        wrong.append(np.abs(logs[known] - np.log(left.losses[known])) / deviations[known])
        predicted = {"law": logs[np.arange(len(out)), _last(left)]}
        predicted |= {name: rule(x[kept], ends[kept], x[out]) for name, rule in PLAIN.items()}
        for name, values in predicted.items():
            errors[name][out] = np.exp(values) - np.exp(ends[out])
    within = [
        part <= _NORMAL * _inflation(wrong[:i] + wrong[i + 1 :]) for i, part in enumerate(wrong)
    ]
    covered = float(np.mean(np.concatenate(within)))
    return LossFit(pilots.losses[loss], data, fitted, _inflation(wrong), covered, errors)


def _inflation(wrong: list[Floats]) -> float:
    """Return by what standard deviations are multiplied for intervals that hold 90 %."""
    whole = np.sort(np.concatenate(wrong))
    rank = min(int(np.ceil(0.9 * (len(whole) + 1))), len(whole)) - 1
    return max(1.0, float(whole[rank]) / _NORMAL)


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
