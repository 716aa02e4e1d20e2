"""Dropout: how many hidden units to keep when, for students of noisy labels (the follow-up)."""

from __future__ import annotations

from typing import Any

from replan._common import plotting
from replan.paper import _schedules as schedules
from replan.paper._parts import LOOKS, Run, Tables
from replan.paper._schedules import CONSTANT, LINEAR, OPTIMAL, STEP
from replan.paper.claims import Claim

FULL = {
    "noises": [round(0.05 * i, 2) for i in range(1, 11)],
    "steps": 50, "duration": 5.0, "lr": 1.0, "max_lr": 5.0,
}  # fmt: skip
QUICK = FULL | {"noises": [0.1, 0.3], "steps": 20}
NONE = "no dropout"


def compute(
    run: Run, *, noises: list[float], steps: int, duration: float, lr: float, max_lr: float
) -> Tables:
    """Return the tables `losses`, `plans` and `protocols`."""
    problems = {noise: _problem(noise, steps, duration, lr) for noise in noises}
    return schedules.compute(
        run, problems, x="noise", knob="keep", fixed=lambda _: {NONE: 1.0}, max_lr=max_lr
    )


def _problem(noise: float, steps: int, duration: float, lr: float) -> dict[str, Any]:
    """Return the content of a problem file: two hidden units learn a teacher of one, from zero."""
    return {
        "model": {
            "kind": "dropout",
            "hidden": 2,
            "teacher_overlaps": [[1.0]],
            "noise": noise,
        },
        "start": {"Q": [[0.0, 0.0], [0.0, 0.0]], "M": [[0.0], [0.0]]},
        "training": {"duration": duration, "steps": steps, "lr": lr},
        "control": {"keep": {"min": 0.0, "max": 1.0}},
    }


def draw(tables: Tables) -> plotting.Picture:
    """Draw losses against the label noise, and the schedules at three of them."""
    return schedules.draw(
        tables,
        x="noise",
        knob="keep",
        label="label noise",
        value="loss",
        loss="final loss",
        looks={NONE: LOOKS["no replay"]},
    )


def claims(tables: Tables) -> list[Claim]:
    """Check what is said about dropout schedules, over levels of the label noise."""
    fixed, free = (schedules.by_strategy(tables, "noise", rate) for rate in ("fixed", "free"))
    keep = schedules.values_of(tables, "noise", "keep", OPTIMAL, "fixed")
    opening = keep.iloc[:, : max(1, keep.shape[1] // 10)].min(axis=1)
    last, mean, rise = keep.iloc[:, -1], keep.mean(axis=1), schedules.largest_rise(keep)
    simple = fixed[[LINEAR, STEP]].min(axis=1) / fixed[OPTIMAL]
    over = "label noise"
    return [
        Claim(
            "The optimal schedule keeps all units at first and drops more and more later.",
            "at least 99 % are kept in the first tenth of the time, at most 90 % at the end, and "
            "keep never rises by over 0.02",
            list((opening >= 0.99) & (last <= 0.9) & (rise <= 0.02)),
            {
                "least keep in the first tenth": opening,
                "keep at the end": last,
                "smallest keep": keep.min(axis=1),
                "largest rise": rise,
            },
            over=over,
        ),
        Claim(
            "The noisier the labels, the more is dropped.",
            "the mean of keep over the time falls from each noise to the next",
            [bool(mean.iloc[-1] < mean.iloc[0] and mean.is_monotonic_decreasing)],
            {
                "mean keep at the smallest noise": mean.iloc[0],
                "at the largest": mean.iloc[-1],
            },
        ),
        Claim(
            "The optimal schedule beats the best constant dropout.",
            "by at least 1 %",
            list(fixed[CONSTANT] / fixed[OPTIMAL] >= 1.01),
            {
                "best constant / optimal": fixed[CONSTANT] / fixed[OPTIMAL],
                "no dropout / optimal": fixed[NONE] / fixed[OPTIMAL],
            },
            over=over,
        ),
        Claim(
            "A simple schedule is nearly as good (our question).",
            "the better of the best line and the best step is within 1 % of the optimum",
            list(simple <= 1.01),
            {"better one / optimal": simple},
            over=over,
        ),
        Claim(
            "Dropout helps where the learning rate is free as well (our question).",
            "both optimised are at least 1 % below the optimal learning rate without dropout",
            list(free[NONE] / free[OPTIMAL] >= 1.01),
            {
                "no dropout / optimal, free rate": free[NONE] / free[OPTIMAL],
                "optimal at the fixed rate / no dropout at a free one": fixed[OPTIMAL] / free[NONE],
            },
            over=over,
        ),
    ]
