"""How well plans of real networks do on realisations and images that they have not seen.

Plans are made on 1 to 50 realisations of one problem on Fashion-MNIST (784 × 8, similarity 0.5,
500 samples of task 2, 200 images of task 1 kept), with shares and learning rates free at each of
ten steps, from equal shares and the best constant rate, and tested on 200 others. Takes hours.
Needs the extra `jax`.
"""

from typing import Any

import numpy as np

import replan
from reproduction.base import Run, Tables, collect, grid, plus_minus
from reproduction.images.data import fetch, load
from reproduction.images.network import ImageNetwork
from reproduction.images.networks import Mixed, losses_each
from reproduction.images.tasks import mixed_tasks

FULL: dict[str, Any] = {
    "counts": [1, 2, 5, 10, 20, 50],
    "unseen": 200,
    "first": 10_000,
    "samples": 500,
    "gradients": 100,
    "test_samples": 2000,
}
QUICK = FULL | {
    "counts": [1, 2], "unseen": 10, "first": 2000, "samples": 100, "gradients": 5,
    "test_samples": 300,
}  # fmt: skip
_RATES = np.geomspace(0.05, 1.6, 11)


def compute(run: Run, *, counts: list[int], **settings: Any) -> Tables:
    """Return the table `plans`: losses on the realisations planned on, and on unseen ones."""
    fetch("fashion-mnist")
    return collect(run, case, grid(count=counts), **settings)


def case(
    count: int, unseen: int, first: int, samples: int, gradients: int, test_samples: int
) -> dict[str, Any]:
    """Return a row: plan and constant protocol on `count` realisations, and on unseen ones."""
    tasks = mixed_tasks(load("fashion-mnist"), 0.5, test_samples=test_samples)

    def make(realisations: range, images: str) -> replan.Problem:
        model = ImageNetwork(
            tasks, memory=200, samples=samples, realisations=realisations, images=images
        )
        return replan.Problem(
            model, model.pretrained(first, 0.1), float(samples), steps=10, lr=0.2,
            control=replan.Control(tasks=True, lr=(0.0, 2.0)),
        )  # fmt: skip

    problem, others = make(range(count), "held_out"), make(range(count, count + unseen), "test")
    mixed = replan.strategies.interleaved(problem)
    constant = min(
        (mixed.with_knobs(lr=float(lr)) for lr in _RATES),
        key=lambda protocol: losses_each(problem, protocol).mean(),
    )
    plan = replan.solve(problem, Mixed(), initial=constant, max_gradients=gradients)
    losses = {
        f"{name}, {where}": losses_each(posed, protocol)
        for name, protocol in (("constant", constant), ("plan", plan.protocol))
        for where, posed in (("planned on", problem), ("unseen", others))
    }
    row = {name: float(x.mean()) for name, x in losses.items()}
    gain = losses["plan, unseen"] - losses["constant, unseen"]
    row |= plus_minus(gain, "plan − constant, unseen")
    return {"plans": [row | {"gradients": plan.statistics["gradients"]}]}
