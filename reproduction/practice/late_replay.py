"""Late replay: the rule that the optima of real networks suggest, on data it was not found on.

Two of three of the theory's plans at γ = 0.2, transferred in the map of networks, train on the new
task alone for half of the time and replay half and half then, and they gain where a step of SGD
takes one sample. As a rule: the new task alone for a part of the training, then all tasks in equal
shares. It was found on classes 0, 5, 2 and 7 of Fashion-MNIST; here it meets other ones, and
CIFAR-10. Every contender has the same trials on 20 realisations (three shares or parts × eight
rates, refined; the rate falls to 0), the factor of its rates is chosen on 40 further ones, and 100
unseen ones and test images decide. Takes half an hour on a core.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import numpy as np

import replan
from replan.strategies import focus_then_replay, interleaved, power_law_lr
from reproduction.base import Run, Tables, collect, grid, mean_interval
from reproduction.images import contenders, networks
from reproduction.images.contenders import BATCH, SINGLE
from reproduction.images.data import fetch

FIXED, FOCUS, LATE = "fixed share", "focus-then-replay", "late replay"
FULL: dict[str, Any] = {
    "fashion": ["1 3 4 6", "8 9 0 1"],  # classes
    "cifar": ["0 5 2 7"],
    "similarities": [0.2, 0.8],
    "samples": [250, 1000],
    "memories": ["50", "1000"],
    "planned": 20,
    "validated": 40,
    "tested": 100,
    "rates": 8,
    "max_lr": 2.56,
    "parts": [0.25, 0.5, 0.75],
} | {
    key: networks.FULL[key]
    for key in (
        "shares", "min_lr", "steps", "hidden", "first", "first_lr", "normalise", "test_samples"
    )
}  # fmt: skip
QUICK = FULL | {
    "fashion": ["1 3 4 6"], "cifar": [], "similarities": [0.2], "samples": [250],
    "memories": ["50"],
    "planned": 3, "validated": 3, "tested": 10, "rates": 4, "parts": [0.5], "shares": [0.3],
    "first": 2000, "test_samples": 300,
}  # fmt: skip


def compute(
    run: Run,
    *,
    fashion: list[str],
    cifar: list[str],
    similarities: list[float],
    samples: list[int],
    memories: list[str],
    **search: Any,
) -> Tables:
    """Return the table `gains`: losses below those of the fixed share, in per cent, paired."""
    cells = grid(
        data=["fashion-mnist"], classes=fashion, similarity=similarities, samples=samples,
        memory=memories,
    )  # fmt: skip
    cells += grid(
        data=["cifar10"], classes=cifar, similarity=similarities, samples=[500], memory=["200"]
    )
    for data in {cell["data"] for cell in cells}:
        fetch(data)
    return collect(run, case, cells, search=search)


def case(
    data: str,
    classes: str,
    similarity: float,
    samples: int,
    memory: str,
    search: dict[str, Any],
) -> dict[str, Any]:
    """Return a row for each kind of step: what was chosen, and how far losses are below others."""
    tasks = contenders.cell_tasks(
        data, classes, similarity, search["normalise"], search["test_samples"]
    )
    ends = np.cumsum([0, search["planned"], search["validated"], search["tested"]])
    problem, further, unseen = (
        contenders.make_problem(tasks, samples, memory, search, range(ends[i], ends[i + 1]), kind)
        for i, kind in enumerate(("held_out", "held_out", "test"))
    )
    meeting = cache(partial(contenders.meeting_time, problem, 1.0))
    rates = np.geomspace(search["min_lr"], search["max_lr"], search["rates"])

    def protocol(contender: str, step: str, variant: float, lr: float) -> replan.Protocol:
        mixed = [0.5, 0.5] if contender == LATE else [variant, 1 - variant]
        shares = interleaved(problem, shares=mixed)
        if contender != FIXED:
            focus = variant * samples if contender == LATE else meeting(lr)
            shares = focus_then_replay(problem, focus=focus, shares=mixed)
        made = power_law_lr(problem, initial=lr, exponent=1.0, protocol=shares)
        return made if step == BATCH else contenders.single(made)

    rows = []
    for step in (SINGLE, BATCH):
        chosen, losses = {}, {}
        for contender in (FIXED, FOCUS, LATE):
            variants = search["parts"] if contender == LATE else search["shares"]
            family = partial(protocol, contender, step)
            best = contenders.tune(problem, family, variants, rates, near=True).protocol
            factor = contenders.best_factor(further, best)
            chosen[contender] = contenders.times(best, factor)
            losses[contender] = contenders.losses_each(unseen, chosen[contender])
        fixed = losses[FIXED]
        row = {"step": step, "loss, fixed share": fixed.mean()}
        for contender in (FOCUS, LATE):
            gain = [100 * x / fixed.mean() for x in mean_interval(fixed - losses[contender])]
            row |= {f"{contender}, % below": gain[0], f"{contender} ±": (gain[2] - gain[1]) / 2}
        rows.append(
            row
            | {
                "old, fixed %": 100 * chosen[FIXED].mean_shares[0],
                "old, late %": 100 * chosen[LATE].mean_shares[0],
                "alone, late %": 100 * chosen[LATE].focus_length(1) / samples,
                "diverged": sum(int(np.isinf(one).sum()) for one in losses.values()),
            }
        )
    return {"gains": [{key: _json(x) for key, x in row.items()} for row in rows]}


def _json(x: Any) -> Any:
    return x if isinstance(x, str | int) else float(x) if np.isfinite(x) else None
