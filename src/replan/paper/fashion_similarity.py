"""Fig. 7: the mean loss on Fashion-MNIST against similarity, for five sizes of task 2."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from replan._common import plotting
from replan.paper import _images as images
from replan.paper._parts import Run, Tables
from replan.paper.claims import Claim

FULL = {
    "seeds": 100,
    "sizes": [500, 1000, 2000, 4000, 8000],
    "similarities": [round(0.05 * i, 2) for i in range(1, 20)],
    **images.MIXED,
    **images.TRAINING,
}
QUICK = FULL | {
    "seeds": 10, "sizes": [250, 1000, 4000], "similarities": [0.1, 0.5, 0.9], "first": 4000,
    "test_samples": 300,
}  # fmt: skip


def compute(
    run: Run, *, seeds: int, sizes: list[int], similarities: list[float], **settings: Any
) -> Tables:
    """Return the table `losses`: one run passes through all sizes."""
    tasks = [
        {"similarity": gamma} | {name: settings[name] for name in images.MIXED}
        for gamma in similarities
    ]
    return {"losses": images.learn(run, "fashion-mnist", tasks, sizes, seeds, settings)}


def draw(tables: Tables) -> plotting.Picture:
    """Draw the mean loss against similarity, one panel per size, means with 95 % intervals."""
    losses = tables["losses"]
    sizes = sorted(losses["step"].unique())
    with plotting.figure(width=7.2, height=2.5) as figure:
        axes = np.atleast_1d(figure.subplots(1, len(sizes), sharey=True))
        for panel, size in zip(axes, sizes, strict=True):
            for name, look in images.STYLES.items():
                rows = losses[(losses["strategy"] == name) & (losses["step"] == size)]
                table = rows.pivot(index="seed", columns="similarity", values="mean")
                images.draw_interval(panel, table, look | {"label": name})
            panel.set_title(f"{size:,} samples", fontsize=9)
            panel.set(yscale="log", xlim=(0, 1), xticks=[0, 0.5, 1])
        plotting.plain_ticks(axes[0])
        axes[0].set_ylabel("mean test loss")
        figure.supxlabel("task similarity γ", fontsize=9)
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=3)
    return figure


def claims(tables: Tables) -> list[Claim]:
    """Check what the paper says about Fig. 7, on paired differences, similarity by similarity."""
    rows = []
    for (similarity, size), here in tables["losses"].groupby(["similarity", "step"]):
        no_replay, mixed, rule = (
            here[here["strategy"] == name].set_index("seed")["mean"] for name in images.STYLES
        )
        better = no_replay if no_replay.mean() < mixed.mean() else mixed
        rows.append(
            {
                "similarity": similarity, "size": size,
                "first": images.below(no_replay - mixed),
                "second": images.below(mixed - no_replay),
                "gap": no_replay.mean() / mixed.mean() - 1,
                "excess": rule.mean() / better.mean() - 1,
                "close": images.below(rule - 1.01 * better),
                "rule": rule.mean(), "no-replay": no_replay.mean(), "interleaved": mixed.mean(),
            }
        )  # fmt: skip
    table = pd.DataFrame(rows)
    small, large = max(table["size"].min(), 1000), table["size"].max()
    first, last = table[table["size"] <= small], table[table["size"] == large]
    mean = table.groupby("similarity")[["rule", "no-replay", "interleaved"]].mean()
    return [
        Claim(
            "For a small task 2 it is best not to replay.",
            f"below interleaved up to {small} samples, 95 % intervals of paired differences",
            _all(first, "first"),
            {"no-replay / interleaved - 1": first["gap"]},
            "similarity",
        ),
        Claim(
            "For a large task 2 it is worse not to replay.",
            f"above interleaved at {large} samples, 95 % interval of paired differences",
            last["second"].to_list(),
            {"no-replay / interleaved - 1": last["gap"]},
            "similarity",
        ),
        Claim(
            "Focus-then-replay is as good as the better of the two at every size.",
            "less than 1 % above the better one at all sizes, 95 % intervals",
            _all(table, "close"),
            {
                "excess over the better one, largest over sizes": table.groupby("similarity")[
                    "excess"
                ].max(),
                "smallest over sizes": table.groupby("similarity")["excess"].min(),
            },
            "similarity",
        ),
        Claim(
            "Focus-then-replay is the best one across sizes.",
            "the smallest loss of the three on average over the sizes (without an interval)",
            (mean["rule"] <= mean[["no-replay", "interleaved"]].min(axis=1)).to_list(),
            {
                "best other / focus-then-replay - 1": mean[["no-replay", "interleaved"]].min(axis=1)
                / mean["rule"]
                - 1
            },
            "similarity",
        ),
    ]


def _all(table: pd.DataFrame, column: str) -> list[bool | None]:
    """Return, for each similarity, whether all of a column is true; None where that is open."""
    found = []
    for _, here in table.groupby("similarity"):
        values = here[column].to_list()
        false = any(x is False for x in values)
        found.append(False if false else None if any(x is None for x in values) else True)
    return found
