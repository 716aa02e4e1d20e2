"""Fig. 7: the mean loss on Fashion-MNIST against similarity, for five sizes of task 2."""

from typing import Any

import numpy as np
import pandas as pd

from reproduction.base import Claim, Run, Tables, below, grid
from reproduction.drawing import draw_interval, figure, legend_above, plain_ticks
from reproduction.images import strategies
from reproduction.images.strategies import MIXED, STYLES, TRAINING

FULL = {
    "seeds": 100,
    "sizes": [500, 1000, 2000, 4000, 8000],
    "similarities": [round(0.05 * i, 2) for i in range(1, 20)],
    **MIXED,
    **TRAINING,
}
QUICK = FULL | {
    "seeds": 10, "sizes": [250, 1000, 4000], "similarities": [0.1, 0.5, 0.9], "first": 4000,
    "test_samples": 300,
}  # fmt: skip


def compute(
    run: Run, *, seeds: int, sizes: list[int], similarities: list[float], **settings: Any
) -> Tables:
    """Return the table `losses`: one run passes through all sizes."""
    tasks, points = {name: settings[name] for name in MIXED}, grid(similarity=similarities)
    return {"losses": strategies.learn(run, "fashion-mnist", points, sizes, seeds, tasks, settings)}


def draw(tables: Tables) -> Any:
    """Draw the mean loss against similarity, one panel per size, means with 95 % intervals."""
    losses, picture = tables["losses"], figure(7.2, 2.5)
    sizes = sorted(losses["step"].unique())
    axes = np.atleast_1d(picture.subplots(1, len(sizes), sharey=True))
    for panel, size in zip(axes, sizes, strict=True):
        for name, look in STYLES.items():
            rows = losses[(losses["strategy"] == name) & (losses["step"] == size)]
            table = rows.pivot(index="seed", columns="similarity", values="mean")
            draw_interval(panel, table, **look, label=name)
        panel.set_title(f"{size:,} samples", fontsize=9)
        panel.set(yscale="log", xlim=(0, 1), xticks=[0, 0.5, 1])
    plain_ticks(axes[0])
    axes[0].set_ylabel("mean test loss")
    picture.supxlabel("task similarity γ", fontsize=9)
    legend_above(picture, axes[0])
    return picture


def claims(tables: Tables) -> list[Claim]:
    """Check what the paper says about Fig. 7, on paired differences, similarity by similarity."""
    rows = []
    for (similarity, size), here in tables["losses"].groupby(["similarity", "step"]):
        no_replay, mixed, rule = (
            here[here["strategy"] == name].set_index("seed")["mean"] for name in STYLES
        )
        better = no_replay if no_replay.mean() < mixed.mean() else mixed
        rows.append(
            {
                "similarity": similarity, "size": size,
                "without": below(no_replay - mixed), "with": below(mixed - no_replay),
                "gap": no_replay.mean() / mixed.mean() - 1,
                "excess": rule.mean() / better.mean() - 1,
                "close": below(rule - 1.01 * better),
                "rule": rule.mean(), "no-replay": no_replay.mean(), "interleaved": mixed.mean(),
            }
        )  # fmt: skip
    table = pd.DataFrame(rows)
    small, large = max(table["size"].min(), 1000), table["size"].max()
    first, last = table[table["size"] <= small], table[table["size"] == large]
    mean = table.groupby("similarity")[["rule", "no-replay", "interleaved"]].mean()
    other = mean[["no-replay", "interleaved"]].min(axis=1)
    excess = table.groupby("similarity")["excess"]
    return [
        Claim(
            "For a small task 2 it is best not to replay.",
            f"below interleaved up to {small} samples, 95 % intervals of paired differences",
            _all(first, "without"),
            {"no-replay / interleaved - 1": first["gap"]},
            "similarity",
        ),
        Claim(
            "For a large task 2 it is worse not to replay.",
            f"above interleaved at {large} samples, 95 % interval of paired differences",
            last["with"].to_list(),
            {"no-replay / interleaved - 1": last["gap"]},
            "similarity",
        ),
        Claim(
            "Focus-then-replay is as good as the better of the two at every size.",
            "less than 1 % above the better one at all sizes, 95 % intervals",
            _all(table, "close"),
            {
                "excess over the better one, largest over sizes": excess.max(),
                "smallest over sizes": excess.min(),
            },
            "similarity",
        ),
        Claim(
            "Focus-then-replay is the best one across sizes.",
            "the smallest loss of the three on average over the sizes (without an interval)",
            (mean["rule"] <= other).to_list(),
            {"best other / focus-then-replay - 1": other / mean["rule"] - 1},
            "similarity",
        ),
    ]


def _all(table: pd.DataFrame, column: str) -> list[bool | None]:
    """Return, for each similarity, whether all of a column is true; None where that is open."""
    groups = (here[column].to_list() for _, here in table.groupby("similarity"))
    return [False if False in values else None if None in values else True for values in groups]
