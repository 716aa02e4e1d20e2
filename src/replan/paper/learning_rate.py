"""Fig. 4: tasks and learning rate optimised together, one curve of rates for each task."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from replan._common import plotting
from replan.control import solve
from replan.paper._parts import Run, Tables, continual, protocol_of, protocol_rows, typical
from replan.paper.claims import Claim
from replan.problem import Problem

FULL = {"seeds": 10, "steps": 250, "similarity": 0.3, "max_lr": 10.0}
QUICK = {"seeds": 2, "steps": 50, "similarity": 0.3, "max_lr": 10.0}


def case(problem: dict[str, Any]) -> dict[str, Any]:
    """Return the joint optimum of one problem, and the optimum with a constant learning rate."""
    plan = solve(Problem.from_dict(problem))
    steady = solve(Problem.from_dict(problem | {"control": {"tasks": True, "lr": False}}))
    return {
        "joint": plan.loss,
        "constant": steady.loss,
        "status": plan.status,
        "gradients": plan.statistics["gradients"] + steady.statistics["gradients"],
        "protocol": plan.protocol.to_dict(),
    }


def compute(run: Run, *, seeds: int, steps: int, similarity: float, max_lr: float) -> Tables:
    """Return the tables `protocols` and `losses`."""
    lr = {"min": 0.0, "max": max_lr}
    results = run(
        case,
        [{"problem": continual(similarity, seed, steps=steps, lr=lr)} for seed in range(seeds)],
    )
    return {
        "protocols": pd.concat(
            protocol_rows(result["protocol"]).assign(seed=seed)
            for seed, result in enumerate(results)
        ),
        "losses": pd.DataFrame(
            [
                {"seed": seed} | {key: x for key, x in result.items() if key != "protocol"}
                for seed, result in enumerate(results)
            ]
        ),
    }


def draw(tables: Tables) -> plotting.Picture:
    """Draw the learning rates of three initialisations under their colour bars."""
    protocols, losses = tables["protocols"], tables["losses"].set_index("seed")["joint"]
    order = losses.sort_values().index
    shown = {
        "smallest loss": order[0],
        "typical": typical(losses),
        "largest loss": order[-1],
    }
    with plotting.figure(width=7.2, height=3.0) as figure:
        axes = figure.subplots(2, 3, sharex=True, sharey="row", height_ratios=[1, 9])
        for (bar, curve), (name, seed) in zip(axes.T, shown.items(), strict=True):
            protocol = protocol_of(protocols[protocols["seed"] == seed])
            plotting.draw_protocol(bar, protocol)
            bar.tick_params(bottom=False)
            bar.set_title(f"{name}, {losses[seed]:.2g}", fontsize=9)
            plotting.draw_knob(curve, protocol, "lr")
            curve.set(xlabel="training time α", xlim=(0, protocol.duration))
        axes[1, 0].set(ylim=(0, 1.05 * _trained(protocols).max().max()))
        axes[1, 1].set_ylabel("")
        axes[1, 2].set_ylabel("")
        figure.legend(handles=plotting.task_patches(2), loc="outside upper right", ncols=2)
    return figure


def _trained(protocols: pd.DataFrame) -> pd.DataFrame:
    """Return the learning rate of each task where it is trained, NaN elsewhere."""
    shares = protocols[["share_1", "share_2"]].to_numpy()
    return protocols[["lr_1", "lr_2"]].where(shares > 0)


def claims(tables: Tables) -> list[Claim]:
    """Check what the paper says about Fig. 4."""
    losses = tables["losses"].set_index("seed")
    found = pd.DataFrame(
        {seed: _describe(steps) for seed, steps in tables["protocols"].groupby("seed")}
    ).T
    gain = losses["constant"] / losses["joint"]
    return [
        Claim(
            "The optimum opens with a focus phase with a strongly annealed learning rate.",
            "at least 1 unit of focus, in which the rate falls to half of its first value",
            list((found["focus"] >= 1.0) & (found["annealing"] >= 2.0)),
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
            list((found["jump"] > 1.05) & (np.log(found["jump"]) > 2 * np.log(found["drift"]))),
            {"change with the task": found["jump"], "change within a task": found["drift"]},
        ),
        Claim(
            "Optimising the learning rate, too, gives a smaller loss.",
            "at least 10 % smaller than the optimum at η = 1",
            list(gain > 1.1),
            {"loss at η = 1 / joint loss": gain},
        ),
    ]


def _describe(steps: pd.DataFrame) -> dict[str, float]:
    """Return how a plan's rates behave in the focus phase, and from step to step after it."""
    focus = protocol_of(steps).focus_length(1)
    opening = steps["lr_2"][steps["start"] < focus].to_numpy()
    later = steps[steps["start"] >= focus]
    task = (later["share_1"] > 0).to_numpy()
    rates = np.where(task, later["lr_1"], later["lr_2"])
    task, logs = task[rates > 0], np.log(rates[rates > 0])
    jump = np.abs(np.diff(logs)[np.diff(task)])  # between neighbours of different tasks
    drift = np.concatenate([np.abs(np.diff(logs[task == here])) for here in (True, False)])
    return {
        "focus": focus,
        "annealing": opening[0] / opening.min() if opening.size and opening.min() > 0 else np.nan,
        "first to last": opening[0] / opening[-1] if opening.size and opening[-1] > 0 else np.nan,
        "jump": float(np.exp(np.median(jump))) if jump.size else np.nan,
        "drift": float(np.exp(np.median(drift))) if drift.size else np.nan,
    }
