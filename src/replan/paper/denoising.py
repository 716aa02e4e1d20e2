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


def draw(tables: Tables) -> plotting.Picture:
    """Draw excess losses against the noise of the test, and the schedules at three of them."""
    return schedules.draw(
        tables,
        x="test_noise",
        knob="noise",
        label="test noise",
        value="excess",
        loss="final loss above the least",
        looks={
            NONE: LOOKS["no replay"],
            TEST: {"color": "0.25", "marker": "D", "linestyle": ":"},
        },
    )


def claims(tables: Tables) -> list[Claim]:
    """Check what is said about noise schedules, over levels of the noise of the test.

    Losses are counted from the least one of any weights.
    """
    fixed, free = (
        schedules.by_strategy(tables, "test_noise", rate, "excess") for rate in ("fixed", "free")
    )
    noise, steady, both = (
        schedules.values_of(tables, "test_noise", "noise", strategy, rate)
        for strategy, rate in ((OPTIMAL, "fixed"), (CONSTANT, "fixed"), (OPTIMAL, "free"))
    )
    opening = noise.iloc[:, : max(1, noise.shape[1] // 10)].max(axis=1)
    last, fall = noise.iloc[:, -1], schedules.largest_rise(-noise)
    test = noise.index.to_series()
    extreme = ((both <= 0.01) | (both >= both.max(axis=None) - 0.01)).mean(axis=1)
    gain, free_gain = fixed[CONSTANT] / fixed[OPTIMAL], free[CONSTANT] / free[OPTIMAL]
    simple = fixed[[LINEAR, STEP]].min(axis=1) / fixed[OPTIMAL]
    over = "test noise"
    return [
        Claim(
            "The optimal noise is small at first and rises.",
            "below a tenth of the test's in the first tenth of the time, above half of it at the "
            "end, and never falling by over 0.05",
            list((opening < 0.1 * test) & (last > 0.5 * test) & (fall <= 0.05)),
            {
                "largest noise in the first tenth": opening,
                "noise at the end / test": last / test,
                "largest fall": fall,
            },
            over=over,
        ),
        Claim(
            "The best constant noise is that of the test.",
            "within 0.05",
            list((steady[0] - test).abs() <= 0.05),
            {
                "best constant noise - test": steady[0] - test,
                "as in the test / best constant": fixed[TEST] / fixed[CONSTANT],
            },
            over=over,
        ),
        Claim(
            "A noise that rises beats the best constant noise.",
            "the excess of the optimum is at least 5 % smaller",
            list(gain >= 1.05),
            {
                "best constant / optimal": gain,
                "best line / optimal": fixed[LINEAR] / fixed[OPTIMAL],
                "no noise / optimal": fixed[NONE] / fixed[OPTIMAL],
            },
            over=over,
        ),
        Claim(
            "A simple schedule is nearly as good (our question).",
            "the better of the best line and the best step is within 5 % of the optimum's excess",
            list(simple <= 1.05),
            {"better one / optimal": simple},
            over=over,
        ),
        Claim(
            "With the learning rate free as well, a schedule of the noise gains more.",
            "best constant noise / optimal noise, both with optimal learning rates, is larger than "
            "at the fixed rate",
            list(free_gain > gain),
            {
                "best constant / optimal, free rate": free_gain,
                "optimal at the fixed rate / at a free one": fixed[OPTIMAL] / free[OPTIMAL],
            },
            over=over,
        ),
        Claim(
            "With the learning rate free as well, the noise is all or nothing (our question).",
            "in 90 % of the time it is within 0.01 of no noise or of the largest that is allowed",
            list(extreme >= 0.9),
            {"share of the time": extreme, "share without noise": (both <= 0.01).mean(axis=1)},
            over=over,
        ),
    ]
