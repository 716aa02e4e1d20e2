"""Strategies of replay in training loops, each at its own best share, learning rate and decay.

Three tasks of two classes of Fashion-MNIST arrive one after another, with a head for each task or
one for all classes, with SGD or Adam, in PyTorch (1,200 or 12,000 images a task) and in Avalanche
(1,200). All strategies train on equally many samples with a memory of 300 images, including those
on which losses are probed. Each is tuned in the same way on validation images with seeds of its
own, and tested on other images with other seeds. Takes hours. Needs the extra `torch`, and
`avalanche` where that is in `loops`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from replan.replay import FixedReplay, FocusThenReplay, Policy
from reproduction.base import Run, Tables, mean_interval
from reproduction.images.data import fetch

FULL: dict[str, Any] = {
    "loops": ["few", "many", "avalanche"],
    "heads": ["task", "one"],
    "optimizers": ["sgd", "adam"],
    "seeds": {"few": 24, "many": 12, "avalanche": 12},
    "budget": 30,  # choices that a strategy may try
    "tuning_seeds": 8,
}
QUICK = FULL | {
    "loops": ["few"], "heads": ["task"], "optimizers": ["sgd"], "seeds": {"few": 2}, "budget": 4,
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


def pytorch_case(
    strategy: str, split: dict[str, Any], choice: list[Any], seed: int, tested: str
) -> dict[str, Any]:
    """Return the numbers of one run of the PyTorch loop."""
    from reproduction.practice.split import Split, learn

    lr, decay, share = choice
    settings = Split(**split)
    policy = make_policy(strategy, settings.tasks, share)
    probed = strategy.startswith("focus")
    return learn(policy, settings, lr=lr, decay=decay, seed=seed, tested=tested, probed=probed)


def avalanche_case(**case: Any) -> dict[str, Any]:
    """Return the numbers of one run in Avalanche."""
    from reproduction.practice.in_avalanche import learn

    return learn(**case)


def compute(
    run: Run,
    *,
    loops: list[str],
    heads: list[str],
    optimizers: list[str],
    seeds: dict[str, int],
    budget: int,
    tuning_seeds: int,
) -> Tables:
    """Return the tables `tuned`, and `tried` with the validation loss of every choice."""
    fetch("fashion-mnist")
    tables: dict[str, list[Any]] = {"tuned": [], "tried": []}
    tuning = range(_FIRST_TUNING_SEED, _FIRST_TUNING_SEED + tuning_seeds)
    for loop, head, optimizer in product(loops, heads, optimizers):
        where = {"loop": loop, "heads": head, "optimizer": optimizer}
        found = compare(run, loop, head, optimizer, tuning, range(1, 1 + seeds[loop]), budget)
        for name, rows in found.items():
            tables[name] += [where | row for row in rows]
    return {name: pd.DataFrame(rows) for name, rows in tables.items()}


def compare(
    run: Run,
    loop: str,
    heads: str,
    optimizer: str,
    tuning: Sequence[int],
    testing: Sequence[int],
    budget: int,
) -> dict[str, list[dict[str, Any]]]:
    """Tune each strategy with some seeds and test it with others; return rows of both tables."""
    case = avalanche_case if loop == "avalanche" else pytorch_case
    split = SIZES["few" if loop == "avalanche" else loop] | {"heads": heads, "optimizer": optimizer}

    def runs(wanted: list[tuple[str, Choice]], seeds: Sequence[int], tested: str) -> list[Any]:
        cases = [
            {
                "strategy": name, "split": split, "choice": list(choice), "seed": seed,
                "tested": tested,
            }
            for name, choice in wanted
            for seed in seeds
        ]  # fmt: skip
        found = iter(run(case, cases))
        return [[next(found) for _ in seeds] for _ in wanted]

    def losses(wanted: list[tuple[str, Choice]], seeds: Sequence[int]) -> list[float]:
        each = [[one["loss"] for one in some] for some in runs(wanted, seeds, "validation")]
        return [math.inf if None in found else float(np.mean(found)) for found in each]

    best, tried = tune(strategies(loop, heads), RATES[optimizer], losses, tuning, budget)
    tests = dict(zip(best, runs(list(best.items()), testing, "test"), strict=True))
    return {
        "tuned": _rows(best, tried, tests),
        "tried": [
            {"strategy": name} | choice._asdict() | {"loss": loss}
            for name, choices in tried.items()
            for choice, loss in choices.items()
        ],
    }


def strategies(loop: str, heads: str) -> list[str]:
    """Return the strategies to compare; without replay one head forgets all but the last task."""
    if loop == "avalanche":
        return ["fixed-replay", "focus-until-halved"]
    names = ["fixed-replay", "focus-until-halved", "focus-then-replay"]
    return names if heads == "one" else ["no-replay", *names]


Losses = Callable[[list[tuple[str, Choice]], Sequence[int]], list[float]]
Tried = dict[str, dict[Choice, float]]


def tune(
    names: list[str], lr: float, losses: Losses, seeds: Sequence[int], budget: int
) -> tuple[dict[str, Choice], Tried]:
    """Return the best choice of each strategy, and all that were tried, by trying what is around.

    Tried first are half, the same and twice the first learning rate, with each decay. Then, again
    and again, all that is around the best choice so far. A search ends where nothing around is
    better, or with the budget. It uses the first seeds; the best choices are then run with the
    others, too, because by few seeds a rate that is almost too high may look best.
    """
    starts = {
        name: Choice(lr, DECAYS[0], None if name == "no-replay" else _FIRST_SHARE) for name in names
    }
    tried: Tried = {name: {} for name in names}
    while wanted := [
        (name, choice)
        for name in names
        for choice in around(tried[name], starts[name])[: budget - len(tried[name])]
    ]:
        for (name, choice), loss in zip(wanted, losses(wanted, seeds[:_SEARCH]), strict=True):
            tried[name][choice] = loss
    wanted = [
        (name, choice)
        for name in names
        for choice in sorted(tried[name], key=lambda c, name=name: tried[name][c])[:_FINALISTS]
    ]
    finals: Tried = {name: {} for name in names}
    for (name, choice), loss in zip(wanted, losses(wanted, seeds), strict=True):
        finals[name][choice] = loss
    return {name: _best(found) for name, found in finals.items()}, tried


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


def _rows(best: dict[str, Choice], tried: Tried, tests: dict[str, Any]) -> list[dict[str, Any]]:
    """Return each strategy's choice, its means, and paired differences from fixed replay's."""
    rows = []
    for name, choice in best.items():
        settled = not around(tried[name], choice)
        row = (
            {"strategy": name} | choice._asdict() | {"tried": len(tried[name]), "settled": settled}
        )
        for key in ("loss", "way", "accuracy", "forgetting"):
            own, base = (
                np.array([run[key] for run in tests[who]]) for who in (name, "fixed-replay")
            )
            for column, values in ((key, own), (f"{key} − fixed-replay", own - base)):
                mean, low, high = map(float, mean_interval(values))
                row |= {column: mean, f"{column} ±": (high - low) / 2}
        row["focus"] = float(np.mean([run.get("focus", np.nan) for run in tests[name]]))
        rows.append(row)
    return rows
