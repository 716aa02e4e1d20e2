"""Strategies of replay in training loops, each at its own best share, learning rate and decay.

Three tasks of two classes of Fashion-MNIST arrive one after another, with a head for each task or
one for all classes, with SGD or Adam and 1,200 or 12,000 images a task. All strategies train on
equally many samples with a memory of 300 images, including those on which losses are probed. Each
is tuned in the same way on validation images with separate seeds, and tested on other images with
other seeds. Takes hours. Needs the extra `torch`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from replan.replay import FixedReplay, FocusThenReplay, Policy
from reproduction.base import Run, Tables, mean_interval
from reproduction.images.data import fetch

FULL: dict[str, Any] = {
    "sizes": ["few", "many"],
    "heads": ["task", "one"],
    "optimizers": ["sgd", "adam"],
    "seeds": {"few": 24, "many": 12},
    "budget": 30,  # choices that a strategy may try
    "tuning_seeds": 8,
}
QUICK = FULL | {
    "sizes": ["few"], "heads": ["task"], "optimizers": ["sgd"], "seeds": {"few": 2}, "budget": 4,
    "tuning_seeds": 2,
}  # fmt: skip

SIZES = {  # of the tasks, and of batches
    "few": {"images": 1200, "batches": 48, "batch_size": 50},
    "many": {"images": 12_000, "batches": 240, "batch_size": 100},
}
RATES = {"sgd": 0.1, "adam": 0.001}  # where each search begins
SHARES = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9)
DECAYS = ("constant", "cosine")
_FIRST_SHARE, _FIRST_TUNING_SEED = 0.25, 1_000_001
_SEARCH, _FINALISTS = 3, 4  # seeds that each choice is tried with; choices run with all seeds


class Choice(NamedTuple):
    """A learning rate, its decay, and the share of replay, None for strategies without one."""

    lr: float
    decay: str
    share: float | None


def make_policy(strategy: str, tasks: int, share: float | None) -> Policy:
    """Return the policy of a strategy, with a share of replay."""
    if strategy in ("no-replay", "fixed-replay"):
        return FixedReplay(tasks, share or 0.0)
    until = {"focus-until-halved": "halved", "focus-then-replay": "met"}[strategy]
    longest = math.inf if until == "met" else None
    return FocusThenReplay(tasks, until=until, shares=1.0 - (share or 0.0), max_focus=longest)


def case(
    strategy: str, split: dict[str, Any], choice: list[Any], seed: int, tested: str
) -> dict[str, Any]:
    """Return the numbers of one run of the PyTorch loop."""
    from reproduction.practice.split import Split, learn

    lr, decay, share = choice
    settings = Split(**split)
    policy = make_policy(strategy, settings.tasks, share)
    probed = strategy.startswith("focus")
    return learn(policy, settings, lr=lr, decay=decay, seed=seed, tested=tested, probed=probed)


def compute(
    run: Run, *, seeds: dict[str, int], budget: int, tuning_seeds: int, **axes: list[str]
) -> Tables:
    """Return the tables `tuned`, and `tried` with the validation loss of every choice."""
    fetch("fashion-mnist")
    tuned, searched = [], []
    for size, head, optimizer in product(axes["sizes"], axes["heads"], axes["optimizers"]):
        tests: dict[str, list[Any]] = {}
        for name in strategies(head):
            where = {"size": size, "heads": head, "optimizer": optimizer, "strategy": name}
            split = SIZES[size] | {"heads": head, "optimizer": optimizer}
            share = None if name == "no-replay" else _FIRST_SHARE
            losses = partial(_losses, run, {"strategy": name, "split": split})
            tuning = range(_FIRST_TUNING_SEED, _FIRST_TUNING_SEED + tuning_seeds)
            best, tried = tune(Choice(RATES[optimizer], DECAYS[0], share), losses, tuning, budget)
            given = {"strategy": name, "split": split, "choice": list(best), "tested": "test"}
            tests[name] = run(case, [given | {"seed": 1 + i} for i in range(seeds[size])])
            row = where | best._asdict() | {"tried": len(tried)}
            tuned.append(row | {"settled": not around(tried, best)} | _means(tests, name))
            searched += [where | x._asdict() | {"loss": loss} for x, loss in tried.items()]
    return {"tuned": pd.DataFrame(tuned), "tried": pd.DataFrame(searched)}


def strategies(heads: str) -> list[str]:
    """Return the strategies to compare; without replay one head forgets all but the last task."""
    names = ["fixed-replay", "focus-until-halved", "focus-then-replay"]
    return names if heads == "one" else [*names, "no-replay"]


def _losses(
    run: Run, common: dict[str, Any], choices: list[Choice], seeds: Sequence[int]
) -> list[float]:
    """Return the mean validation loss of each choice, infinite where a run diverged."""
    given = common | {"tested": "validation"}
    cases = [given | {"choice": list(c), "seed": seed} for c in choices for seed in seeds]
    losses = np.array([one["loss"] for one in run(case, cases)], float).reshape(len(choices), -1)
    return np.nan_to_num(losses.mean(axis=1), nan=math.inf).tolist()


def tune(
    start: Choice,
    losses: Callable[[list[Choice], Sequence[int]], list[float]],
    seeds: Sequence[int],
    budget: int,
) -> tuple[Choice, dict[Choice, float]]:
    """Return the best choice, and the losses of all that were tried.

    Tried first are half, the same and twice the start's learning rate, with each decay. Then, again
    and again, all that is around the best choice so far. A search ends where nothing around is
    better, or with the budget. It uses the first seeds; the best choices are then run with the
    others, too, because by few seeds a rate that is almost too high may look best.
    """
    tried: dict[Choice, float] = {}
    while wanted := around(tried, start)[: budget - len(tried)]:
        tried |= dict(zip(wanted, losses(wanted, seeds[:_SEARCH]), strict=True))
    finalists = sorted(tried, key=lambda choice: tried[choice])[:_FINALISTS]
    return _best(dict(zip(finalists, losses(finalists, seeds), strict=True))), tried


def around(tried: dict[Choice, float], start: Choice) -> list[Choice]:
    """Return the choices to try next, none where all around the best one were tried."""
    if not tried:
        rates = [start.lr * factor for factor in (1, 0.5, 2)]
        return [start._replace(lr=lr, decay=decay) for lr, decay in product(rates, DECAYS)]
    best = _best(tried)
    shares: list[float | None] = [best.share]
    if best.share is not None:
        shares += [s for s in SHARES if s < best.share][-1:]
        shares += [s for s in SHARES if s > best.share][:1]
    near = [
        best._replace(lr=best.lr * factor, share=share)
        for share, factor in product(shares, (1, 0.5, 2))
    ]
    near += [best._replace(decay=decay) for decay in DECAYS]
    return [choice for choice in dict.fromkeys(near) if choice not in tried]


def _best(tried: dict[Choice, float]) -> Choice:
    """Return the choice with the lowest loss, the lowest rate of them where all diverged."""
    return min(tried, key=lambda choice: (tried[choice], choice.lr))


def _means(tests: dict[str, list[Any]], name: str) -> dict[str, float]:
    """Return the means of a strategy's tests, and of its differences from fixed replay's."""
    row = {"focus": float(np.mean([one.get("focus", np.nan) for one in tests[name]]))}
    for key in ("loss", "way", "accuracy", "forgetting"):
        own, base = (np.array([one[key] for one in tests[x]]) for x in (name, "fixed-replay"))
        for column, values in ((key, own), (f"{key} − fixed-replay", own - base)):
            mean, low, high = map(float, mean_interval(values))
            row |= {column: mean, f"{column} ±": (high - low) / 2}
    return row
