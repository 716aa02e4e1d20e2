"""What should end the focus phase? Rules for it on split Fashion-MNIST, each at its best rate.

Five tasks of two classes arrive one after another, 1,200 images each, two passes, with a head for
each task or one for all classes. A memory of 300 images includes the 60 on which losses are probed.
After the focus phase half of each batch is of the new task. The learning rate of each rule is the
best of three on seeds that are not tested on. Takes 20 minutes on a core. Needs the extra `torch`.
"""

import math
from typing import Any

import pandas as pd

from replan.replay import FocusThenReplay
from reproduction.base import Run, Tables, grid, plus_minus, search
from reproduction.images.data import fetch

FULL: dict[str, Any] = {
    "heads": ["task", "one"],
    "rates": [0.1, 0.2, 0.4],
    "tuning": [1, 2, 3],
    "testing": list(range(101, 113)),
}
QUICK = FULL | {"heads": ["task"], "rates": [0.2], "tuning": [1], "testing": [101, 102]}

RULES: dict[str, dict[str, Any]] = {  # settings of FocusThenReplay
    "no focus": {"max_focus": 0},
    "a quarter": {"until": 0.25},
    "half": {"until": 0.5},
    "met": {"until": "met", "max_focus": math.inf},
    "met, at most half": {"until": "met"},
    "halved, at most half": {},
}


def case(rule: str, heads: str, lr: float, seed: int) -> dict[str, Any]:
    """Return losses on the way and at the end, and how the focus phases ended."""
    from reproduction.practice.split import Split, learn

    settings = Split(tasks=5, images=1260, hidden=100, heads=heads)
    policy = FocusThenReplay(5, shares=0.5, **RULES[rule])
    return learn(policy, settings, lr=lr, seed=seed, probed=True)


def compute(
    run: Run, *, heads: list[str], rates: list[float], tuning: list[int], testing: list[int]
) -> Tables:
    """Return the table `rules`: each at its best rate, and its differences from no focus."""
    fetch("fashion-mnist")
    rows = []
    for head in heads:
        tests: dict[str, pd.DataFrame] = {}
        for rule in RULES:  # the first is the baseline
            common = {"rule": rule, "heads": head}
            best, _ = search(run, case, grid(lr=rates), tuning, **common)
            results = run(case, [common | best | {"seed": seed} for seed in testing])
            own = tests[rule] = pd.DataFrame(results, testing)
            row = common | best | {"loss": own["loss"].mean()}
            for key in ("loss", "way"):
                row |= plus_minus(own[key] - tests["no focus"][key], f"{key} − no focus")
            rows.append(row | {"focus": own["focus"].mean()})
    return {"rules": pd.DataFrame(rows)}
