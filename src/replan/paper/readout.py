"""Appendix B: how long the readout takes to suppress the wrong unit, predicted and measured."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd

from replan._common import plotting
from replan.paper._parts import Run, Tables
from replan.paper.claims import Claim
from replan.paper.timescale import measure_readout_timescale, readout_timescale

FULL = {"similarities": [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.93, 0.95, 0.97]}
QUICK = {"similarities": [0.0, 0.3, 0.6, 0.8]}


def case(similarity: float) -> dict[str, Any]:
    """Return the time-scale by the formula, its limit, and as measured, features frozen or not."""
    return {
        "similarity": similarity,
        "formula": readout_timescale(similarity),
        "limit": math.sqrt(3) * math.pi / (2 * (1 - similarity)),
        "frozen": measure_readout_timescale(similarity),
        "trained": measure_readout_timescale(similarity, train_features=True),
    }


def compute(run: Run, *, similarities: list[float]) -> Tables:
    """Return the table `timescales`, η = 1."""
    return {
        "timescales": pd.DataFrame(run(case, [{"similarity": gamma} for gamma in similarities]))
    }


def draw(tables: Tables) -> plotting.Picture:
    """Draw time-scales against similarity."""
    table = tables["timescales"]
    with plotting.figure(width=4.6, height=3.2) as figure:
        axes = figure.subplots()
        x = table["similarity"]
        axes.plot(x, table["formula"], "k-", label="formula")
        axes.plot(x, table["limit"], "k:", label="its limit, √3π / 2(1−γ)")
        axes.plot(x, table["frozen"], "o", color="#0072B2", label="measured, features frozen")
        axes.plot(x, table["trained"], "s--", color="#CC3311", label="measured, features trained")
        axes.set(yscale="log", xlabel="task similarity γ", ylabel="time-scale α, η = 1")
        axes.legend()
    return figure


def claims(tables: Tables) -> list[Claim]:
    """Check what the paper says in appendix B."""
    table = tables["timescales"]
    last = table.iloc[-1]
    frozen = (table["frozen"] / table["formula"] - 1).abs()
    limit = abs(last["frozen"] / last["limit"] - 1)
    return [
        Claim(
            "α_conv = 3π / (η (π − 6 asin(γ/2))), for hidden units that stay on their teachers.",
            "measured within 1 % at all γ",
            [bool(frozen.max() < 0.01)],
            {"largest relative difference": [frozen.max()]},
        ),
        Claim(
            "It diverges as √3π / (2η(1−γ)) for γ → 1.",
            "measured within 5 % of that at the largest γ",
            [bool(limit < 0.05)],
            {"relative difference": [limit], "largest γ": [last["similarity"]]},
        ),
        Claim(
            "It is also the time-scale of training both layers from there (our question).",
            "the slowest mode, measured with hidden units that learn too, is within a factor of 2",
            [bool(np.all(np.abs(np.log2(table["trained"] / table["formula"])) < 1))],
            {
                "measured / formula at the smallest γ": [
                    table["trained"].iloc[0] / table["formula"].iloc[0]
                ],
                "at the largest γ": [last["trained"] / last["formula"]],
            },
        ),
    ]
