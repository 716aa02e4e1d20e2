"""Late replay: the rule that the optima of real networks suggest, on data it was not found on.

Two of three of the theory's plans at γ = 0.2, transferred in the map of networks, train on the new
task alone for half of the time and replay half and half then, and they gain where a step of SGD
takes one sample. As a rule: the new task alone for a part of the training, then all tasks in equal
shares. It was found on classes 0, 5, 2 and 7 of Fashion-MNIST; here it meets other ones, and
CIFAR-10. Every contender has the same trials on 20 realisations (three shares or parts × 15 rates;
the rate falls to 0), the factor of its rates is chosen on 40 further ones, and 100 unseen ones and
test images decide. Takes half an hour on a core.
"""

from typing import Any

import pandas as pd

from reproduction.base import Run, Tables, collect, grid, plus_minus
from reproduction.images import networks
from reproduction.images.data import fetch

_SHARED = "shares", "min_lr", "steps", "hidden", "first", "first_lr", "test_samples"
FULL: dict[str, Any] = {
    "fashion": ["1 3 4 6", "8 9 0 1"],  # classes
    "cifar": ["0 5 2 7"],
    "similarities": [0.2, 0.8],
    "samples": [250, 1000],
    "memories": ["50", "1000"],
    "planned": 20,
    "validated": 40,
    "tested": 100,
    "rates": 15,
    "max_lr": 2.56,
    "parts": [0.25, 0.5, 0.75],
} | {key: networks.FULL[key] for key in _SHARED}
QUICK = FULL | {
    "fashion": ["1 3 4 6"], "cifar": [], "similarities": [0.2], "samples": [250],
    "memories": ["50"], "planned": 3, "validated": 3, "tested": 10, "rates": 4, "parts": [0.5],
    "shares": [0.3], "first": 2000, "test_samples": 300,
}  # fmt: skip

CELL = networks.CELL
_RULES = networks.FIXED, networks.FOCUS, networks.LATE
_KEYS = [(name, "decayed", step) for step in (networks.SINGLE, networks.BATCH) for name in _RULES]


def compute(
    run: Run, *, fashion: list[str], cifar: list[str], similarities: list[float],
    samples: list[int], memories: list[str], **search: Any,
) -> Tables:  # fmt: skip
    """Return the table `gains`: how far losses are below those of the best fixed share, paired."""
    axes = [["fashion-mnist"], fashion, similarities, samples, memories]
    others = [["cifar10"], cifar, similarities, [500], ["200"]]
    cells = [x for some in (axes, others) for x in grid(**dict(zip(CELL, some, strict=True)))]
    for data in {cell["data"] for cell in cells}:
        fetch(data)
    tables = collect(run, networks.case, cells, contenders=_KEYS, search=search)
    rows = []
    for *cell, losses in networks.cells_of(tables):
        for key, own in losses.items():
            fixed = losses[(networks.FIXED, *key[1:])]
            who = dict(zip([*CELL, *networks.WHO], [*cell, *key], strict=True))
            rows.append(who | plus_minus(100 * networks.gain(own, fixed), "% below"))
    return {"gains": tables["contenders"].merge(pd.DataFrame(rows))}
