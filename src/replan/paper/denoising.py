"""Denoising: how noisy the inputs of an autoencoder should be when (the follow-up)."""

from __future__ import annotations

from typing import Any

from replan._common import plotting
from replan.paper import _schedules as schedules
from replan.paper._parts import LOOKS, Run, Tables
from replan.paper._schedules import CONSTANT, LINEAR, OPTIMAL, STEP
from replan.paper.claims import Claim

FULL = {
    "test_noises": [round(0.1 * i, 1) for i in range(1, 10)],
    "steps": 100, "duration": 10.0, "lr": 0.3, "max_lr": 2.0,
}  # fmt: skip
QUICK = FULL | {"test_noises": [0.1, 0.4, 0.7], "steps": 20}
NONE, TEST = "no noise", "as in the test"
MEAN, VARIANCE = 1.0, 0.1  # of the clusters


def compute(
    run: Run, *, test_noises: list[float], steps: int, duration: float, lr: float, max_lr: float
) -> Tables:
    """Return the tables `losses`, `plans` and `protocols`."""
    problems = {noise: _problem(noise, steps, duration, lr) for noise in test_noises}
    tables = schedules.compute(
        run,
        problems,
        x="test_noise",
        knob="noise",
        fixed=lambda noise: {NONE: 0.0, TEST: noise},
        max_lr=max_lr,
    )
    losses = tables["losses"]
    excess = losses["loss"] - floor(losses["test_noise"])
    return tables | {"losses": losses.assign(excess=excess)}


def floor(test_noise: Any) -> Any:
    """Return the least loss of any weights: that of the best linear filter along the clusters."""
    signal = MEAN + VARIANCE
    return test_noise * signal / ((1 - test_noise) * signal + test_noise)


def _problem(test_noise: float, steps: int, duration: float, lr: float) -> dict[str, Any]:
    """Return the content of a problem file: two clusters, from small weights and no skip."""
    return {
        "model": {
            "kind": "denoising",
            "mean": MEAN,
            "variance": VARIANCE,
            "test_noise": test_noise,
        },
        "start": {"m": 0.1, "q": 0.1, "b": 0.0},
        "training": {"duration": duration, "steps": steps, "lr": lr},
        "control": {"noise": {"min": 0.0, "max": 0.95}},
        "objective": {"weights": [1.0, 1.0]},
    }
