"""Appendix B: how long the readout takes to suppress the wrong unit, predicted and measured."""

import math
from typing import Any

import numpy as np

import replan
from reproduction.base import Claim, Figure, Tables, over
from reproduction.drawing import figure

FULL = {"similarities": [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.93, 0.95, 0.97]}
QUICK = {"similarities": [0.0, 0.3, 0.6, 0.8]}
# The head's initial error: small, so that it decays linearly, and not in a single mode alone.
_NUDGE = 1e-4 * np.array([[-1.0, 0.9], [0.0, 0.0]])
_FREEZE = 1e-13  # the first layer's learning rate relative to the heads'


def predicted(similarity: float) -> float:
    """Return α_conv = 3π / (η (π − 6 asin(γ/2))) at η = 1, the paper's formula for 0 ≤ γ < 1.

    It holds for two hidden units that *stay* on the two teachers while one head is trained.
    """
    return 3 * math.pi / (math.pi - 6 * math.asin(similarity / 2))


def measured(similarity: float, *, train_features: bool = False) -> float:
    """Return the time-scale on which a slightly wrong head decays, measured on the full dynamics.

    Both hidden units start on their teachers and task 1 is trained. With `train_features=False`
    the first layer is frozen, as the formula assumes; with `True` it learns too, as in real
    training, and the slowest mode is another one, in which head and features err together.
    """
    lr = 1.0 if train_features else _FREEZE
    S = [[1.0, similarity], [similarity, 1.0]]
    content: dict[str, Any] = {
        "model": {"hidden": 2, "similarity": similarity, "head_lr": 1 / lr},
        "start": {"Q": S, "M": S, "V": (np.eye(2) + _NUDGE).tolist()},
    }
    duration = 8 * predicted(similarity)
    while True:
        training = {"duration": duration, "lr": lr, "steps": 128}
        problem = replan.Problem.from_dict(content | {"training": training})
        protocol = replan.strategies.one_task(problem, task=0)
        run = replan.evaluate(problem, protocol, rtol=1e-11, max_steps=2**18)
        distance = np.linalg.norm(run.unpacked.V[:, 0] - [1.0, 0.0], axis=1)
        if distance[-1] < 1e-6 * distance[0]:  # only the slowest mode is left by then
            late = (distance < 1e-4 * distance[0]) & (distance > 1e-6 * distance[0])
            return float(-1 / np.polyfit(run.times[late], np.log(distance[late]), 1)[0])
        duration *= 2


def case(similarity: float) -> dict[str, Any]:
    """Return the time-scale by the formula, its limit, and as measured, features frozen or not."""
    row = {
        "formula": predicted(similarity),
        "limit": math.sqrt(3) * math.pi / (2 * (1 - similarity)),
        "frozen": measured(similarity),
        "trained": measured(similarity, train_features=True),
    }
    return {"timescales": [row]}


compute = over(case, similarity="similarities")


def draw(tables: Tables) -> Figure:
    """Draw time-scales against similarity."""
    table = tables["timescales"]
    picture = figure(4.6, 3.2)
    axes = picture.subplots()
    x = table["similarity"]
    axes.plot(x, table["formula"], "k-", label="formula")
    axes.plot(x, table["limit"], "k:", label="its limit, √3π / 2(1−γ)")
    axes.plot(x, table["frozen"], "o", color="#0072B2", label="measured, features frozen")
    axes.plot(x, table["trained"], "s--", color="#CC3311", label="measured, features trained")
    axes.set(yscale="log", xlabel="task similarity γ", ylabel="time-scale α, η = 1")
    axes.legend()
    return picture


def claims(tables: Tables) -> list[Claim]:
    """Check what the paper says in appendix B."""
    table = tables["timescales"]
    last = table.iloc[-1]
    frozen = (table["frozen"] / table["formula"] - 1).abs().max()
    limit = abs(last["frozen"] / last["limit"] - 1)
    trained = table["trained"] / table["formula"]
    return [
        Claim(
            "α_conv = 3π / (η (π − 6 asin(γ/2))), for hidden units that stay on their teachers.",
            "measured within 1 % at all γ",
            [frozen < 0.01],
            {"largest relative difference": frozen},
        ),
        Claim(
            "It diverges as √3π / (2η(1−γ)) for γ → 1.",
            "measured within 5 % of that at the largest γ",
            [limit < 0.05],
            {"relative difference": limit, "largest γ": last["similarity"]},
        ),
        Claim(
            "It is also the time-scale of training both layers from there (our question).",
            "the slowest mode, measured with hidden units that learn too, is within a factor of 2",
            [np.all(np.abs(np.log2(trained)) < 1)],
            {
                "measured / formula at the smallest γ": trained.iloc[0],
                "at the largest γ": trained.iloc[-1],
            },
        ),
    ]
