"""The next pilot: which run would narrow most what the pilots leave open.

The fit is Gaussian about its parameters, so what a run would add to it is known before the run is
made: it depends on where the run's losses are measured, not on what they will be. Notation: K
rivals, C candidates, n rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from replan.check import Floats
from replan.models.rate_law import pieces
from replan.pilots import rates
from replan.pilots.descent import NORMAL
from replan.pilots.rate_rivals import FAMILIES, shapes
from replan.pilots.runs import Pilots, Run, several
from replan.problem import Problem

if TYPE_CHECKING:
    import pandas as pd

    from replan.pilots.fitted import Fit

_PIECES = 100  # of a rival
_PEAKS = (0.5, 2.0)  # times the best pilot's, where decays from it are known
_DROPS = (0.3, 0.1)
_FRACTIONS = (0.2, 0.5)  # of candidates that decay at their end


@dataclass(frozen=True)
class NextPilot:
    """The run that would tell most about what the pilots leave open.

    - `run`: its steps and rates, logged as a typical pilot's; its name is the schedule in words.
    - `question`: `decay`, how the rate should fall, `peak`, from which rate, or `shares`.
    - `before`, `after`: half the width of the 90 % interval of the answer, now and expected with
      this pilot: of the least certain difference in end loss between the best schedule and those
      that cannot be told from it. None for `peak`: a law of one peak does not know how wrong it is
      about others.
    - `answered`: no pilot would tell much: at least three pilots, one with a falling rate, leave
      less open than the law's own error.
    """

    run: Run
    question: Literal["decay", "peak", "shares"]
    before: float | None
    after: float | None
    answered: bool
    domains: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the pilot's name, and what it would tell."""
        told = ("question", "before", "after", "answered")
        return {"name": self.run.name} | {name: getattr(self, name) for name in told}

    def to_frame(self) -> pd.DataFrame:
        """Return the schedule as a pilot without losses: run, step, lr; batch, shares if given."""
        import pandas as pd

        run, rows = self.run, self.run.own
        columns = {"run": run.name, "step": run.steps[rows], "lr": run.rates[rows]}
        batch = {} if np.isnan(run.batch).all() else {"batch": run.batch[rows]}
        shares = {f"share_{x}": run.shares[rows, d] for d, x in enumerate(self.domains)}
        return pd.DataFrame(columns | batch | shares)


def next_pilot(fit: Fit, problem: Problem) -> NextPilot:
    """Return the candidate that is expected to narrow the answer at the end of a problem most."""
    rivals, own = _rivals(fit, problem), rates.own_error(fit.fitted)
    values, slopes = _ends(fit, problem, rivals)
    best = int(np.argmin(values))
    contrasts = slopes - slopes[:, best, None]
    around = np.hypot(_deviations(contrasts, fit.fitted.covariance), own)
    contrasts = contrasts[:, values - values[best] <= NORMAL * around]
    now = _deviations(contrasts, fit.fitted.covariance).max()
    tested = bool(fit.left_out) and fit.covered["falls"]
    answered = bool(tested and now <= own)
    if answered and not fit.running and not several(fit.covered["peaks"]):
        _, slopes = _ends(fit, problem, np.outer([1.0, *_PEAKS], rivals[best]))
        run, _ = _most_telling(fit, slopes[:, 1:] - slopes[:, :1], _PEAKS)
        return NextPilot(run, "peak", None, None, answered=False)
    # What a run from another peak tells about decays from this one, only the law believes.
    run, later = _most_telling(fit, contrasts, [1.0])
    before, after = NORMAL * np.exp(values[best]) * np.hypot([now, later], own)
    return NextPilot(run, "decay", float(before), float(after), answered)


def _most_telling(fit: Fit, contrasts: Floats, peaks: Sequence[float]) -> tuple[Run, float]:
    """Return a run, and the largest standard deviation of contrasts (7, K) expected with it."""
    runs = tuple(_candidates(fit.pilots, fit.covered["best"]["peak"] * np.array(peaks)))
    data = rates.grid(fit.pilots, runs, fit.fitted.unit, fit.loss)
    _, slopes = rates.value_and_slopes(fit.fitted.parameters, data.runs)
    after = [
        _deviations(contrasts, rates.with_more(fit.fitted, slopes[:, i, known])).max()
        for i, known in enumerate(data.fitted)
    ]
    return runs[int(np.argmin(after))], min(after)


def _deviations(contrasts: Floats, covariance: Floats) -> Floats:
    """Return the standard deviations (K,) of what has the derivatives (7, K)."""
    return np.sqrt(np.einsum("pk,pq,qk->k", contrasts, covariance, contrasts))


def _rivals(fit: Fit, problem: Problem) -> Floats:
    """Return the schedules (K, n) that compete, from where plans begin to the problem's end."""
    times = np.linspace(0.0, 1.0, _PIECES + 1)
    low, high = problem.free_range("lr")
    low = low if fit.covered["falls"] else 0.0
    pilot, peaks = fit.covered["best"], fit.covered["peaks"]
    tops = np.geomspace(min(peaks), high, 3) if several(peaks) else [pilot["peak"]]
    decays = [shape for family in FAMILIES for _, shape in shapes(family, times)]
    return np.stack(
        [
            *(np.full(len(times), rate) for rate in np.geomspace(max(low, 0.02 * high), high, 9)),
            *(low + (top - low) * shape for top in tops for shape in decays),
            np.interp(times, pilot["times"], pilot["rates"]),
        ]
    )


def _ends(fit: Fit, problem: Problem, schedules: Floats) -> tuple[Floats, Floats]:
    """Return the log losses (K,) at the end of schedules (K, n), and their derivatives (7, K)."""
    steps, before, batch = fit.history
    after = fit.covered["starts_at"] + np.linspace(0.0, problem.duration, schedules.shape[1])
    rows = np.column_stack([np.tile(before, (len(schedules), 1)), schedules])
    times, sizes = (
        np.tile(x, (len(schedules), 1))
        for x in (np.append(steps, after), np.append(batch, np.full(len(after), fit.batch)))
    )
    runs = pieces(times, rows, fit.pilots.peak, fit.fitted.unit, sizes)
    values, slopes = rates.value_and_slopes(fit.fitted.parameters, runs)
    return values[:, -1], slopes[:, :, -1]


def _candidates(pilots: Pilots, peaks: Floats) -> Iterator[Run]:
    """Yield runs as long as a typical pilot, and logged as it is, with other rates."""
    length = np.median([run.steps[-1] for run in pilots.runs])
    long = [run for run in pilots.runs if np.sum(run.steps >= pilots.warm_until) > 1]
    typical = min(
        long,
        key=lambda run: (run.steps[run.first] > pilots.warm_until, abs(run.steps[-1] - length)),
    )
    first = int(np.searchsorted(typical.steps, pilots.warmup))  # a described one is not written
    warm = typical.steps < pilots.warm_until
    times = np.maximum(0.0, (typical.steps - pilots.warm_until) / np.ptp(typical.steps[~warm]))
    for peak in peaks:
        for words, shape in _falls(times):
            rows = peak * np.where(warm, typical.rates / typical.rates.max(), shape)
            name = words.format(peak=f"{peak:.3g}")
            yield replace(typical, name=name, rates=rows, first=first)


def _falls(times: Floats) -> Iterator[tuple[str, Floats]]:
    """Yield the schedules of candidates, in words and as fractions of the peak."""
    for x in _DROPS:
        yield f"{{peak}}, then a drop to {x:g} of it half-way", np.where(times < 0.5, 1.0, x)
    for family in FAMILIES:
        yield from shapes(family, times, _FRACTIONS)
