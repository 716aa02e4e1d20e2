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
QUICK = FULL | {"noises": [0.1, 0.2, 0.4], "steps": 20}
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
        loss="final loss",
        looks={NONE: LOOKS["no replay"]},
    )
