"""Tuned: what a search for share, rate and decay has found, and how sure that is."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy.special import stdtrit

from replan import files
from replan.check import Floats
from replan.results import Result

if TYPE_CHECKING:
    import pandas as pd

TEST = 1_000_000  # the first seed of tests: apart from the search's, however many it has
_FAR = 1.5  # times the loss of the choice: far worse


class Choice(NamedTuple):
    """What training may turn: the share of replayed samples, the learning rate and its decay."""

    share: float
    lr: float
    decay: str

    def __str__(self) -> str:
        return f"share {self.share:g}, rate {self.lr:g}, {self.decay}"


class Estimate(NamedTuple):
    """A mean over seeds, and the ends of its 90 % interval (Student's t)."""

    mean: float
    low: float
    high: float


class Run(NamedTuple):
    """One training; loss: the weighted mean over tasks, infinite if it diverged or failed."""

    choice: Choice
    seed: int
    losses: dict[str, float]
    loss: float
    failure: str = ""

    @property
    def test(self) -> bool:
        """Whether it is on a test seed."""
        return self.seed >= TEST


class Cliff(NamedTuple):
    """The lowest rate above the choice's that diverges or is far worse; what: on equal seeds."""

    lr: float
    what: str


@dataclass(frozen=True, eq=False, repr=False)
class Tuned(Result):
    """The result of `tune`.

    runs: all trainings. tested: the choice, then the others that were tested. rates: by share.
    """

    runs: tuple[Run, ...]
    tested: tuple[Choice, ...]
    rates: dict[float, list[float]]

    @property
    def choice(self) -> Choice:
        """The share, rate and decay with the lowest mean loss on the seeds of the search."""
        return self.tested[0]

    @property
    def loss(self) -> Estimate:
        """The loss of the choice, on test seeds."""
        return _estimate(self._tests(self.choice))

    @property
    def task_losses(self) -> dict[str, Estimate]:
        """The loss of the choice on each task, on test seeds."""
        tests = [r.losses for r in self.by_choice[self.choice].values() if r.test]
        names = max(tests, key=len)  # one that diverged may say less
        return {name: _estimate([x.get(name, math.inf) for x in tests]) for name in names}

    @cached_property
    def differences(self) -> dict[Choice, Estimate]:
        """How much higher the others end than the choice, paired over the test seeds."""
        best = self._tests(self.choice)
        with np.errstate(invalid="ignore"):  # both diverged
            return {other: _estimate(self._tests(other) - best) for other in self.tested[1:]}

    @property
    def runners_up(self) -> list[Choice]:
        """Those that were tested and cannot be told from the choice, or are better."""
        return [other for other, more in self.differences.items() if not more.low > 0]

    @property
    def shares(self) -> dict[float, tuple[Choice, Estimate]]:
        """The best choice at each share, and what it costs: its difference from the choice."""
        costs = {self.choice: Estimate(0.0, 0.0, 0.0)} | self.differences
        best = {other.share: other for other in reversed(self.tested)}
        return {share: (best[share], costs[best[share]]) for share in sorted(best)}

    @property
    def cliff(self) -> Cliff | None:
        """The next rate that diverges or ends 1.5 times as high, with the same share and decay."""
        best, own = self.choice, self.by_choice[self.choice]
        for lr in self.rates[best.share]:
            runs = self.by_choice.get(best._replace(lr=lr), {})
            pairs = [(r.loss, own[s].loss) for s, r in runs.items() if s in own and not r.failure]
            if lr <= best.lr or not pairs:
                continue
            diverged = sum(math.isinf(loss) for loss, _ in pairs)
            mean, base = np.mean(pairs, axis=0)
            if diverged:
                return Cliff(lr, f"{diverged} of {len(pairs)} runs diverged")
            if 0 < _FAR * base < mean:
                return Cliff(lr, f"it ends {mean / base:.2g} times as high")
        return None

    @property
    def warnings(self) -> list[str]:
        """What to know before relying on the choice."""
        notes = []
        for place, end in (("largest", -1), ("smallest", 0)):
            at = [
                f"{x:g}" for x, (best, _) in self.shares.items()
                if len(self.rates[x]) > 1 and best.lr == self.rates[x][end]
            ]  # fmt: skip
            if at:
                notes.append(f"the best rate is the {place} tried at share {', '.join(at)}")
        for share in sorted(set(self.rates) - set(self.shares)):
            notes.append(f"no rate ended with a finite loss at share {share:g}")
        for other in self.tested:
            tests = self._tests(other)
            if lost := int(np.isinf(tests).sum()):
                notes.append(f"{other}: {lost} of {tests.size} tests have no finite loss")
        if lower := sum(more.high < 0 for more in self.differences.values()):
            notes.append(f"{lower} of the others end lower on fresh seeds: raise `seeds`")
        failed = [run for run in self.runs if run.failure]
        for run in failed[:3]:
            line = run.failure.partition("\n")[0]
            notes.append(f"failed: {run.choice}, seed {run.seed}: {line}")
        if len(failed) > 3:
            notes.append(f"{len(failed)} runs failed: see `runs`")
        return notes

    @cached_property
    def by_choice(self) -> dict[Choice, dict[int, Run]]:
        """The runs of each choice, by seed."""
        found: dict[Choice, dict[int, Run]] = {}
        for run in self.runs:
            found.setdefault(run.choice, {})[run.seed] = run
        return found

    def _tests(self, choice: Choice) -> Floats:
        runs = self.by_choice[choice]
        return np.array([runs[seed].loss for seed in sorted(runs) if runs[seed].test])

    def to_frame(self) -> pd.DataFrame:
        """Return a row per run: share, lr, decay, seed, test, loss, loss_1, …, failure."""
        import pandas as pd

        rows = []
        for run in self.runs:
            row = run.choice._asdict() | {"seed": run.seed, "test": run.test}
            row |= {"loss": run.loss} | {f"loss_{name}": x for name, x in run.losses.items()}
            rows.append(row | {"failure": run.failure})
        return pd.DataFrame(rows)

    def to_dict(self) -> dict[str, Any]:
        """Return the choice, what it was compared with and all runs, as JSON types."""

        def plain(item: Any) -> Any:
            return files.nullable(np.array(item, dtype=float))

        return {
            "choice": self.choice._asdict(),
            "loss": plain(self.loss),
            "task_losses": {name: plain(x) for name, x in self.task_losses.items()},
            "tested": [c._asdict() | {"more": plain(x)} for c, x in self.differences.items()],
            "runners_up": [other._asdict() for other in self.runners_up],
            "cliff": self.cliff and self.cliff._asdict(),
            "warnings": self.warnings,
            "runs": [
                run.choice._asdict() | {"seed": run.seed, "loss": plain(run.loss)}
                | {"losses": {name: plain(x) for name, x in run.losses.items()}}
                | {"failure": run.failure}
                for run in self.runs
            ],
        }  # fmt: skip

    def __repr__(self) -> str:
        mean, low, high = self.loss
        return f"Tuned({self.choice}: loss {mean:.4g}, 90 % {low:.4g} to {high:.4g})"


def _estimate(values: Iterable[float]) -> Estimate:
    x = np.array([*values])
    mean = float(x.mean())
    if not np.isfinite(x).all():
        return Estimate(mean, mean, mean)
    half = float(stdtrit(x.size - 1, 0.95) * x.std(ddof=1) / math.sqrt(x.size))
    return Estimate(mean, mean - half, mean + half)
