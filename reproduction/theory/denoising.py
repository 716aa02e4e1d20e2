"""Denoising (the follow-up): how noisy the inputs of an autoencoder should be when."""

from functools import partial
from typing import Any

from reproduction.base import Claim, Figure, Tables, over
from reproduction.drawing import LOOKS
from reproduction.theory import schedules
from reproduction.theory.schedules import CONSTANT, OPTIMAL

FULL = {
    "test_noises": [round(0.1 * i, 1) for i in range(1, 10)],
    "steps": 100,
    "duration": 10.0,
    "lr": 0.3,
    "max_lr": 2.0,
}
QUICK = FULL | {"test_noises": [0.1, 0.4, 0.7], "steps": 20}
NONE, TEST = "no noise", "as in the test"
MEAN, VARIANCE = 1.0, 0.1  # of the clusters


def case(test_noise: float, max_lr: float, **training: Any) -> dict[str, Any]:
    """Return the tables of one noise: two clusters, from small weights and no skip."""
    content = {
        "model": {
            "kind": "denoising", "mean": MEAN, "variance": VARIANCE, "test_noise": test_noise,
        },
        "start": {"m": 0.1, "q": 0.1, "b": 0.0},
        "training": training,
        "control": {"noise": {"min": 0.0, "max": 0.95}},
        "objective": {"weights": [1.0, 1.0]},
    }  # fmt: skip
    tables = schedules.contenders(content, "noise", {NONE: 0.0, TEST: test_noise}, max_lr)
    for row in tables["losses"]:
        row["excess"] = row["loss"] - floor(test_noise)
    return tables


compute = over(case, test_noise="test_noises")


def floor(test_noise: float) -> float:
    """Return the least loss of any weights: that of the best linear filter along the clusters."""
    signal = MEAN + VARIANCE
    return test_noise * signal / ((1 - test_noise) * signal + test_noise)


def draw(tables: Tables) -> Figure:
    """Draw excess losses against the noise of the test, and the schedules at three of them."""
    looks = {NONE: LOOKS["no replay"], TEST: {"color": "0.25", "marker": "D", "linestyle": ":"}}
    words = {"value": "excess", "loss": "final loss above the least"}
    return schedules.draw(tables, x="test_noise", knob="noise", looks=looks, **words)


def claims(tables: Tables) -> list[Claim]:
    """Check what is said about noise schedules, over levels of the noise of the test.

    Losses are counted from the least one of any weights.
    """
    fixed, free = (schedules.wide(tables, "test_noise", x, "excess") for x in ("fixed", "free"))
    noise, steady = (
        schedules.knob_values(tables, "test_noise", "noise", x, "fixed")
        for x in (OPTIMAL, CONSTANT)
    )
    opening = noise.iloc[:, : max(1, noise.shape[1] // 10)].max(axis=1)
    last, fall = noise.iloc[:, -1], schedules.largest_rise(-noise)
    test = noise.index.to_series()
    gain, free_gain = (x[CONSTANT] / x[OPTIMAL] for x in (fixed, free))
    judge = partial(Claim, over="test noise")
    return [
        judge(
            "The optimal noise is small at first and rises.",
            "below a tenth of the test's in the first tenth of the time, above half of it at the "
            "end, and never falling by over 0.05",
            (opening < 0.1 * test) & (last > 0.5 * test) & (fall <= 0.05),
            {
                "largest noise in the first tenth": opening,
                "noise at the end / test": last / test,
                "largest fall": fall,
            },
        ),
        judge(
            "The best constant noise is that of the test.",
            "within 0.05",
            (steady[0] - test).abs() <= 0.05,
            {
                "best constant noise - test": steady[0] - test,
                "as in the test / best constant": fixed[TEST] / fixed[CONSTANT],
            },
        ),
        judge(
            "A noise that rises beats the best constant noise.",
            "the excess of the optimum is at least 5 % smaller",
            gain >= 1.05,
            {
                "best constant / optimal": gain,
                "no noise / optimal": fixed[NONE] / fixed[OPTIMAL],
            },
        ),
        judge(
            "With the learning rate free as well, a schedule of the noise gains more.",
            "best constant noise / optimal noise, both with optimal learning rates, is larger than "
            "at the fixed rate",
            free_gain > gain,
            {
                "best constant / optimal, free rate": free_gain,
                "optimal at the fixed rate / at a free one": fixed[OPTIMAL] / free[OPTIMAL],
            },
        ),
    ]
