"""Strategies of replay in training loops, each at its own best share, learning rate and decay.

Three tasks of two classes of Fashion-MNIST arrive one after another, with a head for each task or
one for all classes, with SGD or Adam and 1,200 or 12,000 images a task. All strategies train on
equally many samples with a memory of 300 images, including those on which losses are probed. Each
is tuned in the same way on validation images with separate seeds, and tested on other images with
other seeds. Takes hours. Needs the extra `torch`.
"""

import math
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from replan.replay import FixedReplay, FocusThenReplay, Policy
from reproduction.base import Run, Tables, grid, plus_minus, search
from reproduction.images.data import fetch

FULL: dict[str, Any] = {
    "sizes": ["few", "many"],
    "heads": ["task", "one"],
    "optimizers": ["sgd", "adam"],
    "shares": [0.1, 0.25, 0.5, 0.75],  # of replay
    "factors": [0.5, 1, 2, 4],  # of the optimizer's rate in RATES
    "decays": ["constant", "cosine"],
    "tuning": [1_000_001 + i for i in range(8)],
    "testing": {"few": 24, "many": 12},  # seeds
}
QUICK = FULL | {
    "sizes": ["few"], "heads": ["task"], "optimizers": ["sgd"], "shares": [0.1, 0.25],
    "factors": [1, 2], "decays": ["constant"], "tuning": [1_000_001], "testing": {"few": 2},
}  # fmt: skip

SIZES = {  # of the tasks, and of batches
    "few": {"images": 1200, "batches": 48, "batch_size": 50},
    "many": {"images": 12_000, "batches": 240, "batch_size": 100},
}
RATES = {"sgd": 0.1, "adam": 0.001}


def make_policy(strategy: str, tasks: int, share: float) -> Policy:
    """Return the policy of a strategy, with a share of replay."""
    if strategy in ("no-replay", "fixed-replay"):
        return FixedReplay(tasks, share)
    until = {"focus-until-halved": "halved", "focus-then-replay": "met"}[strategy]
    longest = math.inf if until == "met" else None
    return FocusThenReplay(tasks, until=until, shares=1.0 - share, max_focus=longest)


def case(
    strategy: str, split: dict[str, Any], lr: float, decay: str, share: float, seed: int,
    tested: str,
) -> dict[str, Any]:  # fmt: skip
    """Return the numbers of one run of the PyTorch loop."""
    from reproduction.practice.split import Split, learn

    settings = Split(**split)
    policy = make_policy(strategy, settings.tasks, share)
    probed = strategy.startswith("focus")
    return learn(policy, settings, lr=lr, decay=decay, seed=seed, tested=tested, probed=probed)


def compute(
    run: Run, *, sizes: list[str], heads: list[str], optimizers: list[str], shares: list[float],
    factors: list[float], decays: list[str], tuning: list[int], testing: dict[str, int],
) -> Tables:  # fmt: skip
    """Return the tables `tuned`, and `tried` with the validation loss of every choice."""
    fetch("fashion-mnist")
    tuned, tried = [], []
    for size, head, optimizer in product(sizes, heads, optimizers):
        tests: dict[str, list[Any]] = {}
        for name in strategies(head):
            split = SIZES[size] | {"heads": head, "optimizer": optimizer}
            rates = [RATES[optimizer] * factor for factor in factors]
            own = [0.0] if name == "no-replay" else shares
            common = {"strategy": name, "split": split}
            choices = grid(share=own, lr=rates, decay=decays)
            best, losses = search(run, case, choices, tuning, **common, tested="validation")
            seeds = [best | {"seed": 1 + i} for i in range(testing[size])]
            tests[name] = run(case, [common | x | {"tested": "test"} for x in seeds])
            where = {"size": size, "heads": head, "optimizer": optimizer, "strategy": name}
            tuned.append(where | best | _means(tests, name))
            tried.append(losses.assign(**where))
    return {"tuned": pd.DataFrame(tuned), "tried": pd.concat(tried)}


def strategies(heads: str) -> list[str]:
    """Return the strategies to compare; without replay one head forgets all but the last task."""
    names = ["fixed-replay", "focus-until-halved", "focus-then-replay"]
    return names if heads == "one" else [*names, "no-replay"]


def _means(tests: dict[str, list[Any]], name: str) -> dict[str, float]:
    """Return the means of a strategy's tests, and of its differences from fixed replay's."""
    row = {"focus": float(np.mean([one.get("focus", np.nan) for one in tests[name]]))}
    for key in ("loss", "way", "accuracy", "forgetting"):
        own, base = (np.array([one[key] for one in tests[x]]) for x in (name, "fixed-replay"))
        row |= plus_minus(own, key) | plus_minus(own - base, f"{key} − fixed-replay")
    return row
