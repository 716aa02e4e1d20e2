"""Fig. 4: tasks and learning rate optimised together, one curve of rates for each task."""

from typing import Any

import numpy as np
import pandas as pd

import replan
from reproduction import drawing
from reproduction.base import Claim, Figure, Tables, over, pick
from reproduction.theory import parts

FULL = {"seeds": 10, "steps": 250, "similarity": 0.3, "max_lr": 10.0}
QUICK = FULL | {"seeds": 2, "steps": 50}


def case(seed: int, steps: int, similarity: float, max_lr: float) -> dict[str, Any]:
    """Return the joint optimum of one problem, and the optimum with a constant learning rate."""
    plan = replan.solve(parts.continual(similarity, seed, steps, max_lr=max_lr))
    steady = replan.solve(parts.continual(similarity, seed, steps))
    losses = {"joint": plan.loss, "constant": steady.loss}
    return {
        "protocols": parts.protocol_rows({"optimal": plan.protocol}),
        "losses": [losses | parts.search_row(plan, steady)],
    }


compute = over(case, seed="seeds")


def draw(tables: Tables) -> Figure:
    """Draw the learning rates of three initialisations under their colour bars."""
    protocols, losses = tables["protocols"], tables["losses"].set_index("seed")["joint"]
    order = losses.sort_values().index
    shown = {"smallest loss": order[0], "typical": parts.typical(losses), "largest loss": order[-1]}
    picture = drawing.figure(7.2, 3.0)
    axes = picture.subplots(2, 3, sharex=True, sharey="row", height_ratios=[1, 9])
    for (bar, curve), (name, seed) in zip(axes.T, shown.items(), strict=True):
        protocol = parts.protocol_of(pick(protocols, seed=seed))
        drawing.draw_protocol(bar, protocol)
        bar.set_title(f"{name}, {losses[seed]:.2g}")
        drawing.draw_knob(curve, protocol, "lr")
        curve.set(xlabel="training time α", xlim=(0, protocol.duration))
    axes[1, 0].set(ylim=(0, 1.05 * trained_rate(protocols).max()), ylabel="learning rate")
    drawing.legend_of_tasks(picture, ["task 1", "task 2"])
    return picture


def trained_rate(steps: pd.DataFrame) -> pd.Series:
    """Return the learning rate of the task that is trained in each step."""
    return steps["lr_2"].where(steps["share_2"] > 0.5, steps["lr_1"])


def claims(tables: Tables) -> list[Claim]:
    """Check what the paper says about Fig. 4."""
    losses = tables["losses"].set_index("seed")
    plans = tables["protocols"].groupby("seed")
    found = pd.DataFrame({seed: _describe(steps) for seed, steps in plans}).T
    gain = losses["constant"] / losses["joint"]
    return [
        Claim(
            "The optimum opens with a focus phase with a strongly annealed learning rate.",
            "at least 1 unit of focus, in which the rate falls to half of its first value",
            (found["focus"] >= 1.0) & (found["annealing"] >= 2.0),
            {
                "length of the focus phase": found["focus"],
                "first / smallest rate": found["annealing"],
                "first / last rate": found["first to last"],
            },
        ),
        Claim(
            "In the revision phase the rates lie on two curves, one for each task.",
            "from one step to the next, the rate changes by over 5 % where the task changes, and "
            "by over twice as much as where it does not (medians)",
            (found["jump"] > 1.05) & (np.log(found["jump"]) > 2 * np.log(found["drift"])),
            {"change with the task": found["jump"], "change within a task": found["drift"]},
        ),
        Claim(
            "Optimising the learning rate, too, gives a smaller loss.",
            "at least 10 % smaller than the optimum at η = 1",
            gain > 1.1,
            {"loss at η = 1 / joint loss": gain},
        ),
    ]


def _describe(steps: pd.DataFrame) -> dict[str, float]:
    """Return how a plan's rates behave in the focus phase, and from step to step after it."""
    focus = parts.protocol_of(steps).focus_length(1)
    opening = steps["lr_2"][steps["start"] < focus].to_numpy()
    lowest, last = (opening.min(), opening[-1]) if opening.size else (0.0, 0.0)
    later = steps[steps["start"] >= focus]
    old, rates = (later["share_1"] > 0).to_numpy(), trained_rate(later).to_numpy()
    old, logs = old[rates > 0], np.log(rates[rates > 0])
    jump = np.abs(np.diff(logs)[np.diff(old)])  # between neighbours of different tasks
    drift = np.concatenate([np.abs(np.diff(logs[old == task])) for task in (True, False)])
    return {
        "focus": focus,
        "annealing": opening[0] / lowest if lowest > 0 else np.nan,
        "first to last": opening[0] / last if last > 0 else np.nan,
        "jump": float(np.exp(np.median(jump))) if jump.size else np.nan,
        "drift": float(np.exp(np.median(drift))) if drift.size else np.nan,
    }
