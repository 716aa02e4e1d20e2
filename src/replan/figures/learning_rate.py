"""Fig. 4: tasks and learning rate optimised together, one curve of rates for each task."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from replan import plotting
from replan.claims import Claim
from replan.control import solve
from replan.figures.parts import Run, Tables, continual, protocol_of, protocol_rows, typical
from replan.files import FilePath
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


def draw(tables: Tables, path: FilePath) -> None:
    """Draw the learning rates of three initialisations under their colour bars."""
    protocols, losses = tables["protocols"], tables["losses"].set_index("seed")["joint"]
    order = losses.sort_values().index
    shown = {
        "smallest loss": order[0],
        "typical": typical(losses),
        "largest loss": order[-1],
    }
    with plotting.figure(path, width=7.2, height=3.0) as figure:
        axes = figure.subplots(2, 3, sharex=True, sharey="row", height_ratios=[1, 9])
        for (bar, curve), (name, seed) in zip(axes.T, shown.items(), strict=True):
            protocol = protocol_of(protocols[protocols["seed"] == seed])
            plotting.draw_protocol(bar, protocol)
            bar.tick_params(bottom=False)
            bar.set_title(f"{name}, {losses[seed]:.2g}", fontsize=9)
            plotting.draw_lr(curve, protocol)
            curve.set(xlabel="training time α", xlim=(0, protocol.duration))
        axes[1, 0].set(ylim=(0, 1.05 * _trained(protocols).max().max()))
        axes[1, 1].set_ylabel("")
        axes[1, 2].set_ylabel("")
        figure.legend(handles=plotting.task_patches(2), loc="outside upper right", ncols=2)


def _trained(protocols: pd.DataFrame) -> pd.DataFrame:
    """Return the learning rate of each task where it is trained, NaN elsewhere."""
    shares = protocols[["share_1", "share_2"]].to_numpy()
    return protocols[["lr_1", "lr_2"]].where(shares > 0)


def claims(tables: Tables) -> list[Claim]:
    """Check what the paper says of its Fig. 4."""
    losses = tables["losses"].set_index("seed")
    rows = []
    for seed, steps in tables["protocols"].groupby("seed"):
        rates, focus = _trained(steps), protocol_of(steps).focus_length(1)
        opening = rates["lr_2"][steps["start"] < focus].to_numpy()
        later = rates[steps["start"] >= focus].interpolate(limit_area="inside").dropna()
        middle = later.iloc[len(later) // 10 : len(later) - len(later) // 10]  # not its very ends
        apart = np.abs(np.log(middle["lr_1"] / middle["lr_2"]))
        rows.append(
            {
                "seed": seed,
                "focus": focus,
                "annealing": opening[0] / opening[-1] if opening.size else np.nan,
                "apart": float(np.exp(apart.median())) if len(middle) else np.nan,
                "within": float(np.exp(np.log(middle).diff().abs().median().max()))
                if len(middle) > 1
                else np.nan,
            }
        )
    found = pd.DataFrame(rows).set_index("seed")
    gain = losses["constant"] / losses["joint"]
    return [
        Claim(
            "The optimum opens with a focus phase with a strongly annealed learning rate.",
            "at least 1 unit of focus, in which the rate at least halves",
            list((found["focus"] >= 1.0) & (found["annealing"] >= 2.0)),
            {"length of the focus phase": found["focus"], "first / last rate": found["annealing"]},
        ),
        Claim(
            "In the revision phase the rates lie on two curves, one for each task.",
            "their typical ratio is above 1.1 and above the change from step to step",
            list((found["apart"] > 1.1) & (found["apart"] > found["within"])),
            {"ratio of the curves": found["apart"], "change from step to step": found["within"]},
        ),
        Claim(
            "Optimising the learning rate, too, gives a smaller loss.",
            "at least 10 % smaller than the optimum at η = 1",
            list(gain > 1.1),
            {"loss at η = 1 / joint loss": gain},
        ),
    ]
