"""Dropout (the follow-up): how many hidden units to keep when, for students of noisy labels."""

from functools import partial
from typing import Any

from reproduction.base import Claim, Figure, Tables, over
from reproduction.drawing import LOOKS
from reproduction.theory import schedules
from reproduction.theory.schedules import CONSTANT, OPTIMAL

FULL = {
    "noises": [round(0.05 * i, 2) for i in range(1, 11)],
    "steps": 50,
    "duration": 5.0,
    "lr": 1.0,
    "max_lr": 5.0,
}
QUICK = FULL | {"noises": [0.1, 0.3], "steps": 20}
NONE = "no dropout"


def case(label_noise: float, max_lr: float, **training: Any) -> dict[str, Any]:
    """Return the tables of one noise: two hidden units learn a teacher of one, from zero."""
    content = {
        "model": {
            "kind": "dropout", "hidden": 2, "teacher_overlaps": [[1.0]], "noise": label_noise,
        },
        "start": {"Q": [[0.0, 0.0], [0.0, 0.0]], "M": [[0.0], [0.0]]},
        "training": training,
        "control": {"keep": {"min": 0.0, "max": 1.0}},
    }  # fmt: skip
    return schedules.contenders(content, "keep", {NONE: 1.0}, max_lr)


compute = over(case, label_noise="noises")


def draw(tables: Tables) -> Figure:
    """Draw losses against the label noise, and the schedules at three of them."""
    looks = {NONE: LOOKS["no replay"]}
    words = {"value": "loss", "loss": "final loss"}
    return schedules.draw(tables, x="label_noise", knob="keep", looks=looks, **words)


def claims(tables: Tables) -> list[Claim]:
    """Check what is said about dropout schedules, over levels of the label noise."""
    fixed, free = (schedules.wide(tables, "label_noise", rate) for rate in ("fixed", "free"))
    keep = schedules.knob_values(tables, "label_noise", "keep", OPTIMAL, "fixed")
    opening = keep.iloc[:, : max(1, keep.shape[1] // 10)].min(axis=1)
    last, mean, rise = keep.iloc[:, -1], keep.mean(axis=1), schedules.largest_rise(keep)
    judge = partial(Claim, over="label noise")
    return [
        judge(
            "The optimal schedule keeps all units at first and drops more and more later.",
            "at least 99 % are kept in the first tenth of the time, at most 90 % at the end, and "
            "keep never rises by over 0.02",
            (opening >= 0.99) & (last <= 0.9) & (rise <= 0.02),
            {
                "least keep in the first tenth": opening,
                "keep at the end": last,
                "smallest keep": keep.min(axis=1),
                "largest rise": rise,
            },
        ),
        Claim(
            "The noisier the labels, the more is dropped.",
            "the mean of keep over the time falls from each noise to the next",
            [mean.iloc[-1] < mean.iloc[0] and mean.is_monotonic_decreasing],
            {"mean keep at the smallest noise": mean.iloc[0], "at the largest": mean.iloc[-1]},
        ),
        judge(
            "The optimal schedule beats the best constant dropout.",
            "by at least 1 %",
            fixed[CONSTANT] / fixed[OPTIMAL] >= 1.01,
            {
                "best constant / optimal": fixed[CONSTANT] / fixed[OPTIMAL],
                "no dropout / optimal": fixed[NONE] / fixed[OPTIMAL],
            },
        ),
        judge(
            "Dropout helps where the learning rate is free as well (our question).",
            "both optimised are at least 1 % below the optimal learning rate without dropout",
            free[NONE] / free[OPTIMAL] >= 1.01,
            {
                "no dropout / optimal, free rate": free[NONE] / free[OPTIMAL],
                "optimal at the fixed rate / no dropout at a free one": fixed[OPTIMAL] / free[NONE],
            },
        ),
    ]
