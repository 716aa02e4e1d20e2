"""The share of replay, the learning rate and its decay at which each strategy does best.

All strategies search in the same way and may try equally much.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import numpy as np
import pandas as pd

from replan.check import Floats

DECAYS = ("constant", "cosine")
SHARES = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9)
BUDGET = 30  # choices that a strategy may try
SEARCH = 3  # seeds that each of them is tried with
FINALISTS = 4  # of the choices tried, that are run with all seeds


class Choice(NamedTuple):
    """A learning rate, its decay, and the share of replay, None for strategies without one."""

    lr: float
    decay: str
    share: float | None


Losses = Callable[[list[tuple[str, Choice]], Sequence[int]], Floats]


@dataclass(frozen=True)
class Tuning:
    """What was tried for each strategy, and its mean loss on validation data.

    tried: by strategy, losses by choice over the first seeds, infinite where a run diverged.
    finals: those of the best of them over all seeds. seeds: of the runs.
    """

    tried: dict[str, dict[Choice, float]]
    finals: dict[str, dict[Choice, float]]
    seeds: list[int]

    @property
    def best(self) -> dict[str, Choice]:
        """The choice with the lowest loss over all seeds, by strategy."""
        return {name: _best(finals) for name, finals in self.finals.items()}

    def settled(self, strategy: str) -> bool:
        """Return whether all around the best choice of the search was tried."""
        tried = self.tried[strategy]
        return not _next(tried, _best(tried))

    def to_frame(self) -> pd.DataFrame:
        """Return a table with a row for each choice tried."""
        rows = [
            {"strategy": name, **choice._asdict(), "loss": loss, "seeds": SEARCH}
            for name, tried in self.tried.items()
            for choice, loss in tried.items()
        ]
        for row in rows:
            finals = self.finals[row["strategy"]]
            choice = Choice(row["lr"], row["decay"], row["share"])
            if choice in finals:
                row |= {"loss": finals[choice], "seeds": len(self.seeds)}
        return pd.DataFrame(rows)

    def __str__(self) -> str:
        width = max(17, *(len(name) + 1 for name in self.tried))
        lines = [
            f"best of at most {BUDGET} choices each, on validation data with seeds {self.seeds[0]}–"
            f"{self.seeds[-1]}",
            f"{'':{width}}{'share':>7}{'lr':>10}{'decay':>10}{'tried':>7}{'loss':>9}",
        ]
        for name, best in self.best.items():
            loss = self.finals[name][best]
            share = "" if best.share is None else f"{best.share:.0%}"
            mark = "" if self.settled(name) else "  still falling"
            lines.append(
                f"{name:{width}}{share:>7}{best.lr:>10.4g}{best.decay:>10}"
                f"{len(self.tried[name]):>7}{loss:>9.4f}{mark}"
            )
        return "\n".join(lines)


def tune(starts: Mapping[str, Choice], losses: Losses, seeds: Sequence[int]) -> Tuning:
    """Search for the best choice of each strategy, from its start, by trying what is around.

    Tried first are half, the same and twice the start's learning rate, with each decay. Then,
    again and again, all that is around the best choice so far: twice and half its rate, the
    shares next to its own with these three rates, and the other decay. A search ends where nothing
    around is better, or with the budget. It uses the first seeds; the best choices are then run
    with the others, too, because by few seeds a rate that is almost too high may look best.

    losses: returns the validation losses (n, seeds) of n choices, each with several seeds; they are
    not finite where training diverged.
    """
    tried: dict[str, dict[Choice, float]] = {name: {} for name in starts}
    while True:
        wanted = [
            (name, choice)
            for name, start in starts.items()
            for choice in _next(tried[name], start)[: BUDGET - len(tried[name])]
        ]
        if not wanted:
            break
        for (name, choice), each in zip(wanted, losses(wanted, seeds[:SEARCH]), strict=True):
            tried[name][choice] = _mean(each)
    finals: dict[str, dict[Choice, float]] = {name: {} for name in starts}
    wanted = [
        (name, choice)
        for name in starts
        for choice in sorted(tried[name], key=lambda choice: tried[name][choice])[:FINALISTS]
    ]
    for (name, choice), each in zip(wanted, losses(wanted, seeds), strict=True):
        finals[name][choice] = _mean(each)
    return Tuning(tried, finals, list(seeds))


def _mean(each: Floats) -> float:
    """Return the mean of losses, infinite if one of them is not finite."""
    return float(each.mean()) if np.isfinite(each).all() else math.inf


def _best(tried: dict[Choice, float]) -> Choice:
    """Return the choice with the lowest loss, the lowest rate of them where all diverged."""
    return min(tried, key=lambda choice: (tried[choice], choice.lr))


def _next(tried: dict[Choice, float], start: Choice) -> list[Choice]:
    """Return the choices to try next, none where all around the best one were tried."""
    if not tried:
        rates = [start.lr * factor for factor in (1, 0.5, 2)]
        return [start._replace(lr=lr, decay=decay) for lr, decay in product(rates, DECAYS)]
    best = _best(tried)
    shares = [best.share]
    if best.share is not None:
        lower, higher = [s for s in SHARES if s < best.share], [s for s in SHARES if s > best.share]
        shares += lower[-1:] + higher[:1]
    around = [
        best._replace(lr=best.lr * factor, share=share)
        for share, factor in product(shares, (1, 0.5, 2))
    ]
    around += [best._replace(decay=decay) for decay in DECAYS]
    return [choice for choice in dict.fromkeys(around) if choice not in tried]
