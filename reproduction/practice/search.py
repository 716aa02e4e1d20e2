"""The search for the settings of a contender: all choices, on the same tuning seeds."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from reproduction.base import Run


def search(
    run: Run, case: Callable[..., Any], choices: list[dict[str, Any]], seeds: list[int],
    **common: Any,
) -> tuple[dict[str, Any], pd.DataFrame]:  # fmt: skip
    """Return the choice with the lowest mean loss over the seeds, and the loss of every choice.

    A choice with a run that diverged, whose loss is None, has an infinite loss.
    """
    results = run(case, [common | x | {"seed": seed} for x in choices for seed in seeds])
    losses = np.array([result["loss"] for result in results], float).reshape(len(choices), -1)
    means = np.nan_to_num(losses.mean(axis=1), nan=np.inf)
    return choices[int(np.argmin(means))], pd.DataFrame(choices).assign(loss=means)
