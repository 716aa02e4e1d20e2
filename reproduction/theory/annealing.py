"""Fig. 9: annealed learning rates and the joint optimum beside strategies at a constant rate."""

from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

import replan
from replan import strategies
from reproduction.base import Claim, Figure, Tables, over
from reproduction.drawing import LOOKS, draw_losses, figure
from reproduction.theory import parts
from reproduction.theory.similarity import at_fixed_rate

FULL = {
    "seeds": 10,
    "steps": 100,
    "similarities": [round(0.1 * i - 0.05, 2) for i in range(1, 11)],
    "max_lr": 10.0,
}
QUICK = FULL | {"seeds": 2, "steps": 25, "similarities": [0.1, 0.5, 0.9]}
SCHEDULES: dict[str, tuple[Any, str, Any]] = {  # each with its second parameter, and values to try
    "power law": (strategies.power_law_lr, "exponent", [0.0, 0.25, 0.5, 1.0, 2.0, 4.0]),
    "exponential": (strategies.exponential_lr, "scale", [2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 320.0]),
}
NAMES = {name: look | {"label": f"{name}, η = 1"} for name, look in LOOKS.items()} | {
    "power law": {"color": "#EE7733", "marker": "^", "linestyle": "-.", "band": False},
    "exponential": {"color": "#009988", "marker": "v", "linestyle": "--", "band": False},
    "joint optimum": {"color": "#663333", "marker": "P", "linestyle": "-"},
}


def case(similarity: float, seed: int, steps: int, max_lr: float) -> dict[str, Any]:
    """Return the final losses of all strategies on one problem."""
    joint = parts.continual(similarity, seed, steps, max_lr=max_lr)
    plan, steady = replan.solve(joint), replan.solve(parts.continual(similarity, seed, steps))
    losses = at_fixed_rate(joint, steady, seed)
    shares = ([0.5, 0.5], steady.protocol.mean_shares)
    bases = [strategies.interleaved(joint, shares=share) for share in shares]
    rates = max_lr * np.geomspace(1 / 64, 1, 13)
    for name, (schedule, parameter, values) in SCHEDULES.items():
        candidates = [
            schedule(joint, initial=rate, protocol=base, **{parameter: value})
            for base, rate, value in product(bases, rates, values)
        ]
        losses[name] = parts.loss(joint, min(candidates, key=partial(_rough_loss, joint)))
    losses["joint optimum"] = plan.loss
    return {"losses": parts.rows_of(losses), "plans": [parts.search_row(plan, steady)]}


def _rough_loss(problem: replan.Problem, protocol: replan.Protocol) -> float:
    run = replan.evaluate(problem, protocol, rtol=1e-6, max_steps=2**15, throw=False)
    return run.loss if run.status == "ok" else np.inf


compute = over(case, similarity="similarities", seed="seeds")


def draw(tables: Tables) -> Figure:
    """Draw final losses against similarity."""
    picture = figure(5.6, 3.4)
    axes = picture.subplots()
    draw_losses(axes, tables["losses"], NAMES)
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))
    return picture


def claims(tables: Tables) -> list[Claim]:
    """Check what the paper says about Fig. 9."""
    losses = parts.by_strategy(tables["losses"])
    joint = losses["joint optimum"]
    names = [name for name in NAMES if name != "joint optimum"]
    best = pd.concat([losses[name] for name in names]).groupby(level=0).min()
    annealed = np.minimum(losses["power law"], losses["exponential"])
    gain = (annealed / losses["optimal"]).median(axis=1)
    return [
        Claim(
            "The joint optimum of tasks and learning rate outperforms every other strategy.",
            "by at least 1 % at all γ (annealed rates are among the solver's starts)",
            (1.01 * joint < best).all(axis=1),
            {
                "best annealed / joint, median over γ": (annealed / joint).median(axis=1),
                "best other / joint, median over γ": (best / joint).median(axis=1),
                "smallest over γ": (best / joint).min(axis=1),
            },
        ),
        Claim(
            "Interleaved training with an annealed rate beats the optimum at η = 1.",
            "median over γ",
            gain < 1.0,
            {"best annealed / optimum at η = 1, median over γ": gain},
        ),
    ]
