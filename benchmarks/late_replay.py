"""Late replay: the rule that the optima of real networks suggest, on data it was not found on.

Two of three of the theory's plans at γ = 0.2, transferred in `replan figure networks`, train on the
new task alone for half of the time and replay half and half then, and they gain where a step of SGD
takes one sample. As a rule: the new task alone for a part of the training, then all tasks in equal
shares. It was found on classes 0, 5, 2 and 7 of Fashion-MNIST; here it meets other ones, and
CIFAR-10. Every contender has the same trials on 20 realisations (three shares or parts × eight
rates, refined; the rate falls to 0), the factor of its rates is chosen on 40 further ones, and 100
unseen ones and test images decide.

Needs `replan data fetch fashion-mnist` and `cifar10`. Took half an hour with one worker on a busy
machine; finished cells are kept in .cache.
"""

from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from common import save
from replan.statistics import mean_interval
from replan.networks import mixed_tasks, test
from replan.paper import _contenders as contenders
from replan.paper._contenders import BATCH, SINGLE
from replan.paper._images import images_of
from replan.paper.networks import FULL
from replan.strategies import focus_then_replay, interleaved
from replan.sweeps import sweep

FIXED, FOCUS, LATE = "fixed share", "focus-then-replay", "late replay"
PLANNED, VALIDATED, TESTED = 20, 40, 100
RATES = np.geomspace(0.02, 2.56, 8)
SHARES, PARTS = [0.1, 0.3, 0.5], [0.25, 0.5, 0.75]
NAMES = ("data", "classes", "similarity", "samples", "memory")
CELLS = [
    *(
        ("fashion-mnist", classes, similarity, samples, memory)
        for classes in ("1 3 4 6", "8 9 0 1")
        for similarity in (0.2, 0.8)
        for samples in (250, 1000)
        for memory in ("50", "1000")
    ),
    *(("cifar10", "0 5 2 7", similarity, 500, "200") for similarity in (0.2, 0.8)),
]


def case(data: str, classes: str, similarity: float, samples: int, memory: str) -> dict:
    """Return what each contender chose, and its losses on unseen realisations."""
    labels = [int(word) for word in classes.split()]
    tasks = mixed_tasks(
        images_of(data), similarity, upstream=labels[:2], auxiliary=labels[2:],
        normalise=FULL["normalise"], test_samples=FULL["test_samples"],
    )  # fmt: skip
    problem, further = (
        contenders._problem(tasks, samples, memory, FULL, FULL, which)
        for which in (range(PLANNED), range(PLANNED, PLANNED + VALIDATED))
    )
    meeting = cache(partial(contenders._meeting, problem, 1.0))

    def shares(contender: str, variant: float, lr: float) -> Any:
        if contender == LATE:
            return focus_then_replay(problem, focus=variant * samples, shares=[0.5, 0.5])
        mixed = [variant, 1 - variant]
        if contender == FOCUS:
            return focus_then_replay(problem, focus=meeting(lr), shares=mixed)
        return interleaved(problem, shares=mixed)

    def protocol(contender: str, step: str, variant: float, lr: float) -> Any:
        made = contenders._rated(problem, 1.0, lr, shares(contender, variant, lr))
        return made if step == BATCH else contenders._single(made)

    found, factors = {}, {}
    for step in (SINGLE, BATCH):
        for contender in (FIXED, FOCUS, LATE):
            family = partial(protocol, contender, step)
            variants = PARTS if contender == LATE else SHARES
            best = contenders._tune(problem, family, variants, RATES, near=True)
            name = f"{contender}, {step}"
            factors[name] = contenders._best_factor(further, best.protocol)
            found[name] = contenders._times(best.protocol, factors[name])
    tested = test(further, found, realisations=TESTED, stability=1)
    return {
        name: {
            "losses": tested.weighted(name).tolist(),
            "share": float(one.mean_shares[0]),
            "focus": float(one.focus_length(1) / one.duration),
            "lr": float(one.by_task("lr").max()),
            "factor": factors[name],
            "broken": sum(map(len, tested.broken(name).values())),
        }
        for name, one in found.items()
    }


def row(cell: tuple, result: dict, step: str) -> dict:
    """Return a cell's row: losses below those of the fixed share, in per cent, paired."""
    fixed = np.array(result[f"{FIXED}, {step}"]["losses"])
    found = dict(zip(NAMES, cell, strict=True)) | {"loss, fixed share": f"{fixed.mean():.4f}"}
    for contender in (FOCUS, LATE):
        gap = mean_interval(fixed - np.array(result[f"{contender}, {step}"]["losses"]))
        mean, width = (100 * x / fixed.mean() for x in (gap.mean, gap.half_width))
        found[f"{contender}, % below"] = f"{mean:+.1f} ± {width:.1f}"
    late, fixed_one = result[f"{LATE}, {step}"], result[f"{FIXED}, {step}"]
    return found | {
        "old, fixed %": round(100 * fixed_one["share"]),
        "old, late %": round(100 * late["share"]),
        "alone, late %": round(100 * late["focus"]),
        "broken": sum(one["broken"] for name, one in result.items() if name.endswith(step)),
    }


if __name__ == "__main__":
    kept = Path(__file__).parents[1] / ".cache" / "late-replay"
    results = sweep(case, [dict(zip(NAMES, c, strict=True)) for c in CELLS], cache=kept)
    titles = {SINGLE: "one sample in a step", BATCH: "a batch of both tasks in a step"}
    save(
        "late_replay",
        {
            title: [row(cell, result, step) for cell, result in zip(CELLS, results, strict=True)]
            for step, title in titles.items()
        },
    )
